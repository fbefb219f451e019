from __future__ import annotations

import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

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
