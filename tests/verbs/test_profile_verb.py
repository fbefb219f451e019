"""`specdash profile …`, `config …`, `hosts`, `completion`, through the command line."""

from __future__ import annotations

import json
import os
import shutil
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from specdash import cli
from specdash.config import secrets

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "home"
    (folder / "work").mkdir(parents=True)
    for name in ("XDG_CONFIG_HOME", "XDG_STATE_HOME", "XDG_DATA_HOME"):
        monkeypatch.delenv(name, raising=False)
    # Set first, so that what `--config` puts there is taken back after the test.
    monkeypatch.setenv("SPECDASH_CONFIG", "x")
    monkeypatch.delenv("SPECDASH_CONFIG")
    monkeypatch.setenv("HOME", str(folder))
    monkeypatch.chdir(folder / "work")
    return folder


@pytest.fixture
def specdash(capfd: pytest.CaptureFixture[str]) -> Run:
    def run(*words: str) -> tuple[int, str, str]:
        code = cli.main(list(words))
        out, err = capfd.readouterr()
        return code, out, err

    return run


LINE = (
    "cd /w && HF_TOKEN=hf_verysecret A=1 nohup /v/bin/python3 -m sglang.launch_server --model-path '/m x' --tp 8 "
    "--api-key sk-alsosecret --json-model-override-args '{\"a\": null}' > s.log 2>&1 &"
)


def test_import_moves_secrets_and_comes_back(specdash: Run, home: Path) -> None:
    code, out, err = specdash("profile", "import", "--name", "mine", LINE)
    assert code == 0 and out == f"{home}/.config/specdash/profiles/mine.toml\n"
    text = Path(out.strip()).read_text()
    assert "verysecret" not in text + err and "alsosecret" not in text + err
    folder = home / ".config/specdash/secrets"
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    files = sorted(folder.iterdir())
    assert [stat.S_IMODE(f.stat().st_mode) for f in files] == [0o600, 0o600]
    assert {secrets.resolve(f"file:{f}").value for f in files} == {"hf_verysecret", "sk-alsosecret"}

    code, out, err = specdash("profile", "command", "mine")
    assert code == 0 and "secret" in out and "verysecret" not in out and "alsosecret" not in out
    assert "references" in err
    code, again, _ = specdash("profile", "import", out.strip(), "--json")
    first = json.loads(specdash("profile", "show", "mine", "--json")[1])["launch"]
    second = json.loads(again)["launch"]
    for key in ("flags", "env", "cwd", "log", "secret_env", "secret_flags", "python", "launcher"):
        assert second[key] == first[key], key
    assert first["flags"][-1] == ["--json-model-override-args", '{"a": null}']


def test_import_prints_without_a_name(specdash: Run, home: Path) -> None:
    code, out, err = specdash("profile", "import", "python3 -m sglang.launch_server --tp 4 --tp 8 > l")
    assert code == 0 and "tp = 8" in out and "last one counts" in err
    assert not (home / ".config").exists()


def test_import_does_not_overwrite_and_stores_nothing_then(specdash: Run, home: Path) -> None:
    specdash("profile", "import", "--name", "mine", "python3 -m sglang.launch_server")
    code, _, err = specdash("profile", "import", "--name", "mine", LINE)
    assert code == 3 and "already" in err and not (home / ".config/specdash/secrets").exists()
    assert specdash("profile", "import", "--name", "mine", "--force", LINE)[0] == 0


@pytest.mark.parametrize(
    "line", ["sudo python3 -m sglang.launch_server", "python3 -m sglang.launch_server $X", "ls"]
)
def test_import_refuses_in_one_line(specdash: Run, line: str) -> None:
    code, out, err = specdash("profile", "import", line)
    assert (code, out) == (3, "") and err.startswith("specdash: ") and err.count("\n") == 1


def test_import_from_stdin_keeps_bytes(home: Path) -> None:
    raw = b"python3 -m sglang.launch_server --model-path '/caf\xe9/\xff'\n"
    one = subprocess.run(
        [sys.executable, "-m", "specdash", "profile", "import", "--name", "raw", "-"],
        input=raw, capture_output=True, check=True, timeout=60,
    )  # fmt: skip
    assert one.stdout.strip().endswith(b"raw.toml")
    back = subprocess.run(
        [sys.executable, "-m", "specdash", "profile", "command", "raw"],
        capture_output=True,
        check=True,
        timeout=60,
    )
    assert back.stdout == raw


def test_list_show_check_diff_new(specdash: Run) -> None:
    assert specdash("profile", "new", "faster", "--extends", "kimi-k2.5-base")[0] == 0
    code, out, _ = specdash("profile", "list")
    assert code == 0 and "kimi-k2.5-eagle3" in out and "faster" in out
    rows = {row["name"]: row for row in json.loads(specdash("profile", "list", "--json")[1])["profiles"]}
    assert rows["kimi-k2.5-eagle3"]["algorithm"] == "EAGLE3" and rows["faster"]["extends"] == "kimi-k2.5-base"
    code, out, _ = specdash("profile", "show", "kimi-k2.5-eagle3")
    assert "kimi-k2.5-eagle3 < kimi-k2.5-base" in out and "kimi-k2.5-base:" in out
    code, out, _ = specdash("profile", "diff", "kimi-k2.5-base", "kimi-k2.5-ngram")
    assert out == "+ speculation.algorithm = NGRAM\n"
    Path("bad.toml").write_text("[server]\ntp = 1\ntp = 2")
    code, out, _ = specdash("profile", "check", "./bad.toml", "kimi-k2.5-ngram", "--json")
    assert code == 3 and "bad.toml:3" in json.loads(out)["profiles"][0]["problem"]
    code, out, _ = specdash("profile", "check", "kimi-k2.5-ngram")
    assert code == 1 and 'No host "gpu1"' in out, "the profile is fine, its host is not there yet"


