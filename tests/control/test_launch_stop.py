"""Launch and stop through a real agent, a real supervisor and real processes; the engine is simulated."""

# ruff: noqa: ASYNC240 (a test may look at a file)
from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import pytest
from control_helpers import down, events_of, until, up

from specdash.config.secrets import Secret
from specdash.control import hostruns, launch, stop
from specdash.errors import Refused
from specdash.host.remote import procs, sockets


async def test_launch_gets_ready_and_stop_proves_that_nothing_is_left(link, stub, free_port):
    plan, events = await up(link, stub("--load=0.2"))
    assert events[-1].final == "done" and events[-1].step == "ready"
    record = await hostruns.record(link, plan.id)
    assert record["phase"] == "ready" and record["alive"] and record["supervisor_alive"]
    row = procs.stat(record["pid"])
    assert row["sid"] == record["pid"] != os.getsid(0)
    assert os.readlink(f"/proc/{record['pid']}/fd/0") == "/dev/null"
    folder = Path(record["folder"])
    assert folder.stat().st_mode & 0o777 == 0o700
    assert (folder / "env").stat().st_mode & 0o777 == 0o600
    said = await down(link, plan.id, deadline_s=10)
    assert said[-1].final == "done" and said[-1].data["proven"], said
    assert said[-1].data["processes"] == [] and said[-1].data["port"]["free"]
    assert not sockets.listen_inodes(free_port)
    await until(lambda: not (folder / "env").exists())
    record = await hostruns.record(link, plan.id)
    assert (record["phase"], record["exit_code"], record["exit_signal"]) == ("exited", 0, None)


async def test_signals_are_reset_though_the_agent_ignores_them(link, stub):
    plan, _ = await up(link, stub("--load=5"), wait=False)
    record = await hostruns.record(link, plan.id)
    await until(lambda: Path(record["folder"], "server.log").stat().st_size > 0)
    ignored = procs.signal_sets(record["pid"])["ignored"]
    assert not ignored & {signal.SIGINT, signal.SIGQUIT, signal.SIGHUP, signal.SIGTERM}
    said = await down(link, plan.id, deadline_s=10)
    assert any("SIGINT" in event.sentence for event in said), "INT while it loads"
    assert said[-1].data["proven"]
    assert (await hostruns.record(link, plan.id))["exit_signal"] == signal.SIGINT


@pytest.mark.parametrize(("flag", "code", "number"), [("--die=1", 1, None), ("--die=SIGKILL", None, 9)])
async def test_a_death_while_loading_is_recorded(link, stub, flag, code, number):
    plan, events = await up(link, stub("--load=0.1", flag))
    assert events[-1].final == "failed"
    record = await hostruns.record(link, plan.id)
    assert (record["exit_code"], record["exit_signal"]) == (code, number)


@pytest.mark.slow
async def test_a_deaf_server_and_its_leaked_child_are_killed(link, stub):
    plan, events = await up(link, stub("--load=0.1", "--deaf", "--leak"))
    assert events[-1].final == "done"
    said = await down(link, plan.id, deadline_s=1)
    assert any("did not exit" in event.sentence for event in said)
    killed = next(event for event in said if event.step == "kill" and event.data)
    titles = [one["title"] for one in killed.data["processes"]]
    assert any("--role leak" in title for title in titles), "it was in a session of its own"
    assert said[-1].data["proven"], said[-1]


@pytest.mark.slow
async def test_leftovers_of_a_dead_launcher_are_found_and_cleaned_up(link, stub):
    plan, _ = await up(link, stub("--load=0.1", "--leak"))
    record = await hostruns.record(link, plan.id)
    os.kill(record["pid"], signal.SIGKILL)
    record = await until(lambda: _phase(link, plan.id, "exited"))
    assert record["exit_signal"] == 9 and record["supervisor_alive"], "it waits for what is left"
    clean = await stop.plan(link, plan.id)
    assert clean.kind == "cleanup"
    said = await events_of(stop.run(link, clean))
    assert said[-1].data["proven"]
    killed = next(event for event in said if event.step == "kill" and event.data).data["processes"]
    assert [one for one in killed if "--role leak" in one["title"]]


async def _phase(link, run_id, phase):
    record = await hostruns.record(link, run_id)
    return record if record["phase"] == phase else None


@pytest.mark.slow
async def test_fired_up_is_no_proof_when_another_process_answers(link, stub, free_port, root):
    first, events = await up(link, stub("--load=0.1"))
    assert events[-1].final == "done"
    liar = stub("--load=0.1", "--no-bind", profile="liar")
    second, events = await up(link, liar)
    assert events[-1].final == "failed"
    held = (await hostruns.record(link, first.id))["pid"]
    assert f"pid {held}" in events[-1].sentence and "false" in events[-1].sentence
    record = await hostruns.record(link, second.id)
    assert record["alive"] and record["phase"] == "starting", "never killed by itself"
    said = await down(link, second.id, deadline_s=5)
    assert said[-1].data["proven"] and not said[-1].data["port"]["free"], "the other one keeps its port"
    assert procs.stat(held)
    await down(link, first.id, deadline_s=5)


async def test_a_port_that_is_taken_blocks_the_plan(link, stub, free_port):
    first, _ = await up(link, stub("--load=0.1"))
    plan = await launch.plan(link, stub(profile="second"))
    port = next(check for check in plan.checks if check.name == "port")
    assert port.status == "block" and "engine_stub" in port.sentence
    with pytest.raises(Refused):
        await events_of(launch.run(link, plan))
    await down(link, first.id, deadline_s=5)


