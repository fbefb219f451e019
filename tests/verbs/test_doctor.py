"""`specdash doctor`: what it finds here and on a host, its codes, and a bundle in which no planted secret is left."""

from __future__ import annotations

import base64
import io
import json
import os
import socket
import subprocess
import sys
import tarfile
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from specdash.config.hosts import Host
from specdash.config.secrets import Secret
from specdash.control import hostruns, launch
from specdash.exits import Exit
from specdash.host.open import open_link
from specdash.sglang.commandline import LaunchSpec
from specdash.verbs import doctor, doctor_bundle, doctor_here
from specdash.verbs.context import Context
from specdash.verbs.doctor_here import Item
from tests.monitor.conftest import _end_marked, free_port, root  # noqa: F401  (fixtures)

STUB = Path(__file__).parents[1] / "support" / "engine_stub.py"


@pytest.fixture
def home(root: Path, monkeypatch: pytest.MonkeyPatch) -> Path:  # noqa: F811
    """A home folder of its own, with a config of one local host."""
    for name in list(os.environ):
        if name.startswith(("XDG_", "SPECDASH", "SSH_")):
            monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(root))
    monkeypatch.chdir(root)
    folder = root / ".config" / "specdash"
    (folder / "profiles").mkdir(parents=True)
    (folder / "config.toml").write_text(
        f'[hosts.box]\nssh = ""\npython = "{sys.executable}"\nrun_root = "{root}/runs"\n[defaults]\nhost = "box"\n'
    )
    return root


def cli(*words: str, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "specdash", *words],
        env={**os.environ, **env, "PYTHONPATH": str(Path(__file__).parents[2])},
        capture_output=True,
        text=True,
        timeout=90,
        stdin=subprocess.DEVNULL,
    )


def found(done: subprocess.CompletedProcess[str], name: str, where: str = "here") -> list[dict[str, Any]]:
    items = json.loads(done.stdout)["items"]
    return [item for item in items if item["name"] == name and item["where"] == where]


# -- this machine


def test_what_is_well_is_ok_and_0(home: Path) -> None:
    done = cli("doctor")
    assert done.returncode == 0, done.stdout
    assert "Python 3" in done.stdout and "asyncssh" in done.stdout and "profiles can be read" in done.stdout


def test_a_broken_profile_fails_and_a_missing_secret_warns(home: Path) -> None:
    profiles = home / ".config" / "specdash" / "profiles"
    (profiles / "keyed.toml").write_text('[server]\nmodel-path = "m"\napi-key = "env:NOT_SET_ANYWHERE"\n')
    done = cli("doctor", "--json")
    assert done.returncode == Exit.WARNING
    assert "NOT_SET_ANYWHERE" in found(done, "secret")[0]["sentence"]
    (profiles / "broken.toml").write_text("[server\n")
    done = cli("doctor", "--json")
    assert done.returncode == Exit.CRITICAL
    assert found(done, "profile")[0]["sentence"].startswith("broken: ")


def test_a_config_that_cannot_be_read_is_told_of_and_the_rest_is_looked_at(home: Path) -> None:
    (home / ".config" / "specdash" / "config.toml").write_text("them = 1")
    done = cli("doctor", "--json")
    assert done.returncode == Exit.CRITICAL
    assert found(done, "config")[0]["status"] == "fail" and "theme" in found(done, "config")[0]["remedy"]
    assert found(done, "python") and found(done, "profiles")


def test_a_config_that_others_can_change_is_a_warning(home: Path) -> None:
    (home / ".config" / "specdash" / "config.toml").chmod(0o666)
    assert "0666" in found(cli("doctor", "--json"), "config")[0]["sentence"]


def test_ascii_terminals_are_told_and_the_answer_is_ascii(home: Path) -> None:
    done = cli("doctor", PYTHONIOENCODING="ascii")
    assert done.returncode == 1 and done.stdout.isascii() and "LC_ALL=C.UTF-8" in done.stdout


class Agent:
    """An ssh agent that holds `count` keys, or does not speak the protocol."""

    def __init__(self, path: Path, answer: bytes) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.bind(str(path))
        self.sock.listen(1)
        self.answer = answer
        threading.Thread(target=self.serve, daemon=True).start()

    def serve(self) -> None:
        with self.sock.accept()[0] as one:
            one.recv(5)
            one.sendall(self.answer)


