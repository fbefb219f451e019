"""The agent under the oldest and the newest Python, over a local link: calls, samples, tails, endings."""

from __future__ import annotations

import asyncio
import hashlib
import io
import os
import random
import signal
import sys
import time
import zipfile
from pathlib import Path

import pytest

from specdash.config.hosts import Host
from specdash.errors import LinkError, LinkLost, NoPython, RemoteError
from specdash.host import bundle
from specdash.host.link import HELLO_KEYS, TailPosition
from specdash.host.open import open_link
from specdash.host.remote import hostinfo, wire

REAL_PYTHON = os.path.realpath(sys.executable)


def local(python: str = "python3", **changes) -> Host:
    return Host(name="local", python=python, **changes)


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def children_named(word: str) -> list[int]:
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                if word.encode() in (entry / "cmdline").read_bytes():
                    found.append(int(entry.name))
            except OSError:
                continue
    return found


async def test_hello_says_all_it_promises(python, tmp_path):
    async with await open_link(local(python, run_root=str(tmp_path))) as link:
        hello = link.hello
        for key in HELLO_KEYS.partition(":")[2].split(","):
            assert key.split()[0].strip("().") in hello
        assert hello["missing_modules"] == {}
        assert hello["executable"] and hello["base"] == f"{tmp_path}/hosts/{hostinfo.machine_id()}"
        assert abs(hello["now_unix"] - time.time()) < 5
        assert hello["boot_id"] == hostinfo.boot_id()
        assert await link.ping() < 1000


async def test_exec_gives_bytes_codes_signals_and_says_truncation(python):
    async with await open_link(local(python)) as link:
        done = await link.call("exec", {"argv": ["sh", "-c", "printf '\\377\\0x'; echo no >&2; exit 3"]})
        assert (done["blob"], done["code"], done["stderr"]) == (b"\xff\0x", 3, "no\n")
        done = await link.call("exec", {"argv": ["sh", "-c", "kill -9 $$"]})
        assert (done["code"], done["signal"]) == (None, 9)
        done = await link.call("exec", {"argv": ["cat"]}, blob=b"in" * 500_000)
        assert done["blob"] == b"in" * 500_000 and not done["truncated"]
        done = await link.call("exec", {"argv": ["cat"], "max_bytes": 10}, blob=bytes(1_000_000))
        assert len(done["blob"]) == 10 and done["truncated"]
        done = await link.call(
            "exec", {"argv": ["sh", "-c", "pwd; echo $X-$HOME"], "cwd": "/", "env": {"X": "é", "HOME": None}}
        )
        assert done["blob"].decode() == "/\né-\n"


async def test_exec_ends_the_whole_group_in_time_and_on_cancel(python, until, tmp_path):
    mark = f"{random.random()}"[2:]
    async with await open_link(local(python)) as link:
        done = await link.call(
            "exec", {"argv": ["sh", "-c", f"sleep 9{mark} & sleep 8{mark}"], "timeout": 0.3}
        )
        assert done["timed_out"] and done["code"] is None
        await until(lambda: not children_named(mark), "timed out command is gone")
        with pytest.raises(TimeoutError):
            await link.call("exec", {"argv": ["sleep", f"7{mark}"], "timeout": 60}, timeout=0.3)
        await until(lambda: not children_named(mark), "cancelled command is gone")


@pytest.mark.parametrize(
    ("params", "code"),
    [
        ({"argv": ["/no/such/tool"]}, "not_found"),
        ({"argv": ["true"], "cwd": "/no/such/folder"}, "no_folder"),
        ({"argv": []}, "bad_call"),
    ],
)
async def test_exec_says_no_in_words(params, code):
    async with await open_link(local()) as link:
        with pytest.raises(RemoteError) as caught:
            await link.call("exec", params)
        assert caught.value.code == code and caught.value.sentence


