"""Launch a profile: the plan shows the exact command and folder; running it creates the run and waits for ready.

It parses no log: what happens is told by the run's supervisor on the host, which goes on without us.
"""

from __future__ import annotations

import contextlib
import json
import posixpath
import shlex
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass
from typing import Any

from specdash.config import secrets as config_secrets
from specdash.control import hostruns
from specdash.control.plans import Check, Danger, Plan, Step, StepEvent
from specdash.errors import ConfigError, Refused, RemoteError
from specdash.host.link import Link
from specdash.sglang.commandline import LaunchSpec

Resolve = Callable[[str], config_secrets.Secret]

KEY_FLAGS = ("--api-key",)
"""The flag whose value a client of the engine must send. An admin key opens the same endpoints."""
START_S = 30.0
KEEP_RUNS = 200
KEEP_BYTES = 20 << 30
"""What a host keeps of ended runs, oldest dropped first, looked after at each launch. Never one that lives."""
READY_S = 3600.0


@dataclass(frozen=True, slots=True)
class Prepared:
    """A run as `runs.create` wants it: run.json's content, and its files (secrets among them) by name."""

    run: dict[str, Any]
    files: dict[str, bytes]

    def call(self, base: str, *, set_aside: bool = True) -> tuple[dict[str, Any], bytes]:
        sizes = {name: len(data) for name, data in self.files.items()}
        params = {"base": base, "run": self.run, "files": sizes, "set_aside": set_aside}
        return params, b"".join(self.files.values())


async def plan(
    link: Link, spec: LaunchSpec, *, checks: tuple[Check, ...] = (), precheck: bool = True
) -> Plan:
    """What a launch will do, and cheap checks. Changes nothing. Raises ConfigError when the profile cannot be one."""
    run_id = hostruns.new_id(spec.profile)
    run = describe(link, spec, run_id)
    found = checks + (await prechecks(link, spec) if precheck else ())
    log = (
        f"; {run['log']} becomes a link to its log (a file that is there is set aside)" if run["log"] else ""
    )
    env = ", ".join([*sorted(spec.env), *(f"{name} (secret)" for name in sorted(spec.secret_env))])
    return Plan(
        id=run_id,
        kind="launch",
        host=link.name,
        title=f"Launch {spec.profile} on {link.name}",
        danger=Danger.CHANGES,
        steps=(
            Step(
                "start",
                "Create the run and start the server",
                f"in {run['cwd']}: {shlex.join(run['argv'])}",
                START_S,
            ),
            Step("ready", "Wait until a real generation comes back", f"port {run['http']['port']}", READY_S),
        ),
        checks=found,
        notes=(
            f"Run folder: {run['folder']}{log}.",
            f"Environment: {env or 'as the login has it'}.",
            "It goes on when specdash, the link or the login ends.",
        ),
        spec={"launch": spec.as_json(), "run_id": run_id, "run": run},
    )


def describe(link: Link, spec: LaunchSpec, run_id: str, by: str = "") -> dict[str, Any]:
    """run.json of a launch: the exact argv, where it runs, where it answers. No secret values."""
    if spec.hosts:
        where = ", ".join(dict.fromkeys(spec.hosts))
        raise Refused(
            f"{spec.profile} is launched in several parts, on {where}; this starts one server on {link.name}.",
            f"Launch it with: specdash launch {spec.profile}",
        )
    home = str(link.hello.get("home") or "/")
    folder = hostruns.run_folder(link, run_id)
    cwd = _absolute(spec.cwd or home, home, home)
    argv = spec.argv()
    if spec.secret_flags:
        if spec.flag("--config") is not None:
            raise ConfigError(
                f"{spec.profile}: SGLang takes one --config file, and specdash needs it for the secret flags.",
                "Put the secrets into that file, or its flags into the profile.",
            )
        argv = [*argv, "--config", f"{folder}/secrets.yaml"]
    try:
        address, port = spec.http()
    except ValueError as error:
        raise ConfigError(f"{spec.profile}: {error}.", "Correct it in the profile.") from None
    nodes, rank = spec.flag("--nnodes"), spec.flag("--node-rank")
    return {
        "id": run_id,
        "profile": spec.profile,
        "argv": argv,
        "spec": spec.as_json(),
        "cwd": cwd,
        "python": spec.python,
        "log": _absolute(spec.log, cwd, home) if spec.log else "",
        "http": {"host": address, "port": port, "tls": spec.flag("--ssl-certfile") is not None},
        "rules": hostruns.RULES,
        "target": str(spec.flag("--model-path", "--model") or ""),
        "algorithm": spec.algorithm,
        "drafter": spec.drafter,
        "env_names": sorted({*spec.env, *spec.secret_env}),
        "nnodes": int(nodes) if str(nodes or "").isdigit() else 1,
        "node_rank": int(rank) if str(rank or "").isdigit() else 0,
        "run_id_all": run_id,
        "started_by": by or hostruns.operator(),
        "folder": folder,
        "base": hostruns.base(link),
    }


