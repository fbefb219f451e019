"""What the keys do: each opens a screen or a plan; whether it can be done now, and if not, why.

Kept out of `app` so that dialogs are imported when first opened, not before the first paint.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import TYPE_CHECKING

from specdash.control.plans import Plan, StepEvent
from specdash.errors import LinkError, SpecdashError
from specdash.tui.messages import Adoptable, Decide, Told
from specdash.tui.pages import Pages
from specdash.tui.taking import Taking
from specdash.tui.views.link import run_name
from specdash.tui.words import one_line

if TYPE_CHECKING:
    from specdash.tui.app import SpecdashApp

AGAIN_S = 3.0
"""Between two looks for a switch that got out of sight."""


class Doing(Pages, Taking):
    def __init__(self, app: SpecdashApp) -> None:
        super().__init__(app)
        self._rejoined: set[str] = set()

    def tick(self) -> None:
        """Once per look at the state: the bell, and what goes on on a host that has just come up."""
        for name, host in self.app.fleet.hosts.items():
            if host.link.status == "up" and name not in self._rejoined:
                self._rejoined.add(name)
                self.app.run_worker(self._rejoin(name), group="rejoin", exclusive=False)
        notices = self.app.notices
        if notices.rang:
            notices.rang = False
            if self.app.bell_on:
                self.app.bell()
        while notices.came:
            self.app.alerts.add(notices.came.pop(0))

    # Plans --------------------------------------------------------------------------------------------

    def action_launch(self) -> None:
        if self._may("launch"):
            self._plan("launch", f"Checking {self.app.profile_name} on {self.app.host_name}…")

    def action_stop(self) -> None:
        if self._may("stop"):
            self._plan("stop", "Looking at what a stop would end…")

    def action_switch(self) -> None:
        if not self._may("switch"):
            return
        server = self.app.server
        if server is not None and server.run.profile == self.app.profile_name:
            self.action_choose_switch()
            return
        self._plan(
            "switch",
            f"Checking {self.app.profile_name} before {run_name(server) if server else ''} is touched…",
        )

    def action_choose_switch(self) -> None:
        """The running profile is chosen: ask which one to switch to."""
        from specdash.tui.dialogs.choose import ChooseProfile

        server = self.app.server
        now = server.run.profile if server else ""
        names = [row for row in self.app.profile_rows if row.name != now and not row.problem]
        self.app.push_screen(ChooseProfile("Switch to which profile?", names), self._chosen_switch)

    def _chosen_switch(self, name: str | None) -> None:
        if name:
            self._choose(name)
            self._plan("switch", f"Checking {name}…")

    def action_hot(self) -> None:
        """Other weights for the drafter that serves: the chosen profile's, or one that is asked for."""
        from specdash.tui.dialogs.choose import ChooseProfile

        if not self._may("hot"):
            return
        server = self.app.server
        if server is None:
            return
        # What serves now is the drafter, not the profile: after a hot switch the run's own profile is one to go back to.
        serves = server.drafter.path or server.run.drafter
        changed = server.drafter.how == "hot switch"
        fit = [
            row
            for row in self.app.profile_rows
            if row.drafter
            and not row.problem
            and row.drafter != serves
            and (changed or row.name != server.run.profile)
        ]
        if any(row.name == self.app.profile_name for row in fit):
            self._chosen_hot(self.app.profile_name)
        else:
            self.app.push_screen(ChooseProfile("Draft weights of which profile?", fit), self._chosen_hot)

    def _chosen_hot(self, name: str | None) -> None:
        if name:
            self._choose(name)
            self._plan("hot", f"Comparing the draft weights of {name} with those that serve…")

    def action_attach(self) -> None:
        """A switch stands still: go on with it, or take it back."""
        from specdash.tui.dialogs.decide import DecideDialog

        plan = self.standing.get(self.app.host_name)
        if not self._may("attach") or plan is None:
            return

        def done(word: str | None) -> None:
            if word in ("go_on", "abort"):
                self.app.run_worker(self._attach(plan, word), group="plan", exclusive=False)

        if plan.kind == "hot_switch":
            words = "Going on closes the update that it left open; the old weights come back."
            answers = [("later", "Leave it"), ("go_on", "Go on")]
        else:
            words = "Going on starts its program again where it was. Taking it back brings the previous server back."
            answers = [("later", "Leave it"), ("go_on", "Go on"), ("abort", "Take it back")]
        self.app.push_screen(DecideDialog(f"{plan.title} stands still.", [words], answers), done)

    async def _attach(self, plan: Plan, word: str) -> None:
        self.standing.pop(plan.host, None)
        if word == "abort":
            await self._abort(plan.host, plan.kind, plan.id)
        await self._follow(plan, self.app.operator.attach(plan))

    def _plan(self, kind: str, words: str) -> None:
        app = self.app
        host, run, profile = app.host_name, app.run_id, app.profile_name

        async def make() -> Plan:
            if kind == "launch":
                return await app.operator.plan_launch(host, profile)
            if kind == "stop":
                return await app.operator.plan_stop(host, run)
            if kind == "hot":
                return await app.operator.plan_hot(host, run, profile)
            return await app.operator.plan_switch(host, run, profile)

        command = ""
        if kind not in ("stop", "hot"):
            try:
                command = app.operator.command(profile)
            except SpecdashError as problem:
                app.tell(str(problem), "warning")
        self._open_plan(words, make, command)

    def _open_plan(
        self,
        words: str,
        make: Callable[[], Awaitable[Plan]],
        command: str = "",
    ) -> None:
        from specdash.tui.dialogs.plan import PlanDialog

        dialog = PlanDialog(words, make, command=command)
        self.app.push_screen(dialog, self._decided)

    def _decided(self, result: tuple[Plan, str] | None) -> None:
        if result is not None:
            plan, typed = result
            if plan.kind in ("launch", "switch", "adopt"):
                # What comes of it is what is wanted on the screen, whichever run was chosen there before.
                self.app.pinned = False
            self.app.run_worker(self._perform(plan, typed), group="plan", exclusive=False)

    async def _perform(self, plan: Plan, typed: str) -> None:
        await self._follow(plan, self.app.operator.perform(plan, typed))

    async def _rejoin(self, host: str) -> None:
        """A switch that an earlier specdash began goes on on the host: follow it here too."""
        try:
            for plan, events in await self.app.operator.unfinished(host):
                self.app.run_worker(
                    self._follow(plan, self.app.operator.follow(plan, events)),
                    group="rejoin",
                    exclusive=False,
                )
        except SpecdashError as problem:
            self.app.post_message(Told(f"{host}: could not look for running switches: {problem}", "info"))

    async def _follow(self, plan: Plan, events: AsyncIterator[StepEvent]) -> None:
        """Progress comes back through the state (`ActionChanged`); questions and the end are told here."""
        outcome, sentence, told = "", "", False
        while True:
            try:
                async for event in events:
                    if event.data.get("event") == "question":
                        self.app.post_message(Decide(plan, event.sentence))
                    if event.final:
                        outcome, sentence = event.final, event.sentence
                        if event.data.get("lost"):
                            self.standing[plan.host] = plan
                            outcome = "stands_still"
                break
            except (SpecdashError, TimeoutError) as problem:
                if plan.kind != "switch" or not isinstance(problem, (LinkError, TimeoutError)):
                    said = (
                        str(problem) or "the host did not answer in time; what it was told may still happen."
                    )
                    self.app.post_message(Told(f"{plan.title}: {said}", "critical"))
                    return
                # It runs on the host, whatever the way there does: its own record tells how it goes on.
                if not told:
                    said = f"{plan.title} is out of sight: {problem}. What began on the host goes on; looking again."
                    self.app.post_message(Told(said, "warning"))
                told = True
                await asyncio.sleep(AGAIN_S)
                events = self.app.operator.again(plan)
        if outcome == "stands_still":
            words = "stands still: its program on the host was killed. u goes on with it or takes it back."
            self.app.post_message(Told(f"{plan.title} {words}", "critical"))
        elif outcome == "rolled_back":
            # The old server serves: it wants to be known tonight, but nothing is down.
            self.app.post_message(Told(f"{plan.title} rolled back. {sentence}".strip(), "warning", ring=True))
        elif outcome == "failed":
            self.app.post_message(Told(f"{plan.title} FAILED. {sentence}".strip(), "critical"))
        elif outcome == "aborted":
            self.app.post_message(Told(f"{plan.title} was taken back. {sentence}".strip(), "warning"))
        elif outcome == "done":
            self.app.post_message(Told(f"{plan.title}: done. {sentence}".strip()))

    def decide(self, message: Decide) -> None:
        """A switch waits: keep the slower server, or go back. Going back is what the plan said; it is first."""
        from specdash.tui.dialogs.decide import DecideDialog

        plan = message.plan

        def done(word: str | None) -> None:
            if word:
                self.app.run_worker(self._answer(plan, word), group="plan", exclusive=False)

        sentences = [
            message.sentence,
            "Esc leaves it open; the switch decides by its own rule when its time is up.",
        ]
        answers = [("roll_back", "Roll back"), ("keep", "Keep it")]
        self.app.push_screen(DecideDialog(plan.title, sentences, answers), done)

    async def _answer(self, plan: Plan, word: str) -> None:
        try:
            await self.app.operator.answer(plan.host, plan.id, word)
        except (SpecdashError, TimeoutError) as problem:
            self.app.post_message(Told(f"{plan.title}: {problem}", "warning"))

    def action_abort(self) -> None:
        from specdash.tui.dialogs.decide import DecideDialog

        running = self._running()
        if not self._may("abort") or running is None:
            return
        host, ident, kind = self.app.host_name, running.id, running.kind

        def done(word: str | None) -> None:
            if word == "abort":
                self.app.run_worker(self._abort(host, kind, ident), group="plan", exclusive=False)

        words = {
            "switch": "Before the old server is stopped nothing changes; after it, the old server is launched again.",
            "hot_switch": "Before the new weights go in nothing changes; after it, the old ones go in again.",
        }.get(kind, "Only a stop that still waits for running requests can be taken back.")
        answers = [("go_on", "Let it go on"), ("abort", "Take it back")]
        self.app.push_screen(DecideDialog(f"Take back “{running.title}”?", [words], answers), done)

    async def _abort(self, host: str, kind: str, ident: str) -> None:
        try:
            self.app.post_message(Told(await self.app.operator.abort(host, kind, ident)))
        except (SpecdashError, TimeoutError) as problem:
            self.app.post_message(Told(str(problem), "warning"))

    def action_adopt(self) -> None:
        if self._may("adopt"):
            self.app.notify("Looking for servers that others started…", markup=False, timeout=3)
            self.app.run_worker(self._find(self.app.host_name), group="plan", exclusive=False)

    async def _find(self, host: str) -> None:
        try:
            self.app.post_message(Adoptable(host, await self.app.operator.adoptable(host)))
        except (SpecdashError, TimeoutError) as problem:
            self.app.post_message(Told(f"Adopt: {problem}", "warning"))

    def adoptable(self, message: Adoptable) -> None:
        from specdash.tui.dialogs.choose import ChooseServer

        if not message.rows:
            self.app.tell(f"No server that others started runs on {message.host}.")
            return

        def chosen(name: str | None) -> None:
            if name:
                self._open_plan(
                    f"Looking at pid {name}…", lambda: self.app.operator.plan_adopt(message.host, name)
                )

        self.app.push_screen(ChooseServer(message.rows), chosen)

    def action_pulse(self) -> None:
        """Fixed prompts now. It loads a serving engine for some seconds, so it is asked before."""
        from specdash.tui.dialogs.decide import DecideDialog

        server = self.app.server
        if not self._may("pulse") or server is None:
            return
        host, run, name = self.app.host_name, self.app.run_id, run_name(server)
        busy = server.numbers.running.value

        def done(word: str | None) -> None:
            if word == "pulse":
                self.app.notify(f"Pulse of {name}…", markup=False, timeout=3)
                self.app.run_worker(self._pulse(host, run, name), group="plan", exclusive=False)

        words = [
            "The same few prompts, one at a time: some seconds of one stream. It tells tok/s, accept length and the "
            "acceptance of each draft position, which nothing else does.",
        ]
        if busy:
            words.append(f"Requests that run now: {busy}. They slow it down, and it slows them.")
        answers = [("no", "Not now"), ("pulse", "Pulse")]
        self.app.push_screen(DecideDialog(f"Pulse of {name}?", words, answers), done)

    async def _pulse(self, host: str, run: str, name: str) -> None:
        try:
            said = await self.app.operator.pulse(host, run)
        except (SpecdashError, TimeoutError) as problem:
            words = str(problem) or "the server did not answer in time."
            self.app.post_message(Told(f"Pulse of {name}: {words}", "warning"))
            return
        self.app.post_message(Told(f"Pulse of {name}: {said}"))

    def action_retry(self) -> None:
        if self._may("retry"):
            self.app.hub.retry(self.app.host_name)
            self.app.notify(f"Connecting to {one_line(self.app.host_name)}…", markup=False, timeout=3)
