"""Keys and dialogs: nothing destructive on one key, reasons for what cannot be done, read-only, staleness, notices."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import pytest

from specdash.control.plans import Danger, Plan, StepEvent
from specdash.monitor.state import ActionState, Alarm, FleetState, Reading
from specdash.tui.actions import ACTIONS
from specdash.tui.dialogs.hostkey import HostKeyDialog
from specdash.tui.dialogs.plan import PlanDialog
from specdash.tui.ports import HubLike
from specdash.tui.start import DashboardApp, HostKeyAsked
from specdash.tui.views.link import LINK_GLYPH
from tests.support.fakehub import NOW, STATES, FakeHub, FakeOperator, fleet, host, ready_server
from tests.support.tuikit import screen, settle, text_of


@pytest.mark.parametrize("key, kind", [("l", "launch"), ("s", "stop"), ("w", "switch")])
async def test_a_key_only_shows_a_plan_and_cancel_has_the_focus(key: str, kind: str) -> None:
    operator = FakeOperator()
    async with screen("ready", operator=operator) as (app, pilot):
        app.profile_name = "kimi-k2.5-ngram"
        await pilot.press(key)
        await settle(app, pilot)
        assert isinstance(app.screen, PlanDialog) and app.focused.id == "cancel"
        await pilot.press("enter")
        await settle(app, pilot)
        assert operator.asked == [kind] and operator.performed == []
        await pilot.press(key)
        await settle(app, pilot)
        await pilot.press("right", "enter")
        await settle(app, pilot)
        assert [plan.kind for plan, _ in operator.performed] == [kind]
        assert "done" in app.notices.all[-1].sentence


async def test_a_blocked_plan_cannot_be_confirmed() -> None:
    operator = FakeOperator(blocked=True)
    async with screen("ready", (120, 40), operator=operator) as (app, pilot):
        await pilot.press("l")
        await settle(app, pilot)
        assert "1 check blocks this: nothing was changed." in text_of(app)
        await pilot.press("right", "tab", "enter")
        await settle(app, pilot)
        assert operator.performed == []


async def test_a_typed_name_is_asked_and_must_match() -> None:
    operator = FakeOperator(typed="kimi-k2.5-eagle3")
    async with screen("ready", operator=operator) as (app, pilot):
        await pilot.press("s")
        await settle(app, pilot)
        await pilot.press(*"kimi-k2.5-eagle", "enter")
        await settle(app, pilot)
        assert app.screen.query_one("#go").disabled
        await pilot.press("3", "enter")
        await settle(app, pilot)
        assert operator.performed == []
        await pilot.press("enter")
        await settle(app, pilot)
        assert operator.performed[0][1] == "kimi-k2.5-eagle3"


@pytest.mark.parametrize(
    "more", [{"read_only": True}, {"operator": FakeOperator(refuse="h200-a is read-only in the config.")}]
)
async def test_read_only_refuses_and_says_so(more: dict[str, Any]) -> None:
    async with screen("ready", (120, 40), **more) as (app, pilot):
        assert "READ-ONLY" in text_of(app)
        for key in ("l", "s", "w", "x", "A"):
            await pilot.press(key)
        await settle(app, pilot)
        assert not isinstance(app.screen, PlanDialog)
        assert "read-only" in app.notices.all[-1].sentence


@pytest.mark.parametrize(
    "state, key, reason",
    [
        ("stale", "l", "not connected"),
        ("empty", "s", "no server is running"),
        ("empty", "w", "no server is running"),
        ("switching", "s", "still running"),
        ("ready", "x", "nothing runs that could be taken back"),
    ],
)
async def test_a_disabled_action_says_why(state: str, key: str, reason: str) -> None:
    async with screen(state, (120, 40)) as (app, pilot):
        await pilot.press(key)
        await settle(app, pilot)
        assert not isinstance(app.screen, PlanDialog)
        assert reason in text_of(app)


async def test_choosing_a_profile_does_not_change_the_host() -> None:
    async with screen("ready") as (app, pilot):
        await pilot.press("tab", "down", "down")
        await settle(app, pilot)
        assert app.profile_name == "kimi-k2.5-ngram" and app.host_name == "h200-a"


async def test_the_cursor_stays_on_its_item_when_rows_move() -> None:
    async with screen("ready") as (app, pilot):
        await pilot.press("down", "down")
        await settle(app, pilot)
        assert app.host_name == "h200-b"
        first = host("h200-0")
        hosts = {"h200-0": first, **fleet("ready").hosts}
        app.hub.play(FleetState(now=NOW, hosts=hosts))
        await settle(app, pilot)
        assert app.host_name == "h200-b"


OFTEN = ("ready",)
"""Run by default; the other states differ less from these, and cost as much."""


@pytest.mark.parametrize(
    "state", [s if s in OFTEN else pytest.param(s, marks=pytest.mark.slow) for s in STATES]
)
async def test_every_screen_opens_in_every_state(state: str) -> None:
    async with screen(state) as (app, pilot):
        for key in ("question_mark", "p", "P", "r", "i", "H", "exclamation_mark"):
            await pilot.press(key)
            await settle(app, pilot)
            text_of(app)
            await pilot.press("escape")
            await settle(app, pilot)
        for key in ("z", "z", "b", "b", "T", "tab", "z", "tab", "z"):
            await pilot.press(key)
            await settle(app, pilot)


async def test_stale_looks_stale_with_its_age() -> None:
    async with screen("stale", (120, 40)) as (app, _):
        text = text_of(app)
        assert text.count("41 s old") >= 3
        assert "reconnecting" in text and "again in 4" in text
        strips = app.screen._compositor.render_strips()
        shown = [s for strip in strips for s in strip if "118/140" in s.text]
        assert shown and all(segment.style and segment.style.italic for segment in shown)


async def test_a_single_old_number_is_marked_while_the_link_is_up() -> None:
    server = ready_server()
    old = replace(server.numbers.accept_length, at=NOW - 95)
    server = replace(server, numbers=replace(server.numbers, accept_length=old))
    state = FleetState(now=NOW, hosts={"h200-a": host(servers={"r1": server})})
    async with screen(state) as (app, _):
        assert "1 min 35 s old" in text_of(app)


async def test_unknown_is_a_dash_and_idle_is_idle() -> None:
    server = ready_server()
    blank = replace(
        server.numbers, running=Reading(), queued=Reading(), kv_used=Reading(), accept_length=Reading()
    )
    state = FleetState(now=NOW, hosts={"h200-a": host(servers={"r1": replace(server, numbers=blank)})})
    async with screen(state, (120, 40)) as (app, _):
        text = text_of(app)
        assert "running — /" in text and "queued —" in text and "KV —" in text
    async with screen("idle") as (app, _):
        text = text_of(app)
        assert " idle" in text and "0.0 tok/s" not in text


async def test_alarms_are_kept_until_read_once_each() -> None:
    async with screen("failed", (120, 40)) as (app, pilot):
        assert "1 to read" in text_of(app)
        app.hub.play("failed")
        await settle(app, pilot)
        assert app.notices.unread == 1
        await pilot.press("exclamation_mark")
        await settle(app, pilot)
        assert "ended with exit code 1" in text_of(app)
        await pilot.press("escape")
        await settle(app, pilot)
        assert "to read" not in text_of(app)


async def test_a_failed_switch_stays_until_put_away() -> None:
    async with screen("rolled_back", (120, 40)) as (app, pilot):
        text = text_of(app)
        assert "⚠ rolled back" in text and "serves again" in text and "FAILED" not in text
        await pilot.press("escape")
        await settle(app, pilot)
        assert "rolled back" not in text_of(app)


async def test_a_running_switch_can_be_taken_back_after_a_question() -> None:
    operator = FakeOperator()
    async with screen("switching", operator=operator) as (app, pilot):
        await pilot.press("x")
        await settle(app, pilot)
        await pilot.press("enter")
        await settle(app, pilot)
        assert operator.asked == []
        await pilot.press("x")
        await settle(app, pilot)
        await pilot.press("right", "enter")
        await settle(app, pilot)
        assert operator.asked == ["abort switch a1"]


async def test_adopting_asks_which_and_shows_the_plan() -> None:
    operator = FakeOperator()
    async with screen("empty", operator=operator) as (app, pilot):
        await pilot.press("A")
        await settle(app, pilot)
        await pilot.press("enter")
        await settle(app, pilot)
        assert isinstance(app.screen, PlanDialog) and "Adopt pid 777" in text_of(app)


async def test_every_action_is_in_the_palette_and_in_help() -> None:
    async with screen("ready", (120, 60)) as (app, pilot):
        titles = [command.title for command in app.get_system_commands(app.screen)]
        await pilot.press("question_mark")
        await settle(app, pilot)
        page = app.screen.query_one("#page-rows").rows
        text = "\n".join("".join(part for part, _ in row) for row in page)
        for action in ACTIONS:
            assert action.id == "palette" or any(title.startswith(action.title) for title in titles)
            assert action.help in text


async def test_keys_can_be_remapped_and_help_and_footer_follow() -> None:
    async with screen("ready", keys={"launch": "ctrl+l", "log.fold": "D"}) as (app, pilot):
        await pilot.press("l")
        await settle(app, pilot)
        assert not isinstance(app.screen, PlanDialog)
        assert "^l launch" in text_of(app).splitlines()[-1]
        await pilot.press("ctrl+l")
        await settle(app, pilot)
        assert isinstance(app.screen, PlanDialog)
        assert "launch  (^l)" in [command.title for command in app.get_system_commands(app.screen)]


async def test_keys_of_pages_can_be_remapped_too() -> None:
    async with screen("ready", keys={"runs.mark": "m", "page.close": "x"}) as (app, pilot):
        assert not app.notices.all
        await pilot.press("r")
        await settle(app, pilot)
        assert text_of(app).splitlines()[-1].startswith(" m mark") and "x back" in text_of(app)
        await pilot.press("m")
        await settle(app, pilot)
        assert "◆" in text_of(app)
        await pilot.press("x")
        await settle(app, pilot)
        assert "HOSTS" in text_of(app)


async def test_an_unknown_key_name_in_the_config_is_told() -> None:
    async with screen("ready", (120, 40), keys={"lanch": "x"}) as (app, _):
        assert "lanch" in app.notices.all[-1].sentence and "launch" in app.notices.all[-1].sentence


async def test_a_host_key_is_asked_about_with_no_in_focus() -> None:
    class Hub(FakeHub):
        async def start(self) -> None: ...
        async def close(self) -> None: ...

    app = DashboardApp(Hub("connecting"), FakeOperator(), wall_clock=False)  # type: ignore[arg-type]
    async with app.run_test(size=(80, 24), notifications=True) as pilot:
        for keys, wanted in ((["enter"], False), (["right", "enter"], True), (["escape"], False)):
            answer: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
            app.post_message(HostKeyAsked("h200-a", "SHA256:abcdef", answer))
            await settle(app, pilot)
            assert isinstance(app.screen, HostKeyDialog) and "SHA256:abcdef" in text_of(app)
            await pilot.press(*keys)
            await settle(app, pilot)
            assert await answer is wanted


async def test_a_burst_of_states_draws_the_last() -> None:
    async with screen("ready") as (app, pilot):
        for i in range(500):
            numbers = replace(ready_server().numbers, decode_tok_s=Reading(100.0 + i, "tok/s", "log", NOW))
            server = ready_server(numbers=numbers)
            app.hub.play(FleetState(now=NOW, hosts={"h200-a": host(servers={"r1": server})}))
        await settle(app, pilot)
        assert "599.0" in text_of(app)


async def test_host_alarms_ring_once() -> None:
    rung: list[int] = []
    alarm = Alarm("x", "critical", "GPU 3 fell off the bus.", NOW)
    async with screen("ready") as (app, pilot):
        app.bell = lambda: rung.append(1)  # type: ignore[method-assign]
        for _ in range(3):
            app.hub.play(FleetState(now=NOW, hosts={"h200-a": host(alarms=(alarm,))}))
            await settle(app, pilot)
        assert rung == [1]


def test_the_fake_speaks_the_protocol() -> None:
    hub: HubLike = FakeHub("ready")
    assert hub.state.hosts
    assert ActionState("a", "stop", "t", "running").steps == ()


async def test_typing_the_name_just_works_and_no_key_falls_through() -> None:
    operator = FakeOperator(typed="sql")
    async with screen("ready", operator=operator) as (app, pilot):
        await pilot.press("s")
        await settle(app, pilot)
        assert app.focused.id == "typed"
        await pilot.press("enter", *"sq", "enter")
        await settle(app, pilot)
        assert isinstance(app.screen, PlanDialog) and operator.performed == []
        await pilot.press("l", "enter")
        assert app.focused.id == "go"
        await pilot.press("escape")
        await settle(app, pilot)
        assert operator.asked == ["stop"] and operator.performed == []


async def test_cancel_is_one_tab_from_the_name() -> None:
    async with screen("ready", operator=FakeOperator(typed="sql")) as (app, pilot):
        await pilot.press("s")
        await settle(app, pilot)
        await pilot.press("tab")
        assert app.focused.id == "cancel"
        await pilot.press("l", "w", "s", "q", "1")
        await settle(app, pilot)
        assert isinstance(app.screen, PlanDialog) and app.is_running
        await pilot.press("enter")
        await settle(app, pilot)
        assert len(app.screen_stack) == 1


async def test_letters_typed_before_the_plan_came_do_nothing() -> None:
    class Slow(FakeOperator):
        gate = asyncio.Event()

        async def plan_stop(self, host: str, run: str) -> Any:
            await self.gate.wait()
            return await super().plan_stop(host, run)

    operator = Slow(typed="sql")
    async with screen("ready", operator=operator) as (app, pilot):
        await pilot.press("s", *"sql", "q")
        assert isinstance(app.screen, PlanDialog) and app.is_running
        operator.gate.set()
        await settle(app, pilot)
        assert operator.asked == ["stop"] and app.focused.id == "typed"
        assert app.screen.query_one("#typed").value == ""


async def test_hot_switch_asks_for_a_profile_with_a_drafter_or_takes_the_chosen_one() -> None:
    operator = FakeOperator()
    async with screen("ready", (120, 40), operator=operator) as (app, pilot):
        server = ready_server(profile="another")
        server = replace(server, run=replace(server.run, drafter="/data/another"))
        app.hub.play(FleetState(now=NOW, hosts={"h200-a": host(servers={"r1": server})}))
        await settle(app, pilot)
        await pilot.press("h")
        await settle(app, pilot)
        assert "Draft weights of which profile?" in text_of(app) and "kimi-k2.5-base" not in text_of(app)
        await pilot.press("enter")
        await settle(app, pilot)
        assert "Hot switch to kimi-k2.5-eagle3" in text_of(app) and operator.performed == []
        await pilot.press("escape", "h")
        await settle(app, pilot)
        assert operator.asked == ["hot_switch", "hot_switch"]


async def test_hot_switch_needs_a_drafter_that_serves() -> None:
    async with screen("base", (120, 40)) as (app, pilot):
        await pilot.press("h")
        await settle(app, pilot)
        assert "this server has no drafter" in text_of(app)


@pytest.mark.slow
@pytest.mark.parametrize(
    "keys, wanted",
    [
        (["enter"], []),
        (["right", "enter"], ["attach p1"]),
        (["right", "right", "enter"], ["abort switch p1", "attach p1"]),
    ],
)
async def test_a_switch_that_stands_still_can_go_on_or_be_taken_back(
    keys: list[str], wanted: list[str]
) -> None:
    class Killed(FakeOperator):
        async def perform(self, plan: Any, typed: str = "") -> Any:
            yield StepEvent(
                plan.id, "stop", "failed", "It stands still.", final="failed", data={"lost": True}
            )

    operator = Killed()
    async with screen("ready", (120, 40), operator=operator) as (app, pilot):
        await pilot.press("u")
        await settle(app, pilot)
        assert "no switch stands still here" in text_of(app)
        app.profile_name = "kimi-k2.5-ngram"
        await pilot.press("w")
        await settle(app, pilot)
        await pilot.press("right", "enter")
        await settle(app, pilot)
        assert "u goes on with it" in app.notices.all[-1].sentence
        operator.asked.clear()
        await pilot.press("u")
        await settle(app, pilot)
        await pilot.press(*keys)
        await settle(app, pilot)
        assert operator.asked == wanted


async def test_stacks_of_a_stalled_load_are_one_key_away() -> None:
    operator = FakeOperator()
    async with screen("stalled", operator=operator, read_only=True) as (app, pilot):
        assert "K shows where each process is stuck" in text_of(app)
        await pilot.press("K")
        await settle(app, pilot)
        assert operator.asked == ["stacks h200-a r1"]
        text = text_of(app)
        assert "distributed_c10d.py:4811" in text and "stacks.txt" in text and "py-spy" in text


async def test_a_pulse_is_asked_before_and_told_after() -> None:
    operator = FakeOperator()
    async with screen("ready", (120, 40), operator=operator) as (app, pilot):
        await pilot.press("m")
        await settle(app, pilot)
        assert "Requests that run now: 1" in text_of(app)
        await pilot.press("enter")
        await settle(app, pilot)
        assert operator.asked == []
        await pilot.press("m")
        await settle(app, pilot)
        await pilot.press("right", "enter")
        await settle(app, pilot)
        assert operator.asked == ["pulse h200-a r1"]
        assert "over 209 verify steps" in app.notices.all[-1].sentence
    async with screen("loading", (120, 40), operator=operator) as (app, pilot):
        await pilot.press("m")
        await settle(app, pilot)
        assert "does not serve now" in text_of(app)


@pytest.mark.slow
async def test_sixty_hosts_keep_the_headings_the_state_of_the_link_and_one_row_each() -> None:
    """The heading was scrolled away, the header's state was cut by a long name, and every other row of the fleet was blank."""
    long = "a-host-with-a-name-" + "x" * 70
    one = next(iter(fleet("refused").hosts.values()))
    names = [long, *(f"h{i:02}" for i in range(1, 60))]
    many = replace(fleet("refused"), hosts={name: replace(one, name=name, servers={}) for name in names})
    async with screen(many) as (app, pilot):
        rows = text_of(app).splitlines()
        word = LINK_GLYPH[one.link.status][1]
        assert word in rows[0]
        assert "HOSTS" in rows[1] and "more" in rows[1] and any("PROFILES" in row for row in rows)
        await pilot.press(*"jjjjjjjjjjjjjjjjjjjj")
        await settle(app, pilot)
        rows = text_of(app).splitlines()
        assert "HOSTS" in rows[1] and any(row.startswith("▸") and "h20" in row for row in rows)
        await pilot.press("G")
        await settle(app, pilot)
        assert any(row.startswith("▸") and "h59" in row for row in text_of(app).splitlines())
        await pilot.press("g", "H")
        await settle(app, pilot)
        assert [row[2:5] for row in text_of(app).splitlines()[2:12]] == names[1:11]


async def test_help_cuts_no_sentence() -> None:
    async with screen("stale") as (app, pilot):
        await pilot.press("question_mark")
        await settle(app, pilot)
        shown = text_of(app)
        assert "…" not in shown and "not now:" in shown


async def test_a_switch_out_of_sight_is_not_a_failed_one_and_is_looked_for_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A host that did not answer for ten seconds made "FAILED" of a switch that went on, and nobody looked again."""
    monkeypatch.setattr("specdash.tui.doing.AGAIN_S", 0.01)

    async def away() -> AsyncIterator[StepEvent]:
        yield StepEvent("p", "launch", "running")
        raise TimeoutError("a did not answer switches.read within 10 s")

    async with screen("ready") as (app, pilot):
        plan = Plan("p", "switch", "h200-a", "Switch a → b", Danger.DESTROYS, ())
        await app.doing._follow(plan, away())
        await settle(app, pilot)
        told = [notice.sentence for notice in app.notices.all]
        assert "out of sight" in told[-2] and told[-1] == "Switch a → b: done. It serves."
        other = replace(plan, kind="stop")
        await app.doing._follow(other, away())
        await settle(app, pilot)
        assert app.notices.all[-1].sentence.endswith("did not answer switches.read within 10 s")
