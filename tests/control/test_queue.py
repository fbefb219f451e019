"""A queue of drafters on real processes: failures passed over, lost links, killed servers, who else acts there."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from dataclasses import replace

import pytest
from control_helpers import down, events_of, until, up

from specdash.config.hosts import Host
from specdash.control import hostruns, queue, switch
from specdash.control.plans import Check
from specdash.control.queue import Queue
from specdash.control.queue_facts import outcome_of
from specdash.control.queue_run import Runner
from specdash.errors import HostKeyChanged, LinkError, Refused, UsageError
from specdash.host.open import open_link

SLOW = pytest.mark.slow
FAST = {"drain_s": 0.0, "deadline_s": 5.0, "settle_s": 0.1, "ready_s": 20.0}


class Desk:
    """Opens links to the test's host, and can break them as a cable does."""

    def __init__(self, root):
        self.host = Host(name="local", run_root=str(root / "specdash"), python=sys.executable)
        self.links, self.refuse, self.said, self.hooks = [], 0, [], {}

    async def open(self):
        if self.refuse:
            self.refuse -= 1
            raise LinkError("The host is not there.")
        self.links.append(await open_link(self.host))
        return self.links[-1]

    async def cut(self, refuse=2):
        """Kill the agent of the present link, and let the next openings fail."""
        self.refuse = refuse
        with pytest.raises(Exception):  # noqa: B017  the call dies with its agent
            await self.links[-1].call("exec", {"argv": ["sh", "-c", "kill -9 $PPID; sleep 5"]}, timeout=5)

    def tell(self, profile, text):
        self.said.append(f"{profile}: {text}")
        for (who, words), work in list(self.hooks.items()):
            if who == profile and words in text:
                del self.hooks[who, words]
                work()

    def runner(self, plan, **more):
        data = plan.spec["queue"] if hasattr(plan, "spec") else plan
        return Runner(
            Queue.from_json(data), self.open, tell=self.tell, pause_s=0.1, first_wait_s=0.05, **more
        )


@pytest.fixture
def desk(root):
    return Desk(root)


def fast(stub, profile, *flags, **more):
    more.setdefault("algorithm", "EAGLE3" if any("accept" in flag for flag in flags) else "")
    return stub("--load=0.1", *flags, profile=profile, **more)


async def alive(link):
    listed = (await link.call("runs.list", {"base": hostruns.base(link)}))["runs"]
    return {run["profile"]: run for run in listed if run["alive"]}


async def clear(link):
    for run in (await alive(link)).values():
        await down(link, run["id"], deadline_s=5)


@pytest.mark.slow
async def test_a_list_with_a_failing_one_and_the_best_is_left(link, stub, desk):
    base = fast(stub, "base", "--tok-s=3000")
    await up(link, base)
    drafters = [
        fast(stub, "good", "--accept=2.5", "--tok-s=4500"),
        fast(stub, "dies", "--accept=2", "--die=1"),
        fast(stub, "slow", "--accept=1.2", "--tok-s=1500"),
        fast(stub, "useless", "--accept=1.0", "--tok-s=4000"),
    ]
    plan = await queue.plan(link, base, drafters, options=FAST)
    assert not plan.blocked and "Expected downtime" in " ".join(plan.notes)
    saved = []
    runner = desk.runner(plan, save=lambda one: saved.append(one.as_json()))
    done = await runner.run()
    rows = {row.profile: row for row in done.rows}
    assert {name: row.outcome for name, row in rows.items()} == {
        "base": "served",
        "good": "served",
        "dies": "rolled_back",
        "slow": "served",
        "useless": "rolled_back",
    }, (done, desk.said)
    assert rows["good"].accept_length == pytest.approx(2.5, abs=0.05) and rows["good"].load_s is not None
    assert rows["base"].tok_s > 1.5 * rows["slow"].tok_s and rows["good"].tok_s > rows["base"].tok_s
    assert "code 1" in rows["dies"].why and rows["dies"].tok_s is None
    assert rows["useless"].accept_length == pytest.approx(1.0), "measured, though it was rolled back"
    living = await alive(link)
    assert list(living) == ["good"] and living["good"]["phase"] == "ready"
    assert done.serving.run == living["good"]["id"] and done.best is rows["good"]
    assert saved and Queue.from_json(saved[-1]).as_json() == done.as_json()
    await clear(link)


