"""What holds for any bytes: no exception, no influence of the cutting, bounds."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specdash.sglang.causes import first_cause
from specdash.sglang.decode import ZERO
from specdash.sglang.explain import as_json, as_text, conclude, kind_of
from specdash.sglang.lines import MAX_PIECE, visible
from specdash.sglang.story import Story, feed, finish
from specdash.sglang.storytypes import KEEP_DECODES, KEEP_EVIDENCE, KEEP_HISTORY, KEEP_NOTES
from tests.sglang_log.logkit import captures, line_by_line
from tests.support.examples import examples

PIECES = [
    b"[2026-05-04 09:10:02 TP0] Load weight begin. avail mem=138.20 GB",
    b"[2026-05-04 09:10:02 TP1] Load weight begin. avail mem=138.20 GB",
    b"[2026-13-99 99:99:99] nonsense time",
    b"[2026-05-04 09:11:02 TP0] Load weight end. elapsed=1.0 s, type=X, avail mem=1.0 GB, mem usage=2.0 GB.",
    b"Multi-thread loading shards:   7% Completed | 5/64 [02:29<36:52, 37.50s/it]",
    b"  0%|          | 0/23 [00:00<?, ?it/s]",
    b"Capturing batches (bs=48 avail_mem=17.52 GB):   8%|8         | 1/12 [00:01<00:14,  1.36s/it]",
    b"[2026-05-04 09:12:00 TP0] Capture draft decode CUDA graph begin. backend=full, avail mem=16.70 GB",
    b"[2026-05-04 09:12:10 TP0] Memory pool end. avail mem=18.31 GB",
    b"[2026-05-04 09:12:34 TP0] Entering DeepGEMM JIT Pre-Compile session.",
    b"[2026-05-04 09:13:00] server_args=ServerArgs(model_path='/m', api_key='secret-1', port=30000)",
    b"[2026-05-04 09:13:00] The server is fired up and ready to roll!",
    b"[2026-05-04 09:13:01.123 DP1 TP0] Decode batch, #running-req: 4, token usage: 0.03, accept len: 1.50, gen throughput (token/s): 90.00, #queue-req: 2",
    b"[2026-05-04 09:13:01 TP0] Prefill batch, #new-seq: 1, #new-token: 8, #cached-token: 0, #running-req: 0, #queue-req: 0",
    b"[2026-05-04 09:13:02] Receive: obj=GenerateReqInput(text='accept len: 9.99 [2026-05-04 09:13:02 TP0] Decode batch')",
    b"[2026-05-04 09:13:03 TP0] Scheduler hit an exception: Traceback (most recent call last):",
    b'  File "/x/sglang/srt/managers/scheduler.py", line 1, in run',
    b"    raise RuntimeError(",
    b"torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.32 GiB.",
    b"During handling of the above exception, another exception occurred:",
    b"Traceback (most recent call last):",
    b"ValueError: Unknown speculative algorithm name: X",
    b"[2026-05-04 09:13:04] Received sigquit from a child process. It usually means the child failed.",
    b"[2026-05-04 09:13:04] SIGTERM received. signum=None frame=None. Draining requests and shutting down...",
    b"[2026-05-04 09:13:05] Gracefully exiting... Remaining number of requests 0.",
    b'[2026-05-04 09:13:05] INFO:     127.0.0.1:1 - "GET /health HTTP/1.1" 200 OK',
    b"[2026-05-04 09:13:05] ERROR:    [Errno 98] error while attempting to bind on address ('127.0.0.1', 31100): address already in use",
    b"INFO:     Started server process [4242]",
    b"\x1b[32mINFO\x1b[0m:     Started server process [\x1b[36m4242\x1b[0m]",
    b"2025-12-02 14:57:33 INFO 128139 [ TP0 EP0 scheduler.py:900] Decode batch. #running-req: 1, accept len: 2.50",
    b'{"asctime": "2026-05-04 09:13:05", "levelname": "ERROR", "message": "Watchdog timeout (self.watchdog_timeout=300)"}',
    b"sglang-1  | [2026-05-04 09:13:05 TP0] KV cache pool is full. Retract requests. #retracted_reqs: 3",
    b"launch_server.py: error: unrecognized arguments: --x",
    b"/opt/x.py:54: UserWarning: old",
    b"\x00\x00",
    b"\xff\xfe caf\xe9",
    b"",
    b"utes.",
    b'[2026-05-04 09:13:07] INFO:     127.0.0.1:50123 - "POST /generate HTTP/1.1" 200 OK',
    b'[2026-05-04 09:13:08] INFO:     "x" is not dead yet',
    b'sglang-1  | [2026-05-04 09:13:08] INFO:     127.0.0.1:50124 - "POST /v1/errors HTTP/1.1" 200 OK',
    b"[2026-05-04 09:13:08 TP7] Registering 77 weight views",
    b"[1026-05-04 09:13:08 TP7] Registering 78 weight views",
    b"[2026-05-04 09:13:09 TP0] Decode batch, #running-req: 48, #token: 81234, token usage: 0.93, accept len: 2.01, accept rate: 0.34, cuda graph: True, gen throughput (token/s): 2210.40, #queue-req: 57",
    b"[2026-05-04 09:13:59 TP0] Decode batch, #running-req: 4, #token: 8, token usage: 0.1, gen throughput (token/s): 10, #queue-req: -1",
    b"[2026-05-04 09:13:59 TP0] Decode batch, #running-req: 4, token usage: 0.1\r, gen throughput (token/s): 1e3",
    b"[2026-05-04 09:14:09 TP0] Prefill batch, #new-seq: 1, #new-token: 812, #cached-token: 9, token usage: 0.93, #running-req: 3, #queue-req: 1, cuda graph: False, input throughput (token/s): 30.1 [2026-05-04 09:14:10 TP1] Decode batch, #running-req: 1",
    b"[2026-05-04 09:14:11] Finish: obj=GenerateReqInput(rid='f00', text=\""
    + b"it died in use, see [1] " * 24
    + b'")',
    b"[2026-05-04 09:14:11] Finish: obj=GenerateReqInput(rid='f00', text='"
    + b"[2026-05-04 09:14:11] it's late " * 24
    + b"')",
    b"[2026-05-04 09:14:12 TP0] \x1b[32mall is well 5\x1b[0m",
    b"2026-05-04 09:14:13 hello",
    b"1026-05-04 09:14:13 hello",
    b'{"message": "The server is fired up and ready to roll!", "n": 10}',
    b'{"message": "The server is fired up and ready to roll!", "n": 01}',
    b"  at 5 of 7",
    b"[2026-05-04 09:13:10",
]
ENDS = [b"\n", b"\n", b"\n", b"\r", b"\r\n", b""]
SHAPES = {
    line.translate(ZERO): line for log in captures().values() for line in log.split(b"\n") if len(line) < 3000
}
"""One line of every shape that the captured logs hold."""
anything = st.one_of(st.sampled_from(PIECES), st.sampled_from(list(SHAPES.values())))
logs = st.lists(st.tuples(anything, st.sampled_from(ENDS)), max_size=40).map(
    lambda rows: b"".join(a + b for a, b in rows)
)
sizes = st.lists(st.integers(1, 200), min_size=1, max_size=12)


def cut(data: bytes, lengths: list[int]) -> Story:
    story, start, i = Story(), 0, 0
    while start < len(data):
        story = feed(story, data[start : start + lengths[i % len(lengths)]])
        start += lengths[i % len(lengths)]
        i += 1
    return story


@settings(max_examples=examples(120), deadline=None)
@given(logs, sizes)
def test_cutting_does_not_matter(data: bytes, lengths: list[int]) -> None:
    whole = feed(Story(), data)
    assert cut(data, lengths) == whole
    assert cut(data, [1]) == whole


UP = b"[2026-05-04 09:00:00 TP0] The server is fired up and ready to roll!\n"


@settings(max_examples=examples(100), deadline=None)
@given(logs)
def test_lines_known_by_their_shape_tell_what_reading_each_one_tells(data: bytes) -> None:
    assert feed(Story(), data) == line_by_line(data)
    assert feed(Story(), UP + data) == line_by_line(UP + data)


LOADS = b"[2026-05-04 09:00:00 TP0] Load weight begin. avail mem=138.20 GB\n"


@pytest.mark.parametrize(("before", "end"), [(UP, b"\n"), (UP, b"\r\n"), (LOADS, b"\n")])
def test_each_line_known_by_its_shape_tells_what_reading_it_tells(before: bytes, end: bytes) -> None:
    """Twice, with other digits: what is remembered of the first must hold for the second."""
    for line in [*PIECES, *SHAPES.values()]:
        data = before + line + end + line.translate(bytes.maketrans(b"1345678", b"7653841")) + end
        assert feed(Story(), data) == line_by_line(data), line


@settings(max_examples=examples(60), deadline=None)
@given(logs, st.integers(0, 4000))
def test_a_prefix_is_the_state_at_that_byte(data: bytes, at: int) -> None:
    early = feed(Story(), data[:at])
    assert feed(early, data[at:]) == feed(Story(), data)
    assert early.size == len(data[:at])


@settings(max_examples=examples(100), deadline=None)
@given(st.one_of(st.binary(max_size=600), logs), st.one_of(st.none(), st.integers(-64, 255)))
def test_any_bytes_can_be_told_and_explained(data: bytes, code: int | None) -> None:
    story = finish(feed(Story(), data))
    found = conclude(story, code)
    first_cause(story, signal=9)
    text = as_text(found)
    assert not any(ord(c) < 32 and c not in "\n\t" for c in text)
    as_json(found)
    kind_of(data)
    visible(data)
    assert "secret-1" not in text and "secret-1" not in str(as_json(found))


@settings(max_examples=examples(25), deadline=None)
@given(logs)
def test_memory_is_bounded(data: bytes) -> None:
    story = Story()
    for _ in range(40):
        story = feed(story, data)
    assert len(story.decodes) <= KEEP_DECODES + 64
    assert len(story.history) <= KEEP_HISTORY
    assert len(story.evidence) <= KEEP_EVIDENCE
    assert len(story.notes) <= KEEP_NOTES
    assert len(story.phases) <= 128


def test_an_endless_line_is_bounded_and_its_beginning_read() -> None:
    head = b"[2026-05-04 09:10:02 TP0] Load weight begin. avail mem=138.20 GB "
    story = Story()
    for part in (head, *[b"x" * 50_000] * 20):
        story = feed(story, part)
    assert len(story.rest) <= MAX_PIECE and story.size == len(head) + 1_000_000
    after = feed(story, b"\n[2026-05-04 09:10:09 TP0] Memory pool end. avail mem=1.0 GB\n")
    assert [p.name for p in after.phases][-2:] == ["loading_weights", "kv_alloc"]
    assert after == feed(
        Story(), head + b"x" * 1_000_000 + b"\n[2026-05-04 09:10:09 TP0] Memory pool end. avail mem=1.0 GB\n"
    )


def test_history_keeps_the_whole_log_in_few_points() -> None:
    line = b"[2026-05-04 09:13:01 TP0] Decode batch, #running-req: 4, accept len: %.2f, gen throughput (token/s): %d.00, #queue-req: 2\n"
    story = Story()
    for i in range(3000):
        story = feed(story, line % (1 + i % 3, 100 + i % 7))
    assert story.decode_count == 3000
    assert sum(point.lines for point in story.history) == 3000
    assert {point.running_max for point in story.history} == {4}
    mean = sum(point.tok_s_sum for point in story.history) / sum(point.tok_s_lines for point in story.history)
    assert 102.5 < mean < 103.5
