from __future__ import annotations

import asyncio
import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specdash.host.link import TailChunk
from specdash.host.mux import Mux
from specdash.host.remote import wire

headers = st.dictionaries(
    st.text(max_size=8), st.one_of(st.none(), st.integers(), st.text(max_size=20)), max_size=5
)


@given(
    st.lists(st.tuples(headers, st.binary(max_size=300)), max_size=6),
    st.lists(st.integers(1, 97), min_size=1),
)
def test_any_frames_in_any_cuts_come_out_whole(frames, cuts):
    stream = b"".join(wire.encode(header, payload) for header, payload in frames)
    parser, out, at, turn = wire.Parser(), [], 0, 0
    while at < len(stream):
        step = cuts[turn % len(cuts)]
        out += parser.feed(stream[at : at + step])
        at, turn = at + step, turn + 1
    assert out == frames


def test_big_blobs_travel_in_pieces_and_are_joined():
    blob = os.urandom(3 * wire.PIECE + 17)
    pieces = list(wire.pieces({"t": "ok", "id": 7}, blob))
    assert len(pieces) == 4 and max(map(len, pieces)) < wire.PIECE + 200
    parser, joiner = wire.Parser(), wire.Joiner()
    whole = [joiner.add(*frame) for piece in pieces for frame in parser.feed(piece)]
    assert whole[:3] == [None, None, None]
    assert whole[3] == ({"t": "ok", "id": 7}, blob)


def test_bytes_that_are_no_utf8_survive_as_file_names():
    name = os.fsdecode(b"/tmp/\xff\xfe caf\xe9")
    ((header, _),) = wire.Parser().feed(wire.encode({"path": name}))
    assert os.fsencode(header["path"]) == b"/tmp/\xff\xfe caf\xe9"


@pytest.mark.parametrize("junk", [b"HTTP/1.1 200 OK\r\n", b"\0\0\0\x02\0\0\0\0[]", b"\0\0\0\x02\0\0\0\0{]"])
def test_what_is_no_frame_is_an_error_and_not_a_hang(junk):
    with pytest.raises(wire.ProtocolError):
        wire.Parser().feed(junk)


def test_limits_are_kept_on_both_ends():
    with pytest.raises(ValueError, match="too big"):
        wire.encode({}, bytes(wire.MAX_PAYLOAD + 1))
    with pytest.raises(ValueError):
        wire.encode({"x": float("nan")})


class _Wire:
    def write(self, data: bytes) -> None:
        pass

    async def drain(self) -> None:
        pass

    def abort(self) -> None:
        pass


async def test_chunks_that_wait_in_a_row_are_one_and_others_stay_apart():
    mux = Mux("h", _Wire())
    told: list[TailChunk] = []

    async def read() -> None:
        async for chunk in mux.tail("/log"):
            told.append(chunk)
            if chunk.data.endswith(b"r"):
                return

    reader = asyncio.create_task(read())
    await asyncio.sleep(0)

    def chunk(offset: int, data: bytes, generation: int = 0, gone: str = "") -> bytes:
        header = {
            "t": "chunk",
            "id": 1,
            "offset": offset,
            "size": offset + len(data),
            "generation": generation,
        }
        return wire.encode({**header, "device": 1, "inode": 2, "gone": gone}, data)

    big = b"x" * (wire.PIECE - 10)
    sent = [
        (0, b""),
        (0, b"ab"),
        (2, b"cd"),
        (9, b"e"),
        (10, b"f"),
        (0, b"new", 1),
        (3, b"", 1, "gone"),
        (3, b"g", 1),
    ]
    sent += [(4, big, 1), (4 + len(big), b"hijklmnopqr", 1)]
    mux.feed(b"".join(chunk(*one) for one in sent))
    async with asyncio.timeout(5):
        await reader
    assert [(c.offset, c.data, c.size, c.generation, c.gone) for c in told] == [
        (0, b"abcd", 4, 0, ""),
        (9, b"ef", 11, 0, ""),
        (0, b"new", 3, 1, ""),
        (3, b"", 3, 1, "gone"),
        (3, b"g" + big, 4 + len(big), 1, ""),
        (4 + len(big), b"hijklmnopqr", 15 + len(big), 1, ""),
    ]
