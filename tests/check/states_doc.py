"""docs/check-states.md, made from the table of states: python -m tests.check.states_doc"""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
PAGE = HERE.parents[1] / "docs" / "check-states.md"
HEAD = """\
# What `specdash --check` says of which state

Made from `tests/check/states.toml` and `tests/check/states_real.toml` by `python -m tests.check.states_doc`; each row is
a test. The first table runs against a fake port and a fake agent, the second against real sshd, real processes and, where it
says so, a real SGLang. `…` stands for anything, `PORT` for the port; `target` is what is checked: a port asked straight
(`http`, `https`), a host (`box`), or a profile on it (`kimi`).
"""
STATES = ("OK", "WARNING", "CRITICAL", "UNKNOWN")


def text() -> str:
    parts = [HEAD, "## With fakes", *_table(_rows("states.toml"))]
    parts += ["", "## Real", *_table(_rows("states_real.toml"))]
    return "\n".join(parts) + "\n"


def _rows(name: str) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = tomllib.loads((HERE / name).read_text("utf-8"))["state"]
    return rows


def _table(rows: list[dict[str, Any]]) -> list[str]:
    out = ["", "| state | target | options | exit | line |", "| --- | --- | --- | --- | --- |"]
    for row in rows:
        options = " ".join(f"`{word}`" for word in row.get("words", []))
        line = row["line"].replace("|", "\\|")
        cells = (
            row["what"],
            row.get("target", "http"),
            options,
            f"{row['code']} {STATES[row['code']]}",
            line,
        )
        out.append("| " + " | ".join(cells) + " |")
    return out


if __name__ == "__main__":
    PAGE.write_text(text(), "utf-8")
