"""What every verb is given: settings, streams, who may change what, and the way to a host."""

from __future__ import annotations

import json as json_module
import os
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from specdash.errors import Refused

if TYPE_CHECKING:
    from specdash.config.hosts import Host
    from specdash.config.settings import Settings
    from specdash.control.plans import Plan
    from specdash.host.link import Link


@dataclass
class Context:
    """One command's surroundings. Data goes to `out`, narration and questions to `err`."""

    config: str | None = None
    """Config file named on the command line."""
    read_only: bool = False
    json: bool = False
    yes: bool = False
    confirmed: str = ""
    """What `--confirm` gave: the name that a dangerous plan wants typed."""
    out: TextIO = field(default_factory=lambda: sys.stdout)
    err: TextIO = field(default_factory=lambda: sys.stderr)
    stdin: TextIO = field(default_factory=lambda: sys.stdin)
    began: float = field(default_factory=time.monotonic)
    """Local monotonic time at which this command began: what it promises in seconds counts from here."""

    def __post_init__(self) -> None:
        if self.config:
            # One name for all that looks beside the config file: profiles, secrets, child processes.
            os.environ["SPECDASH_CONFIG"] = str(Path(self.config).expanduser().absolute())

    @cached_property
    def settings(self) -> Settings:
        """Read once, when first asked for. Raises ConfigError. Its `read-only` counts like the option."""
        from specdash.config.settings import load

        settings = load(Path(self.config).expanduser() if self.config else None)
        self.read_only = self.read_only or settings.read_only
        return settings

    @property
    def interactive(self) -> bool:
        """Somebody can be asked."""
        return self.stdin.isatty() and self.err.isatty()

    @property
    def colour(self) -> bool:
        """Whether `out` takes colours: a terminal, and NO_COLOR is not set."""
        return self.out.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"

    @property
    def ascii(self) -> bool:
        """Whether `out` can take no more than ASCII."""
        return (getattr(self.out, "encoding", None) or "ascii").lower().replace("-", "") != "utf8"

    def print(self, *lines: str) -> None:
        """Data, line by line."""
        for line in lines:
            print(line, file=self.out)

    def print_bytes(self, data: bytes) -> None:
        """Data that must arrive byte for byte, where `out` can take bytes."""
        buffer = getattr(self.out, "buffer", None)
        if buffer is None:
            self.out.write(data.decode("utf-8", "surrogateescape"))
            return
        self.out.flush()
        buffer.write(data)
        buffer.flush()

    def say(self, *lines: str) -> None:
        """Narration: what is going on, warnings, hints."""
        for line in lines:
            print(line, file=self.err, flush=True)

    def print_json(self, data: Any) -> None:
        """One JSON document. ASCII, so that it survives every terminal and every byte."""
        print(json_module.dumps(data, indent=2, default=str), file=self.out)

    def host(self, name: str) -> Host:
        """A host by name. Raises HostUnknown."""
        return self.settings.host(name)

    async def open_link(self, host_name: str, *, timeout_s: float = 15) -> Link:
        """Connects. An unknown host key is shown and asked about where somebody can answer, else refused."""
        from specdash.host.open import open_link

        ask = self._ask_host_key if self.interactive else None
        return await open_link(self.host(host_name), ask=ask, timeout_s=timeout_s)

    async def confirm(self, plan: Plan) -> None:
        """Shows what the plan does and asks. Returns when it may run; raises Refused, nothing changed."""
        from specdash.control.plans import Danger

        if plan.danger is not Danger.NONE:
            self.require_writable(plan.host)
        self.say(*plan_lines(plan))
        if plan.blocked:
            first = plan.blocked[0]
            raise Refused(f"Not done: {first.sentence}", first.remedy)
        if plan.danger is Danger.NONE:
            return
        if plan.typed_name and plan.confirmed_by(self.confirmed):
            return
        if self.yes and not plan.typed_name:
            return
        if not self.interactive:
            # A name is asked for while requests run: the next second neither alone might be what is wanted.
            how = f"--yes --confirm {plan.typed_name}" if plan.typed_name else "--yes"
            raise Refused("Not done: nobody is here to confirm it.", f"Add {how}.")
        if plan.typed_name:
            if not plan.confirmed_by(await self._ask(f'Type "{plan.typed_name}" to go on: ')):
                raise Refused("Not done: not confirmed.")
        elif (await self._ask("Go on? [y/N] ")).lower() not in ("y", "yes"):
            raise Refused("Not done: not confirmed.")

    def require_writable(self, host_name: str = "") -> None:
        """Raises Refused where specdash, its config or the host is read-only."""
        settings = self.settings
        if self.read_only:
            raise Refused(
                "Not done: read-only is on.", "Leave out --read-only, or read-only = true in the config."
            )
        host = settings.hosts.get(host_name)
        if host is not None and host.read_only:
            raise Refused(
                f"Not done: the host {host_name} is read-only.", "See read-only in its config table."
            )

    async def _ask_host_key(self, host: str, fingerprint: str) -> bool:
        self.say(f"The host key of {host} is not known. Its fingerprint is", f"  {fingerprint}")
        return await self._ask("Remember it and connect? [yes/no] ") == "yes"

    async def _ask(self, question: str) -> str:
        import asyncio

        self.err.write(question)
        self.err.flush()
        # Not a thread that reads: it cannot be ended, so ^C at a question would wait for an Enter.
        ready = asyncio.Event()
        loop = asyncio.get_running_loop()
        try:
            waits_on = self.stdin.fileno()
            loop.add_reader(waits_on, ready.set)
        except (OSError, ValueError):
            pass  # a file, or text in memory: reading it never waits
        else:
            try:
                await ready.wait()
            finally:
                loop.remove_reader(waits_on)
        line = self.stdin.readline()
        if not line:
            self.say("")
        return line.strip()


def plan_lines(plan: Plan) -> list[str]:
    """A plan in words: title, what dies, checks that are not ok, and each step with its effect."""
    lines = [f"{plan.title} ({plan.danger.value})"]
    lines += [f"  {note}" for note in plan.notes]
    marks: Mapping[str, str] = {"warn": "warning", "block": "blocked", "not_checked": "not checked"}
    for check in plan.checks:
        if check.status != "ok":
            lines.append(f"  {marks[check.status]}: {check.sentence} {check.remedy}".rstrip())
    for at, step in enumerate(plan.steps, 1):
        effect = f": {step.effect}" if step.effect else ""
        lines.append(f"  {at}. {step.title}{effect}")
    return lines


def plan_json(plan: Plan) -> dict[str, Any]:
    """A plan as data: schema `specdash/plan/1`."""
    return {
        "schema": "specdash/plan/1",
        "id": plan.id,
        "kind": plan.kind,
        "host": plan.host,
        "title": plan.title,
        "danger": plan.danger.name.lower(),
        "notes": list(plan.notes),
        "checks": [
            {"name": c.name, "status": c.status, "sentence": c.sentence, "remedy": c.remedy}
            for c in plan.checks
        ],
        "steps": [{"name": s.name, "title": s.title, "effect": s.effect} for s in plan.steps],
        "argv": list((plan.spec.get("run") or {}).get("argv", ())),
    }
