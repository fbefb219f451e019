"""The cases of groups 3 and 4 conclude as expected, through the runner that anybody can start."""

from __future__ import annotations

import re
import subprocess
import sys

from tests.sglang_static.wheels import ROOT


def test_static_cases_pass() -> None:
    command = [sys.executable, "-m", "tests.cases", "tests/data/cases"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=100, check=False)
    lines = done.stdout.splitlines()
    assert re.fullmatch(r"\d+ passed, \d+ failed", lines[-1]), done.stderr
    mine = [line for line in lines if re.match(r"C(30[1246]|312|316|318|40\d|41[125]) ", line)]
    assert len(mine) == 16
    assert all(" pass expected " in line for line in mine), "\n".join(mine)


def test_the_mapping_knows_no_case() -> None:
    for file in (ROOT / "tests" / "cases").glob("kind_*.py"):
        text = file.read_text()
        assert not re.search(r"\bC\d{3,4}\b", text), file
        assert "expect" not in re.sub(r"expected_\w+", "", text.replace("draft_expects", "")), file
