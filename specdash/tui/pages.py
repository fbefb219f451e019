"""Keys that open a page or change how the screen looks; none of them changes a host."""

from __future__ import annotations

from specdash.tui import themes
from specdash.tui.acting import Acting
from specdash.tui.views.link import run_name

ZOOMS = {"gpus": "-zoom-gpus", "server": "-zoom-server", "log": "-zoom-log"}


class Pages(Acting):
    def action_probe(self) -> None:
        from specdash.tui.dialogs.probe import ProbeScreen

        self.app.push_screen(ProbeScreen(self.app.host_name, self.app.profile_name))

    def action_stacks(self) -> None:
        from specdash.tui.dialogs.stacks import StacksScreen

        server = self.app.server
        if self._may("stacks") and server is not None:
            self.app.push_screen(StacksScreen(self.app.host_name, self.app.run_id, run_name(server)))

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

    def action_edit_profile(self) -> None:
        from specdash.tui.dialogs.editing import edit

        edit(self.app, self.app.profile_name, self._profile_edited)

    def _profile_edited(self, written: bool | None) -> None:
        if written:
            self.app.reload_profiles()
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