async def prepare(link: Link, spec: LaunchSpec, run: Mapping[str, Any], resolve: Resolve) -> Prepared:
    """Resolve the secrets and pack all that the run folder needs."""
    env = {name: value.encode("utf-8", "surrogateescape") for name, value in spec.env.items()}
    for name, reference in spec.secret_env.items():
        env[name] = await _value(link, reference, resolve)
    files = {"supervisor.pyz": hostruns.program()}
    files["env"] = b"".join(
        name.encode("utf-8", "surrogateescape") + b"=" + value + b"\0" for name, value in env.items()
    )
    for name in env:
        if not name or "=" in name or "\0" in name or b"\0" in env[name]:
            raise ConfigError(f"{spec.profile}: {name!r} cannot be an environment variable.", "")
    lines = []
    for option, reference in spec.secret_flags.items():
        text = (await _value(link, reference, resolve)).decode("utf-8", "replace")
        lines.append(f"{option.lstrip('-')}: {json.dumps(text)}\n")  # a JSON string is a YAML string
        if option in KEY_FLAGS:
            files["auth"] = text.encode()
    if lines:
        files["secrets.yaml"] = "".join(lines).encode()
    plain = spec.flag(*KEY_FLAGS)
    if isinstance(plain, str) and "auth" not in files:
        files["auth"] = plain.encode()
    return Prepared({**run, "env_merge": True}, files)


async def _value(link: Link, reference: str, resolve: Resolve) -> bytes:
    secret = resolve(reference)
    if secret.host_path is not None:
        return (await hostruns.fetch(link, secret.host_path)).rstrip(b"\r\n")
    return (secret.value or "").encode("utf-8", "surrogateescape")


def _absolute(path: str, start: str, home: str) -> str:
    if path == "~" or path.startswith("~/"):
        return posixpath.normpath(home + path[1:])
    return posixpath.normpath(posixpath.join(start, path))


async def prechecks(link: Link, spec: LaunchSpec) -> tuple[Check, ...]:
    """Interpreter, working directory and port, asked of the host. Thin: `control.preflight` looks deeper."""
    home = str(link.hello.get("home") or "/")
    cwd = _absolute(spec.cwd or home, home, home)
    checks = [await _program_check(link, spec, cwd)]
    _, port = spec.http()
    held = await link.call("procs.listeners", {"port": port})
    if held["listening"]:
        who = ", ".join(
            f"pid {row['pid']} ({row['user']}) {' '.join(row['cmdline'] or [])[:120]}"
            for row in held["processes"]
        )
        checks.append(
            Check(
                "port",
                "block",
                f"Port {port} is held by {who or 'a process that is hidden from this user'}.",
                remedy="Stop it, or give the profile another port.",
                category="http_port_in_use",
            )
        )
    else:
        checks.append(Check("port", "ok", f"Port {port} is free."))
    return tuple(checks)


async def _program_check(link: Link, spec: LaunchSpec, cwd: str) -> Check:
    # `-c` puts the working directory first on sys.path just as `-m` does: a clone of sglang in it shadows the
    # installed one. find_spec of a top-level name imports nothing.
    code = "import importlib.util as u,sys;s=u.find_spec('sglang');print(s and (s.origin or list(s.submodule_search_locations)[0]))"
    python = spec.python or "python3"
    asked = {"argv": [python, "-c", code], "cwd": cwd, "env": dict(spec.env), "timeout": 20}
    try:
        answer = await link.call("exec", asked, timeout=30)
    except RemoteError as error:
        missing = "cwd" if error.code == "no_folder" else "python"
        return Check("interpreter", "block", error.sentence, remedy=f"Correct `{missing}` in the profile.")
    where = bytes(answer["blob"]).decode("utf-8", "replace").strip()
    if answer["code"] != 0:
        told = str(answer["stderr"]).strip().splitlines()[-1:] or ["no answer"]
        return Check(
            "interpreter",
            "block",
            f"{python} does not run: {told[0]}",
            remedy="Correct `python` in the profile.",
        )
    if where == "None":
        step = "Install SGLang there, or correct `python` in the profile."
        return Check("interpreter", "block", f"{python} has no sglang.", remedy=step, category="no_sglang")
    return Check("interpreter", "ok", f"{python} imports sglang from {where}.", evidence=(where,))