def test_config_init_show_check_path(specdash: Run, home: Path) -> None:
    code, out, _ = specdash("config", "init", "--host", "198.51.100.7")
    path = home / ".config/specdash/config.toml"
    assert (code, out) == (0, f"{path}\n")
    assert path.read_text().startswith("#:schema schema/config.json\n")
    assert json.loads((path.parent / "schema/config.json").read_text())["title"]
    code, out, _ = specdash("config", "show")
    assert json.loads(out)["hosts"]["198.51.100.7"]["ssh"] == "198.51.100.7"
    assert specdash("config", "init")[0] == 3
    assert specdash("config", "check")[0] == 0
    path.write_text("read-onyl = true")
    for words in (["config", "show"], ["config", "check"], ["hosts"], ["profile", "list"]):
        code, _, err = specdash(*words)
        assert code == 3 and f"{path}:1:" in err and "read-only" in err
    assert specdash("config", "path")[0] == 0, "a broken file must not hide where it is"


def test_hosts(specdash: Run, home: Path) -> None:
    (home / ".ssh").mkdir()
    (home / ".ssh/config").write_text("Host box\n")
    config = home / "c.toml"
    config.write_text(
        '[hosts.gpu1]\nssh = "me@198.51.100.7"\nread-only = true\n[groups]\nlab = ["gpu1", "box"]\n'
    )
    code, out, _ = specdash("--config", str(config), "hosts")
    assert code == 0 and [line.split()[0] for line in out.splitlines()] == ["gpu1", "local", "box"]
    rows = json.loads(specdash("hosts", "lab", "--json", "--config", str(config))[1])["hosts"]
    assert [(r["name"], r["from"], r["groups"]) for r in rows] == [
        ("gpu1", "config", ["lab"]),
        ("box", "~/.ssh/config", ["lab"]),
    ]
    code, _, err = specdash("hosts", "boxx")
    assert code == 5 and '"box"' in err


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_scripts_parse(specdash: Run, shell: str, tmp_path: Path) -> None:
    code, out, _ = specdash("completion", shell)
    assert code == 0 and "profile" in out
    if not shutil.which(shell):
        pytest.skip(f"{shell} is not installed")
    file = tmp_path / "c"
    file.write_text(out)
    subprocess.run([shell, "-n", str(file)], check=True, timeout=30)


def with_specdash_on_path(tmp_path: Path) -> dict[str, str]:
    binary = tmp_path / "bin" / "specdash"
    binary.parent.mkdir()
    binary.write_text(f'#!/bin/sh\nexec {sys.executable} -m specdash "$@"\n')
    binary.chmod(0o755)
    return {**os.environ, "PATH": f"{binary.parent}:{os.environ['PATH']}"}


@pytest.mark.parametrize(
    ("words", "found", "absent"),
    [
        (["specdash", "pro"], "profile", "hosts"),
        (["specdash", "profile", "im"], "import", "show"),
        (["specdash", "profile", "show", "kimi-k2.5-ea"], "kimi-k2.5-eagle3", "kimi-k2.5-base"),
        (["specdash", "profile", "import", "--fo"], "--force", "--name"),
    ],
)
def test_bash_completes(specdash: Run, tmp_path: Path, words: list[str], found: str, absent: str) -> None:
    script = specdash("completion", "bash")[1]
    quoted = " ".join(f"'{word}'" for word in words)
    script += f'\nCOMP_WORDS=({quoted}); COMP_CWORD={len(words) - 1}; _specdash; printf "%s\\n" "${{COMPREPLY[@]}}"\n'
    told = subprocess.run(
        ["bash", "-c", script],
        capture_output=True,
        text=True,
        env=with_specdash_on_path(tmp_path),
        timeout=60,
    )
    assert found in told.stdout.split() and absent not in told.stdout.split(), told


def test_fish_completes(specdash: Run, tmp_path: Path) -> None:
    if not shutil.which("fish"):
        pytest.skip("fish is not installed")
    file = tmp_path / "c.fish"
    file.write_text(specdash("completion", "fish")[1])
    env = with_specdash_on_path(tmp_path)
    for words, found in (
        ("specdash pro", "profile"),
        ("specdash profile show kimi-k2.5-ea", "kimi-k2.5-eagle3"),
    ):
        told = subprocess.run(
            ["fish", "-N", "-c", f'source {file}; complete -C "{words}"'],
            capture_output=True,
            text=True,
            env=env,
            timeout=60,
        )
        assert found in told.stdout, told


def test_every_help_has_text(specdash: Run) -> None:
    from specdash.cli import available

    for verb in available():
        code, out, err = specdash(verb, "--help")
        assert code == 0 and "usage: specdash" in out and err == "", verb
    assert specdash("help", "hosts")[0] == 0
