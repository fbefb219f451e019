"""The demo's lines against a real server's, so that it cannot drift into what our own parser happens to like."""

from __future__ import annotations

import re
import string
from pathlib import Path

import pytest

from specdash.demo.engine import templates

LINES = (Path(__file__).parent.parent / "data" / "demo" / "lines.txt").read_text().splitlines()
STAMP = re.compile(r"^\[\d{4}-\d\d-\d\d \d\d:\d\d:\d\d( TP\d+)?\] ")
PLAIN = [STAMP.sub("", line) for line in LINES if not line.startswith("#")]
BEGINNINGS = {"OOM", "EXCEPTION"}
"""The real text goes on after the template."""
NOT_CAPTURED = {"WRONG_SHAPE"}
"""From SGLang's source (`model_loader/weight_utils.py`), never captured."""


def pattern(template: str) -> str:
    out = []
    for literal, name, spec, _ in string.Formatter().parse(template):
        out.append(re.escape(literal))
        if name == "spec":
            out.append(r"(?:accept len: -?\d+\.\d\d, accept rate: -?\d+\.\d\d, )?")
        elif name is not None:
            number = re.fullmatch(r"(\d*)(?:\.(\d))?([fd])", spec or "")
            places = number and number.group(2)
            out.append(r" *-?\d+" + (rf"\.\d{{{places}}}" if places else "") if number else ".*?")
    return "".join(out)


ALL = {
    name: value if isinstance(value, tuple) else (value,)
    for name, value in vars(templates).items()
    if name.isupper() and name not in NOT_CAPTURED
}


@pytest.mark.parametrize("name", sorted(ALL))
def test_every_template_is_a_line_that_a_real_server_wrote(name: str) -> None:
    for template in ALL[name]:
        look = re.compile(pattern(template), re.DOTALL)
        if name == "DECODE_SPEC":
            assert any(look.search(line) for line in PLAIN)
            continue
        match = look.match if name in BEGINNINGS else look.fullmatch
        assert any(match(line) for line in PLAIN), f"{template!r} is like no captured line"


def written_by(text: str) -> tuple[list[str], list[str]]:
    """(lines that a template made, other lines) of a demo engine's log; tracebacks and warnings are others."""
    looks = [re.compile(pattern(t), re.DOTALL) for many in ALL.values() for t in many]
    looks += [re.compile(pattern(templates.WRONG_SHAPE))]
    ours, others = [], []
    for line in re.split(r"[\r\n]+", text):
        plain = STAMP.sub("", line)
        if plain.strip():
            (ours if any(look.fullmatch(plain) for look in looks) else others).append(line)
    return ours, others
