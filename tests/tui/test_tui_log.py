"""The log panel: what is drawn of hostile bytes, following, searching, filters, folding, copying, and speed."""

from __future__ import annotations

import re
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specdash.tui import logtext
from specdash.tui.logrows import CHUNK, Filter, Rows, compile_search
from specdash.tui.logview import LogView
from specdash.tui.words import text_of as plain
from tests.support.examples import examples
from tests.support.fakehub import FakeOperator, LogList, log_lines
from tests.support.tuikit import screen, settle, text_of

DATA = Path(__file__).parents[1] / "data" / "tui"


def drawn(app: Any) -> list[str]:
    """Rows of the log panel as drawn, without the gutter and the scroll bar."""
    log = app.query_one(LogView)
    return plain(line for _, line in log._drawn)


async def in_log(app: Any, pilot: Any) -> LogView:
    log = app.query_one(LogView)
    log.focus()
    await pilot.pause()
    return log


async def test_markup_is_never_read() -> None:
    lines = (DATA / "markup.log").read_bytes().splitlines()
    async with screen("ready", (120, 40), log=LogList(lines)) as (app, _):
        shown = "\n".join(drawn(app))
        for line in lines:
            found = logtext.head(line)
            assert line[found.length :].decode() in shown


async def test_titles_toasts_and_tables_read_no_markup() -> None:
    async with screen("ready", (120, 40)) as (app, pilot):
        app.tell("[bold]not bold[/bold] [red]ERROR[/] [/root/x]", "warning")
        await settle(app, pilot)
        assert "[bold]not bold[/bold] [red]ERROR[/]" in text_of(app)
        await pilot.press("exclamation_mark")
        await settle(app, pilot)
        assert "[bold]not bold[/bold] [red]ERROR[/] [/root/x]" in text_of(app)


async def test_control_bytes_do_not_reach_the_terminal() -> None:
    lines = (DATA / "control.log").read_bytes().split(b"\n")
    async with screen("ready", (120, 40), log=LogList(lines)) as (app, _):
        shown = "\n".join(drawn(app))
        for words in ("INFO:     Started server process [4242]", "75% Completed | 3/4", "Load weight end."):
            assert words in shown
        strips = app.screen._compositor.render_strips()
        everything = "".join(segment.text for strip in strips for segment in strip)
        assert not re.search(r"[\x00-\x1f\x7f-\x9f]", everything)


@pytest.mark.parametrize(
    "raw, wanted",
    [
        (b"a\x1b[31mred\x1b[0m", "ared"),
        (b"\x1b]0;title\x07text", "text"),
        (b"\x1b]8;;http://x\x1b\\link\x1b]8;;\x1b\\", "link"),
        (b"\x1b]52;c;aGk=\x07", ""),
        (b" 10%|x\r 20%|xx\r", " 20%|xx"),
        (b"nul\x00bell\x07", "nul\u2400bell\u2407"),
        (b"bad \xff\xfe", "bad \ufffd\ufffd"),
        ("evil \u202egnp.exe".encode(), "evil \ufffdgnp.exe"),
        ("c1 \u009b31m".encode(), "c1 \ufffd31m"),
        ("ě 漢字 é".encode(), "ě 漢字 é"),
        (b"a\tb", "a       b"),
        (b"\x1b", "\u241b"),
    ],
)
def test_safe_text(raw: bytes, wanted: str) -> None:
    assert logtext.decode(logtext.clean(raw)) == wanted


@pytest.mark.parametrize(
    "line, level",
    [
        (
            b"[2026-01-01 00:00:00 TP0] Scheduler hit an exception: Traceback (most recent call last):",
            "error",
        ),
        (b"torch.cuda.OutOfMemoryError: CUDA out of memory.", "error"),
        (b"[2026-01-01 00:00:00] WARNING: x is deprecated", "warning"),
        (b'INFO:     127.0.0.1:1 - "GET /get_server_info HTTP/1.1" 200 OK', "info"),
        (b"[2026-01-01 00:00:00] server_args=ServerArgs(log_level='error')", "info"),
        (b"[2026-01-01 00:00:00 TP0] Decode batch, #running-req: 1", "info"),
    ],
)
def test_level(line: bytes, level: str) -> None:
    assert logtext.level(line) == level