@pytest.mark.parametrize(
    ("answer", "status", "words"),
    [
        (b"\0\0\0\x05\x0c\0\0\0\x02", "ok", "2 keys"),
        (b"\0\0\0\x01\x05\0\0\0\0", "warn", "refuses"),
        (b"", "warn", "hung up"),
    ],
)
def test_the_agent_is_asked_for_its_keys(tmp_path: Path, answer: bytes, status: str, words: str) -> None:
    Agent(tmp_path / "agent", answer)
    (item, *_) = doctor_here.ssh({"SSH_AUTH_SOCK": str(tmp_path / "agent")}, tmp_path, True)
    assert item.name == "ssh-agent" and item.status == status and words in item.sentence


def test_keys_that_others_can_read_and_no_key_at_all(tmp_path: Path) -> None:
    (none,) = doctor_here.ssh({}, tmp_path, True)
    assert none.status == "warn" and "ssh-keygen" in none.remedy
    assert [item.status for item in doctor_here.ssh({}, tmp_path, False)] == ["ok"], "no SSH host, no need"
    (tmp_path / "id_ed25519").write_text("x")
    (tmp_path / "id_ed25519").chmod(0o644)
    loose, there = doctor_here.ssh({}, tmp_path, True)
    assert loose.status == "warn" and "chmod 600" in loose.remedy and there.status == "ok"
    gone, *_ = doctor_here.ssh({"SSH_AUTH_SOCK": str(tmp_path / "nobody")}, tmp_path, True)
    assert gone.status == "warn" and "no agent answers" in gone.sentence


@pytest.mark.parametrize(
    ("env", "tty", "size", "status"),
    [
        ({"TERM": "xterm-256color"}, True, (120, 40), "ok"),
        ({"TERM": "dumb"}, True, (120, 40), "warn"),
        ({}, True, (120, 40), "warn"),
        ({"TERM": "xterm"}, True, (60, 40), "warn"),
        ({"TERM": "dumb"}, False, (0, 0), "ok"),
    ],
)
def test_terminals(env: dict[str, str], tty: bool, size: tuple[int, int], status: str) -> None:
    assert doctor_here.terminal(env, tty, os.terminal_size(size)).status == status


@pytest.mark.parametrize(
    ("version", "limits", "good"),
    [
        ("2.24.1", ">=2.24.1,<3", True),
        ("3.0", ">=2.24.1,<3", False),
        ("2.9", ">=2.12,<3", False),
        ("2.24", "==2.24.0", True),
        ("8.2.8", "==8.2.9", False),
        ("1.0", "~=weird", True),
    ],
)
def test_versions_are_compared_as_numbers(version: str, limits: str, good: bool) -> None:
    assert doctor_here.within(version, limits) is good


def test_codes() -> None:
    ok, warn, fail = (Item("here", "x", status, "") for status in ("ok", "warn", "fail"))  # type: ignore[arg-type]
    assert [doctor.code_of(items) for items in ([ok], [ok, warn], [warn, fail], [])] == [0, 1, 2, 0]


# -- hosts


def test_a_host_is_looked_at(home: Path) -> None:
    profiles = home / ".config" / "specdash" / "profiles"
    (profiles / "here.toml").write_text(f'python = "{sys.executable}"\n[server]\nmodel-path = "m"\n')
    (profiles / "nopy.toml").write_text('python = "/no/such/python"\n[server]\nmodel-path = "m"\n')
    done = cli("doctor", "box", "--json")
    assert done.returncode == Exit.CRITICAL, done.stdout
    assert found(done, "link", "box")[0]["status"] == "ok"
    assert found(done, "python", "box") and found(done, "gpus", "box")
    assert "GiB are free" in found(done, "disk", "box")[0]["sentence"]
    said = [item["sentence"] for item in found(done, "sglang", "box") if item["status"] == "fail"]
    assert any("cannot import sglang" in one for one in said) and any(
        "/no/such/python" in one for one in said
    )
    assert not (home / "runs").exists(), "nothing was made on the host"


def test_a_host_that_cannot_be_reached_fails_and_one_that_is_not_known_is_usage(home: Path) -> None:
    config = home / ".config" / "specdash" / "config.toml"
    config.write_text(config.read_text() + '[hosts.far]\nssh = "127.0.0.1"\nport = 9\n')
    done = cli("doctor", "--all", "--json", "--timeout", "20")
    assert done.returncode == Exit.CRITICAL
    assert (
        found(done, "link", "far")[0]["status"] == "fail" and found(done, "link", "box")[0]["status"] == "ok"
    )
    assert cli("doctor", "nowhere").returncode == Exit.UNREACHABLE
    assert cli("doctor", "--timeout", "0").returncode == Exit.UNKNOWN


