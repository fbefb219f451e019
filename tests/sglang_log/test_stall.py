"""Slow or stalled is told by what moves."""

from __future__ import annotations

import pytest

from specdash.sglang.phases import Progress
from specdash.sglang.stall import Sample, eta, judge, median, read_rate, size, span


def walk(seconds: int, **per_second: float) -> list[Sample]:
    """Samples every 2 s over so many seconds up to now; each counter grows by its rate."""
    return [
        Sample(
            float(t - seconds),
            **{
                name: (t * rate if name != "gpu_mib" else 500 + t * rate) for name, rate in per_second.items()
            },
        )
        for t in range(0, seconds + 1, 2)
    ]


def test_flat_memory_in_distributed_init_is_stalled() -> None:
    found = judge("init_distributed", 620, samples=[Sample(-600, gpu_mib=540), Sample(0, gpu_mib=541)])
    assert found.kind == "stalled" and found.suspected and any("GPU memory" in row for row in found.evidence)


def test_growing_memory_is_progress_although_the_log_is_quiet() -> None:
    rows = [Sample(-300, gpu_mib=41800), Sample(-150, gpu_mib=60210), Sample(0, gpu_mib=79544)]
    assert judge("loading_weights", 900, samples=rows).kind == "progressing"


def test_a_full_bar_and_flat_memory_is_stalled() -> None:
    assert (
        judge("loading_weights", 900, samples=[Sample(-600, gpu_mib=79544), Sample(0, gpu_mib=79544)]).kind
        == "stalled"
    )


def test_compilation_may_be_quiet_for_long_but_not_for_ever() -> None:
    found = judge("jit_compile", 540)
    assert found.kind == "progressing" and found.expected_s == (600, 1200)
    assert judge("jit_compile", 3000).kind == "stalled"


def test_first_graph_may_be_quiet() -> None:
    assert judge("graph_capture", 70).kind == "progressing"
    assert judge("graph_capture", 3000).kind == "stalled"


def test_own_history_stretches_the_limit() -> None:
    assert judge("loading_weights", 500).kind == "stalled"
    assert judge("loading_weights", 500, history_s=(400.0,)).kind == "progressing"
    assert judge("loading_weights", 1300, history_s=(400.0,)).kind == "stalled"


def test_a_throttled_load_is_slow_not_stalled() -> None:
    found = judge(
        "loading_weights",
        200,
        samples=walk(200, read_bytes=1e6, cpu_s=0.01),
        checkpoint_bytes=547e9,
        read_in_phase=1e9,
    )
    assert found.kind == "slow" and "1.0 MB/s" in found.sentence and "547 GB" in found.sentence


@pytest.mark.parametrize(
    ("done", "after_s", "kind"), [(15, 7.0, "progressing"), (2, 200.0, "slow"), (64, 7.0, "slow")]
)
def test_shards_from_the_page_cache_are_not_slow_although_the_disk_gives_little(
    done: int, after_s: float, kind: str
) -> None:
    bar = Progress(done, 64, "shards", "", "loading_weights", "")
    samples = walk(60, read_bytes=5e5, log_size=100)
    assert judge("loading_weights", 0, samples=samples, progress=bar, in_phase_s=after_s).kind == kind


def test_a_fast_load_is_progress_with_its_rate() -> None:
    found = judge(
        "loading_weights",
        200,
        samples=walk(200, read_bytes=1.7e9),
        checkpoint_bytes=547e9,
        read_in_phase=312e9,
    )
    assert found.kind == "progressing" and "312 GB of 547 GB at 1.7 GB/s" in found.sentence


def test_longer_than_ever_is_slow_with_the_usual_time() -> None:
    found = judge(
        "loading_weights", 5, in_phase_s=1200, history_s=(300.0, 310.0), samples=walk(60, read_bytes=1e9)
    )
    assert found.kind == "slow" and "usually takes" in found.sentence


def test_stopped_processes_are_told_soon() -> None:
    rows = [Sample(-t, read_bytes=5.0, cpu_s=5.0, states="TTT") for t in range(60, -1, -2)]
    found = judge("loading_weights", 60, samples=rows)
    assert (
        found.kind == "stalled"
        and "stopped" in found.sentence
        and any("(T)" in row for row in found.evidence)
    )


def test_blocked_on_a_dead_socket() -> None:
    rows = [Sample(-t, read_bytes=5.0, cpu_s=5.0, gpu_mib=540.0, states="SSS") for t in range(300, -1, -2)]
    found = judge("init_distributed", 300, samples=rows)
    assert found.kind == "stalled"
    assert [row.split(":")[0] for row in found.evidence] == ["log", "disk reads", "GPU memory", "CPU time"]


@pytest.mark.parametrize("phase", ["loading_weights", "init_distributed", "graph_capture"])
def test_spinning_without_any_effect_is_stalled_at_last(phase: str) -> None:
    rows = [
        Sample(-float(t), read_bytes=5.0, cpu_s=10_000.0 - t, gpu_mib=540.0, states="RRR")
        for t in range(2000, -1, -2)
    ]
    found = judge(phase, 2000, samples=rows)
    assert found.kind == "stalled" and "only uses CPU" in found.sentence


def test_cpu_counts_where_a_phase_computes() -> None:
    rows = [Sample(-float(t), cpu_s=10_000.0 - t, states="R") for t in range(300, -1, -2)]
    assert judge("starting", 300, samples=rows).kind == "progressing"
    assert judge("starting", 300).kind == "stalled"


def test_dead_gone_and_unknown() -> None:
    assert judge("loading_weights", 5, alive=False).kind == "dead"
    assert judge("loading_weights", 5, gone=("scheduler TP3",)).kind == "stalled"
    assert judge("loading_weights", None).kind == "unknown"


def test_waiting_for_the_disk_is_evidence() -> None:
    rows = [Sample(-float(t), read_bytes=(60 - t) * 2e6, states="DDS") for t in range(60, -1, -2)]
    assert any("(D)" in row for row in judge("loading_weights", 60, samples=rows).evidence)


LOADS = [
    [("starting", "", 10.0), ("loading_weights", "target", 300.0), ("loading_weights", "draft", 20.0), ("graph_capture", "target", 60.0), ("ready", "", 9e9)],
    [("starting", "", 12.0), ("loading_weights", "target", 320.0), ("loading_weights", "draft", 20.0), ("graph_capture", "target", 60.0)],
]  # fmt: skip


def test_eta_is_from_finished_loads_only() -> None:
    assert eta("loading_weights", "target", 100.0, ()) is None
    assert eta("loading_weights", "target", 100.0, LOADS) == (280 + 300) / 2
    assert eta("loading_weights", "target", 5000.0, LOADS) == 80
    assert eta("graph_capture", "target", 30.0, LOADS) == 30
    assert eta("kv_alloc", "target", 1.0, LOADS) == 60
    assert eta("ready", "", 1.0, [LOADS[1]]) is None


def test_small_helpers() -> None:
    assert (span(45), span(720), span(7500)) == ("45 s", "12 min", "2 h 5 min")
    assert (size(547e9), size(1.7e9), size(12)) == ("547 GB", "1.7 GB", "12 B")
    assert median([]) is None and median([3, 1, 2]) == 2
    assert read_rate([Sample(-2, read_bytes=0), Sample(0, read_bytes=10)]) == 5
    assert read_rate([Sample(0, read_bytes=10)]) is None
