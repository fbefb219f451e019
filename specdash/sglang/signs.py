"""Lines that speak of failure, by meaning (the table is `signtable`), and the numbers in them."""

from __future__ import annotations

import re
from typing import Any, Dict, List, Optional, Tuple

from specdash.sglang.signtable import SIGNS, Sign

NEEDLES: Tuple[bytes, ...] = (
    b"rror", b"No module named", b"oom-kill", b"xception", b"atchdog", b"crashed", b"died", b"dead", b"igquit", b"SIGQUIT", b"terminated", b"xit code",
    b"NCCL", b"nccl", b"NVML", b"Xid", b"NVRM", b"No space", b"Killed", b"Segmentation", b"Bus error", b"Aborted",
    b"enough memory", b"out of memory", b"profiled value", b"in use", b"not available", b"imed out", b"imeout",
    b"unbalanced", b"off the bus", b"command not found", b"closed by peer", b"leave no",
)  # fmt: skip
"""Bytes that a line has when a sign may match; all other lines meet no regex."""

WARNING = re.compile(
    rb"[Ww]arning\b|WARN|[Dd]eprecat|sub-optimal|[Ff]alling back|[Ff]allback|\b[Ff]ail(?:ed|s|ure)?\b|[Uu]nable to|not found\b"
)
WARNING_NEEDLES: Tuple[bytes, ...] = (
    b"arning",
    b"WARN",
    b"eprecat",
    b"sub-optimal",
    b"alling back",
    b"ail",
    b"nable to",
    b"ot found",
)
LINES = frozenset(
    [
        "oom_kv_pool",
        "http_port_in_use",
        "bind_failed",
        "watchdog_timeout",
        "killed_by_signal",
        "child_exited",
        "child_died",
        "init_failed",
        "warmup_failed",
        "gpu_lost",
        "gpu_in_use_by_others",
        "nccl_timeout",
        "disk_full",
    ]
)
"""Signs that count in a plain record. All others do only in an exception, an ERROR record or a line without a head:
engines log many a failure that they survive."""
COMMAND_LINE = frozenset(
    ("unknown_flag", "flag_abbreviation", "missing_flag", "bad_flag_value", "unknown_algorithm")
)
PLAIN = tuple(sign for sign in SIGNS if sign.category in LINES)
EXCEPTION_LINE = re.compile(
    rb"(?P<type>(?:[A-Za-z_]\w*\.)*[A-Z]\w*(?:Error|Exception|Interrupt|Exit|Warning|Timeout|Failure|Fault|NotFound\w*|Full|Empty|Stop\w*|Died|Lost)\w*"
    rb"|(?:[a-z_]\w*\.)+[A-Z]\w+|Exception)(?::(?: |$)|$)"
)
FATAL_HEAD = re.compile(
    r"hit an exception|[Ii]nitialization failed|[Uu]ncaught|failed to (?:start|launch|initialize the (?:engine|server))|Fatal"
    r"|Capture .{0,80}failed|SIGQUIT|sigquit|Exception in (?:scheduler|engine)|died"
)
SURVIVED_HEAD = re.compile(
    r"ASGI application|in thread|never retrieved|Ignor|Can ?not initialize|init failed|[Ff]alling back|[Ff]all back|[Ss]kip"
    r"|[Ww]arning|disabled|[Pp]y-?spy|not available \(|will be ignored|[Rr]etry"
)

_UNITS = {
    "KiB": 1 / 1024,
    "MiB": 1.0,
    "GiB": 1024.0,
    "TiB": 1048576.0,
    "KB": 1 / 1024,
    "MB": 1.0,
    "GB": 1024.0,
    "TB": 1048576.0,
}


def match(text: str, plain: bool = False) -> Optional[Tuple[Sign, Dict[str, Any]]]:
    """The first sign that a text shows, with what it names. Sizes come as `need_mib`, `free_mib`, `total_mib`.

    `plain`: a record that is no error by itself; only the signs of `LINES` are looked for.
    """
    text = text[: 1500 if plain else 6000]
    for sign in PLAIN if plain else SIGNS:
        found = sign.pattern.search(text)
        if found:
            return sign, _named(found.groupdict())
    return None


def matches(text: str) -> List[Tuple[Sign, Dict[str, Any]]]:
    """All signs that a text shows, in the table's order."""
    text = text[:6000]
    found = ((sign, sign.pattern.search(text)) for sign in SIGNS)
    return [(sign, _named(hit.groupdict())) for sign, hit in found if hit]


def _named(groups: Dict[str, Optional[str]]) -> Dict[str, Any]:
    out: Dict[str, Any] = {}
    for key, value in groups.items():
        if value is None or key.endswith("_unit"):
            continue
        name = key.rstrip("0123456789") if key[-1].isdigit() else key
        unit = groups.get(key + "_unit")
        if unit:
            out[name + "_mib"] = round(float(value) * _UNITS[unit], 3)
        elif name == "need_bytes":
            out["need_mib"] = round(int(value) / 1048576.0, 3)
        elif name == "gpu":
            out["gpu_index"] = int(value)
        elif re.fullmatch(r"-?\d{1,15}", value):
            out[name] = int(value)
        elif name.startswith("fraction"):
            out[name] = _number(value)
        else:
            out[name] = value.strip()[:400]
    return out


def _number(text: str) -> Optional[float]:
    try:
        return float(text)
    except ValueError:
        return None