async def test_files_are_exact_atomic_and_bounded(python, tmp_path):
    data = random.Random(2).randbytes(3_000_000)
    odd = os.fsdecode(os.fsencode(tmp_path) + b"/sub/na\xffme")
    async with await open_link(local(python)) as link:
        assert (await link.call("file.stat", {"path": odd}))["exists"] is False
        with pytest.raises(RemoteError, match="No such file"):
            await link.call("file.write", {"path": odd}, blob=data)
        await link.call("file.write", {"path": odd, "parents": True, "mode": 0o640}, blob=data)
        found = await link.call("file.read", {"path": odd, "max_bytes": 10_000_000})
        assert found["blob"] == data and found["eof"] and found["mode"] == 0o640
        part = await link.call("file.read", {"path": odd, "offset": -10})
        assert part["blob"] == data[-10:] and part["offset"] == len(data) - 10
        with pytest.raises(RemoteError) as caught:
            await link.call("file.write", {"path": odd, "replace": False}, blob=b"x")
        assert caught.value.code == "exists"
        listing = await link.call("file.list", {"path": str(tmp_path / "sub")})
        assert [(e["name"], e["size"]) for e in listing["entries"]] == [("na\udcffme", len(data))], "no rests"
        await link.call("file.write", {"path": str(tmp_path / "empty")})
        assert (await link.call("file.read", {"path": str(tmp_path / "empty")}))["blob"] == b""
        os.mkfifo(tmp_path / "pipe")
        with pytest.raises(RemoteError) as caught:
            await link.call("file.read", {"path": str(tmp_path / "pipe")}, timeout=5)
        assert caught.value.code == "not_a_file"
        status = await link.call("file.read", {"path": "/proc/self/status"})
        assert b"Threads:" in status["blob"]


async def test_long_calls_do_not_hold_up_short_ones():
    async with await open_link(local()) as link:
        running = asyncio.gather(*(link.call("exec", {"argv": ["sleep", "1"]}) for _ in range(8)))
        await asyncio.sleep(0)
        began = time.monotonic()
        await link.call("exec", {"argv": ["true"]})
        assert time.monotonic() - began < 0.8
        await running
        assert time.monotonic() - began < 3


async def test_the_agent_ends_when_it_hears_nothing(python, until, monkeypatch):
    """A connection that is half dead, neither closed nor alive, must not keep agents on the host."""
    packed = bundle.pack(bundle.AGENT_MODULES)
    name = "specdash/host/remote/wire.py"
    out = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(packed)) as old, zipfile.ZipFile(out, "w") as new:
        for entry in old.namelist():
            text = old.read(entry)
            if entry == name:
                assert b"SILENCE_S = 150.0" in text
                text = text.replace(b"SILENCE_S = 150.0", b"SILENCE_S = 1.0")
            new.writestr(entry, text)
    monkeypatch.setattr(bundle, "pack", lambda modules, main=None: out.getvalue())
    link = await open_link(local(python))
    await until(lambda: not alive(link.hello["agent_pid"]), "ends by itself")
    await link.close()


async def test_unknown_calls_and_samples_are_refused(python):
    async with await open_link(local(python)) as link:
        with pytest.raises(RemoteError) as caught:
            await link.call("no.such")
        assert caught.value.code == "unknown_call"
        with pytest.raises(RemoteError) as caught:
            async for _ in link.sample("no.such", 1.0):
                pass
        assert caught.value.code == "unknown_sample"


async def test_a_handler_that_fails_does_not_take_the_agent_with_it(python):
    async with await open_link(local(python)) as link:
        with pytest.raises(RemoteError) as caught:
            await link.call("http", {})
        assert caught.value.code == "bug" and "KeyError" in caught.value.sentence
        assert await link.ping() >= 0


async def test_samples_have_state_and_rhythm(python):
    async with await open_link(local(python)) as link:
        seen = []
        async for sample in link.sample("host", 0.1):
            seen.append(sample)
            if len(seen) == 4:
                break
        assert seen[0]["cpu_busy_fraction"] is None, "not known yet is not 0"
        assert seen[-1]["now_boot"] - seen[0]["now_boot"] >= 0.25
        assert all(sample["mem_available_kb"] > 0 for sample in seen)


async def test_a_slow_reader_gets_the_newest_sample(python):
    async with await open_link(local(python)) as link:
        stream = link.sample("host", 0.1)
        first = await anext(stream)
        await asyncio.sleep(0.55)
        second = await anext(stream)
        assert second["now_boot"] - first["now_boot"] >= 0.35
        await stream.aclose()


