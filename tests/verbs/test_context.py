"""Confirming: who is asked, what counts as yes, and that read-only refuses below the screen."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pytest

from specdash.control.plans import Check, Danger, Plan, Step
from specdash.errors import Refused
from specdash.verbs.context import Context


class Tty(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SPECDASH_CONFIG", str(tmp_path / "config.toml"))
    (tmp_path / "config.toml").write_text('[hosts.ro]\nssh = "x"\nread-only = true\n[hosts.rw]\nssh = "x"\n')
    return tmp_path


def plan(**kwargs: Any) -> Plan:
    steps = (Step("s", "Stop it", "kill -INT 7"),)
    base: dict[str, Any] = {
        "id": "1",
        "kind": "stop",
        "host": "rw",
        "title": "Stop run 7",
        "danger": Danger.DESTROYS,
    }
    return Plan(**{**base, "steps": steps, "notes": ("2 requests die.",), **kwargs})


def context(answer: str | None = None, **kwargs: Any) -> Context:
    asked = answer is not None
    return Context(
        out=io.StringIO(),
        err=Tty() if asked else io.StringIO(),
        stdin=(Tty if asked else io.StringIO)(answer or ""),
        **kwargs,
    )


@pytest.mark.parametrize("answer", ["y\n", "Yes\n"])
async def test_yes(answer: str) -> None:
    one = context(answer)
    await one.confirm(plan())
    shown = one.err.getvalue()  # type: ignore[attr-defined]
    assert (
        "Stop run 7 (ends a server or deletes)" in shown
        and "kill -INT 7" in shown
        and "2 requests die." in shown
    )
    assert one.out.getvalue() == ""  # type: ignore[attr-defined]


@pytest.mark.parametrize("answer", ["", "\n", "n\n", "yy\n"])
async def test_anything_else_is_no(answer: str) -> None:
    with pytest.raises(Refused, match="not confirmed"):
        await context(answer).confirm(plan())


async def test_nobody_there() -> None:
    with pytest.raises(Refused, match="--yes"):
        await context().confirm(plan())
    await context(yes=True).confirm(plan())
    with pytest.raises(Refused, match="--confirm gpu1"):
        await context(yes=True).confirm(plan(typed_name="gpu1"))
    await context(confirmed="gpu1").confirm(plan(typed_name="gpu1"))
    await context("gpu1\n").confirm(plan(typed_name="gpu1"))
    with pytest.raises(Refused):
        await context("gpu2\n", yes=True).confirm(plan(typed_name="gpu1"))


async def test_a_blocking_check_stops_even_yes() -> None:
    check = Check("fit", "block", "The drafter does not fit.", remedy="Take another.")
    with pytest.raises(Refused, match="does not fit"):
        await context(yes=True).confirm(plan(checks=(check,)))


async def test_read_only_refuses_from_option_config_and_host(home: Path) -> None:
    with pytest.raises(Refused, match="read-only is on"):
        await context(yes=True, read_only=True).confirm(plan())
    with pytest.raises(Refused, match="host ro is read-only"):
        await context(yes=True).confirm(plan(host="ro"))
    (home / "config.toml").write_text("read-only = true")
    with pytest.raises(Refused, match="read-only is on"):
        await context(yes=True).confirm(plan())
    await context(read_only=True).confirm(plan(danger=Danger.NONE))


async def test_an_unknown_host_key_is_asked_about() -> None:
    one = context("yes\n")
    assert await one._ask_host_key("gpu1", "SHA256:abc")
    assert "SHA256:abc" in one.err.getvalue()  # type: ignore[attr-defined]
    assert not await context("y\n")._ask_host_key("gpu1", "SHA256:abc")


def test_colour_and_ascii(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    assert Context(out=Tty()).colour and not Context(out=io.StringIO()).colour
    monkeypatch.setenv("NO_COLOR", "1")
    assert not Context(out=Tty()).colour
    assert Context(out=io.TextIOWrapper(io.BytesIO(), "ascii")).ascii
    assert not Context(out=io.TextIOWrapper(io.BytesIO(), "utf-8")).ascii


async def test_what_a_script_has_to_add_holds_whether_requests_run_or_not() -> None:
    """A name is asked for while requests run; "Add --confirm" alone was refused a second later with "Add --yes"."""
    with pytest.raises(Refused) as refused:
        await context(yes=True).confirm(plan(typed_name="a"))
    assert refused.value.step == "Add --yes --confirm a."
    for name in ("a", ""):
        await context(yes=True, confirmed="a").confirm(plan(typed_name=name))
