"""What the keys do: each opens a screen or a plan; whether it can be done now, and if not, why.

Kept out of `app` so that dialogs are imported when first opened, not before the first paint.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from specdash.control.plans import Danger, Plan, StepEvent
from specdash.errors import SpecdashError
from specdash.monitor.state import ActionState
from specdash.tui import themes
from specdash.tui.actions import BY_ID, Action
from specdash.tui.logview import LogView
from specdash.tui.messages import Adoptable, Decide, Told
from specdash.tui.views.link import is_living, run_name
from specdash.tui.words import one_line

if TYPE_CHECKING:
    from specdash.tui.app import SpecdashApp

ZOOMS = {"gpus": "-zoom-gpus", "server": "-zoom-server", "log": "-zoom-log"}
SENT = "sent to the terminal (may be refused)"


class Doing:
    def __init__(self, app: SpecdashApp) -> None:
        self.app = app
        self._rejoined: set[str] = set()
        self.standing: dict[str, Plan] = {}
        """Host → a switch whose program there was killed before its end."""

    @property
    def main(self) -> Any:
        return self.app.screen_stack[0]

    @property
    def log(self) -> LogView:
        return self.main.query_one(LogView)  # type: ignore[no-any-return]

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

    # Whether ------------------------------------------------------------------------------------------

    def why_not(self, action: Action) -> str:
        app = self.app
        if action.danger is not Danger.NONE:
            if app.read_only:
                return "specdash runs with --read-only."
            host = app.host
            if host is None:
                return "no host is chosen."
            refused = app.operator.can_change(host.name)
            if refused:
                return refused
            if host.link.status != "up":
                return f"{host.name} is not connected."
            running = self._running()
            if action.id == "abort":
                return "" if running is not None else "nothing runs that could be taken back."
            if running is not None:
                return f"“{running.title}” is still running."
            if action.id == "attach":
                return "" if host.name in self.standing else "no switch stands still here."
        server = app.server
        if action.id == "launch" and not app.profile_name:
            return "no profile is chosen; choose one at the left."
        if action.id == "stop" and (server is None or not is_living(server)):
            return "no server is running here."
        if action.id == "switch":
            if server is None or not is_living(server):
                return "no server is running here; l launches one."
            if not app.profile_name:
                return "no profile to switch to; choose one at the left."
        if action.id == "hot":
            if server is None or not is_living(server):
                return "no server is running here; l launches one."
            if not server.run.algorithm:
                return "this server has no drafter; w switches to a profile that has one."
        if action.id == "retry":
            if app.host is None:
                return "no host is chosen."
            if app.host.link.status == "up":
                return f"{app.host.name} is connected."
        if action.id in ("info",) and server is None:
            return "no server is chosen."
        if action.id == "search" and not app.run_id:
            return "there is no log here."
        return ""

    def _running(self) -> ActionState | None:
        host = self.app.host
        return next((a for a in host.actions if a.status == "running"), None) if host else None

    def _may(self, name: str) -> bool:
        why = self.why_not(BY_ID[name])
        if why:
            self.app.tell(f"{BY_ID[name].title.capitalize()}: {why}", "warning")
        return not why

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
        now = server.run.profile if server else ""
        fit = [row for row in self.app.profile_rows if row.drafter and not row.problem and row.name != now]
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
        outcome = ""
        sentence = ""
        try:
            async for event in events:
                if event.data.get("event") == "question":
                    self.app.post_message(Decide(plan, event.sentence))
                if event.final:
                    outcome, sentence = event.final, event.sentence
                    if event.data.get("lost"):
                        self.standing[plan.host] = plan
                        sentence = f"{sentence} Key: u."
        except (SpecdashError, TimeoutError) as problem:
            said = str(problem) or "the host did not answer in time; what it was told may still happen."
            self.app.post_message(Told(f"{plan.title}: {said}", "critical"))
            return
        if outcome == "rolled_back":
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

        words = (
            "Before the old server is stopped nothing changes; after it, the old server is launched again."
        )
        if kind != "switch":
            words = "Only a stop that still waits for running requests can be taken back."
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

    def action_retry(self) -> None:
        if self._may("retry"):
            self.app.hub.retry(self.app.host_name)
            self.app.notify(f"Connecting to {one_line(self.app.host_name)}…", markup=False, timeout=3)

    # Screens ------------------------------------------------------------------------------------------

    def action_probe(self) -> None:
        from specdash.tui.dialogs.probe import ProbeScreen

        self.app.push_screen(ProbeScreen(self.app.host_name, self.app.profile_name))

    def action_runs(self) -> None:
        from specdash.tui.dialogs.runs import RunsScreen

        self.app.push_screen(RunsScreen(self.app.host_name), self._run_chosen)

    def _run_chosen(self, run: str | None) -> None:
        if run:
            self.app.run_id, self.app.pinned = run, True
            self.refresh()

    def action_profiles(self) -> None:
        from specdash.tui.dialogs.profiles import ProfilesScreen

        self.app.push_screen(ProfilesScreen(self.app.profile_name), self._profile_chosen)

    def _profile_chosen(self, name: str | None) -> None:
        if name:
            self._choose(name)

    def _choose(self, name: str) -> None:
        from specdash.tui.side import Side

        self.app.profile_name = name
        self.main.query_one("#profiles", Side).choose(("profile", "", name))
        self.refresh()

    def action_info(self) -> None:
        from specdash.tui.dialogs.reading import SourcesScreen

        if self._may("info"):
            self.app.push_screen(SourcesScreen())

    def action_fleet(self) -> None:
        from specdash.tui.dialogs.fleet import FleetScreen

        self.app.push_screen(FleetScreen(), self._host_chosen)

    def _host_chosen(self, host: str | None) -> None:
        if host:
            self.app.host_name, self.app.run_id, self.app.pinned = host, "", False
            self.refresh()

    def action_notices(self) -> None:
        from specdash.tui.dialogs.reading import NoticesScreen

        self.app.push_screen(NoticesScreen())

    def action_help(self) -> None:
        from specdash.tui.dialogs.help import HelpScreen

        self.app.push_screen(HelpScreen(self.app.focused))

    def action_zoom(self) -> None:
        focused = self.app.focused
        name = focused.id if focused is not None and focused.id in ZOOMS else "log"
        wanted = not self.main.has_class(ZOOMS[name])
        self.main.remove_class(*ZOOMS.values())
        self.main.set_class(wanted, ZOOMS[name])
        self.refresh()

    def action_side(self) -> None:
        if self.main.has_class("-narrow"):
            self.main.toggle_class("-side")
        else:
            self.main.toggle_class("-noside")
        self.refresh()

    def action_theme(self) -> None:
        names = [theme.name for theme in themes.ALL]
        index = names.index(self.app.theme) if self.app.theme in names else -1
        self.app.theme = names[(index + 1) % len(names)]
        self.app.kept.put("theme", self.app.theme)
        self.app.tell(f"Theme: {self.app.theme}")
        self.refresh()

    def refresh(self) -> None:
        self.app._dirty = True
        self.app.call_after_refresh(self.app._tick)

    # The log's wishes ---------------------------------------------------------------------------------

    def action_search(self) -> None:
        if self._may("search"):
            self.app.ask("search", "search the log (regular expression); empty ends it", self.log.finder.text)

    def log_asked(self, what: str, text: str) -> None:
        if what == "search":
            self.action_search()
        elif what == "filter":
            self.app.ask("filter", "show only lines that match; empty shows all", text)
        elif what == "kept":
            self.app.kept.put("log", self.log.settings())
            self.app.show_log_keys()
        elif what == "tell":
            self.app.notify(text, markup=False, timeout=3)
        elif what == "copy":
            self.copy(text)
        elif what == "save":
            self.save()
        elif what == "full":
            from specdash.tui.dialogs.reading import TextScreen

            self.app.push_screen(TextScreen("One line of the log", text))

    def answered(self, asked: str, text: str) -> None:
        from dataclasses import replace

        if asked == "search":
            self.log.search(text)
        elif asked == "filter":
            self.log.set_filter(replace(self.log.table.filter, text=text))

    def copy(self, text: str) -> None:
        """By OSC 52, which the terminal may refuse without a word: so never say "copied"."""
        self.app.copy_to_clipboard(text)
        lines = text.count("\n") + 1
        self.app.notify(
            f"{lines} {'line' if lines == 1 else 'lines'} {SENT}. S saves to a file instead.",
            markup=False,
            timeout=5,
        )

    def save(self) -> None:
        log = self.log
        name = f"specdash-{self.app.run_id or 'log'}-{time.strftime('%Y%m%d-%H%M%S')}.txt"
        path = Path.cwd() / "".join(c if c.isalnum() or c in "-_." else "_" for c in name)
        first, last = sorted((log.mark, log.cursor)) if log.mark is not None else (0, log.table.count - 1)
        self.app.run_worker(self._save(path, first, last), group="save", exclusive=True)

    async def _save(self, path: Path, first: int, last: int) -> None:
        """What is shown, safe and without secrets, in slices; 0600, since logs tell much."""
        import asyncio
        import os

        log = self.log
        try:
            handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            with os.fdopen(handle, "w", encoding="utf-8") as file:
                for row in range(first, last + 1):
                    file.write(log.pen.text_of(row) + "\n")
                    if row % 1000 == 999:
                        await asyncio.sleep(0)
        except OSError as problem:
            self.app.post_message(Told(f"Could not save to {path}: {problem.strerror}.", "warning"))
            return
        self.app.post_message(Told(f"Saved {last - first + 1:,} lines to {path}"))
