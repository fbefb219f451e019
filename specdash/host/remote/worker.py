"""What a program has that carries out an operator's plan on the host by itself: its journal, its lock, its pulse.

The switcher and the keeper of hot switches are such programs. Each answers, on the lock that it holds, who runs what
since when; writes each step before and after; and hears an operator's word as a file, which outlives who told it.
"""

from __future__ import annotations

import os
import socket
from typing import Any, Callable, Dict, List, Optional

from specdash.host.remote import folder as folders
from specdash.host.remote import httpask, journal, procs


class Worker:
    titles: Dict[str, str] = {}
    """Every step that it can name, in words for people."""

    def __init__(self, folder: str, plan: Dict[str, Any], state: str, step: str = "") -> None:
        self.folder = folder
        self.plan = plan
        self.state = journal.Journal(folders.path(folder, state), 64 << 20, sync=True)
        self.step_name = step

    def say(self, step: str, status: str, sentence: str, **more: Any) -> None:
        if step not in self.titles:
            raise ValueError("no step of this plan: %r" % (step,))
        self.step_name = step
        self.state.add(event="step", step=step, status=status, sentence=sentence, **more)

    def told(self, name: str) -> Optional[str]:
        """An operator's word in a file of that name; None: not told."""
        raw = procs.read_bytes(folders.path(self.folder, name), 4096)
        return None if raw is None else raw.decode("utf-8", "replace").strip()

    def serve(self, lock: socket.socket) -> None:
        """Answers who asks for the lock; in a thread of its own."""
        while True:
            try:
                folders.answer(lock.accept()[0], self.command)
            except OSError:
                return

    def command(self, question: Dict[str, Any], who: Dict[str, int]) -> Dict[str, Any]:
        plan = self.plan
        return {
            "ok": True,
            "id": plan["id"],
            "by": plan.get("by"),
            "since_unix": plan.get("created_unix"),
            "title": plan.get("title"),
            "step": self.step_name,
            "pid": os.getpid(),
        }


def passes(
    rules: Any, http: Dict[str, Any], algorithm: str, auth: str, give_up: Callable[[], bool]
) -> List[Dict[str, Any]]:
    """Passes over the fixed prompts, as many as `rules` (sglang.pulse) wants; ends early at one that failed."""
    done: List[Dict[str, Any]] = []
    while rules.more(done, algorithm):
        answers = []
        for request in rules.requests(auth):
            if give_up():
                break
            answers.append(httpask.ask(http, request, rules.TIMEOUT_S))
            if answers[-1]["status"] is None:
                break  # who does not answer one is not waited for again: each wait is minutes
        done.append(rules.read(answers))
        if not done[-1]["ok"]:
            break
    return done


def numbers(result: Dict[str, Any]) -> str:
    """A pulse in a sentence."""
    speed, length = result.get("tok_s"), result.get("accept_length")
    said = "%s tok/s, one stream" % ("-" if speed is None else "%.1f" % speed)
    return said + ("" if length is None else ", accept length %.2f" % length) + "."
