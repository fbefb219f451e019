"""Shell lines: read into a launch, written from one, and both ways."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specdash.config.secrets import is_secret_env, is_secret_option
from specdash.errors import UsageError
from specdash.sglang.commandline import MODULE_LAUNCHER, SERVE_LAUNCHER, LaunchSpec, value_text
from specdash.sglang.shell_import import ShellLaunch, parse_line
from specdash.sglang.shell_line import format_line
from tests.support.examples import examples


def read(line: str) -> ShellLaunch:
    return parse_line(line, is_secret_option=is_secret_option, is_secret_env=is_secret_env)


FIELD = r"""cd /root/eagle && export HF_HOME=/data/hf NCCL_DEBUG="WARN"; CUDA_VISIBLE_DEVICES=0,1,2,3,4,5,6,7 \
  HF_TOKEN='hf_secret' nohup /root/ml-env/bin/python3 -m sglang.launch_server \
  --model-path "/data/Kimi K2.5" --tp 4 --mem-fraction-static=0.85 --trust-remote-code \
  --json-model-override-args '{"rope_scaling": null}' --no-enable-x --cuda-graph-bs 1 2 4 8 \
  --tp 8 --api-key "$KEY" \
  --served-model-name it\'s\ "a \"model\"" > logs/server.log 2>&1 &  # started by hand
