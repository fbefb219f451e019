"""Why a run died, for those who only have its id: a switch that went back, a queue that passed a drafter over."""

from __future__ import annotations

from typing import Any

import pytest

from specdash.control import why
from specdash.errors import RemoteError

LOG = (
    b"[2026-11-29 15:11:30] Scheduler hit an exception: Traceback (most recent call last):\n"
    b'  File "/s/sglang/srt/model_executor/model_runner.py", line 129, in _profile_available_bytes\n'
    b"    raise ValueError(\n"
    b"ValueError: Loaded weights leave no GPU memory for the KV cache under --mem-fraction-static=0.005. "
    b"Raise --mem-fraction-static above 0.012 (minimum viable = 1 - available/pre = 0.0112).\n"
    b"[2026-11-29 15:11:31] Received sigquit from a child process. It usually means the child failed.\n"
)


class FakeLink:
    """A host with one run folder."""

    name = "h"

    def __init__(self, record: dict[str, Any], ended: dict[str, Any] | None) -> None:
        self.hello = {"base": "/b"}
        self.record, self.ended = record, ended

    async def call(self, name: str, params: dict[str, Any], **_: Any) -> dict[str, Any]:
        if name == "runs.read":
            return {"record": self.record, "exit": self.ended}
        if name == "file.stat":
            return {"size": len(LOG)}
        assert name == "file.read" and params["path"] == "/b/runs/r/server.log"
        return {"blob": LOG[params["offset"] :]}


DIED = {"phase": "exited", "exit_signal": 9, "exit_code": None, "stop_asked": True}


async def test_a_stop_that_came_after_the_death_hides_no_cause() -> None:
    words, cause = await why.of_ended(FakeLink(DIED, {"stop_asked": False}), "r")  # type: ignore[arg-type]
    assert cause is not None and cause.category == "oom_kv_pool"
    assert "no room" in words and "Raise --mem-fraction-static above 0.012" in words


@pytest.mark.parametrize(
    ("record", "ended"),
    [(DIED, {"stop_asked": True}), ({"phase": "ready"}, None), ({"phase": "starting"}, None)],
)
async def test_what_was_stopped_or_lives_has_no_cause(record: dict[str, Any], ended: Any) -> None:
    assert await why.of_ended(FakeLink(record, ended), "r") == ("", None)  # type: ignore[arg-type]


async def test_a_run_folder_that_is_gone_is_no_error() -> None:
    class Gone(FakeLink):
        async def call(self, name: str, params: dict[str, Any], **_: Any) -> dict[str, Any]:
            raise RemoteError("not_found", "There is no run r.", "")

    assert await why.of_ended(Gone({}, None), "r") == ("", None)  # type: ignore[arg-type]