async def test_wide_characters_keep_the_columns() -> None:
    lines = ["漢字 " * 40, "e\u0301" * 90, "\u05d0\u05d1\u05d2 right to left " * 6, "👩‍👩‍👧‍👦 family " * 9]
    async with screen("ready", (80, 24), log=LogList([line.encode() for line in lines])) as (app, pilot):
        log = await in_log(app, pilot)
        for _ in range(3):
            strips = [log.render_line(y) for y in range(log.size.height)]
            assert {strip.cell_length for strip in strips} == {log.size.width}
            await pilot.press("right")


async def test_long_lines_are_cut_and_shown_whole_on_demand() -> None:
    long = b"[2026-11-29 13:00:01 TP0] server_args=" + b"x" * 300_000 + b" END"
    async with screen("ready", (80, 24), log=LogList([b"first", long])) as (app, pilot):
        await in_log(app, pilot)
        assert drawn(app)[-1].endswith("…")
        await pilot.press("enter")
        await settle(app, pilot)
        assert "300," in text_of(app).splitlines()[0]
        assert app.screen.text.endswith(" END")  # type: ignore[attr-defined]


async def test_follows_until_scrolled_and_counts_what_is_new() -> None:
    log_list = LogList(log_lines(200))
    async with screen("ready", log=log_list) as (app, pilot):
        log = await in_log(app, pilot)
        assert log.following
        await pilot.press("up", "k", "pageup")
        assert not log.following
        top = log.top_row
        log_list.lines += log_lines(12)[-12:]
        await settle(app, pilot)
        assert log.top_row == top
        assert "paused, 12 new" in text_of(app)
        await pilot.press("G")
        await settle(app, pilot)
        assert log.following and "following" in text_of(app)


async def test_search_finds_counts_and_wraps() -> None:
    lines = [b"line %d" % i for i in range(1000)]
    for i in (100, 500, 900):
        lines[i] = b"line %d Needle(%d)" % (i, i)
    async with screen("ready", log=LogList(lines)) as (app, pilot):
        log = await in_log(app, pilot)
        await pilot.press("g", "slash", *r"needle\(", "enter")
        await settle(app, pilot)
        assert log.cursor == 100
        assert "1 of 3" in text_of(app)
        await pilot.press("n")
        await settle(app, pilot)
        await pilot.press("n")
        await settle(app, pilot)
        assert log.cursor == 900 and "3 of 3" in text_of(app)
        await pilot.press("n")
        await settle(app, pilot)
        assert log.cursor == 100
        await pilot.press("N")
        await settle(app, pilot)
        assert log.cursor == 900
        await pilot.press("escape")
        await settle(app, pilot)
        assert log.finder.pattern is None


def test_a_broken_regex_is_searched_as_words() -> None:
    assert compile_search("a[b").search(b"xx a[b")
    assert compile_search("abc").search(b"ABC")
    assert not compile_search("Abc").search(b"abc")


async def test_jumps_to_errors_and_phases() -> None:
    lines = log_lines(60)
    lines.insert(30, b"[2026-11-29 13:05:00 TP3] RuntimeError: CUDA error")
    async with screen("ready", log=LogList(lines)) as (app, pilot):
        log = await in_log(app, pilot)
        await pilot.press("g", "e")
        await settle(app, pilot)
        assert log.cursor == 30
        await pilot.press("g", "right_square_bracket")
        await settle(app, pilot)
        assert log.cursor == 1
        await pilot.press("right_square_bracket")
        await settle(app, pilot)
        assert log.cursor == 2


