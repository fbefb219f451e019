"""Heads of records of every generation, and what other tools put in front."""

from __future__ import annotations

import pytest

from specdash.sglang import lines, prefix
from tests.sglang_log.logkit import told

DECODE = "Decode batch, #running-req: 3, #token: 300, token usage: 0.02, accept len: 3.00, gen throughput (token/s): 300.00, #queue-req: 1"


@pytest.mark.parametrize(
    ("line", "rank", "level", "time"),
    [
        (f"[2025-03-01 10:00:00] {DECODE}", "", "", "2025-03-01 10:00:00"),
        (f"[2025-03-01 10:00:00 TP0] {DECODE}", "TP0", "", "2025-03-01 10:00:00"),
        (f"[2025-03-01 10:00:00 DP1 TP3] {DECODE}", "DP1 TP3", "", "2025-03-01 10:00:00"),
        (f"[2025-03-01 10:00:00 DP0 PP1 ATTN_CP0 MOE_DP0 TP3 EP2] {DECODE}", "DP0 PP1 ATTN_CP0 MOE_DP0 TP3 EP2", "", "2025-03-01 10:00:00"),
        (f"[2026-11-20 10:00:03.120 TP0] {DECODE}", "TP0", "", "2026-11-20 10:00:03.120"),
        (f"2025-12-02 14:57:33 INFO 128139 [ TP0 EP0 scheduler.py:900] {DECODE}", "TP0 EP0", "INFO", "2025-12-02 14:57:33"),
        (f"2026-05-04 18:46:45,039 - INFO - sglang.scheduler: {DECODE}", "", "INFO", "2026-05-04 18:46:45,039"),
        (f"2026-05-04 18:46:45.039 | INFO     | sglang.srt:run:12 - {DECODE}", "", "INFO", "2026-05-04 18:46:45.039"),
        (f'{{"asctime": "2026-05-04 18:46:45", "levelname": "INFO", "message": "{DECODE}"}}', "", "INFO", "2026-05-04 18:46:45"),
        (f'{{"log":"[2026-05-04 18:46:45 TP1] {DECODE}\\n","stream":"stderr","time":"2026-05-04T18:46:45.1Z"}}', "TP1", "", "2026-05-04 18:46:45"),
        (f"sglang-1  | [2025-03-01 10:00:00 TP0] {DECODE}", "TP0", "", "2025-03-01 10:00:00"),
        (f"Nov 29 12:04:14 gpu-a python3[1234]: [2025-03-01 10:00:00 TP0] {DECODE}", "TP0", "", "2025-03-01 10:00:00"),
        (f"2025-03-01T10:00:00+0000 gpu-a sglang[99]: [2025-03-01 10:00:00 TP0] {DECODE}", "TP0", "", "2025-03-01 10:00:00"),
        (f"2026-05-04T10:00:00.123456789Z stderr F [2025-03-01 10:00:00 TP0] {DECODE}", "TP0", "", "2025-03-01 10:00:00"),
        (f"2026-05-04T10:00:00.123456789Z [2025-03-01 10:00:00 TP0] {DECODE}", "TP0", "", "2025-03-01 10:00:00"),
        (f"(EngineActor pid=77, ip=10.0.0.1) [2025-03-01 10:00:00 TP0] {DECODE}", "TP0", "", "2025-03-01 10:00:00"),
        (f"[rank3]: [2025-03-01 10:00:00 TP3] {DECODE}", "TP3", "", "2025-03-01 10:00:00"),
        (f"0: [2025-03-01 10:00:00 TP0] {DECODE}", "TP0", "", "2025-03-01 10:00:00"),
    ],
)  # fmt: skip
def test_every_form_of_head(line: str, rank: str, level: str, time: str) -> None:
    head = prefix.read(prefix.unwrap(line.encode()))
    assert head is not None
    assert (head.rank, head.level, head.time) == (rank, level, time)
    assert head.body.decode() == DECODE
    story = told(line + "\n")
    assert [(d.accept_len, d.tok_s, d.running, d.queued) for d in story.decodes] == [(3.0, 300.0, 3, 1)]
    assert story.records == 1
    assert story.decodes[0].dp == prefix.rank_number(rank, "DP")


