"""The vendored cases of kind `log` conclude as expected."""

from __future__ import annotations

import collections

import pytest

from tests.cases import __main__ as runner
from tests.sglang_log.logkit import DATA

CASES = [(file, case) for file, case in runner.cases(DATA / "cases") if case["kind"] == "log"]


def test_there_are_cases() -> None:
    assert len(CASES) > 20


@pytest.mark.parametrize(("file", "case"), CASES, ids=[case["id"] for _, case in CASES])
def test_case(file, case) -> None:  # type: ignore[no-untyped-def]
    checked, wrong, got = runner.run(file, case, collections.Counter())
    assert checked and not wrong, {key: (case["expect"].get(key), (got or {}).get(key)) for key in wrong}