async def test_repeating_a_launch_starts_nothing_twice(link, stub):
    plan, _ = await up(link, stub("--load=0.1"))
    pid = (await hostruns.record(link, plan.id))["pid"]
    again = await events_of(launch.run(link, plan))
    assert again[-1].final == "done"
    assert (await hostruns.record(link, plan.id))["pid"] == pid
    await down(link, plan.id, deadline_s=5)


async def test_a_log_that_is_a_real_file_is_set_aside_whole(link, stub, root):
    wanted = root / "engine.log"
    wanted.write_bytes(b"yesterday\n")
    plan, events = await up(link, stub("--load=0.1", log=str(wanted)))
    assert wanted.is_symlink() and b"Load weight begin" in wanted.read_bytes()
    aside = next(path for path in root.iterdir() if ".specdash-" in path.name)
    assert aside.read_bytes() == b"yesterday\n" and str(aside) in " ".join(event.sentence for event in events)
    await down(link, plan.id, deadline_s=5)


async def test_secrets_reach_the_engine_by_a_file_and_end_with_the_run(link, stub):
    spec = stub("--load=0.1", secret_flags={"--api-key": "env:X"}, secret_env={"HF_TOKEN": "env:Y"})
    value = "s3cret: \"quoted\" 'x' #\\"
    plan, events = await up(link, spec, resolve=lambda reference: Secret(reference, value=value))
    assert events[-1].final == "done", "the probe used the key"
    record = await hostruns.record(link, plan.id)
    folder = Path(record["folder"])
    assert value.encode() not in procs.read_bytes(f"/proc/{record['pid']}/cmdline")
    assert procs.environ(record["pid"])[b"HF_TOKEN"] == value.encode()
    assert (
        value not in (folder / "run.json").read_text()
        and "s3cret" not in (folder / "events.jsonl").read_text()
    )
    for name in ("env", "auth", "secrets.yaml"):
        assert (folder / name).stat().st_mode & 0o777 == 0o600
    await down(link, plan.id, deadline_s=5)
    await until(lambda: not any((folder / name).exists() for name in ("env", "auth", "secrets.yaml")))


async def test_missing_interpreter_and_folder_are_sentences(link, stub, root):
    spec = stub()
    bad = type(spec)(**{**vars(spec), "python": "/no/such/py thon'"})
    _, events = await up(link, bad)
    assert events[-1].final == "failed" and "/no/such/py thon'" in events[-1].sentence
    _, events = await up(link, stub(cwd=str(root / "nowhere")))
    assert "nowhere cannot be entered" in events[-1].sentence
    plan = await launch.plan(link, bad)
    assert plan.blocked


@pytest.mark.slow
async def test_waiting_for_a_quiet_moment_can_be_taken_back(link, stub):
    plan, _ = await up(link, stub("--load=0.1", "--requests=3"))
    order = await stop.plan(link, plan.id, idle_s=60, deadline_s=5)
    seen = []
    async for event in stop.run(link, order):
        seen.append(event)
        if event.step == "idle" and "3 requests" in event.sentence:
            assert "taken back" in await stop.abort(link, plan.id)
    assert seen[-1].final == "aborted"
    assert (await hostruns.record(link, plan.id))["phase"] == "ready"
    said = await down(link, plan.id, drain_s=1, deadline_s=5)
    assert said[-1].data["proven"]


@pytest.mark.slow
async def test_waiting_for_a_quiet_moment_ends_when_the_requests_do(link, stub):
    plan, _ = await up(link, stub("--load=0.1", "--requests=2", "--requests-for=1.5"))
    said = await down(link, plan.id, idle_s=60, deadline_s=5)
    counts = [event.data["requests"] for event in said if event.step == "idle" and event.data]
    assert counts[-1] == 0 and said[-1].data["proven"]


@pytest.mark.slow
async def test_the_server_outlives_its_supervisor_and_can_still_be_stopped(link, stub):
    plan, _ = await up(link, stub("--load=0.1"))
    status = await hostruns.order(link, plan.id, cmd="status")
    os.kill(status["peer"]["pid"], signal.SIGKILL)
    record = await until(lambda: _unsupervised(link, plan.id))
    assert record["alive"] and "supervisor is gone" in record["sentence"]
    said = await down(link, plan.id, deadline_s=10)
    assert any("new one took over" in event.sentence for event in said)
    assert said[-1].data["proven"]


async def _unsupervised(link, run_id):
    record = await hostruns.record(link, run_id)
    return None if record["supervisor_alive"] else record


async def test_a_signal_that_is_ignored_is_not_relied_on(link, stub):
    plan, _ = await up(link, stub("--load=0.1", "--ignore-int"))
    said = await down(link, plan.id, deadline_s=10)
    assert any(
        "ignores SIGINT, or has no handler for it; sending SIGTERM" in event.sentence for event in said
    )
    assert said[-1].data["proven"]


async def test_a_supervisor_ignores_hangup_and_term(link, stub):
    plan, _ = await up(link, stub("--load=0.1"))
    pid = (await hostruns.order(link, plan.id, cmd="status"))["peer"]["pid"]
    for number in (signal.SIGHUP, signal.SIGTERM, signal.SIGINT):
        os.kill(pid, number)
    assert (await hostruns.order(link, plan.id, cmd="status"))["ok"]
    await down(link, plan.id, deadline_s=5)


async def test_the_run_survives_the_agent(link, stub, root):
    plan, _ = await up(link, stub("--load=0.1"))
    await link.close()
    from specdash.config.hosts import Host
    from specdash.host.open import open_link

    again = await open_link(Host(name="local", run_root=str(root / "specdash"), python=sys.executable))
    try:
        record = await hostruns.record(again, plan.id)
        assert record["alive"] and record["supervisor_alive"] and record["phase"] == "ready"
        assert (await down(again, plan.id, deadline_s=5))[-1].data["proven"]
    finally:
        await again.close()
