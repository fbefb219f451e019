"""The installed engine's own parser against our reading of its files: strings, defaults, choices, arity."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
from typing import Any

import pytest

from specdash.control import probe
from specdash.sglang.flags import FlagTable
from tests.support.engine import environment, folder, python

pytestmark = [pytest.mark.engine, pytest.mark.timeout(300), pytest.mark.xdist_group("engine")]

DUMP = """
import argparse, json
from sglang.srt.server_args import ServerArgs
parser = argparse.ArgumentParser()
ServerArgs.add_cli_args(parser)
out = {}
for action in parser._actions:
    kind = getattr(action.type, "__name__", None)
    choices = sorted(map(str, action.choices)) if action.choices is not None else None
    entry = {"strings": action.option_strings, "dest": action.dest, "nargs": action.nargs, "type": kind,
             "choices": choices, "default": repr(action.default), "required": action.required}
    for string in action.option_strings:
        out[string] = entry
print("DUMP" + json.dumps(out))
"""
TAKES = {None: "one", "+": "many", "*": "any", "?": "maybe", 0: "nothing"}


def test_reading_agrees_with_the_real_parser() -> None:
    engine = folder()
    if engine is None:
        pytest.skip("SPECDASH_ENGINE names no engine")
    env = {**os.environ, **environment()}
    done = subprocess.run([python(engine), "-c", DUMP], env=env, capture_output=True, text=True, check=True)
    line = next(row for row in done.stdout.splitlines() if row.startswith("DUMP"))
    real: dict[str, dict[str, Any]] = json.loads(line[4:])
    site = next((engine / "venv/lib").glob("python3*")) / "site-packages"
    found = asyncio.run(probe.probe_tree(site))
    assert found.reading is not None
    table: FlagTable = found.reading.flags
    assert set(table.by_string) == set(real)
    wrong = []
    for string, entry in real.items():
        flag = table.by_string[string]
        if string in ("-h", "--help"):
            continue
        if flag.takes != TAKES.get(entry["nargs"], str(entry["nargs"])):
            wrong.append((string, "takes", flag.takes, entry["nargs"]))
        if flag.dest != entry["dest"] or flag.required != entry["required"]:
            wrong.append((string, "dest or required", flag.dest, entry["dest"]))
        if flag.choices is not None and sorted(map(str, flag.choices)) != entry["choices"]:
            wrong.append((string, "choices", flag.choices, entry["choices"]))
        if flag.choices is None and not flag.choices_dynamic and entry["choices"] is not None:
            wrong.append((string, "choices missed", None, entry["choices"]))
        if (
            flag.default_known
            and repr(flag.default) != entry["default"]
            and not isinstance(flag.default, list)
        ):
            wrong.append((string, "default", flag.default, entry["default"]))
    assert not wrong, wrong
