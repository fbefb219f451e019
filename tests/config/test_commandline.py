"""LaunchSpec: argv, http, JSON."""

from __future__ import annotations

import argparse
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specdash.sglang.commandline import MODULE_LAUNCHER, SERVE_LAUNCHER, LaunchSpec, flag_words


def spec(**kwargs: Any) -> LaunchSpec:
    return LaunchSpec(
        **{"profile": "p", "host": "h", "python": "python3", "launcher": MODULE_LAUNCHER, **kwargs}
    )


def test_argv_is_exact() -> None:
    flags = (
        ("--model-path", "/data/My Model"),
        ("--tp", 8),
        ("--mem-fraction-static", 0.85),
        ("--trust-remote-code", True),
        ("--lora-paths", ["a=/x", "b=/y"]),
        ("--json-model-override-args", {"rope_scaling": {"type": "yarn", "on": True}}),
        ("--odd", "-y"),
        ("--cold", -0.5),
        ("--again", [["1", "2"], ["3"]]),
        ("--empty", ""),
    )
    found = spec(python="/v/bin/python 3", flags=flags, wrapper=("numactl", "-N", "0")).argv()
    assert found == [
        *("numactl", "-N", "0", "/v/bin/python 3", "-m", "sglang.launch_server"),
        *(
            "--model-path",
            "/data/My Model",
            "--tp",
            "8",
            "--mem-fraction-static",
            "0.85",
            "--trust-remote-code",
        ),
        *("--lora-paths", "a=/x", "b=/y"),
        *("--json-model-override-args", '{"rope_scaling": {"type": "yarn", "on": true}}'),
        *("--odd=-y", "--cold", "-0.5", "--again", "1", "2", "--again", "3", "--empty", ""),
    ]


@pytest.mark.parametrize(
    ("python", "launcher", "program"),
    [
        ("/v/bin/python3", SERVE_LAUNCHER, ["/v/bin/python3", "/v/bin/sglang", "serve"]),
        ("python3", SERVE_LAUNCHER, ["sglang", "serve"]),
        ("python3", ("-u", "-m", "sglang.launch_server"), ["python3", "-u", "-m", "sglang.launch_server"]),
        ("python3", ("/opt/bin/sglang", "serve"), ["/opt/bin/sglang", "serve"]),
    ],
)
def test_program(python: str, launcher: tuple[str, ...], program: list[str]) -> None:
    assert spec(python=python, launcher=launcher).argv() == program


@given(st.text(st.characters(exclude_characters="\0")))
def test_argparse_reads_every_value_back(value: str) -> None:
    parser = argparse.ArgumentParser(allow_abbrev=False)
    parser.add_argument("--flag")
    parser.add_argument("--other", action="store_true")
    read = parser.parse_args([*flag_words("--flag", value), "--other"])
    assert read.flag == value and read.other


def test_http() -> None:
    assert spec().http() == ("127.0.0.1", 30000)
    assert spec(flags=(("--host", "0.0.0.0"), ("--port", 8000))).http() == ("127.0.0.1", 8000)
    assert spec(flags=(("--host", "::"), ("--port", "8000"))).http() == ("::1", 8000)
    assert spec(flags=(("--host", "10.0.0.7"), ("--port", 1), ("--port", 2))).http() == ("10.0.0.7", 2)
    for bad in ("x", 0, 70000, True, [1, 2]):
        with pytest.raises(ValueError):
            spec(flags=(("--port", bad),)).http()


def test_json_and_back_keeps_every_byte() -> None:
    raw = b"caf\xe9\n'\"".decode("utf-8", "surrogateescape")
    one = spec(
        flags=(("--model-path", raw), ("--x", ["a", 1, True]), ("--j", {"a": [None]}), ("--on", True)),
        env={"A": raw},
        secret_flags={"--api-key": "env:K"},
        secret_env={"T": "file:/t"},
        cwd=raw,
        log="l",
        wrapper=("nice",),
        algorithm="EAGLE3",
        drafter="/d",
    )
    assert LaunchSpec.from_json(json.loads(json.dumps(one.as_json()))) == one
    assert LaunchSpec.from_json({**one.as_json(), "of a later version": 1}) == one
    assert all("env:K" not in word for word in one.argv())
