"""Laws of rates, windows and break-even: scale, resets, order, gaps; and pages that are not as they should be."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specdash.monitor import breakeven, rates
from specdash.monitor.breakeven import Base, Now
from specdash.monitor.rates import Point
from specdash.sglang import acceptance, metrics
from specdash.sglang.decode import DecodeLine
from tests.support.examples import examples

gaps = st.floats(0.2, 4.0)
counts = st.integers(0, 5000)
series = st.lists(st.tuples(gaps, counts), min_size=2, max_size=40)


def points_of(
    steps: list[tuple[float, int]], offset: float = 0.0, scale: float = 1.0
) -> tuple[Point[str], ...]:
    out: tuple[Point[str], ...] = ()
    at, value = offset, 0.0
    for gap, more in steps:
        at, value = at + gap * scale, value + more
        out = rates.push(out, Point(at, {"a": value}), 1e9)
    return out


@given(series, st.floats(1, 60))
def test_a_moving_rate_lies_between_the_slowest_and_the_fastest_it_saw(
    steps: list[tuple[float, int]], window: float
) -> None:
    points = points_of(steps)
    found = rates.moving(points, window)
    if found is None:
        return
    speeds = [(b.values["a"] - a.values["a"]) / (b.at - a.at) for a, b in itertools.pairwise(points)]
    assert 0 <= found.per_s <= max(speeds) * (1 + 1e-9)
    assert 0 < found.window_s <= points[-1].at - points[0].at + 1e-9


@given(series, st.floats(0, 1e6), st.floats(1, 60))
def test_when_it_was_does_not_matter(steps: list[tuple[float, int]], offset: float, window: float) -> None:
    one, other = rates.moving(points_of(steps), window), rates.moving(points_of(steps, round(offset)), window)
    assert (one is None) == (other is None)
    if one is not None and other is not None:
        assert one.per_s == pytest.approx(other.per_s, rel=1e-5, abs=1e-6)


@given(st.integers(1, 400), st.floats(0.1, 1.2), st.integers(0, 9))
def test_a_steady_counter_has_its_speed_however_seldom_it_steps(
    tokens: int, page_s: float, every: int
) -> None:
    """One step in `every` pages: what a log interval of any length looks like to a poller."""
    points: tuple[Point[str], ...] = ()
    for page in range(120):
        shown = tokens * page - (tokens * page) % (tokens * (every + 1))
        points = rates.push(points, Point(page * page_s, {"a": float(shown)}), 1e9)
    found = rates.moving(points, 10.0)
    if (every + 1) * page_s <= rates.QUIET_S:
        assert found is not None and found.per_s == pytest.approx(tokens / page_s)


@given(series, st.integers(0, 39))
def test_after_a_reset_nothing_of_before_counts(steps: list[tuple[float, int]], where: int) -> None:
    points = points_of(steps)
    restarted = rates.push(points, Point(points[-1].at + 1.0, {"a": -1.0}), 1e9)
    assert len(restarted) == 1
    assert rates.moving(restarted, 10) is None and rates.rate(restarted, 10) is None


def test_a_counter_that_stopped_decays_and_one_that_pauses_starts_anew() -> None:
    points = points_of([(1.0, 100)] * 10)
    for extra in range(1, 60):
        points = rates.push(points, Point(10.0 + extra, {"a": 1000.0}), 1e9)
    found = rates.moving(points, 10.0)
    assert found is not None and not found.moved and found.per_s < 20
    for more in range(1, 4):
        points = rates.push(points, Point(69.0 + more, {"a": 1000.0 + 100 * more}), 1e9)
    found = rates.moving(points, 10.0)
    assert found is not None and found.moved and found.per_s == pytest.approx(100)


def test_history_is_bounded_by_the_time_that_is_kept() -> None:
    points: tuple[Point[str], ...] = ()
    for at in range(10_000):
        points = rates.push(points, Point(float(at), {"a": float(at)}), 120.0)
    assert len(points) <= 122


def line(
    at: float, tok_s: float, running: int = 1, accept: float | None = 2.0, dp: int = 0, first: bool = False
) -> DecodeLine:
    rate = None if accept is None else 0.5
    return DecodeLine(at, at, "", dp, running, 0, 0.1, accept, rate, tok_s, None, first, int(at * 1000))


@given(
    st.lists(st.tuples(st.floats(1, 1e4), st.integers(1, 64), st.floats(1, 8)), min_size=1, max_size=20),
    st.randoms(),
)
def test_a_decode_window_is_the_mean_over_time_in_any_order(
    rows: list[tuple[float, int, float]], rng: object
) -> None:
    lines = [line(float(i), tok_s, running, accept) for i, (tok_s, running, accept) in enumerate(rows)]
    found = rates.decode_window(lines, 20.0, 100.0)
    assert found is not None and found.tok_s is not None and found.accept_length is not None
    tokens = [running * accept for _, running, accept in rows]
    assert found.tok_s == pytest.approx(
        sum(tokens) / sum(t / s for t, (s, _, _) in zip(tokens, rows, strict=True))
    )
    assert min(s for s, _, _ in rows) * (1 - 1e-9) <= found.tok_s <= max(s for s, _, _ in rows) * (1 + 1e-9)
    assert min(a for _, _, a in rows) - 1e-9 <= found.accept_length <= max(a for _, _, a in rows) + 1e-9
    shuffled = list(lines)
    rng.shuffle(shuffled)  # type: ignore[attr-defined]
    again = rates.decode_window(shuffled, 20.0, 100.0)
    assert again is not None and again.tok_s == pytest.approx(found.tok_s)


@given(st.lists(st.floats(1, 1e4), min_size=1, max_size=16))
def test_dp_ranks_add_up_and_one_without_a_length_takes_no_part(speeds: list[float]) -> None:
    windows = [rates.decode_window([line(1.0, s, 2, 3.0, dp)], 2.0, 10.0) for dp, s in enumerate(speeds)]
    silent = rates.decode_window([line(1.0, 10.0, 2, None, 99)], 2.0, 10.0)
    whole = rates.add_up([w for w in [*windows, silent] if w is not None])
    assert whole is not None and whole.tok_s == pytest.approx(sum(speeds) + 10.0)
    assert whole.accept_length == pytest.approx(3.0)
    assert whole.running == pytest.approx(2 * (len(speeds) + 1))


@given(
    st.lists(st.tuples(st.floats(0.5, 64), st.floats(1, 1e4), st.sampled_from(["t", "u"])), max_size=12),
    st.randoms(),
    st.floats(1, 8),
    st.floats(1, 1e4),
    st.floats(0.5, 64),
)
@settings(max_examples=examples(60))
def test_break_even_does_not_depend_on_the_order_of_the_bases(
    rows: list[tuple[float, float, str]], rng: object, length: float, tok_s: float, running: float
) -> None:
    bases = [Base(target, "h", 1, load, speed) for load, speed, target in rows]
    now = Now(True, "t", "h", 1, running, length, tok_s)
    one = breakeven.judge(now, bases)
    rng.shuffle(bases)  # type: ignore[attr-defined]
    other = breakeven.judge(now, bases)
    assert (one.verdict, one.break_even) == (other.verdict, other.break_even)
    same = [b for b in bases if b.target == "t" and breakeven.bucket(b.running) == breakeven.bucket(running)]
    assert (one.verdict == "unknown") == (not same)
    assert one.verdict != "unknown" or one.missing


@given(st.lists(st.lists(st.integers(0, 50), min_size=1, max_size=8), min_size=1, max_size=5))
def test_acceptance_by_position_falls_and_matches_the_length(histograms: list[list[int]]) -> None:
    metas = [
        {
            "completion_tokens": sum((i + 1) * n for i, n in enumerate(row)),
            "spec_verify_ct": sum(row),
            "spec_correct_drafts_histogram": row,
        }
        for row in histograms
    ]
    found = acceptance.of(metas)
    if not sum(map(sum, histograms)):
        assert found.accept_length is None
        return
    assert found.positions is not None
    assert all(1 >= a >= b >= 0 for a, b in zip((1.0, *found.positions), found.positions, strict=False))
    # The mean of correct drafts per step is the sum of its tail probabilities; the bonus token is one more.
    assert found.accept_length == pytest.approx(1 + sum(found.positions))


def test_acceptance_that_one_request_does_not_tell_is_not_told() -> None:
    told = {"completion_tokens": 10, "spec_verify_ct": 5, "spec_correct_drafts_histogram": [0, 5]}
    assert acceptance.of([told, {"completion_tokens": 10}]).accept_length is None
    assert acceptance.of([told, {**told, "spec_correct_drafts_histogram": None}]).positions is None
    assert acceptance.of([]).accept_length is None


BIG = b"".join(
    b'sglang:num_running_reqs{model_name="m%d",tp_rank="0"} 1\n# HELP sglang:x%d y {z="}"}\n' % (i, i)
    for i in range(20_000)
)


@pytest.mark.parametrize(
    ("body", "name", "value"),
    [
        (b"sglang:num_running_reqs 3\n", "num_running_reqs", 3.0),
        (b"sglang:num_running_reqs 3", "num_running_reqs", None),
        (b"sglang:num_running_reqs 1e2\n", "num_running_reqs", 100.0),
        (b"sglang:num_running_reqs +Inf\n", "num_running_reqs", None),
        (b"sglang:num_running_reqs 1e300\n", "num_running_reqs", None),
        (b"sglang:num_running_reqs -1\n", "num_running_reqs", None),
        (b"sglang:num_running_reqs NaN\n", "num_running_reqs", None),
        (b"sglang:num_running_reqs{} 4\n", "num_running_reqs", 4.0),
        (b'sglang_num_running_reqs{a="1"} 4\n', "num_running_reqs", 4.0),
        (b'sglang:num_running_reqs{a="}"} 4\n', "num_running_reqs", 4.0),
        (b'sglang:num_running_reqs{a="x",} 4\n', "num_running_reqs", 4.0),
        (b'sglang:num_running_reqs{a="\xff\xfe"} 4\n', "num_running_reqs", 4.0),
        (b'sglang:num_running_reqs{a="unfinished 4\n', "num_running_reqs", None),
        (b"sglang:num_running_reqs_total 4\n", "num_running_reqs", None),
        (b"# sglang:num_running_reqs 4\n", "num_running_reqs", None),
        (b"other:num_running_reqs 4\n", "num_running_reqs", None),
        (b"sglang:num_running_reqs 4\r\n", "num_running_reqs", 4.0),
        (BIG, "num_running_reqs", 20_000.0),
    ],
)
def test_pages_that_are_not_as_they_should_be(body: bytes, name: str, value: float | None) -> None:
    assert metrics.total(metrics.read(body), name) == value