# -- the bundle

PLANTED = {
    "stored": "st0red-secret/value+1",
    "variable": "v4riable \"quoted\" 'secret' \\ ü",
    "file": "first-line-of-f1le-secret\nsecond-line-of-f1le-secret",
    "engine": "engine-k3y-0123456789",
    "token": "hf_abcdefghijklmnopqrstuvwx",
    "literal": "literal-api-key-31337",
    "literal_env": "literal-env-value-31337",
    "broken": "broken-file-secret-31337",
    "broken_more": "broken-second-line-31337",
    "shell": "shell-variable-secret-31337",
    "password": "url-pass-31337",
}


@pytest.fixture
async def planted(home: Path, free_port: int, monkeypatch: pytest.MonkeyPatch) -> Path:  # noqa: F811
    """Secrets wherever people and engines leave them."""
    config = home / ".config" / "specdash"
    secrets = config / "secrets"
    secrets.mkdir()
    (secrets / "old").write_text(PLANTED["stored"] + "\n")
    (home / "key").write_text(PLANTED["file"] + "\n")
    (home / "key").chmod(0o600)
    monkeypatch.setenv("ODD_NAME", PLANTED["variable"])
    monkeypatch.setenv("MY_DEPLOY_SECRET", PLANTED["shell"])
    profiles = config / "profiles"
    (profiles / "good.toml").write_text(
        f'[server]\nmodel-path = "m"\napi-key = "env:ODD_NAME"\n[env]\nHF_TOKEN = "file:{home}/key"\n'
    )
    (profiles / "literal.toml").write_text(
        f'# {PLANTED["literal"]}\n[server]\nmodel-path = "m"\napi-key = "{PLANTED["literal"]}"\n'
        f'[env]\nWANDB_KEY = "{PLANTED["literal_env"]}"\nURL = "https://me:{PLANTED["password"]}@example"\n'
    )
    (profiles / "broken.toml").write_text(
        f'[server\napi-key = """{PLANTED["broken"]}\n{PLANTED["broken_more"]}"""\n"{PLANTED["broken_more"]}" = 1\n'
    )
    host = Host(name="box", run_root=f"{home}/runs", python=sys.executable)
    link = await open_link(host)
    try:
        spec = LaunchSpec(
            "stub",
            "box",
            sys.executable,
            ("-B", str(STUB)),
            (("--port", free_port), ("--host", "127.0.0.1")),
            env={"TEST_ROOT_MARK": str(home)},
            secret_flags={"--api-key": "env:X"},
        )
        plan = await launch.plan(link, spec, precheck=False)
        secret = lambda reference: Secret(reference, value=PLANTED["engine"])  # noqa: E731
        async for event in launch.run(link, plan, resolve=secret):
            last = event
        assert last.final == "done", last
        log = Path(hostruns.run_folder(link, plan.id), "server.log")
        assert await doctor_bundle._tail(link, f"{log}.gone", 10) == b""
        keyless = replace(spec, profile="keyless", secret_flags={}, flags=(("--port", 1), ("--die", 1)))
        ended = await launch.plan(link, keyless, precheck=False)
        async for event in launch.run(link, ended):
            last = event
        assert last.final == "failed", "a run without a key, that ended"
    finally:
        await link.close()
    noise = [
        f"server_args=ServerArgs(api_key='{PLANTED['engine']}', tp_size=8)",
        f"\x1b[1mgot\x1b[0m {PLANTED['variable']} and {json.dumps(PLANTED['variable'])} {PLANTED['variable']!r}",
        json.dumps({"deep": [{"api_key": PLANTED["literal"]}, PLANTED["variable"]]}),
        f"GET /?key={quote(PLANTED['stored'], safe='')} {base64.b64encode(PLANTED['engine'].encode()).decode()}",
        f"Authorization: Bearer {PLANTED['engine']} MY_DEPLOY_SECRET={PLANTED['shell']} {PLANTED['token']}",
        f"file says {PLANTED['file']}",
        "Decode batch. #running-req: 1, accept len: 2.31, gen throughput (token/s): 61.2",
    ]
    _append(log, "\n".join(noise) + "\n")
    errors = home / ".local" / "state" / "specdash" / "errors"
    errors.mkdir(parents=True)
    (errors / "error-1.txt").write_text(f"KeyError: {PLANTED['shell']!r} {PLANTED['token']}\n  raise Boom\n")
    queues = errors.parent / "queues"
    queues.mkdir()
    (queues / "try-1.json").write_text(json.dumps({"rows": [{"env": {"HF_TOKEN": PLANTED["literal_env"]}}]}))
    return home