@pytest.mark.parametrize(
    "line",
    [
        '  File "/x/y.py", line 3, in f',
        "Traceback (most recent call last):",
        "ValueError: x",
        "usage: launch_server.py [-h]",
        "{not json}",
        '{"text": "no message"}',
        "100%|##########| 4/4 [00:00<00:00]",
        "",
    ],
)
def test_what_is_no_record(line: str) -> None:
    assert prefix.read(prefix.unwrap(line.encode())) is None


def test_a_logging_format_of_somebodys_own_still_tells() -> None:
    story = told(
        "gpu-a/7 scheduler >> Load weight begin. avail mem=10.0 GB\n<7> The server is fired up and ready to roll!\n"
    )
    assert story.ready_seen
    assert [p.name for p in story.phases][-2:] == ["loading_weights", "ready"]


def test_records_glued_to_bars_and_to_each_other() -> None:
    glued = (
        b"\r  0%|          | 0/23 [00:00<?, ?it/s][2026-05-04 18:46:44 TP3] Capture cuda graph begin. This can take up to\n"
        b"[2026-05-04 09:12:22 TP0] Capture cuda graph beg[2026-05-04 09:12:22 TP1] Capture cuda graph begin. x\nin.\n"
    )
    story = told(glued)
    assert story.ranks == ("TP3", "TP0", "TP1")
    assert story.records == 3 and story.phase == "graph_capture"
    assert story.progress is not None and (story.progress.done, story.progress.total) == (0, 23)


def test_a_bar_that_nothing_ended_yet_is_seen() -> None:
    story = told(b"")
    from specdash.sglang.story import Story, feed

    story = feed(Story(), b"[2026-05-04 09:10:02 TP0] Load weight begin. avail mem=138.20 GB\n")
    story = feed(story, b"\rMulti-thread loading shards:   7% Completed | 5/64 [02:29<36:52, 37.50s/it]")
    assert story.progress is not None and (story.progress.done, story.progress.total) == (5, 64)
    half = feed(Story(), b"\rMulti-thread loading shards:   7% Completed | 5/6")
    assert half.progress is None, "half a number is no progress"


@pytest.mark.parametrize(
    "text",
    [
        "[2026-05-04 11:00:01] Receive: obj=GenerateReqInput(text='[2026-05-04 11:00:00 TP0] Decode batch, #running-req: 9, accept len: 9.99, gen throughput (token/s): 99999.00', rid='r1')",
        "[2026-05-04 11:00:01] Finish: obj=GenerateReqInput(text='The server is fired up and ready to roll!')",
        "[2026-05-04 11:00:01] Receive: obj=GenerateReqInput(text='Traceback (most recent call last): ValueError: Not enough memory. Please try to increase --mem-fraction-static')",
        '[2026-05-04 11:00:01 TP0] Finish: obj=EmbeddingReqInput(text="KV cache pool is full. Retract requests. #retracted_reqs: 3")',
        '{"event": "request.received", "text": "Decode batch, #running-req: 9, accept len: 9.99"}',
    ],
)
def test_text_of_users_is_no_fact(text: str) -> None:
    story = told(f"[2026-05-04 11:00:00 TP0] Load weight begin. avail mem=1.0 GB\n{text}\n")
    assert story.phase == "loading_weights" and not story.decodes and not story.ready_seen
    assert not story.all_evidence and not story.retractions


def test_escapes_are_gone_and_text_stays() -> None:
    assert (
        lines.visible(b"\x1b[2K\x1b[32mINFO\x1b[0m: [\x1b[36m42\x1b[0m]\x1b]0;title\x07 \x00ok \xff")
        == "INFO: [42] ok �"
    )
    assert (
        lines.visible(b"[bold]not bold[/bold] [link=file:///etc]")
        == "[bold]not bold[/bold] [link=file:///etc]"
    )
