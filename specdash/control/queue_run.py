"""Runs a queue of drafters to its end, for a night if need be, with nobody there.

One row after the other by the ordinary switch. A lost link is opened again and the running switch is taken up by
its id; a failure is recorded and passed over; when nothing serves, what served last is started again, or the base.
It never works against people: a server that somebody else stopped, or a switch by somebody else, ends the queue.
"""

from __future__ import annotations

from collections.abc import AsyncIterator

from specdash.control import hostruns, queue_carry, switch
from specdash.control.plans import StepEvent
from specdash.control.queue import Queue, Row, Serving, same
from specdash.control.queue_hands import Hands, NothingServes, TakenOver
from specdash.errors import LinkError, Refused, RemoteError, SpecdashError
from specdash.host.link import Link
from specdash.sglang.commandline import LaunchSpec


class Runner(Hands):
    """One queue, from wherever it stands to its end."""

    async def run(self) -> Queue:
        """To the end. Cancelled: what runs on the host goes on, and the saved queue can be gone on with."""
        queue = self.queue
        if self.read_only:
            raise Refused("Not done: this is read-only.", "Start specdash without --read-only.")
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

    async def _carry(self, row: Row, ident: str, start: queue_carry.Start | None) -> None:
        try:
            await queue_carry.to_end(self.keeper, ident, start, lambda text: self._tell(row.profile, text))
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

    async def _book(self, row: Row) -> None:
        """Write down how the switch under way ended, as its records on the host tell it."""
        current = dict(self.queue.current or {})
        found = await self.keeper.keep(lambda link: queue_carry.records(link, current))
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
