"""Start a program so that nobody can kill it by accident, and so that it gets exactly the argv it was given.

New session, stdin from /dev/null, output appended to its log file, signals as a fresh login would have them
(a launch under `nohup … &` inherits SIGINT ignored, and then an interrupt during a load does nothing).
"""

from __future__ import annotations

import ctypes
import errno
import os
import signal
from typing import Dict, List, NoReturn

PR_SET_CHILD_SUBREAPER = 36
RESET = (
    "SIGINT",
    "SIGQUIT",
    "SIGHUP",
    "SIGTERM",
    "SIGPIPE",
    "SIGCHLD",
    "SIGTSTP",
    "SIGTTIN",
    "SIGTTOU",
    "SIGXFSZ",
    "SIGUSR1",
    "SIGUSR2",
    "SIGALRM",
)


class SpawnFailed(Exception):
    """`sentence` and `step` for the operator; `number` is the errno."""

    def __init__(self, sentence: str, step: str, number: int) -> None:
        super().__init__(sentence)
        self.sentence = sentence
        self.step = step
        self.number = number


def become_subreaper() -> bool:
    """Orphans of our descendants become our children, so that their end is seen. False: not offered here."""
    try:
        libc = ctypes.CDLL(None, use_errno=True)
        return bool(libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) == 0)
    except (OSError, AttributeError):
        return False


def start(argv: List[bytes], env: Dict[bytes, bytes], cwd: str, log: str, umask: int = 0o022) -> int:
    """Fork and exec in a new session; returns the pid once exec has succeeded. Raises SpawnFailed.

    Call it while the process has one thread.
    """
    program = _find(argv[0], env, cwd)
    reader, writer = os.pipe()  # both close on exec: an end without a word means that exec worked
    pid = os.fork()
    if pid == 0:
        _child(program, argv, env, cwd, log, umask, writer)
    os.close(writer)
    with os.fdopen(reader, "rb") as pipe:
        told = pipe.read(64)
    if not told:
        return pid
    os.waitpid(pid, 0)
    stage, _, number = told.decode("ascii", "replace").partition(":")
    raise _failure(stage, int(number or 0), argv, cwd, log)


def _child(
    program: bytes, argv: List[bytes], env: Dict[bytes, bytes], cwd: str, log: str, umask: int, writer: int
) -> NoReturn:
    stage = "session"
    try:
        os.setsid()
        for name in RESET:
            signal.signal(getattr(signal, name), signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
        stage = "cwd"
        os.chdir(cwd)
        stage = "log"
        output = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        null = os.open(os.devnull, os.O_RDONLY)
        os.dup2(null, 0)
        os.dup2(output, 1)
        os.dup2(output, 2)
        keep = writer
        os.closerange(3, keep)
        os.closerange(keep + 1, 65536)
        os.umask(umask)
        stage = "exec"
        os.execve(program, argv, env)
    except OSError as error:
        os.write(writer, b"%s:%d" % (stage.encode(), error.errno or 0))
    except BaseException:
        os.write(writer, b"%s:0" % stage.encode())
    os._exit(127)


def _find(name: bytes, env: Dict[bytes, bytes], cwd: str) -> bytes:
    """The file to execute: as it is with a slash in it, else looked up in the *new* environment's PATH."""
    if b"/" in name:
        return name
    for folder in env.get(b"PATH", b"/usr/local/bin:/usr/bin:/bin").split(b":"):
        found = os.path.join(os.fsencode(cwd), folder, name)
        if os.access(found, os.X_OK) and not os.path.isdir(found):
            return found
    return name


def _failure(stage: str, number: int, argv: List[bytes], cwd: str, log: str) -> SpawnFailed:
    program = os.fsdecode(argv[0])
    why = os.strerror(number) if number else "unknown reason"
    if stage == "cwd":
        return SpawnFailed(
            "The working directory %s cannot be entered: %s." % (cwd, why),
            "Correct `cwd` in the profile.",
            number,
        )
    if stage == "log":
        return SpawnFailed(
            "The log %s cannot be written: %s." % (log, why), "Check free space and rights there.", number
        )
    if stage == "exec" and number == errno.ENOENT:
        if os.path.exists(os.path.join(cwd, program)):
            return SpawnFailed(
                "The interpreter named in the first line of %s does not exist." % program,
                "Correct `python` in the profile.",
                number,
            )
        return SpawnFailed(
            "There is no program %s on the host." % program, "Correct `python` in the profile.", number
        )
    if stage == "exec" and number == errno.E2BIG:
        return SpawnFailed(
            "The command line and environment are too long for this system.", "Shorten them.", number
        )
    return SpawnFailed(
        "%s cannot be executed: %s." % (program, why), "Check `python` in the profile.", number
    )
