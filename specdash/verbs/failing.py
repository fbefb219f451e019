"""How a command ends when it cannot go on: one sentence for a person, JSON for who asked for it, and an exit code."""

from __future__ import annotations

import errno
import os
import sys
from typing import TYPE_CHECKING

from specdash.exits import Exit

if TYPE_CHECKING:
    from specdash.errors import SpecdashError

NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS)


def soft_streams() -> None:
    """A character that the terminal's encoding lacks is replaced, never a traceback; a closed stream is empty."""
    sys.stdin = sys.stdin or open(os.devnull)  # noqa: SIM115, PTH123  as long as the process
    sys.stdout = sys.stdout or open(os.devnull, "w")  # noqa: SIM115, PTH123
    sys.stderr = sys.stderr or open(os.devnull, "w")  # noqa: SIM115, PTH123
    for stream in (sys.stdout, sys.stderr):
        reconfigure = getattr(stream, "reconfigure", None)
        if reconfigure is None:
            continue
        utf8 = (getattr(stream, "encoding", "") or "").lower().replace("-", "") == "utf8"
        if not utf8:
            from specdash.verbs import ascii_only

            ascii_only.register()
        reconfigure(errors="surrogateescape" if utf8 else "specdash-ascii")


def complain(problem: SpecdashError, json: bool) -> int:
    # Text from a host or a file may hold line breaks and control characters: one line, nothing to act on.
    text = " ".join(problem.words.split())
    text = "".join(c if c.isprintable() else "�" for c in text)
    print(f"specdash: {text}", file=sys.stderr)
    if json:
        _as_json(type(problem).__name__, problem.sentence, problem.step, problem.exit)
    return int(problem.exit)


def _as_json(kind: str, sentence: str, step: str, code: Exit) -> None:
    """Who asked for JSON gets JSON, whatever happens: the same sentence is on stderr for a person."""
    from json import dumps

    error = {"kind": kind, "sentence": sentence, "step": step}
    print(dumps({"schema": "specdash.error/1", "code": int(code), "error": error}), flush=True)


def no_room(problem: OSError) -> int:
    """A full disk or quota is no fault of ours; what was to be printed is not all there, so it is no success."""
    what = f"{problem.filename} cannot be written" if problem.filename else "the output cannot be written"
    if not problem.filename:  # what is still in the buffer would fail again at the end
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    print(f"specdash: {what}: {problem.strerror}. Make room there and repeat it.", file=sys.stderr)
    return int(Exit.UNKNOWN)


def quiet_pipe() -> int:
    """`specdash … | head`: the reader left, which is no error of ours."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    return 0


def unexpected(problem: BaseException, json: bool) -> int:
    """One line, and the trace in a 0600 file: an operator can send that, and a monitor shows the line."""
    import tempfile
    import traceback

    trace = "".join(traceback.format_exception(problem))
    try:
        from specdash.config import paths

        folder = paths.state_dir() / "errors"
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        handle, name = tempfile.mkstemp(".txt", "error-", folder)
        with os.fdopen(handle, "w", encoding="utf-8", errors="backslashreplace") as file:
            file.write(trace)
        where = f"The trace is in {name}; specdash doctor --bundle takes it along."
    except OSError:
        where = "The trace could not be saved."
    first = (str(problem).splitlines() or [""])[0][:300]
    print(f"specdash: unexpected {type(problem).__name__}: {first}. {where}", file=sys.stderr)
    if json:
        _as_json("Unexpected", f"{type(problem).__name__}: {first}", where, Exit.UNKNOWN)
    return int(Exit.UNKNOWN)
