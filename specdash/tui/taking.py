"""The log's wishes: search, filters, and taking text away, by the terminal's clipboard or into a file."""

from __future__ import annotations

import time
from pathlib import Path

from specdash.tui.acting import Acting
from specdash.tui.messages import Told

SENT = "sent to the terminal (may be refused)"


class Taking(Acting):
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
