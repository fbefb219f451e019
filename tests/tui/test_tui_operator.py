"""What the screen asks of control: the host as it will be, and nothing at all when read-only."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from specdash.config.settings import Settings
from specdash.control.plans import Check, Danger, Plan
from specdash.errors import Refused
from specdash.monitor.state import FleetState
from specdash.sglang.commandline import LaunchSpec
from specdash.tui.operator import ControlOperator


class Hub:
    read_only = False

    def __init__(self) -> None:
        self.hosts = {"a": SimpleNamespace(read_only=False)}
        self.state = FleetState()

    def link(self, host: str) -> str:
        return f"link to {host}"


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, Any]]:
    seen: list[tuple[str, Any]] = []

    async def preflight(link: Any, spec: Any, *, leaving: str = "", **_: Any) -> tuple[Check, ...]:
        seen.append(("leaving", leaving))
        return ()

    async def plan(link: Any, *words: Any, **more: Any) -> Plan:
        seen.append(("plan", more.get("checks")))
        return Plan("p", "switch", "a", "t", Danger.DESTROYS, ())

    monkeypatch.setattr("specdash.control.preflight.preflight", preflight)
    monkeypatch.setattr("specdash.control.switch.plan", plan)
    monkeypatch.setattr("specdash.control.launch.plan", plan)
    spec = LaunchSpec(profile="b", host="other", python="python3", launcher=("-m", "sglang.launch_server"))
    monkeypatch.setattr("specdash.control.profiles.resolve", lambda *_: spec)
    return seen


async def test_a_switch_is_judged_without_what_leaves_and_a_launch_as_it_is(
    asked: list[tuple[str, Any]],
) -> None:
    operator = ControlOperator(Hub(), Settings())  # type: ignore[arg-type]
    await operator.plan_switch("a", "run-of-A", "b")
    await operator.plan_launch("a", "b")
    assert [value for what, value in asked if what == "leaving"] == ["run-of-A", ""]
    (check,) = next(value for what, value in asked if what == "plan")
    assert check.status == "warn" and "names the host other" in check.sentence


async def test_read_only_makes_no_plan(asked: list[tuple[str, Any]]) -> None:
    operator = ControlOperator(Hub(), Settings(), read_only=True)  # type: ignore[arg-type]
    for work in (
        operator.plan_switch("a", "r", "b"),
        operator.plan_launch("a", "b"),
        operator.plan_hot("a", "r", "b"),
        operator.plan_stop("a", "r"),
    ):
        with pytest.raises(Refused, match="read-only"):
            await work
    with pytest.raises(Refused, match="read-only"):
        async for _ in operator.attach(Plan("p", "switch", "a", "t", Danger.DESTROYS, ())):
            pass
    assert asked == []


async def test_a_name_that_is_as_good_confirms_too(monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[str] = []

    async def perform(hub: Any, plan: Plan) -> Any:
        done.append(plan.id)
        yield plan.id

    monkeypatch.setattr("specdash.control.perform.perform", perform)
    operator = ControlOperator(Hub(), Settings())  # type: ignore[arg-type]
    plan = Plan(
        "p", "stop", "a", "t", Danger.DESTROYS, (), typed_name="demo-base", typed_also=("demo-base-2026",)
    )
    for typed in ("demo-base", "demo-base-2026"):
        assert [event async for event in operator.perform(plan, typed)] == ["p"]
    with pytest.raises(Refused, match="was not typed"):
        async for _ in operator.perform(plan, "demo"):
            pass
    assert done == ["p", "p"]