def _append(log: Path, text: str) -> None:
    with log.open("a") as file:
        file.write(text)


def spellings(secret: str) -> Iterator[str]:
    for line in secret.splitlines():
        raw = line.encode()
        yield from (line, json.dumps(line)[1:-1], repr(line)[1:-1], quote(raw, safe=""))
        yield base64.b64encode(raw).decode()


async def test_no_planted_secret_is_in_the_bundle_and_what_helps_is(planted: Path) -> None:
    target = planted / "bundle.tar.gz"
    import asyncio

    done = await asyncio.to_thread(cli, "doctor", "box", "--bundle", str(target), "--json")
    assert done.returncode == Exit.CRITICAL, done.stderr  # two profiles cannot be read
    assert target.stat().st_mode & 0o777 == 0o600
    with tarfile.open(target) as archive:
        members = archive.getmembers()
        texts = {one.name: archive.extractfile(one).read().decode() for one in members if one.isfile()}  # type: ignore[union-attr]
    assert all(one.mode == 0o600 and one.isfile() and ".." not in one.name for one in members)
    everything = "\n".join([*texts, *texts.values(), done.stdout, done.stderr])
    for name, secret in PLANTED.items():
        for spelling in spellings(secret):
            where = [file for file, text in texts.items() if spelling in text]
            assert spelling not in everything, (name, spelling, where)
    names = {name.removeprefix("specdash-bundle/") for name in texts}
    assert {"doctor.json", "versions.json", "config.toml", "errors/error-1.txt", "queues/try-1.json"} <= names
    assert {"profiles/good.toml", "profiles/literal.toml", "profiles/broken.toml"} <= names
    assert "env:ODD_NAME" in texts["specdash-bundle/profiles/good.toml"], (
        "references help, and are no secrets"
    )
    (log,) = (text for name, text in texts.items() if name.endswith("/server.log") and "/stub-" in name)
    assert "tp_size=8" in log and "accept len: 2.31" in log and "61.2" in log and "fired up" in log
    assert "raise Boom" in texts["specdash-bundle/errors/error-1.txt"]
    assert '"asyncssh"' in texts["specdash-bundle/versions.json"]
    assert any(name.endswith("runs.json") and "stub" in text for name, text in texts.items())


async def test_a_log_that_is_cut_loses_the_line_whose_beginning_is_gone() -> None:
    class Link:
        hello: dict[str, str] = {"base": "/b"}  # noqa: RUF012

        async def call(self, method: str, params: dict[str, Any], timeout: float = 0) -> dict[str, Any]:
            if method == "runs.list":
                return {"runs": [{"id": "r"}]}
            if method == "switches.list":
                return {"switches": []}
            if not params["path"].endswith("server.log"):
                return {"size": 0, "blob": b""}
            line = (
                b"api_key='" + b"x" * 50 + b"half-a-secret'\n" + b"y" * (doctor_bundle.LOG_TAIL - 16) + b"\n"
            )
            offset = params.get("offset", 0)
            return {"size": len(line), "blob": line[offset : offset + params.get("max_bytes", 0)]}

    files = await doctor_bundle._host(Link(), set())  # type: ignore[arg-type]
    assert files["r/server.log"].startswith("(cut)\nyyy") and "secret" not in files["r/server.log"]


def test_a_bundle_never_overwrites(home: Path) -> None:
    there = home / "there.tar.gz"
    there.write_text("mine")
    link = home / "link.tar.gz"
    link.symlink_to(home / "elsewhere")
    for path in (there, link, home / "no" / "folder.tar.gz"):
        done = cli("doctor", "--bundle", str(path))
        assert done.returncode == Exit.REFUSED and done.stderr.count("\n") == 1, done.stderr
    assert there.read_text() == "mine" and not (home / "elsewhere").exists()


def test_one_that_appears_meanwhile_is_not_overwritten_either(home: Path) -> None:
    from specdash.errors import Refused

    target = home / "late"
    target.symlink_to(home / "victim")
    with pytest.raises(Refused):
        doctor_bundle._put(target, {"a": "b"})
    assert not (home / "victim").exists()


def test_a_report_has_no_control_characters() -> None:
    text = "\n".join(doctor.lines([Item("here", "x", "warn", "a\x1b[2Jb\nc", "d\re")]))
    assert "\x1b" not in text and "\r" not in text and text.count("\n") == 2
    context = Context(out=io.StringIO())
    assert doctor_here.locale(context).status == "warn"
