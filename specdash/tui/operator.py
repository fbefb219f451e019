"""The screen's way down: profiles from `config`, plans and probes from `control`, redaction from `sglang`.

Imports of control are made when first needed: none of them is on the way to the first paint.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from specdash.control.plans import Check, Danger, Plan, StepEvent
from specdash.errors import ConfigError, Refused, SpecdashError
from specdash.tui.ports import AlgorithmRow, ProbeView, ProfileRow, StacksView

if TYPE_CHECKING:
    from specdash.config.settings import Settings
    from specdash.control.probe import Probe
    from specdash.control.profile_text import Known
    from specdash.monitor.hub import Hub
    from specdash.monitor.state import ServerState
    from specdash.sglang.commandline import LaunchSpec


class ControlOperator:
    """`Operator` on the real hub. Read-only is refused here and again below, in `control.perform`."""

    def __init__(self, hub: Hub, settings: Settings, *, read_only: bool = False) -> None:
        self.hub = hub
        self.settings = settings
        self.read_only = read_only or settings.read_only
        self._hot: dict[str, str] = {}
        """Run → the hot switch that was last begun for it here."""

    # Profiles -----------------------------------------------------------------------------------------

    def profiles(self) -> Sequence[ProfileRow]:
        from specdash.config import inherit, paths

        ours = paths.packaged_profiles()
        found = sorted(inherit.names().items())
        # The demo has copies of its own: what it ships as `demo-*` is of no use on a real host.
        real = [
            (name, path) for name, path in found if not (name.startswith("demo-") and path.parent == ours)
        ]
        return [self._row(name, str(path)) for name, path in real]

    def _row(self, name: str, path: str) -> ProfileRow:
        from specdash.control import profiles

        try:
            resolved = profiles.load(name, self.settings)
        except SpecdashError as problem:
            return ProfileRow(name, path=path, problem=f"{problem.sentence} {problem.step}".strip())
        spec = resolved.spec
        target = spec.flag("--model-path", "--model")
        layers = [layer.name for layer in resolved.merged.layers]
        return ProfileRow(
            name,
            spec.algorithm,
            spec.drafter,
            str(target or ""),
            spec.host,
            tuple(reversed(layers[:-1])),
            path,
            resolved.merged.description,
        )

    def _spec(self, profile: str, host: str = "") -> LaunchSpec:
        from specdash.control import profiles

        spec = profiles.resolve(profile, self.settings)
        return replace(spec, host=host) if host else spec

    def command(self, profile: str) -> str:
        from specdash.sglang import shell_line

        return str(shell_line.format_line(self._spec(profile)))

    def profile_lines(self, profile: str) -> list[str]:
        spec = self._spec(profile)
        lines = [f"host {spec.host}", f"python {spec.python}", f"launcher {' '.join(spec.launcher)}"]
        lines += [f"cwd {spec.cwd}"] if spec.cwd else []
        lines += [f"log {spec.log}"] if spec.log else []
        for option, value in spec.flags:
            lines.append(option if value is True else f"{option} {value}")
        lines += [f"{option} ({reference})" for option, reference in spec.secret_flags.items()]
        lines += [f"{name}={value}" for name, value in spec.env.items()]
        lines += [f"{name}=({reference})" for name, reference in spec.secret_env.items()]
        return lines

    # Plans --------------------------------------------------------------------------------------------

    def can_change(self, host: str) -> str:
        if self.read_only or getattr(self.hub, "read_only", False):
            return "specdash runs read-only."
        known = self.hub.hosts.get(host)
        return f"{host} is read-only in the config." if known is not None and known.read_only else ""

    def _writable(self, host: str) -> None:
        refused = self.can_change(host)
        if refused:
            raise Refused(f"Not done: {refused}", "Leave out --read-only, or change the config.")

    def _server(self, host: str, run: str) -> ServerState | None:
        state = self.hub.state.hosts.get(host)
        return state.servers.get(run) if state else None

    def _requests(self, host: str, run: str) -> int | None:
        server = self._server(host, run)
        return server.numbers.running.value if server else None

    async def _checks(self, host: str, spec: LaunchSpec, named: str, leaving: str = "") -> tuple[Check, ...]:
        from specdash.control.preflight import preflight

        checks = await preflight(self.hub.link(host), spec, leaving=leaving)
        if named and named != host:
            words = f"The profile names the host {named}; this plan is for {host}."
            checks = (
                *checks,
                Check("host", "warn", words, remedy=f"Choose {named} at the left if that was meant."),
            )
        return checks

    async def plan_launch(self, host: str, profile: str) -> Plan:
        from specdash.control import launch

        self._writable(host)
        named = self._spec(profile).host
        spec = self._spec(profile, host)
        checks = await self._checks(host, spec, named)
        return await launch.plan(self.hub.link(host), spec, checks=checks, precheck=False)

    async def plan_stop(self, host: str, run: str) -> Plan:
        from specdash.control import stop

        self._writable(host)
        return await stop.plan(self.hub.link(host), run, requests=self._requests(host, run))

    async def plan_switch(self, host: str, run: str, profile: str) -> Plan:
        from specdash.control import switch

        self._writable(host)
        named = self._spec(profile).host
        spec = self._spec(profile, host)
        checks = await self._checks(host, spec, named, leaving=run)
        return await switch.plan(
            self.hub.link(host), run, spec, checks=checks, requests=self._requests(host, run)
        )

    async def plan_hot(self, host: str, run: str, profile: str) -> Plan:
        from specdash.control import hostruns, hot_switch

        self._writable(host)
        link = self.hub.link(host)
        drafter = hot_switch.drafter_of(link, await hostruns.record(link, run), self._spec(profile))
        return await hot_switch.plan(link, run, drafter, requests=self._requests(host, run))

    async def attach(self, plan: Plan) -> AsyncIterator[StepEvent]:
        from specdash.control import hot_switch, switch
        from specdash.control.perform import perform

        self._writable(plan.host)
        link = self.hub.link(plan.host)
        if plan.kind == "hot_switch":
            events = hot_switch.attach(link, str(plan.spec["hot"]["run"]), plan.id)
        else:
            events = switch.attach(link, plan.id)
        async for event in perform(self.hub, plan, events):
            yield event

    async def check_profile(self, host: str, profile: str) -> Sequence[Check]:
        from specdash.control.preflight_facts import made
        from specdash.control.probe import probe
        from specdash.sglang import envcheck, flagcheck

        spec = self._spec(profile)
        found = await probe(self.hub.link(host), spec.python, spec.cwd, dict(spec.env))
        problems = list(envcheck.check(spec.flags, spec.env))
        if found.reading is None:
            why = found.problem or "there is no sglang to import"
            return (Check("flags", "not_checked", f"Not checked on {host}: {why}."),)
        problems = [*flagcheck.check(spec.flags, found.reading.flags), *problems]
        out = []
        for one in problems:
            remedy = f"Use {one.use}." if one.use else ""
            if not remedy and one.near:
                remedy = f"Did you mean {', '.join(one.near)}?"
            status = one.status if one.status in ("block", "not_checked") else "warn"
            out.append(made("flags", status, one.sentence, (one.flag,), remedy, one.category))
        if out:
            return out
        words = f"All {len(spec.flags)} flags are known to SGLang {found.reading.version} on {host}, and well-formed."
        return (Check("flags", "ok", words),)

    async def flags_of(self, host: str, profile: str) -> Known:
        from specdash.control.probe import probe, remembered
        from specdash.control.profile_text import Known

        python, cwd, env = "", "", {}
        try:
            spec = self._spec(profile)
        except SpecdashError:
            pass  # half written: the interpreter that the host's own settings name
        else:
            python, cwd, env = spec.python, spec.cwd, dict(spec.env)
            if spec.host in self.hub.state.hosts:
                host = spec.host
        try:
            found = await probe(self.hub.link(host), python, cwd, env)
        except (SpecdashError, TimeoutError) as problem:
            before = await asyncio.to_thread(remembered, host)
            if before is not None:
                return Known(host, before, remembered=True)
            why = str(problem) or "it did not answer in time."
            return Known(host, problem=f"Flags unknown: {host}: {why} Connect, then probe it (p).")
        if found.reading is None:
            return Known(host, problem=f"Flags unknown: on {host} {found.problem or 'there is no sglang'}.")
        return Known(host, found.reading)

    async def perform(self, plan: Plan, typed: str = "") -> AsyncIterator[StepEvent]:
        from specdash.control.perform import perform

        self._writable(plan.host)
        if not plan.confirmed_by(typed):
            raise Refused(f"Not done: “{plan.typed_name}” was not typed.", "Type it to confirm.")
        if plan.kind == "hot_switch":
            self._hot[str(plan.spec["hot"]["run"])] = plan.id
        async for event in perform(self.hub, plan):
            yield event

    async def unfinished(self, host: str) -> list[tuple[Plan, AsyncIterator[StepEvent]]]:
        """Switches that go on on the host, or stand still there, from an earlier specdash: each can be followed."""
        from specdash.control import switch

        link = self.hub.link(host)
        found: list[tuple[Plan, AsyncIterator[StepEvent]]] = []
        for one in await switch.listing(link):
            if one.get("end") or (self.can_change(host) and not one.get("alive")):
                continue
            ident = str(one["id"])
            title = str((one.get("plan") or {}).get("title") or one.get("title") or ident)
            plan = Plan(ident, "switch", host, title, Danger.NONE, ())
            # A living switch is only followed; one that stands still waits for the operator (attach or abort).
            found.append((plan, switch.follow(link, ident)))
        return found

    async def follow(self, plan: Plan, events: AsyncIterator[StepEvent]) -> AsyncIterator[StepEvent]:
        from specdash.control.perform import perform

        async for event in perform(self.hub, plan, events):
            yield event

    async def again(self, plan: Plan) -> AsyncIterator[StepEvent]:
        """A switch that was followed and got out of sight: all that its record on the host tells, and how it goes on."""
        from specdash.control import switch

        async for event in self.follow(plan, switch.follow(self.hub.link(plan.host), plan.id)):
            yield event

    async def abort(self, host: str, kind: str, ident: str) -> str:
        """Take a running action back. Returns what happens now; raises Refused where it has no way back."""
        from specdash.control import hot_switch, stop, switch

        self._writable(host)
        if kind == "switch":
            await switch.abort(self.hub.link(host), ident)
            return "The switch is being taken back."
        if kind == "hot_switch":
            run = next((run for run, one in self._hot.items() if one == ident), "")
            if run:
                await hot_switch.abort(self.hub.link(host), run, ident)
                return "The hot switch is being taken back."
        if kind == "stop" and self._stopping(host):
            return await stop.abort(self.hub.link(host), self._stopping(host))
        raise Refused("This cannot be taken back.", "A launch is ended by stopping its server: s.")

    def _stopping(self, host: str) -> str:
        state = self.hub.state.hosts.get(host)
        servers = state.servers.values() if state else ()
        return next((server.run.id for server in servers if server.status.stop_asked), "")

    async def answer(self, host: str, switch_id: str, word: str) -> None:
        from specdash.control import switch

        self._writable(host)
        await switch.answer(self.hub.link(host), switch_id, "keep" if word == "keep" else "roll_back")

    async def adoptable(self, host: str) -> list[tuple[str, str]]:
        """(name, what it is) of servers that others started."""
        from specdash.control import adopt

        found, _ = await adopt.find(self.hub.link(host))
        return [
            (one.name, f"pid {one.pid} {one.user} port {one.port} {one.model} {one.managed_by}".strip())
            for one in found
        ]

    async def plan_adopt(self, host: str, name: str) -> Plan:
        from specdash.control import adopt

        self._writable(host)
        found, _ = await adopt.find(self.hub.link(host))
        for one in found:
            if one.name == name:
                return adopt.plan(self.hub.link(host), one)
        raise Refused(f"Pid {name} is gone.", "Look again.")

    # Looking ------------------------------------------------------------------------------------------

    async def probe(self, host: str, profile: str) -> ProbeView:
        from specdash.control.probe import probe

        python, cwd, env = "", "", {}
        if profile:
            try:
                spec = self._spec(profile)
                python, cwd, env = spec.python, spec.cwd, dict(spec.env)
            except ConfigError as problem:
                return ProbeView(problem=problem.sentence, step=problem.step)
        return probe_view(await probe(self.hub.link(host), python, cwd, env))

    async def stacks(self, host: str, run: str) -> StacksView:
        from specdash.control import stacks

        found = await stacks.take(self.hub.link(host), run, keep=not self.can_change(host))
        return StacksView(found.text, len(found.processes), found.path, found.step)

    async def pulse(self, host: str, run: str) -> str:
        from specdash.control import pulse

        result = await pulse.tell(self.hub, host, run, keep=not self.can_change(host))
        others = result.get("running_before")
        beside = f" {others} other requests ran: this is not one stream alone." if others else ""
        return f"{result['sentence']}{beside}"

    def redact(self, line: bytes) -> bytes:
        from specdash.sglang import redact

        shown = redact.text(line.decode("utf-8", "surrogateescape"))
        return shown.encode("utf-8", "surrogateescape")


def probe_view(found: Probe) -> ProbeView:
    """What a probe found, as the probe screen shows it."""
    from specdash.sglang import notes

    winner = found.winner
    told = found.reading
    remarks = [f"Another sglang lies on the path: {copy.path}" for copy in found.copies if not copy.wins]
    if found.unread_sentence:
        remarks.append(f"Could not read: {found.unread_sentence}")
    if told is None:
        step = "Install SGLang there, or correct python or cwd in the profile."
        return ProbeView(
            python=f"{found.executable} (Python {found.python})",
            problem=found.problem or "There is no sglang to import.",
            step=step,
            notes=tuple(remarks),
        )
    rows = []
    if told.names is None:
        remarks.append("Which algorithms there are could not be read: any may be there.")
    for name in told.names or ():
        note = notes.get(name)
        aliases = tuple(alias for alias, meant in told.algorithms.aliases.items() if meant == name)
        where = told.algorithms.where(name)
        if note is None:
            rows.append(AlgorithmRow(name, aliases, changes=(f"in {where}",) if where else ()))
            continue
        changes = tuple(notes.changes(note, told.version))
        what = f"{note.what}{f' Since {note.since}.' if note.since else ''}"
        rows.append(
            AlgorithmRow(
                name, aliases, note.draft_sentence, what, (*changes, *((f"in {where}",) if where else ()))
            )
        )
    return ProbeView(
        told.version,
        winner.path if winner else "",
        f"{found.executable} (Python {found.python})",
        tuple(rows),
        tuple((answer.technique, answer.status, answer.sentence) for answer in told.theory),
        notes=tuple(remarks),
    )
