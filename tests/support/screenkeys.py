"""The real dashboard driven by keys alone; every step waits, with a deadline, for what the screen must show."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from tests.support.tuikit import text_of


class Keys:
    """The dashboard of this desk, driven by keys alone; every step waits for what the screen must show."""

    def __init__(self, app: Any, pilot: Any) -> None:
        self.app, self.pilot = app, pilot

    async def until(self, what: str, check: Callable[[str], bool], seconds: float = 60.0) -> str:
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            await self.pilot.pause(0.1)
            text = text_of(self.app)
            if check(text):
                return text
        raise AssertionError(f"not shown within {seconds:.0f} s: {what}\n{text_of(self.app)}")

    async def choose(self, profile: str) -> None:
        for _ in range(8):
            if getattr(self.app.focused, "id", "") == "profiles":
                break
            await self.pilot.press("tab")
        await self.pilot.press("g")
        for _ in range(40):
            await self.pilot.pause(0.05)
            if self.app.profile_name == profile:
                return
            await self.pilot.press("j")
        raise AssertionError(f"{profile} cannot be chosen\n{text_of(self.app)}")

    async def switch(self, old: str, new: str) -> str:
        """To the end; the screen's word about it."""
        await self.choose(new)
        told = len(self.app.notices.all)
        await self.pilot.press("w")
        title = f"Switch {old} → {new}"
        text = await self.until(
            title, lambda t: title in t and (("Cancel" in t and "checks" in t.lower()) or "Exact" in t), 90
        )
        await self.pilot.pause(0.5)
        if "to confirm" in text_of(self.app):
            await self.pilot.press(*old, "enter", "enter")
        else:
            await self.pilot.press("right", "enter")
        await self.until("the plan to close", lambda t: "Exact command" not in t, 20)

        def ended(_: str) -> bool:
            return any(title in one.sentence for one in self.app.notices.all[told:])

        await self.until(f"the end of {title}", ended, 300)
        assert "plan" not in text
        return str(next(one.sentence for one in self.app.notices.all[told:] if title in one.sentence))