async def test_filters_by_level_rank_and_text() -> None:
    lines = log_lines(300)
    async with screen("ready", log=LogList(lines)) as (app, pilot):
        log = await in_log(app, pilot)
        await pilot.press("f")
        await settle(app, pilot)
        assert log.table.count == sum(b"WARNING" in line for line in lines)
        assert "warnings and errors" in text_of(app)
        await pilot.press("f", "f")
        await pilot.press("ampersand", *"accept len: 2.0[12]", "enter")
        await settle(app, pilot)
        wanted = [line for line in lines if re.search(rb"accept len: 2\.0[12]", line)]
        assert log.table.count == len(wanted)


def test_folding_counts_repeats_over_ranks() -> None:
    lines = [b"[2026-11-29 13:00:01 TP%d] same warning" % i for i in range(8)] + [b"other"]
    rows = Rows(LogList(lines))
    rows.set_filter(Filter(fold=True))
    rows.scan(100)
    assert [(rows.line_number(i), rows.repeats(i)) for i in range(rows.count)] == [(0, 8), (8, 1)]
    assert rows.row_of(5) == 0


def test_an_unfinished_last_line_is_judged_again() -> None:
    source = LogList([b"first", b'INFO: "GET /metr'])
    rows = Rows(source)
    rows.set_filter(Filter(quiet=True))
    rows.scan(10)
    assert rows.count == 2
    source.lines[1] = b'INFO:     127.0.0.1:1 - "GET /metrics HTTP/1.1" 200 OK'
    rows.scan(10)
    assert rows.count == 1
    source.lines += [b"same", b"same"]
    rows.set_filter(Filter(fold=True))
    for _ in range(5):
        rows.scan(10)
    assert [(rows.line_number(i), rows.repeats(i)) for i in range(rows.count)] == [(0, 1), (1, 1), (2, 2)]


async def test_answered_polls_are_hidden_until_asked_for() -> None:
    poll = b'INFO:     127.0.0.1:4 - "GET /metrics HTTP/1.1" 200 OK'
    failed = b'INFO:     127.0.0.1:4 - "GET /health HTTP/1.1" 503 Service Unavailable'
    async with screen("ready", log=LogList([b"start", poll, failed, poll])) as (app, pilot):
        log = await in_log(app, pilot)
        assert log.table.count == 2 and "polls hidden" in text_of(app)
        await pilot.press("a")
        await settle(app, pilot)
        assert log.table.count == 4


async def test_copy_never_claims_more_than_it_knows() -> None:
    async with screen("ready", (120, 40)) as (app, pilot):
        sent: list[str] = []
        app.copy_to_clipboard = sent.append  # type: ignore[method-assign]
        await in_log(app, pilot)
        await pilot.press("up", "V", "up", "up", "y")
        await settle(app, pilot)
        text = text_of(app)
        assert "sent to the terminal (may be refused)" in text and "copied" not in text
        assert "saves to a file" in text
        assert len(sent[0].splitlines()) == 3