@pytest.mark.slow
@pytest.mark.parametrize(("leave", "left"), [("first", "now"), ("base", "base")])
async def test_what_serves_is_measured_where_it_is_and_comes_back_when_asked(link, stub, desk, leave, left):
    now = fast(stub, "now", "--accept=2", "--tok-s=3000")
    first, _ = await up(link, now)
    plan = await queue.plan(link, fast(stub, "base", "--tok-s=4000"), [now], leave=leave, options=FAST)
    assert [step.title for step in plan.steps][:2] == ["Pulse of now", "Switch to base"]
    done = await desk.runner(plan).run()
    assert [(row.profile, row.outcome) for row in done.rows] == [("now", "served"), ("base", "served")]
    assert done.rows[0].run == first.id, "not loaded again to be measured"
    assert list(await alive(link)) == [left]
    await clear(link)


@pytest.mark.slow
async def test_nothing_serves_so_the_base_is_launched(link, stub, desk):
    plan = await queue.plan(
        link, fast(stub, "base"), [fast(stub, "a", "--accept=2", "--tok-s=4000")], options=FAST
    )
    assert plan.steps[0].title == "Launch base"
    done = await desk.runner(plan).run()
    assert [row.outcome for row in done.rows] == ["served", "served"] and done.rows[0].load_s is not None
    await clear(link)


@pytest.mark.slow
@pytest.mark.parametrize(
    "moment",
    [
        "ready: b is loading",
        pytest.param("stop: Stopping base", marks=SLOW),
        pytest.param("watch: It has to live", marks=SLOW),
    ],
)
async def test_a_lost_link_is_opened_again_and_the_switch_taken_up(link, stub, desk, moment):
    base = fast(stub, "base", "--tok-s=4000")
    await up(link, base)
    loading = stub("--load=0.8", "--tok-s=4000", "--accept=2", profile="b", algorithm="EAGLE3")
    plan = await queue.plan(link, base, [loading], options={**FAST, "settle_s": 1.0})
    cuts = []
    desk.hooks["b", moment] = lambda: cuts.append(asyncio.ensure_future(desk.cut()))
    done = await desk.runner(plan).run()
    await asyncio.gather(*cuts)
    assert cuts and len(desk.links) > 1 and any("The link is back" in one for one in desk.said), desk.said
    assert [row.outcome for row in done.rows] == ["served", "served"], desk.said
    switches = await switch.listing(link)
    assert len([one for one in switches if one["plan"]["names"].get(one["plan"]["b"]) == "b"]) == 1
    await clear(link)


@pytest.mark.slow
@SLOW
async def test_a_killed_switcher_is_followed_by_another(link, stub, desk):
    base = fast(stub, "base", "--tok-s=4000")
    await up(link, base)
    b = stub("--load=1", "--tok-s=5000", "--accept=2", profile="b", algorithm="EAGLE3")
    plan = await queue.plan(link, base, [b], options=FAST)

    async def kill():
        busy = (await link.call("switches.list", {"base": hostruns.base(link)}))["running"]
        os.kill(busy["pid"], signal.SIGKILL)

    kills = []
    desk.hooks["b", "b is loading"] = lambda: kills.append(asyncio.ensure_future(kill()))
    done = await desk.runner(plan).run()
    await asyncio.gather(*kills)
    assert kills and done.rows[1].outcome == "served", (done, desk.said)
    await clear(link)


@pytest.mark.slow
async def test_hopeless_links_end_it_and_it_can_be_gone_on_with(link, stub, desk):
    base = fast(stub, "base", "--tok-s=4000")
    await up(link, base)
    b = stub("--load=0.5", "--tok-s=5000", "--accept=2", profile="b", algorithm="EAGLE3")
    plan = await queue.plan(link, base, [b, fast(stub, "c", "--accept=2", "--tok-s=2000")], options=FAST)
    saved = []
    runner = desk.runner(plan, save=lambda one: saved.append(one.as_json()))
    task = asyncio.ensure_future(runner.run())
    desk.hooks["b", "b is loading"] = task.cancel
    with pytest.raises(asyncio.CancelledError):
        await task
    assert saved[-1]["current"]["switch"] and saved[-1]["rows"][1]["outcome"] == ""

    async def changed():
        raise HostKeyChanged("It is another host.")

    with pytest.raises(HostKeyChanged):
        await Runner(Queue.from_json(saved[-1]), changed, tell=desk.tell).run()
    done = await desk.runner(saved[-1]).run()
    assert [row.outcome for row in done.rows] == ["served"] * 3, (done, desk.said)
    assert len([one for one in await switch.listing(link) if one["title" if "title" in one else "id"]]) == 3
    assert list(await alive(link)) == ["b"]
    await clear(link)