async def test_a_big_tail_starves_neither_samples_nor_calls(python, tmp_path):
    log = tmp_path / "log"
    log.write_bytes(random.Random(3).randbytes(30_000_000))
    async with await open_link(local(python)) as link:
        digest, size = hashlib.sha256(), 0
        worst = 0.0
        done = asyncio.Event()

        async def watch() -> None:
            nonlocal worst
            stream = link.sample("host", 0.1)
            while not done.is_set():
                before = time.monotonic()
                await anext(stream)
                worst = max(worst, time.monotonic() - before)
            await stream.aclose()

        watcher = asyncio.create_task(watch())
        stream = link.tail(str(log))
        async for chunk in stream:
            digest.update(chunk.data)
            size += len(chunk.data)
            if size >= 30_000_000:
                break
        await stream.aclose()
        done.set()
        await watcher
        assert digest.hexdigest() == hashlib.sha256(log.read_bytes()).hexdigest()
        assert worst < 1.1


async def test_a_reader_that_stops_bounds_what_is_on_its_way(tmp_path):
    log = tmp_path / "log"
    log.write_bytes(bytes(20_000_000))
    async with await open_link(local()) as link:
        stream = link.tail(str(log))
        await anext(stream)
        await asyncio.sleep(0.5)
        held = sum(len(c.data) for tail in link._mux._tails.values() for c in tail.chunks)
        assert 0 < held <= wire.TAIL_WINDOW
        assert (await link.call("exec", {"argv": ["echo", "hi"]}))["blob"] == b"hi\n"
        await stream.aclose()


async def test_tail_goes_on_where_another_link_stopped(tmp_path):
    log = tmp_path / "log"
    whole = random.Random(4).randbytes(2_000_000)
    log.write_bytes(whole)
    got = b""
    position: TailPosition | None = None
    for end in (700_000, 1_300_000, 2_000_004):
        async with await open_link(local()) as link:
            stream = link.tail(str(log), position)
            async for chunk in stream:
                assert chunk.offset == len(got) and chunk.generation == 0
                got += chunk.data
                position = TailPosition(len(got), chunk.device, chunk.inode, 0, got[-64:])
                if len(got) >= end:
                    break
            await stream.aclose()
        if end == 1_300_000:
            with log.open("ab") as file:
                file.write(b"tail")
    assert got == whole + b"tail"


async def test_what_waits_ends_with_link_lost_when_the_agent_dies(python, tmp_path):
    (tmp_path / "log").write_bytes(b"x")
    link = await open_link(local(python))
    tail = link.tail(str(tmp_path / "log"))
    while not (await anext(tail)).data:
        pass
    waiting = asyncio.gather(
        link.call("exec", {"argv": ["sleep", "50"], "timeout": 60}, timeout=60),
        anext(tail),
        return_exceptions=True,
    )
    await asyncio.sleep(0.2)
    os.kill(link.hello["agent_pid"], signal.SIGKILL)
    results = await asyncio.wait_for(waiting, 5)
    assert [type(result) for result in results] == [LinkLost, LinkLost]
    with pytest.raises(LinkLost):
        await link.call("ping")
    with pytest.raises(LinkLost):
        await link.ping()
    await link.close()


async def test_nothing_is_left_when_the_link_closes(python, until):
    mark = f"{random.random()}"[2:]
    link = await open_link(local(python))
    pid = link.hello["agent_pid"]
    call = asyncio.create_task(link.call("exec", {"argv": ["sleep", f"6{mark}"], "timeout": 60}, timeout=60))
    await until(lambda: children_named(mark), "command runs")
    await link.close()
    with pytest.raises(LinkLost):
        await call
    await until(lambda: not alive(pid) and not children_named(mark), "agent and its command are gone")


