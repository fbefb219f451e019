"""What a queue does on the host beside its switches: look who serves, launch, clear away, start again what died."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from typing import Any

from specdash.config import secrets as config_secrets
from specdash.control import hostruns, launch, pulse, stop
from specdash.control.keeper import Keeper
from specdash.control.plans import Check, StepEvent
from specdash.control.queue import Queue, Row, Serving, same
from specdash.errors import LinkError, Refused, RemoteError, SpecdashError
from specdash.host.link import Link
from specdash.sglang.commandline import LaunchSpec

Tell = Callable[[str, str], None]
"""(profile or "", one sentence)."""
Preflight = Callable[[Link, LaunchSpec, str], Awaitable[tuple[Check, ...]]]
"""(link, spec, the run that will be gone) → checks."""
Explain = Callable[[Link, str], Awaitable[str]]
"""(link, run id) → why a run ended, by its log; empty when not known."""
ROUNDS = 3
PAUSE_S = 60.0


class TakenOver(Exception):
    """Somebody else acts on this host: `args[0]` says who."""


class NothingServes(Exception):
    """Neither the last good profile nor the base can be started."""


class Hands:
    """`save(queue)` is called whenever going on needs to know more. `tell` hears all that happens."""

    def __init__(
        self,
        queue: Queue,
        opener: Callable[[], Awaitable[Link]],
        *,
        tell: Tell,
        save: Callable[[Queue], None] = lambda queue: None,
        preflight: Preflight | None = None,
        explain: Explain | None = None,
        resolve: launch.Resolve = config_secrets.resolve,
        pause_s: float = PAUSE_S,
        first_wait_s: float = 1.0,
        read_only: bool = False,
    ) -> None:
        self.queue = queue
        self.read_only = read_only
        self.profile = ""
        self._tell, self._save = tell, save
        self._preflight, self._explain, self._resolve = preflight, explain, resolve
        self._pause_s = pause_s
        self.keeper = Keeper(opener, lambda text: tell(self.profile, text), first_wait_s=first_wait_s)

    async def _sure(self) -> Serving | None:
        """What serves, alive; brought back when it died. None only before the first launch of the queue."""
        await self._only_us()
        serving = self.queue.serving
        if serving is None:
            if self.queue.runs:
                await self._unbroken(self._recover())
            return self.queue.serving
        try:
            record = await self.keeper.keep(lambda link: hostruns.record(link, serving.run))
        except RemoteError:
            record = {}
        if record.get("stop_asked"):  # also one that still drains
            raise TakenOver(f"somebody stopped {serving.profile} ({serving.run}).")
        if record.get("alive"):
            return serving
        how = (
            launch.how_it_ended(record).replace(" before it was ready", "") if record else "Its run is gone."
        )
        for row in self.queue.rows:
            if row.run == serving.run and row.outcome == "served":
                row.outcome, row.why = "died", how
        self._tell(serving.profile, f"It served and is gone: {how}")
        await self._nothing_left()
        return self.queue.serving

    async def _only_us(self) -> None:
        """Raises TakenOver when a switch runs that is not ours. One of ours may still be closing its books."""
        for _ in range(40):
            answer = await self.keeper.keep(
                lambda link: link.call("switches.list", {"base": hostruns.base(link)})
            )
            busy = answer["running"]
            if not busy:
                return
            if busy["id"] not in {row.switch for row in self.queue.rows} | {self.queue.options.get("last")}:
                raise TakenOver(f"{busy['by']} switches here ({busy['title']}, {busy['id']}).")
            await asyncio.sleep(0.25)

    async def _in_place(self, row: Row, serving: Serving) -> None:
        self._tell(row.profile, "It serves: pulse on fixed prompts.")
        found = await self.keeper.keep(lambda link: pulse.measure(link, serving.run))
        serving.pulse = _plain(found)
        row.outcome, row.run = "served", serving.run
        row.tok_s, row.accept_length = found.get("tok_s"), found.get("accept_length")
        row.why = str(found.get("sentence") or "")
        if not found.get("ok"):
            row.outcome, row.why = "failed", f"It does not answer the pulse: {found.get('problem')}."
        self._tell(row.profile, row.why)

    async def _nothing_left(self) -> None:
        # Last good first: it is the one that the failed way back was for.
        serving, self.queue.serving = self.queue.serving, None
        self.queue.options["good"] = serving.spec if serving else None
        self._save(self.queue)
        await self._unbroken(self._recover())

    async def _cause(self, run_id: str) -> str:
        if self._explain is None:
            return ""
        explain = self._explain
        try:
            return await self.keeper.keep(lambda link: explain(link, run_id))
        except SpecdashError:
            return ""

    async def _unbroken(self, work: Coroutine[Any, Any, None]) -> None:
        """An interrupt waits until a server is up again; a second one does not."""
        task = asyncio.ensure_future(work)
        try:
            await asyncio.shield(task)
        except asyncio.CancelledError:
            self._tell("", "Nothing serves now: a server is started before this ends (^C again: leave now).")
            await task
            raise

    async def _recover(self) -> None:
        """What served last, or the base: cleared, launched, proven. Raises NothingServes after `ROUNDS`."""
        base, good = self.queue.base, self.queue.options.get("good")
        candidates = [spec for spec in (good, base.spec) if spec]
        if len(candidates) == 2 and same(candidates[0], candidates[1]):
            candidates.pop()
        why = ""
        for attempt in range(ROUNDS):
            if attempt:
                await asyncio.sleep(self._pause_s)
            for spec in candidates:
                row = Row(str(spec["profile"]), spec)
                self._tell(row.profile, "Nothing serves: starting it.")
                try:
                    await self._only_us()
                    await self._clear()
                    if await self._launch(row.profile, spec, row):
                        return
                    why = row.why
                except (LinkError, TakenOver):
                    raise
                except SpecdashError as problem:
                    why = problem.sentence
                self._tell(row.profile, f"It did not start: {why}")
        raise NothingServes(
            f"{' and '.join(str(s['profile']) for s in candidates)} could not be started: {why}"
        )

    async def _clear(self) -> None:
        """Stop, with proof, what the queue's own runs left: nothing else is touched."""
        listed = await self.keeper.keep(
            lambda link: link.call("runs.list", {"base": hostruns.base(link)}, timeout=30)
        )
        for record in listed["runs"]:
            if record["id"] not in self.queue.runs or record.get("ended") or record.get("phase") == "created":
                continue
            run_id = str(record["id"])

            async def end(link: Link, run_id: str = run_id) -> None:
                try:
                    order = await stop.plan(link, run_id, deadline_s=float(self.queue.options["deadline_s"]))
                except Refused:
                    return
                async for event in stop.run(link, order):
                    if event.final:
                        self._tell("", f"{run_id}: {event.sentence}")

            await self.keeper.keep(end)

    async def _launch(self, profile: str, spec: Mapping[str, Any], row: Row) -> bool:
        """An ordinary launch to ready and a pulse; books into `row`. False: it failed, and was cleared."""
        wanted = LaunchSpec.from_json(spec)
        plan = await self.keeper.keep(lambda link: launch.plan(link, wanted, precheck=False))
        self.queue.runs.append(plan.id)
        row.run = plan.id
        self._save(self.queue)
        final: StepEvent | None = None

        async def follow(link: Link) -> None:  # repeating a launch starts nothing twice
            nonlocal final
            async for event in launch.run(link, plan, resolve=self._resolve, force=True):
                self._tell(profile, f"[{event.status}] {event.step}: {event.sentence}")
                final = event

        limit = float(self.queue.options["ready_s"])
        try:
            async with asyncio.timeout(limit) as clock:
                await self.keeper.keep(follow)
        except TimeoutError:
            if not clock.expired():
                raise
            final = None
        if final is None or final.final != "done":
            row.outcome = "failed"
            row.why = final.sentence if final else f"It was not ready within {limit:.0f} s."
            row.why = f"{row.why} {await self._cause(plan.id)}".strip()
            await self._clear()
            return False
        row.load_s = final.data.get("took_s")
        serving = Serving(plan.id, profile, dict(spec))
        await self._in_place(row, serving)
        if row.outcome == "failed":
            await self._clear()
            return False
        self.queue.serving = serving
        self._save(self.queue)
        return True


def _plain(found: Mapping[str, Any]) -> dict[str, Any]:
    """A pulse without its passes, as the next switch compares with."""
    return {key: value for key, value in found.items() if key not in ("passes", "judged", "sentence", "run")}