async def test_views_copies_and_files_hold_no_secret(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    lines = [b"[2026-11-29 13:00:01] api_key='hunter2'"] * 3
    async with screen("ready", log=LogList(lines), operator=FakeOperator()) as (app, pilot):
        await in_log(app, pilot)
        assert "hunter2" not in text_of(app) and "•••" in text_of(app)
        await pilot.press("up", "S")
        await settle(app, pilot)
        saved = sorted(tmp_path.glob("specdash-*.txt"))  # noqa: ASYNC240
        assert len(saved) == 1 and saved[0].stat().st_mode & 0o077 == 0
        assert "hunter2" not in saved[0].read_text() and saved[0].read_text().count("•••") == 3


class Numbered:
    """A log of any length that costs nothing to hold."""

    def __init__(self, count: int) -> None:
        self.line_count = count

    def line(self, index: int) -> bytes:
        return b"[2026-11-29 13:00:01 TP0] Decode batch, line %d of a long run" % index


async def test_a_million_lines_answer_keys_fast() -> None:
    source = Numbered(1_000_000)
    async with screen("ready", (160, 50), log=source) as (app, pilot):  # type: ignore[arg-type]
        await in_log(app, pilot)
        took = []
        for key in ("pageup", "g", "pagedown", "down", "W", "W", "t", "G", "pageup", "d", "G"):
            source.line_count += 500
            before = time.process_time()
            await pilot.press(key)
            took.append(time.process_time() - before)
        assert sorted(took)[len(took) // 2] < 0.15, took
        assert "1,00" in text_of(app)


async def test_wrap_shows_all_of_a_line() -> None:
    async with screen("ready", log=LogList([b"x" * 150 + b"END"])) as (app, pilot):
        await in_log(app, pilot)
        assert "END" not in text_of(app)
        await pilot.press("W")
        await settle(app, pilot)
        assert "END" in text_of(app)


async def test_relative_times_count_from_the_first_line() -> None:
    async with screen("ready", log=LogList(log_lines(20))) as (app, pilot):
        await in_log(app, pilot)
        await pilot.press("t")
        await settle(app, pilot)
        assert "+5:" in text_of(app)


@pytest.mark.parametrize(
    "line, origin",
    [
        (b"[2026-01-01 00:00:00 TP0] Decode batch, #running-req: 1", "engine"),
        (b'INFO:     127.0.0.1:1 - "GET /x HTTP/1.1" 200 OK', "http"),
        (b'[2026-01-01 00:00:00] INFO:     127.0.0.1:1 - "GET /x HTTP/1.1" 200 OK', "http"),
        (b"Traceback (most recent call last):", "other"),
        (b"\rLoading safetensors checkpoint shards:  64% Completed | 41/64", "other"),
    ],
)
def test_origin(line: bytes, origin: str) -> None:
    assert logtext.origin(line) == origin


@pytest.mark.slow
async def test_filters_are_kept_from_one_start_to_the_next_and_one_key_shows_all(tmp_path: Path) -> None:
    kept = tmp_path / "state" / "screen.json"
    lines = [
        *log_lines(100),
        b"Traceback (most recent call last):",
        b'INFO:     1 - "GET /x HTTP/1.1" 200 OK',
    ]
    async with screen("ready", log=LogList(lines), kept=kept) as (app, pilot):
        log = await in_log(app, pilot)
        await pilot.press("o", "o", "o", "t")
        await settle(app, pilot)
        assert log.table.count == 1 and "1 of 106  not engine" in text_of(app)
        assert "0 all lines" in text_of(app).splitlines()[-1]
        await pilot.press("o", "o", "R", "ampersand", *"accept", "enter", "d", "W")
        await settle(app, pilot)
        assert "TP0, engine, /accept/" in text_of(app)
        was = log.settings()
    assert kept.stat().st_mode & 0o077 == 0
    async with screen("ready", log=LogList(lines), kept=kept) as (app, pilot):
        log = await in_log(app, pilot)
        assert log.settings() == was and log.pen.relative and log.pen.wrapping
        assert log.table.filter.text == "accept"
        await pilot.press("0")
        await settle(app, pilot)
        assert log.table.count == len(lines)
    for broken in (b"", b"[1]", b'{"log": {"level": 3, "fold": "x"}}', b"[" * 60_000):
        kept.write_bytes(broken)
        async with screen("ready", kept=kept) as (app, _):
            assert app.query_one(LogView).table.filter == Filter(quiet=True)


async def test_a_selection_can_be_copied_and_saved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    async with screen("ready", log=LogList([b"line %d" % i for i in range(50)])) as (app, pilot):
        await in_log(app, pilot)
        await pilot.press("g", "j", "j", "V", "j", "j")
        await settle(app, pilot)
        assert "3 lines selected" in text_of(app)
        await pilot.press("S")
        await settle(app, pilot)
        (saved,) = tmp_path.glob("specdash-*.txt")  # noqa: ASYNC240
        assert saved.read_text() == "line 2\nline 3\nline 4\n"


def test_a_filter_over_many_lines_keeps_little_and_says_the_same() -> None:
    """Chunks that are closed and read again give what one pass over all lines gives, while lines come in any pieces."""
    from random import Random

    from specdash.tui import logrows

    dice = Random(7)
    words = (b"same", b"same", b"same", b"other %d", b"GET poll %d")
    lines = [
        b"[2026-11-29 13:00:01 TP0] " + (w % i if b"%" in w else w)
        for i in range(6000)
        for w in [dice.choice(words)]
    ]
    lines[2100:4300] = [b"[2026-11-29 13:00:01 TP0] same"] * 2200
    for wanted in (Filter(fold=True), Filter(text="same|other"), Filter(text="same|other", fold=True)):
        source = LogList([])
        rows = Rows(source)
        rows.set_filter(wanted)
        at = 0
        while at < len(lines):
            at += dice.randint(1, 900)
            source.lines = lines[:at]
            if dice.random() < 0.5 and at < len(lines):
                source.lines[-1] = source.lines[-1][:30]  # unfinished for now
            rows.scan(10_000)
        source.lines = list(lines)
        rows.scan(10_000)
        plain: list[list[int]] = []
        last = b""
        for index, line in enumerate(lines):
            if not rows.keeps(line):
                continue
            if wanted.fold and plain and line == last:
                plain[-1][1] += 1
                continue
            plain.append([index, 1])
            last = line
        found = [[rows.line_number(row), rows.repeats(row)] for row in range(rows.count)]
        assert found == plain
        starts = [index for index, _ in plain]
        for line_number in range(0, len(lines), 37):
            row = rows.row_of(line_number)
            assert row == max(0, sum(start <= line_number for start in starts) - 1)
    assert len(rows._cache) <= logrows.CACHED and len(rows._open.lines) <= logrows.CHUNK


def test_the_short_way_to_a_level_gives_what_the_rules_give() -> None:
    """Shapes are remembered; digits between the letters of a word, or a word that is judged by digits, fool none of it."""
    from random import Random

    dice = Random(11)
    words = [
        *(b"error", b"Error", b"ERROR", b"err0or", b"error1", b"1error", b"xerror", b"errors=0", b"errors=5", b"OSError:"),
        *(b"warn", b"Warning", b"wa7rn", b"warnings", b"deprecated", b"DEPRECATED", b"FATAL", b"fatal", b"Exception"),
        *(b"INFO: ", b" 200 OK", b" 500 OK", b"server_args=", b"out of memory", b"Out Of 2Memory", b"Decode", b"#1", b"\xff"),
    ]  # fmt: skip
    logtext._CALM.clear()
    for _ in range(20_000):
        line = b" ".join(dice.choice(words) for _ in range(dice.randint(1, 4)))
        if logtext._BAD.search(line):
            wanted = "info" if logtext._NOT_BAD.search(line) else "error"
        else:
            wanted = "warning" if logtext._WARN.search(line) else "info"
        assert logtext.level(line) == wanted, line
        shifted = line.translate(bytes.maketrans(b"012579", b"135790"))
        logtext.level(shifted)
    assert 0 < len(logtext._CALM) <= logtext.KEEP


def test_long_lines_are_judged_a_few_at_a_time_so_that_keys_stay_free() -> None:
    """2,000 lines of 64 kB in one go took seconds."""
    from specdash.tui import logrows
    from specdash.tui.logfind import Finder

    long = [b"x" * 65_536] * 300
    rows = Rows(LogList([*long, b"an error"]))
    rows.set_filter(Filter(level="error"))
    went = []
    more = True
    while more:
        before = rows.scanned
        more = rows.scan(2_000)
        went.append(rows.scanned - before)
    assert rows.count == 1 and rows.lines(0, 1) == [b"an error"]
    assert max(went[1:]) * 65_536 <= 2 * logrows.READ_BYTES
    rows.set_filter(Filter())
    finder = Finder(rows, re.compile(b"error"), "error")
    finder.scan(2_000)
    before = finder.scanned
    finder.scan(2_000)
    assert (finder.scanned - before) * 65_536 <= 2 * logrows.READ_BYTES
    while finder.scan(2_000):
        pass
    assert finder.total == 1


def test_rows_read_together_are_the_rows_one_by_one() -> None:
    lines = log_lines(3_000)
    rows = Rows(LogList(lines))
    for wanted in (
        Filter(),
        Filter(level="warning"),
        Filter(rank="TP0"),
        Filter(text="[13579] tok", quiet=True),
    ):
        rows.set_filter(wanted)
        while rows.scan(2_000):
            pass
        assert rows.lines(0, rows.count) == [lines[rows.line_number(row)] for row in range(rows.count)]


async def test_a_match_beyond_the_right_edge_is_brought_into_view_and_the_left_is_when_it_is_there() -> None:
    lines = [b"[2026-11-29 13:00:01 TP0] " + b"word " * 60 + b"needle 1", b"needle 2 " + b"x" * 200]
    async with screen("ready", size=(80, 24), log=LogList(lines)) as (app, pilot):
        log = await in_log(app, pilot)
        await pilot.press("g", "slash", *"needle", "enter")
        await settle(app, pilot)
        assert log.cursor == 1 and log.pen.shifted == 0 and "needle 2" in text_of(app)
        await pilot.press("n")
        await settle(app, pilot)
        assert log.cursor == 0 and log.pen.shifted > 0 and "needle 1" in text_of(app)
        await pilot.press("n")
        await settle(app, pilot)
        assert log.pen.shifted == 0 and "needle 2" in text_of(app)
        await pilot.press("escape")
        await settle(app, pilot)


async def test_a_filter_that_lets_nothing_pass_does_not_say_that_there_is_no_log() -> None:
    async with screen("ready", log=LogList(log_lines(30))) as (app, pilot):
        await in_log(app, pilot)
        await pilot.press("ampersand", *"nowhere", "enter")
        await settle(app, pilot)
        assert "No line passes this filter. 0 shows all." in text_of(app)
        assert "No log yet" not in text_of(app)


_PIECES = [
    b'[2026-05-04 09:13:07] INFO:     127.0.0.1:5 - "GET /metrics HTTP/1.1" 200 OK',
    b'"GET /health?timeout=3 HTTP/1.1" 200 OK "GET /metrics HTTP/1.1" 200 OK',
    b"x" * 500 + b'"GET /metrics HTTP/1.1" 200 OK',
    b'"GET /health?',
    b'x HTTP/1.1" 200 OK "GET /health HTTP/1.1" 503',
    b'"POST /generate HTTP/1.1" 200 OK',
    b"",
    b"[2026-05-04 09:13:08 TP0] Decode batch, #running-req: 1",
]


@settings(max_examples=examples(60), deadline=None)
@given(st.lists(st.sampled_from(_PIECES), max_size=40))
def test_polls_found_together_are_those_found_one_by_one(lines: list[bytes]) -> None:
    assert logtext.polls(lines) == [n for n, line in enumerate(lines) if logtext.is_poll(line)]


def test_a_log_that_grows_past_chunks_hides_the_same_polls_as_judged_line_by_line() -> None:
    log = LogList([])
    rows = Rows(log)
    rows.set_filter(Filter(quiet=True))
    for turn in range(50):
        log.lines += [_PIECES[(turn * 7 + at * at) % len(_PIECES)] for at in range(turn * 3)]
        while rows.scan(100):
            pass
        if log.lines:
            log.lines[-1] += b"unfinished"[: turn % 3]
    while rows.scan(100):
        pass
    wanted = [n for n, line in enumerate(log.lines) if not logtext.is_poll(line)]
    assert len(log.lines) > 2 * CHUNK and rows.count == len(wanted)
    assert [rows.line_number(row) for row in range(rows.count)] == wanted
    assert all(rows.row_of(line) == row for row, line in enumerate(wanted))
