"""Lines as an SGLang server logs them, for the benchmarks of the log: kinds by name, and a mix as of a busy server.

The text of prompts is made up; the forms are those of 0.5.x with `--log-requests` (surface notes, section 5).
"""

from __future__ import annotations

import random
from collections.abc import Callable

STAMP = b"2026-11-20 10:00:00"
"""The time in every line of a block: whoever writes it puts the present one in its place."""
WORDS = (
    b"please summarise the following report about failed shipments and say why the error rate rose "
    b"in March although nobody changed the warning thresholds of the cache [20 items] don't guess "
).split()


def access(dice: random.Random) -> bytes:
    return b'[%s] INFO:     127.0.0.1:%d - "POST /generate HTTP/1.1" 200 OK\n' % (
        STAMP,
        dice.randint(30000, 60000),
    )


def decode(dice: random.Random) -> bytes:
    return (
        b"[%s TP0] Decode batch, #running-req: %d, #token: %d, token usage: %.2f, accept len: %.2f, accept rate: %.2f, "
        b"cuda graph: True, gen throughput (token/s): %.2f, #queue-req: %d\n"
    ) % (
        STAMP,
        dice.randint(1, 48),
        dice.randint(1000, 900000),
        dice.random(),
        1 + 3 * dice.random(),
        dice.random(),
        3000 * dice.random(),
        dice.randint(0, 90),
    )


def prefill(dice: random.Random) -> bytes:
    return (
        b"[%s TP0] Prefill batch, #new-seq: %d, #new-token: %d, #cached-token: %d, token usage: %.2f, "
        b"#running-req: %d, #queue-req: %d, cuda graph: False, input throughput (token/s): %.2f\n"
    ) % (
        STAMP,
        dice.randint(1, 4),
        dice.randint(1, 8192),
        dice.randint(0, 4096),
        dice.random(),
        dice.randint(0, 47),
        dice.randint(0, 90),
        30000 * dice.random(),
    )


def chatter(dice: random.Random) -> bytes:
    return b"[%s TP%d] Registering %d weight views of layer group %d for the host tier of the cache\n" % (
        STAMP,
        dice.randint(0, 7),
        dice.randint(1, 97),
        dice.randint(0, 12),
    )


def frame(dice: random.Random) -> bytes:
    return (
        b'  File "/opt/venv/lib/python3.12/site-packages/torch/nn/modules/module.py", line %d, in _call_impl\n'
        % dice.randint(1, 2000)
    )


def request(dice: random.Random) -> bytes:
    text = b" ".join(dice.choices(WORDS, k=dice.randint(20, 200)))
    return (
        b"[%s] %s: obj=GenerateReqInput(rid='%032x', text=\"%s\", sampling_params={'temperature': 0.7, "
        b"'max_new_tokens': %d}, stream=True, return_logprob=False)\n"
    ) % (STAMP, dice.choice((b"Receive", b"Finish")), dice.getrandbits(128), text, dice.randint(1, 4096))


def bar(dice: random.Random) -> bytes:
    done = dice.randint(0, 22)
    return b"\rCapturing batches (bs=%d avail_mem=8.11 GB):  %2d%%|%s| %d/23 [00:01<00:10,  2.0it/s]" % (
        dice.randint(1, 48),
        done * 100 // 23,
        b"#" * (done // 3),
        done,
    )


def colours(dice: random.Random) -> bytes:
    return (
        b'\x1b[32mINFO\x1b[0m:     127.0.0.1:%d - "\x1b[1mGET /health HTTP/1.1\x1b[0m" \x1b[32m200 OK\x1b[0m\n'
        % (dice.randint(30000, 60000))
    )


def as_json(dice: random.Random) -> bytes:
    return (
        b'{"asctime": "%s", "levelname": "INFO", "name": "sglang.srt", "message": "Decode batch, #running-req: %d, '
        b'#token: %d, token usage: 0.22, gen throughput (token/s): %.2f, #queue-req: 57"}\n'
    ) % (STAMP, dice.randint(1, 48), dice.randint(1000, 900000), 3000 * dice.random())


def composed(dice: random.Random) -> bytes:
    return b"sglang-1  | " + access(dice)


def eight_ranks(dice: random.Random) -> bytes:
    return b"".join(
        b"[%s TP%d] Registering the weight views of layer group %d\n" % (STAMP, rank, dice.randint(0, 12))
        for rank in range(8)
    )


def with_cr(dice: random.Random) -> bytes:
    return access(dice)[:-1] + b"\r\n"


def bad_bytes(dice: random.Random) -> bytes:
    return decode(dice)[:-1] + b" \xff\n"


Kind = Callable[[random.Random], bytes]
KINDS: dict[str, Kind] = {
    "access lines": access,
    "decode lines": decode,
    "prefill lines": prefill,
    "nothing to say": chatter,
    "eight ranks": eight_ranks,
    "frames, prints": frame,
    "logged requests": request,
    "progress bars": bar,
    "colours": colours,
    "JSON logging": as_json,
    "docker compose": composed,
    "CR LF": with_cr,
    "decode lines, bad UTF-8": bad_bytes,
}
BUSY = (
    (access, 50),
    (decode, 22),
    (prefill, 12),
    (request, 14),
    (chatter, 1),
    (eight_ranks, 0.2),
    (bar, 0.3),
)


def busy(dice: random.Random) -> bytes:
    """One line of a busy server's log; after a progress bar a record is glued to it, as tqdm leaves it."""
    kinds, weights = zip(*BUSY, strict=True)
    return bytes(dice.choices(kinds, weights)[0](dice))


def block(kind: Kind, size: int, seed: int = 1) -> bytes:
    """Whole lines of about `size` bytes."""
    dice = random.Random(seed)
    rows, total = [], 0
    while total < size:
        rows.append(kind(dice))
        total += len(rows[-1])
    return b"".join(rows)