async def run(
    link: Link,
    plan: Plan,
    *,
    resolve: Resolve = config_secrets.resolve,
    wait: bool = True,
    force: bool = False,
) -> AsyncIterator[StepEvent]:
    """Create the run, then (with `wait`) follow it to ready or to its end. Repeating it starts nothing twice.

    Raises Refused when a check blocks (`force` overrides), and ends with `final` "done" or "failed".
    """
    if plan.blocked and not force:
        first = plan.blocked[0]
        raise Refused(f"{plan.title}: {first.sentence}", first.remedy)
    spec = LaunchSpec.from_json(plan.spec["launch"])
    run_id = str(plan.spec["run_id"])
    yield StepEvent(plan.id, "start", "running", f"Creating {plan.spec['run']['folder']}.")
    prepared = await prepare(link, spec, plan.spec["run"], resolve)
    params, blob = prepared.call(hostruns.base(link))
    try:
        made = await link.call("runs.create", params, timeout=60, blob=blob)
    except RemoteError as error:
        yield StepEvent(plan.id, "start", "failed", f"{error.sentence} {error.step}".strip(), final="failed")
        return
    if made["phase"] == "failed":
        said = f"{made.get('sentence')} {made.get('step') or ''}".strip()
        yield StepEvent(plan.id, "start", "failed", said, final="failed", data={"run": run_id})
        return
    aside = f" The old log went to {made['set_aside']}." if made.get("set_aside") else ""
    yield StepEvent(
        plan.id,
        "start",
        "done",
        f"Started as pid {made['pid']}.{aside}",
        made.get("started_boot_s"),
        final="" if wait else "done",
        data={"run": run_id, "pid": made["pid"]},
    )
    kept = {"base": hostruns.base(link), "keep": KEEP_RUNS, "max_bytes": KEEP_BYTES}
    with contextlib.suppress(RemoteError, TimeoutError):  # housekeeping must not fail a launch
        await link.call("runs.prune", kept, timeout=30)
    if wait:
        async for event in follow_to_ready(link, plan.id, run_id):
            yield event


async def follow_to_ready(link: Link, plan_id: str, run_id: str) -> AsyncIterator[StepEvent]:
    """The "ready" step of a run that has started; also for taking up a launch that somebody else began."""
    yield StepEvent(plan_id, "ready", "running", "Loading.", data={"run": run_id})
    async for record, events in hostruns.follow(link, run_id):
        for event in events:
            kind, at = event.get("event"), event.get("boot_s")
            if kind in ("listening", "probe_failed"):
                said = str(event.get("sentence") or f"It listens on port {event.get('port')}.")
                yield StepEvent(plan_id, "ready", "running", said, at, data={"run": run_id, "event": event})
            elif kind == "bind_failed":
                said = f"{event['sentence']} {event['step']}"
                yield StepEvent(
                    plan_id, "ready", "failed", said, at, "failed", {"run": run_id, "event": event}
                )
                return
            elif kind == "ready":
                took = at - record["started_boot_s"] if at and record.get("started_boot_s") else None
                said = "Ready: a real generation came back." + (f" It took {took:.0f} s." if took else "")
                yield StepEvent(plan_id, "ready", "done", said, at, "done", {"run": run_id, "took_s": took})
                return
        if record["phase"] in ("exited", "failed") or record.get("stop_asked"):
            yield StepEvent(
                plan_id,
                "ready",
                "failed",
                how_it_ended(record),
                record.get("ended_boot_s"),
                "failed",
                {
                    "run": run_id,
                    "exit_code": record.get("exit_code"),
                    "exit_signal": record.get("exit_signal"),
                },
            )
            return


def how_it_ended(record: Mapping[str, Any]) -> str:
    """One sentence on a run that did not get ready. The cause is in its log."""
    if record.get("exit_signal") is not None:
        what = f"The server was ended by signal {record['exit_signal']}"
    elif record.get("exit_code") is not None:
        what = f"The server exited with code {record['exit_code']}"
    elif record.get("phase") == "exited":
        what = "The server ended; how is not known"
    elif record.get("stop_asked"):
        return "A stop of this run was asked for while it was loading."
    else:
        return str(record.get("sentence") or "The server could not be started.")
    return f"{what} before it was ready. Its log says why: {record.get('folder')}/server.log."