@pytest.mark.slow
@SLOW
async def test_a_failed_way_back_is_repaired_by_the_base(link, stub, desk, root):
    """The running server cannot come back: the queue starts the base, and goes on."""
    marker = root / "broken"
    base = fast(stub, "base", "--tok-s=1000")
    fragile = fast(stub, "fragile", "--accept=2", f"--die-if={marker}", "--tok-s=2000")
    await up(link, base)
    plan = await queue.plan(
        link,
        base,
        [fragile, fast(stub, "dies", "--accept=2", "--die=1"), fast(stub, "c", "--accept=3", "--tok-s=1400")],
        options=FAST,
    )
    desk.hooks["dies", "[running] launch"] = lambda: marker.write_text("")
    done = await desk.runner(plan).run()
    rows = {row.profile: row for row in done.rows}
    assert rows["dies"].outcome == "failed" and "NEITHER" in rows["dies"].why
    assert rows["c"].outcome == "served", (done, desk.said)
    assert any(one.startswith("base: Nothing serves") for one in desk.said), desk.said
    assert len(await alive(link)) == 1 and done.serving is not None
    # The best cannot be started any more: what serves stays, and that is said.
    assert done.best.profile == "fragile" and "fragile did not come up" in done.ended
    assert list(await alive(link)) == ["c"]
    await clear(link)


@pytest.mark.slow
@SLOW
async def test_when_not_even_the_base_starts_it_ends_loudly_and_does_not_loop(link, stub, desk, root):
    marker = root / "broken"
    base = fast(stub, "base", f"--die-if={marker}", "--tok-s=4000")
    await up(link, base)
    marker.write_text("")
    specs = [fast(stub, "dies", "--accept=2", "--die=1"), fast(stub, "c", "--accept=2")]
    done = await desk.runner(await queue.plan(link, base, specs, options=FAST)).run()
    assert done.ended.startswith("NOTHING SERVES") and done.serving is None
    assert [row.outcome for row in done.rows] == ["served", "failed", "not_tried"]
    assert not await alive(link)


@pytest.mark.slow
async def test_a_server_that_dies_between_two_is_brought_back(link, stub, desk):
    base = fast(stub, "base", "--tok-s=4000")
    await up(link, base)
    plan = await queue.plan(link, base, [fast(stub, "b", "--accept=2", "--tok-s=4500")], options=FAST)

    async def checks(link_, spec, leaving):
        record = await hostruns.record(link, leaving)
        if record["profile"] == "base" and not desk.links[1:]:
            os.kill(record["pid"], signal.SIGKILL)
            await until(lambda: _ended(link, leaving))
        return ()

    done = await desk.runner(plan, preflight=checks).run()
    assert done.rows[1].outcome in ("refused", "served") and len(await alive(link)) == 1, (done, desk.said)
    assert done.serving is not None and any("It served and is gone" in one for one in desk.said)
    await clear(link)


async def _ended(link, run_id):
    return not (await hostruns.record(link, run_id))["alive"]


@pytest.mark.slow
async def test_a_blocked_one_is_passed_over_and_nothing_is_touched(link, stub, desk):
    base = fast(stub, "base", "--tok-s=4000")
    first, _ = await up(link, base)

    async def checks(link_, spec, leaving):
        return (Check("drafter", "block", f"{spec.profile} does not fit.", remedy="Take another."),)

    plan = await queue.plan(link, base, [fast(stub, "b")], options=FAST)
    done = await desk.runner(plan, preflight=checks).run()
    assert done.rows[1].outcome == "blocked" and "does not fit" in done.rows[1].why
    assert (await alive(link))["base"]["id"] == first.id
    block = {"b": (Check("drafter", "block", "no"),)}
    assert (await queue.plan(link, base, [fast(stub, "b")], checks=block)).blocked
    both = [fast(stub, "b"), fast(stub, "c")]
    assert not (await queue.plan(link, base, both, checks=block)).blocked
    await clear(link)