"""


def test_a_line_of_the_field() -> None:
    found = read(FIELD)
    spec = found.spec
    assert spec.argv() == [
        *("/root/ml-env/bin/python3", "-m", "sglang.launch_server", "--model-path", "/data/Kimi K2.5"),
        *("--mem-fraction-static", "0.85", "--trust-remote-code"),
        *("--json-model-override-args", '{"rope_scaling": null}', "--no-enable-x"),
        *("--cuda-graph-bs", "1", "2", "4", "8", "--tp", "8", "--served-model-name", 'it\'s a "model"'),
    ]
    assert spec.env == {
        "HF_HOME": "/data/hf",
        "NCCL_DEBUG": "WARN",
        "CUDA_VISIBLE_DEVICES": "0,1,2,3,4,5,6,7",
    }
    assert (spec.cwd, spec.log) == ("/root/eagle", "logs/server.log")
    assert spec.secret_flags == {"--api-key": "env:KEY"}
    assert found.literal_env == {"HF_TOKEN": "hf_secret"}
    assert any("--tp" in note and "last" in note for note in found.notes)
    assert "hf_secret" not in json.dumps(spec.as_json())


@pytest.mark.parametrize(
    ("line", "expect"),
    [
        ("P -m sglang.launch_server --a 1", {}),
        (
            "P -u -X dev -m sglang.launch_server",
            {"launcher": ("-u", "-X", "dev", "-m", "sglang.launch_server")},
        ),
        ("/v/bin/sglang serve --a 1", {"python": "/v/bin/python3", "launcher": SERVE_LAUNCHER}),
        ("/v/bin/python3 /v/bin/sglang serve", {"python": "/v/bin/python3", "launcher": SERVE_LAUNCHER}),
        ("sglang serve", {"python": "python3", "launcher": SERVE_LAUNCHER}),
        ("source /v/bin/activate && P -m sglang.launch_server", {"python": "/v/bin/python3"}),
        ("cd /w; . v/bin/activate; P -m sglang.launch_server", {"python": "/w/v/bin/python3", "cwd": "/w"}),
        ("cd /a && cd b/c && P -m sglang.launch_server", {"cwd": "/a/b/c"}),
        ("cd ~/w && P -m sglang.launch_server", {"cwd": "~/w"}),
        ("cd ~ && P -m sglang.launch_server", {"cwd": ""}),
        ("cd '~/w' && P -m sglang.launch_server", {"cwd": "./~/w"}),
        ("(cd /a; P -m sglang.launch_server; echo $?) > l 2>&1 &", {"cwd": "/a", "log": "l"}),
        ("{ P -m sglang.launch_server > l; }", {"log": "l"}),
        ("P -m sglang.launch_server &> l", {"log": "l"}),
        ("P -m sglang.launch_server >& l", {"log": "l"}),
        ("P -m sglang.launch_server >>l 2>&1 </dev/null & disown", {"log": "l"}),
        ("P -m sglang.launch_server 2>&1 | tee -a 'my log'", {"log": "my log"}),
        ("P -m sglang.launch_server > /dev/null 2>&1 & echo $! > pid", {"log": ""}),
        ("P -m sglang.launch_server 2> err > out", {"log": "out"}),
        ("setsid -f nohup P -m sglang.launch_server", {"wrapper": ()}),
        ("time exec P -m sglang.launch_server", {"wrapper": ()}),
        (
            "numactl -N 0 --membind=0 P -m sglang.launch_server",
            {"wrapper": ("numactl", "-N", "0", "--membind=0")},
        ),
        ("nohup taskset -c 0-31 P -m sglang.launch_server", {"wrapper": ("taskset", "-c", "0-31")}),
        (
            "env -u A B=1 'C.D=2' P -m sglang.launch_server",
            {"wrapper": ("env", "-u", "A"), "env": {"B": "1", "C.D": "2"}},
        ),
        ("timeout -k 5 1h P -m sglang.launch_server", {"wrapper": ()}),
        (
            "nohup bash -c 'cd /x; A=1 P -m sglang.launch_server' > l",
            {"cwd": "/x", "env": {"A": "1"}, "log": "l"},
        ),
        ("A=1; export A; P -m sglang.launch_server", {"env": {"A": "1"}}),
        ("A=1; P -m sglang.launch_server", {"env": {}}),
        ("M=/m; P -m sglang.launch_server --model-path $M/x", {"flags": (("--model-path", "/m/x"),)}),
        ("M='/a b'; P -m sglang.launch_server --m \"${M}\"", {"flags": (("--m", "/a b"),)}),
        (
            "P -m sglang.launch_server --a=-1 --b -1 --c=-x --d ''",
            {"flags": (("--a", -1), ("--b", -1), ("--c", "-x"), ("--d", ""))},
        ),
        (
            "P -m sglang.launch_server --a 08 --b 1e3 --c 1.50 --d 0.5",
            {"flags": (("--a", "08"), ("--b", "1e3"), ("--c", "1.50"), ("--d", 0.5))},
        ),
        ("P -m sglang.launch_server --a $'x\\n\\x41\\u00e9'", {"flags": (("--a", "x\nAé"),)}),
        ("P -m sglang.launch_server --a 'x''y'\"z\" # --b", {"flags": (("--a", "xyz"),)}),
        (
            "P -m sglang.launch_server --api-key $(cat ~/.k)",
            {"secret_flags": {"--api-key": "host-file:~/.k"}},
        ),
        (
            "P -m sglang.launch_server --api-key \"$(< '/a b')\"",
            {"secret_flags": {"--api-key": "host-file:/a b"}},
        ),
        ("P -m sglang.launch_server --api-key file:/k", {"secret_flags": {"--api-key": "file:/k"}}),
        ("HF_TOKEN=$T P -m sglang.launch_server", {"secret_env": {"HF_TOKEN": "env:T"}}),
        ("ulimit -n 65535; mkdir -p /l && P -m sglang.launch_server", {}),
    ],
)
def test_what_a_line_means(line: str, expect: dict[str, Any]) -> None:
    spec = read(line.replace("P -", "python3 -")).spec
    base = {"python": "python3", "launcher": MODULE_LAUNCHER} if "sglang serve" not in line else {}
    for name, value in {**base, **expect}.items():
        assert getattr(spec, name) == value, name


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("sudo P", "sudo"),
        ("sudo -E env A=1 P", "sudo"),
        ("docker run --gpus all img P", "docker"),
        ("nohup docker run img P", "docker"),
        ("ssh gpu1 'P'", "ssh"),
        ("P --x $(nproc)", r"$(…)"),
        ("P --x `nproc`", r"$(…)"),
        ("P --x $HOME/y", "$HOME"),
        ("P --x ${A:-b}", "A:-b"),
        ("PATH=/x:$PATH P", "$PATH"),
        ("A='a b'; P --x $A", "$A"),
        ("P | grep x", "piped"),
        ("true || P", "||"),
        ("P > l <<EOF\nx\nEOF", "<<"),
        ("P 'a", "not closed"),
        ('P "a', "not closed"),
        ("P a", "belongs to no option"),
        ("P --a=1 b", "belongs to no option"),
        ("P && P", "two servers"),
        ("python3 -m vllm.entrypoints", "sglang"),
        ("echo hello", "no SGLang server"),
        ("", "no SGLang server"),
        ("rocket --go; P", "rocket"),
        ("source env.sh; P", "env.sh"),
        ("conda run -n x P", "conda"),
        ("P < input", "input"),
        ("f() { P; }", "function"),
        ("(P", "("),
        ("P \\", "backslash"),
        ("env -i P", "env -i"),
        ("A+=1 P", "+="),
    ],
)
def test_refused_with_a_sentence(line: str, words: str) -> None:
    with pytest.raises(UsageError) as caught:
        read(
            line.replace("P", "python3 -m sglang.launch_server")
            if "vllm" not in line and "PATH" not in line
            else line.replace("P", "python3 -m sglang.launch_server").replace(
                "python3 -m sglang.launch_serverATH", "PATH"
            )
        )
    assert words in f"{caught.value.sentence} {caught.value.step}"
    assert caught.value.sentence.endswith((".", "?"))


def test_globs_and_homes_are_kept_and_said() -> None:
    found = read("python3 -m sglang.launch_server --a ~/m --b *.txt --c {1,2} --d '~/q' --e '*'")
    assert found.spec.argv()[3:] == ["--a", "~/m", "--b", "*.txt", "--c", "{1,2}", "--d", "~/q", "--e", "*"]
    said = [note for note in found.notes if "kept as written" in note]
    assert len(said) == 3


def test_nothing_is_run(tmp_path: Path) -> None:
    mark = tmp_path / "ran"
    for word in (f"$(touch {mark})", f"`touch {mark}`", f'"$(touch {mark})"'):
        with pytest.raises(UsageError):
            read(f"python3 -m sglang.launch_server --x {word}")
    read(f"python3 -m sglang.launch_server --x 'a'; touch {mark}")
    assert not mark.exists()


# -- both ways ------------------------------------------------------------------------------------------

raw_text = st.one_of(
    st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=20),
    st.binary(max_size=12).map(lambda b: b.replace(b"\0", b"").decode("utf-8", "surrogateescape")),
    st.sampled_from(
        [
            "; rm -rf /",
            "$(reboot)",
            "`id`",
            "a'b\"c",
            "x\ny",
            "--y",
            "-1",
            "~/z",
            "*",
            "#c",
            "a\\",
            "!x",
            "{a,b}",
            "\r\n",
            "env:X",
        ]
    ),
)
path_text = raw_text.filter(lambda t: t and not t.startswith("~")).map(lambda t: "/" + t)
option = st.from_regex(r"--[a-z][a-z0-9]*(-[a-z0-9]+){0,2}\Z", fullmatch=True).filter(
    lambda o: not is_secret_option(o) and o not in ("--port", "--host")
)
variable = st.from_regex(r"[A-Za-z_][A-Za-z0-9_]{0,8}\Z", fullmatch=True).filter(
    lambda n: not is_secret_env(n)
)
element = raw_text.filter(lambda t: not t.startswith("-"))
value = st.one_of(
    st.just(True),
    st.integers(),
    st.floats(allow_nan=False, allow_infinity=False),
    raw_text,
    st.lists(element, min_size=2, max_size=4),
)
reference = st.one_of(
    st.just("env:SOME_NAME"), path_text.map(lambda p: f"file:{p}"), path_text.map(lambda p: f"host-file:{p}")
)
specs = st.builds(
    LaunchSpec,
    profile=st.just("p"),
    host=st.just("local"),
    python=st.one_of(st.just("python3"), path_text.map(lambda p: p.rstrip("/") + "/python3")),
    launcher=st.sampled_from([MODULE_LAUNCHER, SERVE_LAUNCHER, ("-u", "-m", "sglang.launch_server")]),
    flags=st.dictionaries(option, value, max_size=6).map(lambda d: tuple(d.items())),
    env=st.dictionaries(variable, raw_text, max_size=4),
    cwd=st.one_of(st.just(""), path_text),
    log=st.one_of(st.just(""), path_text.filter(lambda p: p != "/dev/null")),
    secret_flags=st.dictionaries(st.sampled_from(["--api-key", "--admin-api-key"]), reference),
    secret_env=st.dictionaries(st.sampled_from(["HF_TOKEN", "MY_SECRET"]), reference),
    wrapper=st.sampled_from([(), ("numactl", "--interleave=all"), ("taskset", "-c", "0-3")]),
)


@settings(max_examples=examples(120), deadline=None)
@given(specs, st.booleans())
def test_line_and_back_is_exact(spec: LaunchSpec, continued: bool) -> None:
    back = read(format_line(spec, continued=continued))
    assert back.spec.argv() == spec.argv()
    assert back.spec.env == spec.env
    assert (back.spec.cwd, back.spec.log) == (spec.cwd, spec.log)
    assert back.spec.secret_flags == spec.secret_flags
    assert back.spec.secret_env == spec.secret_env
    assert back.spec.wrapper == spec.wrapper
    assert not back.literal_env and not back.literal_flags
    assert format_line(back.spec) == format_line(spec)
    for name, known in dict(spec.flags).items():
        found = dict(back.spec.flags)[name]
        assert found is True if known is True else not isinstance(found, list) or isinstance(known, list)
        if isinstance(known, int | float) and known is not True:
            assert value_text(found) == value_text(known)


STUB = """#!/bin/sh
exec {python} -c 'import json, os, sys; json.dump([[os.fsencode(a).hex() for a in sys.argv[1:]], \
{{k: os.fsencode(v).hex() for k, v in os.environ.items()}}, os.getcwd()], open(os.environ["DUMP"], "w"))' "$@"
"""


@pytest.mark.parametrize("shell", ["sh", "bash", "zsh", "dash"])
def test_real_shells_read_the_line_as_we_mean_it(shell: str, tmp_path: Path) -> None:
    if not shutil.which(shell):
        pytest.skip(f"{shell} is not installed")
    folder = tmp_path / "a b'c"
    folder.mkdir()
    python = folder / "python3"
    python.write_text(STUB.format(python="/usr/bin/env python3"))
    python.chmod(0o755)
    odd = b"caf\xe9 '\"`id` $(id) ;*?\n\\ !x #y ~ {a,b}".decode("utf-8", "surrogateescape")
    spec = LaunchSpec(
        "p", "h", str(python), MODULE_LAUNCHER, (("--a", odd), ("--b", True), ("--c", [odd, "2"]), ("--d", "-x")),
        env={"ODD": odd}, cwd=str(folder), secret_flags={"--api-key": "env:THE_KEY"}, secret_env={"T_TOKEN": "file:/}`$\"x"},
    )  # fmt: skip
    dump = tmp_path / "dump"
    line = os.fsencode(format_line(spec))
    env = {"PATH": os.environ["PATH"], "DUMP": str(dump), "THE_KEY": "k", "T_TOKEN": "t"}
    subprocess.run([shell, "-c", line], check=True, env=env, timeout=30)
    argv, seen, cwd = json.loads(dump.read_text())
    assert [bytes.fromhex(a) for a in argv] == [os.fsencode(a) for a in [*spec.argv()[1:], "--api-key", "k"]]
    assert bytes.fromhex(seen["ODD"]) == os.fsencode(odd) and bytes.fromhex(seen["T_TOKEN"]) == b"t"
    assert cwd == str(folder)
    del env["THE_KEY"]
    told = subprocess.run([shell, "-c", line], env=env, timeout=30, capture_output=True, text=True)
    assert told.returncode != 0 and "env:THE_KEY" in told.stderr
