"""What the ranks of one server over several hosts find between them: interfaces, addresses, and real connections.

A listener here answers with a word that only its asker knows, so that a connection proves the way to *it*, and
not to some other program on that port. It ends with its connection to the agent, or after some seconds.
"""

from __future__ import annotations

import fcntl
import os
import socket
import struct
import threading
import time
from typing import Any, Dict, List, Optional, Tuple

from specdash.host.remote import procs, sockets
from specdash.host.remote.wire import CallError

_SIOCGIFADDR, _SIOCGIFFLAGS = 0x8915, 0x8913
_UP, _LOOPBACK = 0x1, 0x8
NOWHERE = ("192.0.2.1", 9)
"""An address of RFC 5737 that is nobody's. A UDP socket that is connected to it sends nothing, and has the source
address of the default route."""

_listeners: Dict[str, Tuple[socket.socket, threading.Thread]] = {}


def interfaces() -> List[Dict[str, Any]]:
    """[{"name", "up", "loopback", "addresses"}] of this network namespace; the first address is the first IPv4 one."""
    six: Dict[str, List[str]] = {}
    for line in (procs.read_bytes("/proc/net/if_inet6", 1 << 20) or b"").splitlines():
        fields = line.split()
        if len(fields) == 6 and fields[3] != b"20":  # 20: link-local, no way for a rank without its scope
            raw = bytes.fromhex(fields[0].decode("ascii"))
            six.setdefault(os.fsdecode(fields[5]), []).append(socket.inet_ntop(socket.AF_INET6, raw))
    out = []
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        for _, name in socket.if_nameindex():
            request = struct.pack("256s", os.fsencode(name)[:15])
            try:
                flags = struct.unpack("H", fcntl.ioctl(sock.fileno(), _SIOCGIFFLAGS, request)[16:18])[0]
            except OSError:
                continue
            found = []
            try:
                found.append(socket.inet_ntoa(fcntl.ioctl(sock.fileno(), _SIOCGIFADDR, request)[20:24]))
            except OSError:
                pass  # it has no IPv4 address
            found += six.get(name, [])
            out.append(
                {
                    "name": name,
                    "up": bool(flags & _UP),
                    "loopback": bool(flags & _LOOPBACK),
                    "addresses": found,
                }
            )
    return out


def toward(address: str, port: int = 9) -> Optional[str]:
    """The source address that this host would use to reach `address`. None: there is no way, or no such name."""
    try:
        family, kind, proto, _, where = socket.getaddrinfo(address, port, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, kind, proto) as sock:
            sock.connect(where)
            return str(sock.getsockname()[0])
    except (OSError, UnicodeError):
        return None


def _look(params: Dict[str, Any], blob: bytes) -> Dict[str, Any]:
    """{toward: [address]} → what a plan needs: interfaces, default source, this host's name and what it means.

    `named` is the address that the host's own name resolves to: gloo listens there where no interface is set.
    `machine` is the same for two hosts of the config only where they are one machine and one network.
    """
    try:
        named: Optional[str] = socket.gethostbyname(socket.gethostname())
    except (OSError, UnicodeError):
        named = None
    try:
        namespace = os.readlink("/proc/self/ns/net")
    except OSError:
        namespace = ""
    return {
        "interfaces": interfaces(),
        "default": toward(*NOWHERE),
        "toward": {str(one): toward(str(one)) for one in params.get("toward") or ()},
        "hostname": socket.gethostname(),
        "named": named,
        "machine": "%s %s" % (procs.boot_id(), namespace),
        "listening": sorted(sockets.listen_inodes()),
        "now_unix": time.time(),
    }


def _resolved(address: str, port: int) -> Tuple[int, Any]:
    try:
        family, _, _, _, where = socket.getaddrinfo(address, port, type=socket.SOCK_STREAM)[0]
    except (OSError, UnicodeError) as error:
        raise CallError("no_address", "%s is no address on this host: %s." % (address, error), "") from None
    return family, where


def _listen(params: Dict[str, Any], blob: bytes) -> Dict[str, Any]:
    """{address, port (0: any), word, seconds} → {port}. Answers each connection with the word, until `unlisten`."""
    word, seconds = str(params["word"]), min(float(params.get("seconds") or 60.0), 300.0)
    family, where = _resolved(str(params["address"]), int(params["port"]))
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind(where)
        sock.listen(64)
    except OSError as error:
        sock.close()
        raise CallError(
            "cannot_listen",
            "%s port %s cannot be listened on: %s." % (params["address"], params["port"], error.strerror),
            "Take another address or port (`dist-init-addr`).",
        ) from None
    port = int(sock.getsockname()[1])
    thread = threading.Thread(target=_serve, args=(sock, word, time.monotonic() + seconds), daemon=True)
    _listeners[word] = (sock, thread)
    thread.start()
    return {"port": port}


def _serve(sock: socket.socket, word: str, until: float) -> None:
    try:
        while time.monotonic() < until and word in _listeners:
            sock.settimeout(0.5)
            try:
                one, _ = sock.accept()
            except socket.timeout:
                continue
            with one:
                one.settimeout(2.0)
                try:
                    one.sendall(word.encode("utf-8", "replace") + b"\n")
                    one.recv(16)  # its end: so that our word is not lost in a reset
                except OSError:
                    continue
    except OSError:
        pass  # closed by `unlisten`
    finally:
        _listeners.pop(word, None)
        sock.close()


def _unlisten(params: Dict[str, Any], blob: bytes) -> Dict[str, Any]:
    """{word} → {"was"}. When it returns, the port is free: a rank may bind it in the same moment."""
    found = _listeners.pop(str(params.get("word")), None)
    if found is None:
        return {"was": False}
    sock, thread = found
    try:
        sock.shutdown(socket.SHUT_RDWR)  # wakes the accept; a close alone would wait for its time to be over
    except OSError:
        pass  # it has ended by itself
    thread.join(3.0)
    return {"was": True}


def _connect(params: Dict[str, Any], blob: bytes) -> Dict[str, Any]:
    """{address, port, word, source, timeout} → {"ok", "problem", "source", "took_s"}.

    problem: refused, timeout, no_route, reset, stranger (somebody else answers there), or the error's own words.
    """
    wanted = str(params["word"]).encode("utf-8", "replace") + b"\n"
    timeout = float(params.get("timeout") or 5.0)
    began = time.monotonic()
    source: Optional[str] = None
    problem = ""
    try:
        family, where = _resolved(str(params["address"]), int(params["port"]))
        with socket.socket(family, socket.SOCK_STREAM) as sock:
            sock.settimeout(timeout)
            if params.get("source"):
                sock.bind((str(params["source"]), 0))
            sock.connect(where)
            source = str(sock.getsockname()[0])
            data = b""
            while len(data) < len(wanted):
                part = sock.recv(256)
                if not part:
                    break
                data += part
            problem = "" if data == wanted else "stranger"
    except CallError as error:
        problem = error.sentence
    except socket.timeout:
        problem = "timeout"
    except ConnectionRefusedError:
        problem = "refused"
    except ConnectionResetError:
        problem = "reset"
    except OSError as error:
        unreachable = error.errno in (101, 113)  # ENETUNREACH, EHOSTUNREACH
        problem = "no_route" if unreachable else str(error.strerror or error)
    return {
        "ok": not problem,
        "problem": problem,
        "source": source,
        "took_s": round(time.monotonic() - began, 4),
    }


CALLS = {
    "network.look": _look,
    "network.listen": _listen,
    "network.unlisten": _unlisten,
    "network.connect": _connect,
}
