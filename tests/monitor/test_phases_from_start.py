"""How long the imports took: the log begins only after them."""

from __future__ import annotations

from specdash.monitor import snapshot, story_view
from specdash.monitor.events import Event, LinkChanged, LogRead, RunSampled, RunsListed
from specdash.monitor.reduce import reduce, start

FIRST = b"[2026-11-29 15:01:49] server_args=ServerArgs(model_path='/m')\n"
LOG = (
    FIRST
    + b"[2026-11-29 15:01:50] Init torch distributed begin.\n[2026-11-29 15:01:52] Init torch distributed ends.\n"
)


def seen(*samples: tuple[float, int]) -> object:
    """A run that started at boot second 100; samples are (boot second, bytes of log)."""
    state = start([("h", "")])
    rows = tuple({"boot_s": boot, "log_size": size} for boot, size in samples)
    record = {"id": "r", "started_boot_s": 100.0, "pid": 7, "alive": True}
    bodies = (LinkChanged("up"), RunsListed((record,)), RunSampled(rows), LogRead(0, LOG, len(LOG)))
    for body in bodies:
        run = "r" if isinstance(body, (RunSampled, LogRead)) else ""
        state = reduce(state, Event(1.0, "h", body, run))
    return state.hosts["h"].servers["r"]


def test_the_first_phase_counts_from_the_start_of_the_process() -> None:
    server = seen((102.0, 0), (130.0, 0), (132.0, len(FIRST)), (134.0, len(LOG)))
    found = story_view.phases(server)
    assert [p.name for p in found][:2] == ["starting", "init_distributed"]
    assert found[0].seconds == 34.0, "not the second between its own first and last line"
    assert found[1:] == tuple(server.story.phases)[1:]
    assert snapshot.of_server(server, 1.0)["phase"]["phases"][0]["seconds"] == 34.0


def test_without_samples_of_that_time_the_log_alone_counts() -> None:
    for samples in ((), ((102.0, 0),)):
        server = seen(*samples)
        assert story_view.phases(server) == tuple(server.story.phases)