@pytest.mark.slow
async def test_people_come_first(link, stub, desk):
    """A stop or a switch by somebody else ends the queue; nothing of theirs is undone."""
    base = fast(stub, "base", "--tok-s=4000")
    first, _ = await up(link, base)
    specs = [fast(stub, "b", "--accept=2", "--tok-s=5000"), fast(stub, "c", "--accept=2")]
    plan = await queue.plan(link, base, specs, options=FAST)

    async def checks(link_, spec, leaving):
        if spec.profile == "b":
            await down(link, leaving, deadline_s=5)
        return ()

    done = await desk.runner(plan, preflight=checks).run()
    assert done.ended.startswith("Ended, for somebody stopped") and done.rows[2].outcome == "not_tried"
    with pytest.raises(Refused, match="read-only"):
        await desk.runner(plan, read_only=True).run()
    assert not await alive(link)

    first, _ = await up(link, base)
    plan = await queue.plan(link, base, specs, options=FAST)
    theirs = await switch.plan(link, first.id, stub("--load=30", profile="theirs"), settle_s=0.1, drain_s=0.0)
    follower = asyncio.ensure_future(events_of(switch.run(link, theirs)))
    await until(lambda: _running(link))
    with pytest.raises(Refused):
        await queue.plan(link, base, specs, options=FAST)
    done = await desk.runner(plan).run()
    assert done.ended.startswith("Ended, for") and theirs.id in done.ended
    await switch.abort(link, theirs.id)
    assert (await follower)[-1].final in ("rolled_back", "aborted")
    await clear(link)


async def _running(link):
    return (await link.call("switches.list", {"base": hostruns.base(link)}))["running"]


@pytest.mark.slow
async def test_what_to_replace_is_never_guessed(stub):
    base, other = fast(stub, "base"), fast(stub, "other", port=1)
    record = {"alive": True, "http": {"port": base.http()[1]}, "id": "x", "profile": "stranger"}
    assert queue.serving_now([record], base, [other])["id"] == "x"
    assert queue.serving_now([{**record, "alive": False}], base, [other]) is None
    assert queue.serving_now([{**record, "http": {"port": 2}}], base, [other]) is None
    with pytest.raises(UsageError, match="Several"):
        queue.serving_now([record, {**record, "id": "y"}], base, [other])
    assert queue.serving_now([record, {**record, "id": "y"}], base, [other], "y")["id"] == "y"
    with pytest.raises(UsageError, match="No running run"):
        queue.serving_now([record], base, [other], "z")


@pytest.mark.slow
def test_the_same_server_is_the_same_wherever_it_is_named(stub):
    spec = fast(stub, "a")
    assert queue.same(spec.as_json(), replace(spec, host="gpu9").as_json())
    assert not queue.same(spec.as_json(), replace(spec, env={**spec.env, "X": "1"}).as_json())
    assert not queue.same(None, spec.as_json())


@pytest.mark.slow
def test_an_unfinished_switch_has_no_outcome_that_serves():
    found = outcome_of([{"event": "step", "step": "stop", "status": "done"}], "b", "r", "a")
    assert (found.outcome, found.serves, found.tok_s) == ("failed", "", None)


@pytest.mark.slow
@pytest.mark.sshd
async def test_over_ssh_a_cut_cable_is_mended_and_the_night_goes_on(stub, root):
    """A real sshd: its sessions are killed while the drafter loads, and it refuses everybody for a while."""
    from tests.support.sshd import Sshd, missing

    if missing():
        pytest.skip(missing())
    server = Sshd().start()
    said, cut = [], []
    host = server.host(name="gpu", run_root=str(root / "specdash"), python=sys.executable)

    def tell(profile, text):
        said.append(text)
        if "b is loading" in text and not cut:
            server.kill_sessions()
            server.stop()
            cut.append(asyncio.get_running_loop().call_later(2.0, server.start))

    link = await open_link(host)
    try:
        base = fast(stub, "base", "--tok-s=3000")
        await up(link, base)
        b = stub("--load=1", "--tok-s=4500", "--accept=2", profile="b", algorithm="EAGLE3")
        plan = await queue.plan(link, base, [b], options=FAST)
        runner = Runner(
            Queue.from_json(plan.spec["queue"]), lambda: open_link(host), tell=tell, first_wait_s=0.1
        )
        done = await runner.run()
        assert [row.outcome for row in done.rows] == ["served", "served"], said
        assert cut and any("The link is back" in one for one in said), said
    finally:
        again = await open_link(host)
        assert list(await alive(again)) == ["b"]
        await clear(again)
        await again.close()
        await link.close()
        server.remove()
