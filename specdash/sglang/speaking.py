"""Which messages may have something to say, found out by cheap looks, and which text is a user's."""

from __future__ import annotations

import re

from specdash.sglang import phases, signs

LOUD = ("ERROR", "CRITICAL", "FATAL", "WARNING", "WARN")
"""Levels at which any record counts."""
KEYS = frozenset(phases.BY_FIRST_WORDS) | frozenset(
    (b"Decode", b"Prefil", b"Ignore", b"INFO: ", b"ERROR:", b"WARNIN", b"CRITIC")
)
"""First six bytes of messages that are known kinds (`oneline.KEYED`)."""
PYTHON_WARNING = re.compile(rb"\S+:\d+: \w*Warning: ")
PRINTED = (b"batch", b"oad weight", b"server", b"KV Cache", b"Captur")
"""Bytes of lines without a head in which a message of an unknown logging format may be."""
STATE_NEEDLES = (b"etract", b"SIGTERM", b"Gracefully", b"Health check failed", b"kill_process_tree", b"hutting down",
                 b"inished server process", b"reset to ", b"ersion")  # fmt: skip
LOWER = bytes(
    c + 32 if 65 <= c <= 90 else c if 97 <= c <= 122 or 48 <= c <= 57 or c in b"_-" or c > 127 else 32
    for c in range(256)
)
WORDS = frozenset(
    b"""allocated bound jit autotune autotuning auto-tune auto-tuning retract retracted retracting retraction
    retracted_reqs sigterm gracefully health kill_process_tree shutting finished reset version watchdog crashed died
    dead sigquit terminated exit nccl nvml xid nvrm space killed segmentation bus aborted memory profiled use
    available timed timeout unbalanced module oom-kill command peer leave found warning userwarning warn deprecated deprecation
    sub-optimal falling fallback fail failed fails failure unable sglang oom fault""".split()
)
"""Words of the needles below, in lower case: a message with none of them (and no error) has nothing to say."""
SPEAKS = (
    tuple(needle for needle, _ in phases.ANYWHERE) + STATE_NEEDLES + signs.NEEDLES + signs.WARNING_NEEDLES
)


def speaks(body: bytes) -> bool:
    """Whether a message may have something to say. False costs about a microsecond: one look at its words."""
    if b"rror" not in body and b"xception" not in body and WORDS.isdisjoint(body.translate(LOWER).split()):
        return False
    return any(needle in body for needle in SPEAKS)


def is_user_text(body: bytes) -> bool:
    """A logged request: what is in it was written by a user, and is no fact."""
    begin = body[:200]
    return (
        b"ReqInput(" in begin
        or b"obj=" in begin
        or (
            body[:7] in (b"Receive", b"Finish:", b"Finishe", b"Request")
            and (b"rid" in body or b"text=" in body)
        )
    )
