"""Runs a queue of drafters to its end, for a night if need be, with nobody there.

One row after the other by the ordinary switch. A lost link is opened again and the running switch is taken up by
its id; a failure is recorded and passed over; when nothing serves, what served last is started again, or the base.
It never works against people: a server that somebody else stopped, or a switch by somebody else, ends the queue.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping
from typing import Any

from specdash.config import secrets as config_secrets
from specdash.control import hostruns, launch, pulse, stop, switch
from specdash.control.keeper import Keeper
from specdash.control.plans import Check, StepEvent
from specdash.control.queue import Queue, Row, Serving, same
from specdash.control.queue_facts import Outcome, outcome_of
from specdash.errors import LinkError, Refused, RemoteError, SpecdashError
from specdash.host.link import Link
from specdash.sglang.commandline import LaunchSpec

Tell = Callable[[str, str], None]
"""(profile or "", one sentence)."""
Preflight = Callable[[Link, LaunchSpec, str], Awaitable[tuple[Check, ...]]]
"""(link, spec, the run that will be gone) → checks."""
Explain = Callable[[Link, str], Awaitable[str]]
"""(link, run id) → why a run ended, by its log; empty when not known."""
RESUMES = 5
ROUNDS = 3
PAUSE_S = 60.0


class TakenOver(Exception):
    """Somebody else acts on this host: `args[0]` says who."""


class NothingServes(Exception):
    """Neither the last good profile nor the base can be started."""


class Runner:
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
    ) -> None:
        self.queue = queue
        self.profile = ""
        self._tell, self._save = tell, save
        self._preflight, self._explain, self._resolve = preflight, explain, resolve
        self._pause_s = pause_s
        self.keeper = Keeper(opener, lambda text: tell(self.profile, text), first_wait_s=first_wait_s)

    async def run(self) -> Queue:
        """To the end. Cancelled: what runs on the host goes on, and the saved queue can be gone on with."""
        queue = self.queue
        try:
            for row in queue.rows:
                if not row.outcome:
                    self.profile = row.profile
                    await self._passing_over(row)
            self.profile = ""
            await self._leave()
            queue.ended = queue.ended or "All were tried."
        except TakenOver as word:
            self._give_up(f"Ended, for {word.args[0]}")
        except NothingServes as word:
            self._give_up(f"NOTHING SERVES. {word.args[0]} Logs and run folders are kept.")
        finally:
            self._save(queue)
            await self.keeper.close()
        return queue

    def _give_up(self, sentence: str) -> None:
        self.queue.ended = sentence
        for row in self.queue.rows:
            if not row.outcome:
                row.outcome = "not_tried"
        self._tell("", sentence)

    async def _passing_over(self, row: Row) -> None:
        try:
            await self._one(row)
        except LinkError:
            raise  # no hope for the link: the queue can be gone on with
        except SpecdashError as problem:
            row.outcome = "refused" if isinstance(problem, Refused) else "failed"
            row.why = f"{problem.sentence} {problem.step}".strip()
            self._tell(row.profile, f"Passed over: {row.why}")
        self.queue.current = None
        self._save(self.queue)

    async def _one(self, row: Row) -> None:
        if self.queue.current:
            if await self._take_up(row):
                return
            self.queue.current = None
        serving = await self._sure()
        if serving is None:
            if not await self._launch(row.profile, row.spec, row):
                raise NothingServes(f"{row.profile} did not start: {row.why}")
            return
        if same(serving.spec, row.spec):
            await self._in_place(row, serving)
            return
        spec = LaunchSpec.from_json(row.spec)
        if self._preflight is not None and not self.queue.options.get("force"):
            check = self._preflight
            checks = await self.keeper.keep(lambda link: check(link, spec, serving.run))
            block = next((one for one in checks if one.status == "block"), None)
            if block is not None:
                row.outcome, row.why = "blocked", f"{block.sentence} {block.remedy}".strip()
                self._tell(row.profile, f"Passed over, nothing was changed: {row.why}")
                return
        await self._switch(row, spec, serving)

    # -- what serves

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
        if record.get("alive"):
            return serving
        if record.get("stop_asked"):
            raise TakenOver(f"somebody stopped {serving.profile} ({serving.run}).")
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
        self._tell(row.profile, "It serves already: pulse on fixed prompts.")
        found = await self.keeper.keep(lambda link: pulse.measure(link, serving.run))
        serving.pulse = _plain(found)
        row.outcome, row.run = "served", serving.run
        row.tok_s, row.accept_length = found.get("tok_s"), found.get("accept_length")
        row.why = str(found.get("sentence") or "")
        if not found.get("ok"):
            row.outcome, row.why = "failed", f"It does not answer the pulse: {found.get('problem')}."
        self._tell(row.profile, row.why)

    # -- the switch

    async def _switch(self, row: Row, spec: LaunchSpec, serving: Serving) -> None:
        options = {k: self.queue.options[k] for k in ("drain_s", "deadline_s", "ready_s", "settle_s")}
        plan = await self.keeper.keep(
            lambda link: switch.plan(
                link, serving.run, spec, on_slower="keep", measure=False, before=serving.pulse, **options
            )
        )
        own = plan.spec["switch"]
        row.switch, row.run = plan.id, own["b"]
        self.queue.options["last"] = plan.id
        self.queue.runs += [own["b"], own["restore"]]
        self.queue.current = {"switch": plan.id, "b": own["b"], "restore": own["restore"], "a": serving.run}
        self._save(self.queue)

        def start(link: Link) -> AsyncIterator[StepEvent]:
            return switch.run(link, plan, resolve=self._resolve, force=True)

        await self._carry(row, plan.id, start)

    async def _take_up(self, row: Row) -> bool:
        """Go on with what an earlier specdash began. False: it never reached the host."""
        current = self.queue.current or {}
        if "switch" not in current:
            return False
        try:
            await self._carry(row, str(current["switch"]), None)
        except RemoteError as problem:
            if problem.code == "not_found":
                return False
            raise
        return True

    async def _carry(
        self, row: Row, ident: str, start: Callable[[Link], AsyncIterator[StepEvent]] | None
    ) -> None:
        try:
            await self._follow(row.profile, ident, start)
        except RemoteError as problem:
            if problem.code == "not_found":
                raise
            await self._stranded(row, f"{problem.sentence} {problem.step}".strip())
            return
        await self._book(row)

    async def _stranded(self, row: Row, why: str) -> None:
        """The switch cannot be carried to its end: what served may be gone with it."""
        row.outcome, row.why = "failed", why
        self._tell(row.profile, f"Passed over: {why}")
        serving = self.queue.serving
        if serving is not None:
            run_id = serving.run
            record = await self.keeper.keep(lambda link: hostruns.record(link, run_id))
            if record.get("alive") and not record.get("stop_asked"):
                return
        await self._nothing_left()

    async def _nothing_left(self) -> None:
        # Last good first: it is the one that the failed way back was for.
        serving, self.queue.serving = self.queue.serving, None
        self.queue.options["good"] = serving.spec if serving else None
        self._save(self.queue)
        await self._unbroken(self._recover())

    async def _follow(
        self, profile: str, ident: str, start: Callable[[Link], AsyncIterator[StepEvent]] | None
    ) -> None:
        """A switch to its end, over as many links and switchers as it takes."""
        told = ("", "", "")
        begun = start is None
        resumes = 0
        while True:
            link = await self.keeper.link()
            events = start(link) if start is not None and not begun else switch.attach(link, ident)
            try:
                async for event in events:
                    now = (event.step, event.status, event.sentence)
                    if now != told and event.sentence:
                        self._tell(profile, f"[{event.status}] {event.step}: {event.sentence}")
                    told = now
                    if event.data.get("lost"):
                        break
                    if event.final:
                        return
                resumes += 1
                if resumes > RESUMES:
                    raise RemoteError("failed", f"The switcher of {ident} was killed {resumes} times.")
                begun = True
            except RemoteError as problem:
                # The link may have broken before the switch was created there: then it is created now.
                if problem.code != "not_found" or start is None or not begun:
                    raise
                begun = False
            except (LinkError, TimeoutError) as problem:
                await self.keeper.lost(problem)
                begun = True

    async def _book(self, row: Row) -> None:
        """Write down how the switch under way ended, as its records on the host tell it."""
        current = dict(self.queue.current or {})
        found = await self.keeper.keep(lambda link: _records(link, current))
        row.tok_s, row.accept_length, row.load_s = found.tok_s, found.accept_length, found.load_s
        row.outcome, row.why = found.outcome, found.why
        serving = self.queue.serving
        if found.outcome == "served":
            self.queue.serving = Serving(current["b"], row.profile, row.spec, found.pulse)
        elif found.serves and found.serves != current["a"] and serving is not None:
            serving.run = found.serves  # the way back: the same command as a new run
            serving.pulse = found.back or serving.pulse
        self._save(self.queue)
        if found.outcome != "served":
            row.why = f"{row.why} {await self._cause(current['b'])}".strip()
            self._tell(row.profile, f"Passed over: {row.why}")
        if not found.serves:
            await self._nothing_left()

    async def _cause(self, run_id: str) -> str:
        if self._explain is None:
            return ""
        explain = self._explain
        try:
            return await self.keeper.keep(lambda link: explain(link, run_id))
        except SpecdashError:
            return ""

    # -- when nothing serves

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

    # -- the end

    async def _leave(self) -> None:
        """The one that was asked for serves at the end; when it cannot, what serves stays, and that is said."""
        wanted = self.queue.wanted()
        row = Row(*wanted) if wanted else None
        switched = bool(row and self.queue.current and await self._take_up(row))
        serving = await self._sure()
        if serving is None:
            return
        if row is None:
            self.queue.ended = f"None was measured: {serving.profile} is left serving."
            return
        if not switched and not same(serving.spec, row.spec):
            self._tell(row.profile, f"The last switch: {row.profile} is the one to leave.")
            try:
                await self._switch(row, LaunchSpec.from_json(row.spec), serving)
            except LinkError:
                raise
            except SpecdashError as problem:
                row.why = problem.sentence
        self.queue.current = None
        serving = await self._sure()
        if serving and not same(serving.spec, row.spec):
            self.queue.ended = (
                f"{row.profile} did not come up at the end ({row.why}); {serving.profile} is left serving."
            )


async def _records(link: Link, current: Mapping[str, Any]) -> Outcome:
    """The whole journal of a switch, in as many reads as it takes."""
    records: list[Mapping[str, Any]] = []
    position: Mapping[str, Any] | None = None
    while True:
        asked = {"base": hostruns.base(link), "id": current["switch"], "position": position}
        answer = await link.call("switches.read", asked, timeout=30)
        records += answer["records"]
        if not answer["records"]:
            return outcome_of(records, str(current["b"]), str(current["restore"]), str(current["a"]))
        position = answer["position"]


def _plain(found: Mapping[str, Any]) -> dict[str, Any]:
    """A pulse without its passes, as the next switch compares with."""
    return {key: value for key, value in found.items() if key not in ("passes", "judged", "sentence", "run")}
