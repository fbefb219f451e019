"""The JSON of --check is what its schema says; text and Prometheus output stay as they are, byte for byte."""

from __future__ import annotations

import contextlib
import json
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from prometheus_client.parser import text_string_to_metric_families

from specdash import cli
from specdash.check import document
from specdash.host import open as ways
from tests.check.fakehost import FakeHost
from tests.check.test_states import ROWS, trap
from tests.support.http_fake import HttpFake

ROOT = Path(__file__).parents[2]
GOLDEN = ROOT / "tests" / "data" / "check"
VALIDATOR = jsonschema.Draft202012Validator(document.schema())
MOVING = ("took_s", "age_s", "at_unix")


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[list[str], int]]:
    """A fake host with trouble and two servers: (words that check it, port)."""
    metrics = {"running": 3.0, "queued": 0.0, "accept": 1.42, "tok_s": 900.0}
    with HttpFake({"/ready": 200}, metrics=metrics) as fake, contextlib.ExitStack() as stack:
        facts: dict[str, Any] = {
            "gpus": [{"memory_used_mib": 1000.0}, {"ecc_uncorrected": 2}],
            "sample": {"disk_free_bytes": 3 << 30},
            "runs": [{}],
        }
        closed = stack.enter_context(trap("closed"))
        (tmp_path / "config.toml").write_text('[hosts.box]\nssh = ""\n')

        async def open_link(*_: object, **__: object) -> FakeHost:
            return FakeHost(facts, fake.port)

        monkeypatch.setattr(ways, "open_link", open_link)
        monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
        words = ["--config", str(tmp_path / "config.toml"), "--check", "box", f"127.0.0.1:{closed}"]
        yield [*words, "--window", "0.3", "--warn", "accept<1.8", "--crit", "tok/s<40"], closed


def plain(text: str, port: int) -> str:
    """Without what is another one each time: the port, and numbers of time and rates."""
    text = text.replace(str(port), "PORT")
    moving = r"(?m)^(specdash_check_duration_seconds\S+|specdash_check_time_seconds|specdash_server_decode\S+) \S+$"
    text = re.sub(moving, r"\1 N", text)
    text = re.sub(r"('(?:[^']* )?(?:time|tok/s)'=)[\d.]+", r"\1N", text)
    text = re.sub(r"\(port, [\d.]+ s\)|\(host, [\d.]+ s\)", "(N s)", text)
    text = re.sub(r"tok/s [\d.e+]+", "tok/s N", text)
    text = re.sub(r"last \d+ s|mean of \d+ pages", "N", text)
    return re.sub(r'version="[^"]*"', 'version="V"', text)


@pytest.mark.parametrize(
    ("form", "name"), [("text", "line.txt"), ("verbose", "verbose.txt"), ("prometheus", "metrics.prom")]
)
def test_golden_output(
    form: str, name: str, place: tuple[list[str], int], capsys: pytest.CaptureFixture[str]
) -> None:
    words, port = place
    more = ["--verbose"] if form == "verbose" else ["--format", form]
    assert cli.main([*words, *more]) == 2
    told = plain(capsys.readouterr().out, port)
    if os.environ.get("SPECDASH_RENEW"):  # then look at what changed in them
        (GOLDEN / name).write_text(told, "utf-8")
    assert told == (GOLDEN / name).read_text("utf-8"), told
    if form == "prometheus":
        families = list(text_string_to_metric_families(told.replace(" N\n", " 1\n")))
        assert families and all(family.type == "gauge" and family.documentation for family in families)


def test_json_of_trouble_is_valid_and_ordered(
    place: tuple[list[str], int], capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main([*place[0], "--json"]) == 2
    data = json.loads(capsys.readouterr().out)
    VALIDATOR.validate(data)
    assert [target["state"] for target in data["targets"]] == ["WARNING", "CRITICAL"]
    worst = [finding["state"] for finding in data["targets"][0]["findings"]]
    assert worst == sorted(worst, key=["CRITICAL", "UNKNOWN", "WARNING", "OK"].index)
    assert data["targets"][0]["servers"]["kimi"]["accept"]["value"] == pytest.approx(1.42)
    assert data["targets"][0]["servers"]["kimi"]["cap"]["value"] is None, "not told is null, not 0"


def test_the_schema_is_committed_printed_and_strict(capsys: pytest.CaptureFixture[str]) -> None:
    jsonschema.Draft202012Validator.check_schema(document.schema())
    committed = (ROOT / "docs" / "schema" / "check.json").read_text("utf-8")
    assert committed == document.text(), "run: python -m specdash.check.document docs/schema"
    assert cli.main(["--check", "--schema"]) == 0
    assert capsys.readouterr().out == committed
    with pytest.raises(jsonschema.ValidationError):
        VALIDATOR.validate({"schema": "specdash.check/1", "state": "FINE"})
    assert {row["code"] for row in ROWS} == {0, 1, 2, 3}
