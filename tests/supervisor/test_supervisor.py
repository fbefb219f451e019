"""The supervisor on the oldest and the newest Python, run as it runs on a host: packed, from its run folder."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from specdash.control.hostruns import program
from specdash.host.remote import folder as folders
from specdash.host.remote import gpuhold, journal, kin, procs

STUB = Path(__file__).parents[1] / "support" / "engine_stub.py"


PYTHONS = {
    "SPECDASH_PY38": ("/root/.pyenv/versions/3.8.18/bin/python3.8", "python3.8"),
    "SPECDASH_PYNEW": ("/root/.pyenv/versions/3.13.0/bin/python3.13", "python3.14", "python3.13"),
}


@pytest.fixture(params=list(PYTHONS))
def python(request: pytest.FixtureRequest) -> str:
    """Oldest and newest; in CI a missing one fails: the promise would be untested."""
    given = os.environ.get(request.param)
    for name in (given,) if given else PYTHONS[request.param]:
        path = shutil.which(name)
        if path:
            return path
    message = f"no interpreter for {request.param}"
    if os.environ.get("CI") == "true":
        pytest.fail(message)
    pytest.skip(message)


class Bench:
    """Runs in a base folder, ordered by `python` as an agent would."""

    def __init__(self, base: Path, python: str) -> None:
        self.base, self.python, self.pids = base, python, set()
        self.zip = base / "program.zip"
        self.zip.write_bytes(program())
        with socket.socket() as sock:
            sock.bind(("127.0.0.1", 0))
            self.port = int(sock.getsockname()[1])

    def host(self, code: str, value: Any = None) -> Any:
        """Evaluate `code` (of runstore, x) on the "host", as JSON."""
        text = (
            "import json,sys; sys.path.insert(0, sys.argv[1]); from specdash.host.remote import runstore, folder, procs\n"
            "x = json.load(sys.stdin); print(json.dumps(" + code + "))"
        )
        done = subprocess.run(
            [self.python, "-I", "-c", text, str(self.zip)],
            input=json.dumps(value),
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    def launch(self, *flags: str, argv: list[str] | None = None, **more: Any) -> dict[str, Any]:
        run = {
            "id": "r1",
            "argv": argv or [sys.executable, "-B", str(STUB), "--port", str(self.port), *flags],
            "http": {"host": "127.0.0.1", "port": self.port},
            "rules": "specdash.sglang.ready",
            "cwd": str(self.base),
            "env_merge": True,
            "leftovers_after_s": 3.0,
            **more,
        }
        code = (
            "runstore.create(x['base'], x['run'], {'env': x['env'].encode(), "
            "'supervisor.pyz': open(sys.argv[1], 'rb').read()})"
        )
        return dict(
            self.host(code, {"base": str(self.base), "run": run, "env": f"TEST_ROOT_MARK={self.base}\0"})
        )

    @property
    def folder(self) -> str:
        return str(self.base / "runs" / "r1")

    def events(self, kind: str = "") -> list[dict[str, Any]]:
        found = journal.read(folders.path(self.folder, "events.jsonl"))[0]
        return [one for one in found if not kind or one["event"] == kind]

    def wait(self, kind: str, seconds: float = 25.0) -> dict[str, Any]:
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            found = self.events(kind)
            if found:
                return found[-1]
            time.sleep(0.05)
        raise AssertionError(f"no {kind} event: {self.events()}")

    def order(self, **order: Any) -> Any:
        return self.host("runstore.command(x[0], 'r1', x[1])", [str(self.base), order])

    def stop(self) -> dict[str, Any]:
        self.order(cmd="stop", deadline_s=5)
        proof: dict[str, Any] = self.wait("stopped")["proof"]
        return proof


@pytest.fixture
def bench(python: str, tmp_path: Path) -> Iterator[Bench]:
    yield Bench(tmp_path, python)
    word = str(tmp_path).encode()
    for pid in procs.pids():
        line = procs.read_bytes(f"/proc/{pid}/cmdline") or b""
        if pid != os.getpid() and (word in line or (procs.environ(pid) or {}).get(b"TEST_ROOT_MARK") == word):
            os.kill(pid, signal.SIGKILL)


def test_a_whole_run(bench: Bench, python: str) -> None:
    made = bench.launch("--load=0.2")
    ready = bench.wait("ready")
    assert ready["evidence"]["pid"] == made["pid"] and ready["evidence"]["status"] == 200
    started = bench.wait("started")
    assert Path(python).resolve().name.endswith(started["python"].rpartition(".")[0])
    status = procs.stat(started["supervisor_pid"])
    assert status and status["sid"] != made["pid"] and status["pgid"] != made["pid"]
    assert bench.stop()["proven"]
    assert bench.wait("ended")["removed"] == ["env"]
    assert journal.load(folders.path(bench.folder, "exit"))["code"] == 0
    samples = journal.read(folders.path(bench.folder, "samples.jsonl"))[0]
    assert samples[0]["procs"] >= 1 and samples[-1]["procs"] == 0 and samples[-1]["rchar"] > 0
    assert samples[0]["tree"][0]["title"].startswith(sys.executable)


@pytest.mark.slow
def test_parts_of_the_engine_die(bench: Bench) -> None:
    made = bench.launch("--load=0.1")
    bench.wait("ready")
    children = [row["pid"] for row in procs.snapshot().values() if row["ppid"] == made["pid"]]
    assert len(children) == 2
    os.kill(children[0], signal.SIGKILL)
    end = time.monotonic() + 10
    while time.monotonic() < end:
        samples = journal.read(folders.path(bench.folder, "samples.jsonl"))[0]
        if any("gone" in one or "Z" in one["states"] for one in samples):
            break
        time.sleep(0.1)
    else:
        raise AssertionError("the death of a child was not seen")
    os.kill(made["pid"], signal.SIGSEGV)
    exited = bench.wait("exited")
    assert exited["signal"] == signal.SIGSEGV and exited["code"] is None
    proof = bench.wait("ended")["proof"]
    assert proof["proven"] and proof["port"]["free"] and not proof["processes"], (
        "nobody asked; it is proven all the same"
    )
    record = bench.host("runstore.record(x)", bench.folder)
    assert record["ended"] and record["proof"] == proof


def test_what_the_gpus_hold_is_compared_with_before() -> None:
    gpus = [
        {"index": 0, "memory_used_mib": 4.0, "processes": []},
        {"index": 1, "memory_used_mib": 1028.0, "processes": [{"pid": 7, "memory_mib": 1024.0}]},
    ]
    told = gpuhold.verdict({"gpus": gpus}, {9}, [4.0, 4.0])
    assert told["state"] == "free", "a stranger's memory is not the run's"
    assert told["level_mib"] == [4.0, 1028.0] and told["before_mib"] == [4.0, 4.0]
    assert "1032 MiB" in told["sentence"] and "before the run 8 MiB" in told["sentence"]
    assert gpuhold.verdict({"gpus": gpus}, {7}, None)["state"] == "held"


@pytest.mark.slow
def test_orphans_are_reaped_and_counted(bench: Bench) -> None:
    made = bench.launch("--load=0.1", "--leak")
    bench.wait("ready")
    os.kill(made["pid"], signal.SIGKILL)
    bench.wait("exited")
    left = bench.wait("leftovers")
    assert ["--role leak" in one["title"] for one in left["processes"]] == [True], json.dumps(
        left["processes"]
    )
    assert left["processes"][0]["parent"]["pid"] == bench.wait("started")["supervisor_pid"], (
        "we are its subreaper"
    )
    assert bench.stop()["proven"]
    bench.wait("ended")
    assert not procs.stat(left["processes"][0]["pid"])


@pytest.mark.slow
def test_a_new_supervisor_takes_over_after_kill(bench: Bench) -> None:
    made = bench.launch("--load=0.1", "--leak")
    bench.wait("ready")
    os.kill(bench.wait("started")["supervisor_pid"], signal.SIGKILL)
    time.sleep(0.2)
    assert procs.stat(made["pid"])["state"] != "Z", "the server lives on"
    assert bench.stop()["proven"]
    assert bench.wait("exited")["code"] is None
    bench.wait("ended")


def test_what_cannot_start_says_why(bench: Bench) -> None:
    script = bench.base / "engine"
    script.write_text("#!/no/such/interpreter\n")
    script.chmod(0o755)
    made = bench.launch(argv=[str(script)])
    assert made["phase"] == "failed" and "interpreter named in the first line" in made["sentence"]
    assert not Path(bench.folder, "env").exists()


@pytest.mark.slow
def test_a_recycled_pid_is_never_signalled(bench: Bench) -> None:
    made = bench.launch("--load=0.1")
    bench.wait("ready")
    asked = "procs.send(x[0], x[1], x[2], 9)"
    assert bench.host(asked, [made["pid"], made["start"] + 1, made["boot_id"]]) is False
    assert bench.host(asked, [made["pid"], made["start"], "another boot"]) is False
    assert procs.stat(made["pid"])["state"] != "Z"
    assert bench.host(asked, [made["pid"], made["start"], made["boot_id"]]) is True
    assert bench.wait("exited")["signal"] == 9


WORDS = st.one_of(
    st.sampled_from(
        [
            "; rm -rf /",
            "$(touch x)",
            "`id`",
            "'",
            '"',
            "a\nb",
            "",
            " ",
            "\\",
            "ü",
            "日本",
            "*",
            "~",
            "\udcff\udc80",
            "-",
        ]
    ),
    st.text(st.characters(exclude_characters="\0", exclude_categories=("Cs",)), max_size=40),
    st.binary(max_size=20).map(lambda raw: os.fsdecode(raw.replace(b"\0", b""))),
)


@settings(max_examples=8, deadline=None, suppress_health_check=list(HealthCheck))
@given(words=st.lists(WORDS, min_size=1, max_size=12))
def test_the_command_line_is_exact_to_the_byte(
    words: list[str], tmp_path_factory: pytest.TempPathFactory
) -> None:
    bench = Bench(tmp_path_factory.mktemp("argv"), sys.executable)
    argv = [sys.executable, "-c", "import time; time.sleep(60)", *words]
    made = bench.launch(argv=argv)
    try:
        raw = procs.read_bytes(f"/proc/{made['pid']}/cmdline")
        assert raw == b"".join(os.fsencode(word) + b"\0" for word in argv)
    finally:
        os.kill(made["pid"], signal.SIGKILL)


def test_kin_finds_what_left_its_session_by_its_mark() -> None:
    env = {**os.environ, "SPECDASH_RUN": "kin-test"}
    root = subprocess.Popen(
        [
            sys.executable,
            "-c",
            "import os,subprocess,sys,time\n"
            "subprocess.Popen([sys.executable,'-c','import os,time; os.setsid(); time.sleep(60)'])\n"
            "sys.stdin.read()",
        ],
        env=env,
        stdin=subprocess.PIPE,
        start_new_session=True,
    )
    start = procs.stat(root.pid)["start"]
    try:
        end = time.monotonic() + 10
        while not [
            row for row in procs.snapshot().values() if row["ppid"] == root.pid and row["sid"] == row["pid"]
        ]:
            assert time.monotonic() < end
            time.sleep(0.02)
    finally:
        root.kill()
        root.wait()
    fresh = kin.Kin("kin-test", root.pid, start)  # it never saw them as descendants
    assert not fresh.members(), "a shallow look cannot know"
    left = kin.Kin("kin-test", root.pid, start).members(deep=True)
    assert len(left) == 1
    assert not kin.Kin("another", root.pid, start).members(deep=True)
    os.kill(left[0]["pid"], signal.SIGKILL)


def test_retention_never_takes_a_run_that_lives(tmp_path: Path) -> None:
    bench = Bench(tmp_path, sys.executable)
    made = bench.launch(argv=[sys.executable, "-c", "import time; time.sleep(60)"])
    try:
        for number in range(4):
            folder = tmp_path / "runs" / f"old{number}"
            folder.mkdir()
            journal.save(
                str(folder / "run.json"), {"id": f"old{number}", "created_unix": float(number), "argv": ["x"]}
            )
            (folder / "events.jsonl").write_text('{"event":"failed","sentence":"x"}\n')
        gone = bench.host("runstore.prune(x, 3, 1 << 30)", str(tmp_path))
        assert sorted(gone) == ["old0", "old1"]
        assert bench.host("runstore.prune(x, 0, 0)", str(tmp_path)) == ["old3", "old2"]
        assert bench.host("[one['id'] for one in runstore.listing(x)]", str(tmp_path)) == ["r1"]
    finally:
        os.kill(made["pid"], signal.SIGKILL)


@pytest.mark.parametrize(
    ("first", "seen", "before", "state"),
    [
        (True, False, None, "free"),
        (False, True, None, "free"),
        (False, False, None, "unproven"),
        (False, False, [1000.0], "unproven"),
        (False, False, [90_000.0], "free"),
    ],
)
def test_numbers_of_another_namespace_prove_nothing(
    monkeypatch: pytest.MonkeyPatch, first: bool, seen: bool, before: list[float | None] | None, state: str
) -> None:
    """A container whose driver tells the host's process numbers: ours are never in that table."""
    monkeypatch.setattr(gpuhold.gpu_who, "first_namespace", lambda: first)
    gpu = {"index": 0, "memory_used_mib": 90_100.0, "processes": [{"pid": 4_000_001, "memory_mib": 89_000.0}]}
    found = gpuhold.verdict({"gpus": [gpu]}, {41, 42}, before, seen)
    assert found["state"] == state, found
    if state == "unproven":
        assert "container" in found["sentence"]
