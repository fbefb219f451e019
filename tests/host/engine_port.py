"""An HTTP server with the manners of engines in trouble, for the three ways to reach a port."""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import ssl
from collections.abc import AsyncIterator
from pathlib import Path


async def _answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError, asyncio.IncompleteReadError, asyncio.CancelledError):
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        path = head.split()[1]
        if path == "/silent":
            await asyncio.sleep(30)
        elif path == "/drip":
            for byte in b"HTTP/1.1 200 OK\r\nContent-Length: 10000\r\n\r\n" + bytes(10000):
                writer.write(bytes([byte]))
                await writer.drain()
                await asyncio.sleep(0.05)
        elif path == "/cut":
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nhalf")
            await writer.drain()
        elif path == "/chunked":
            writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n")
            await writer.drain()
        elif path == "/junk":
            writer.write(b"SSH-2.0-not-http\r\n\r\n")
            await writer.drain()
        elif path == "/big":
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 3000000\r\n\r\n" + bytes(3_000_000))
            await writer.drain()
        else:
            size = next(
                (int(line[15:]) for line in head.split("\r\n") if line.lower().startswith("content-length:")),
                0,
            )
            body = head.encode() + await reader.readexactly(size)
            writer.write(
                b"HTTP/1.1 503 Busy\r\nX-Odd: caf\xe9\r\nContent-Length: %d\r\n\r\n" % len(body) + body
            )
            await writer.drain()
    writer.close()


@contextlib.asynccontextmanager
async def engine_port(tls: ssl.SSLContext | None = None) -> AsyncIterator[int]:
    server = await asyncio.start_server(_answer, "127.0.0.1", 0, ssl=tls)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()


def self_signed(folder: Path) -> ssl.SSLContext:
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "engine")])
    now = datetime.datetime.now(datetime.UTC)
    made = x509.CertificateBuilder().subject_name(name).issuer_name(name).public_key(key.public_key())
    made = made.serial_number(1).not_valid_before(now - datetime.timedelta(days=1))
    signed = made.not_valid_after(now + datetime.timedelta(days=1)).sign(key, hashes.SHA256())
    pem = folder / "engine.pem"
    pem.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        + signed.public_bytes(serialization.Encoding.PEM)
    )
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(pem)
    return context
