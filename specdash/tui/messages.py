"""What workers tell the app. They touch no widget: handlers in `doing` do."""

from __future__ import annotations

from textual.message import Message

from specdash.control.plans import Plan


class Told(Message):
    """A sentence for the operator; `severity` as an alarm's. `ring`: the bell too, as for what is critical."""

    def __init__(self, sentence: str, severity: str = "info", ring: bool = False) -> None:
        super().__init__()
        self.sentence = sentence
        self.severity = severity
        self.ring = ring


class Decide(Message):
    """A running switch waits for a word: the next server is slower than the last."""

    def __init__(self, plan: Plan, sentence: str) -> None:
        super().__init__()
        self.plan = plan
        self.sentence = sentence


class Adoptable(Message):
    """Servers that others started on a host."""

    def __init__(self, host: str, rows: list[tuple[str, str]]) -> None:
        super().__init__()
        self.host = host
        self.rows = rows
        """(name to type, what it is)."""