def test_nothing_is_left_when_specdash_is_killed(until, tmp_path):
    """kill -9 of the whole of specdash: the agent sees the end of its stdin."""
    program = (
        "import asyncio\nfrom specdash.config.hosts import local_host\nfrom specdash.host.open import open_link\n"
        "async def main():\n link = await open_link(local_host())\n print(link.hello['agent_pid'], flush=True)\n"
        " await asyncio.sleep(60)\nasyncio.run(main())\n"
    )
    import subprocess

    child = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, start_new_session=True)
    assert child.stdout is not None
    pid = int(child.stdout.readline())
    assert alive(pid)
    child.kill()
    child.wait()
    asyncio.run(until(lambda: not alive(pid), "the agent is gone"))


async def test_interpreter_paths_with_spaces_and_quotes_work(tmp_path):
    folder = tmp_path / 'it\'s "odd" $(x) \\n !y;z é'
    folder.mkdir()
    python = folder / "python 3"
    python.symlink_to(REAL_PYTHON)
    async with await open_link(local(str(python))) as link:
        assert link.hello["missing_modules"] == {}


async def test_no_python_and_old_python_are_said(tmp_path):
    with pytest.raises(NoPython, match="There is no Python at '/no/such/python'"):
        await open_link(local("/no/such/python"))
    old = tmp_path / "python"
    old.write_text(
        '#!/bin/sh\nfor last; do :; done\necho; echo "$last" | sed -n \'s/.*"\\(specdash-[0-9a-f]*\\) py.*/\\1 py 3.6.9/p\'\nsleep 5\n'
    )
    old.chmod(0o755)
    with pytest.raises(NoPython, match=r"Python 3\.6\.9: too old"):
        await open_link(local(str(old)))
    with pytest.raises(LinkError, match="did not run the agent"):
        await open_link(local("/bin/true"))


async def test_py_run_sees_what_dash_m_would_see(python, tmp_path):
    (tmp_path / "json.py").write_text("raise SystemExit('shadowed')\n")
    (tmp_path / "extra").mkdir()
    packed = bundle.pack(["specdash.host.remote.hostinfo", "specdash.host.remote.wire"])
    (tmp_path / "clone.py").write_text(
        "import sys, os\ndef where():\n print('noise')\n return [sys.path[0], 'extra' in ''.join(sys.path), os.environ['A'], sys.version_info[:2]]\n"
    )
    async with await open_link(local()) as link:

        async def run(**params):
            base = {
                "python": python,
                "cwd": str(tmp_path),
                "env": {"A": "b", "PYTHONPATH": str(tmp_path / "extra")},
            }
            return await link.call("py.run", {**base, **params}, blob=packed, timeout=20)

        done = await run(module="clone", func="where")
        version = done["result"].pop()
        assert done["result"] == [str(tmp_path), True, "b"] and "noise" in done["output"]
        assert f"{version[0]}.{version[1]}" in python
        done = await run(module="specdash.host.remote.hostinfo", func="machine_id", args=[])
        assert done["result"] == hostinfo.machine_id()
        for changes, code in (
            ({"module": "time", "func": "sleep", "args": [60], "timeout": 0.5}, "timeout"),
            ({"module": "os", "func": "_exit", "args": [7]}, "py_died"),
            ({"module": "os", "func": "nope"}, "py_failed"),
            ({"module": "os", "func": "getcwd", "cwd": "/no/such"}, "no_folder"),
            ({"module": "os", "func": "getcwd", "python": "/no/such"}, "no_python"),
        ):
            with pytest.raises(RemoteError) as caught:
                await run(**changes)
            assert caught.value.code == code, caught.value


async def test_a_bundle_runs_as_a_file_too(python, tmp_path):
    file = tmp_path / "b.pyz"
    file.write_bytes(
        bundle.pack(
            ["specdash.host.remote.hostinfo", "specdash.host.remote.wire"],
            main="specdash.host.remote.hostinfo:machine_id",
        )
    )
    process = await asyncio.create_subprocess_exec(python, "-I", str(file), stderr=asyncio.subprocess.PIPE)
    _, err = await process.communicate()
    assert hostinfo.machine_id() in err.decode(), "SystemExit(text) prints it"
    assert bundle.pack(["specdash.host.remote"]) == bundle.pack(["specdash.host.remote"])
    with pytest.raises(ValueError, match="no module"):
        bundle.pack(["specdash.nothing"])
