"""Frames between specdash and its agent; both ends share this file.

A frame is `>II` (header bytes, payload bytes), a JSON header (object, ASCII) and a raw payload. Payloads
above `PIECE` travel as several frames, `{"t": "part", "id": N}` before the last, so that no big answer keeps
a sample waiting. Lone surrogates in strings stand for bytes that are not UTF-8 (os.fsdecode) and survive.

specdash → agent                                     agent → specdash
  call    id, m(ethod), p(arams) + blob                ok     id, r(esult), b(lob is there) + blob
  cancel  id   (a call, tail or sample)                err    id, code, sentence, step  (a call; ends a stream)
  tail    id, path, pos{offset,device,inode,           chunk  id, offset, size, generation, device, inode,
          generation,before}, window                          gone + data
  credit  id, n (bytes the reader has taken)           sampled id, r, b + blob
  sample  id, kind, every (s), p                       pong   id
  ping    id
"""

from __future__ import annotations

import errno
import json
import struct
from typing import Any, Dict, Iterator, List, Optional, Tuple

VERSION = 1
PIECE = 256 * 1024
MAX_HEADER = 16 * 1024 * 1024
MAX_PAYLOAD = 1024 * 1024
MAX_BLOB = 256 * 1024 * 1024
TAIL_WINDOW = 1024 * 1024
"""Bytes of one tail that may be on their way; bounds memory and how late a sample can be on a slow link."""
SILENCE_S = 150.0
"""The agent exits when it hears nothing for so long: a half-dead TCP connection must not keep it alive."""

_HEAD = struct.Struct(">II")
Frame = Tuple[Dict[str, Any], bytes]


class CallError(Exception):
    """What a handler raises to say no. `code` is a short stable word, `step` says what to do next."""

    def __init__(self, code: str, sentence: str, step: str = "") -> None:
        Exception.__init__(self, code, sentence, step)
        self.code = code
        self.sentence = sentence
        self.step = step


class ProtocolError(Exception):
    """The other side does not speak this protocol; the connection cannot go on."""


def encode(header: Dict[str, Any], payload: bytes = b"") -> bytes:
    """One frame. ValueError when it is above the limits or the header is not JSON."""
    head = json.dumps(header, separators=(",", ":"), allow_nan=False).encode("ascii")
    if len(head) > MAX_HEADER or len(payload) > MAX_PAYLOAD:
        raise ValueError("frame too big: %d + %d bytes" % (len(head), len(payload)))
    return b"".join((_HEAD.pack(len(head), len(payload)), head, payload))


def pieces(header: Dict[str, Any], blob: bytes = b"") -> Iterator[bytes]:
    """The frames of one message with a payload of any size up to MAX_BLOB."""
    if len(blob) > MAX_BLOB:
        raise ValueError("blob too big: %d bytes" % len(blob))
    view = memoryview(blob)
    at = 0
    while len(blob) - at > PIECE:
        yield encode({"t": "part", "id": header["id"]}, bytes(view[at : at + PIECE]))
        at += PIECE
    yield encode(header, bytes(view[at:]))


class Parser:
    """Bytes in, frames out; holds at most one unfinished frame."""

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._need = _HEAD.size

    def feed(self, data: bytes) -> List[Frame]:
        self._buffer += data
        if len(self._buffer) < self._need:
            return []  # of a big frame most pieces are just kept
        frames: List[Frame] = []
        at = 0
        self._need = _HEAD.size
        buffer = self._buffer
        while len(buffer) - at >= _HEAD.size:
            head, payload = _HEAD.unpack_from(buffer, at)
            if head > MAX_HEADER or payload > MAX_PAYLOAD:
                raise ProtocolError("a frame of %d + %d bytes was announced" % (head, payload))
            end = at + _HEAD.size + head + payload
            if len(buffer) < end:
                self._need = end - at
                break
            start = at + _HEAD.size
            with memoryview(buffer) as view:
                header = _header(bytes(view[start : start + head]))
                frames.append((header, bytes(view[start + head : end])))
            at = end
        if at:
            del buffer[:at]
        return frames


def _header(raw: bytes) -> Dict[str, Any]:
    try:
        header = json.loads(raw.decode("ascii"))
    except ValueError:
        raise ProtocolError("a frame header is not JSON: %r" % raw[:80]) from None
    if not isinstance(header, dict):
        raise ProtocolError("a frame header is not an object: %r" % raw[:80])
    return header


class Joiner:
    """Puts the parts of big messages together again, bounded in all by MAX_BLOB."""

    def __init__(self) -> None:
        self._parts: Dict[int, List[bytes]] = {}
        self._held = 0

    def add(self, header: Dict[str, Any], payload: bytes) -> Optional[Frame]:
        """The whole message, or None while parts are missing."""
        key = header.get("id", 0)
        if header.get("t") == "part":
            self._held += len(payload)
            if self._held > MAX_BLOB:
                raise ProtocolError("more than %d bytes of unfinished messages" % MAX_BLOB)
            self._parts.setdefault(key, []).append(payload)
            return None
        parts = self._parts.pop(key, None)
        if not parts:
            return header, payload
        self._held -= sum(len(part) for part in parts)
        parts.append(payload)
        return header, b"".join(parts)


_CODES = {
    errno.ENOENT: "not_found",
    errno.ENOTDIR: "not_found",
    errno.EACCES: "denied",
    errno.EPERM: "denied",
    errno.EROFS: "denied",
    errno.EEXIST: "exists",
    errno.ENOTEMPTY: "exists",
    errno.EISDIR: "is_a_folder",
    errno.ENOSPC: "no_space",
    errno.EDQUOT: "no_space",
    errno.ESTALE: "stale",
    errno.ELOOP: "not_found",
}


def os_error(error: OSError, what: str) -> CallError:
    """`what` is a verb phrase: "read /x". Code: not_found, denied, exists, is_a_folder, no_space, stale or io."""
    code = _CODES.get(error.errno or 0, "io")
    return CallError(code, "could not %s: %s" % (what, error.strerror or error))
