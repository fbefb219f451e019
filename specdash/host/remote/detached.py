"""Leave whoever started us, and be woken by a child's end: for the programs that outlive the agent."""

from __future__ import annotations

import os
import signal


def detach() -> None:
    """Leave the parent, its session and its terminal. Returns in the detached process only."""
    if os.fork():
        os._exit(0)
    os.setsid()
    if os.fork():  # no session leader: can never get a controlling terminal again
        os._exit(0)
    null = os.open(os.devnull, os.O_RDWR)
    for number in (0, 1, 2):
        os.dup2(null, number)
    os.closerange(3, 4096)
    os.chdir("/")


def wakeup() -> int:
    """A descriptor that gets readable when a child ends; and signals that ask us to go are not obeyed."""
    reader, writer = os.pipe()
    for number in (reader, writer):
        os.set_blocking(number, False)
    signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    for word in ("SIGHUP", "SIGINT", "SIGQUIT", "SIGTERM", "SIGPIPE", "SIGTTIN", "SIGTTOU", "SIGTSTP"):
        # The engine outlives us if we go: then nobody records how it ended. So we end after it, not before.
        signal.signal(getattr(signal, word), signal.SIG_IGN)
    return reader
