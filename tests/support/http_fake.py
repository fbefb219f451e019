"""A FAKE of an engine's HTTP port, for tests: answers by a table, counts generations. Not SGLang, and no model.

    with HttpFake({"/ready": 200, "/v1/loads": {"loads": [...]}}) as fake:
        fake.port, fake.generations, fake.most_at_once

A value is a status, a text, an object (JSON), or [status, body]. `metrics` makes a metrics page whose counters move.
"""

from __future__ import annotations

import datetime
import ipaddress
import json
import ssl
import tempfile
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

Answers = dict[str, Any]


class HttpFake:
    """`key`: what Authorization must bring, except for /ready. `generate`: what /generate answers; "silent": nothing."""

    def __init__(
        self,
        answers: Answers,
        *,
        metrics: dict[str, float] | None = None,
        key: str = "",
        tls: bool = False,
        generate: Any = None,
        generate_s: float = 0.0,
    ) -> None:
        self.answers, self.key, self.generate, self.generate_s = answers, key, generate, generate_s
        self.metrics, self.began = metrics, time.monotonic()
        self.generations = self.at_once = self.most_at_once = 0
        self.asked: list[str] = []
        self.lock = threading.Lock()
        self.ended = threading.Event()
        fake = self

        class Handler(BaseHTTPRequestHandler):
            def log_message(self, *_: object) -> None:
                pass

            def do_GET(self) -> None:
                fake.answer(self)

            def do_POST(self) -> None:
                fake.answer(self)

        class Server(ThreadingHTTPServer):
            daemon_threads = True
            request_queue_size = 128

            def handle_error(self, *_: object) -> None:
                pass  # a client that leaves

        self.server = Server(("127.0.0.1", 0), Handler)
        self.port = int(self.server.server_address[1])
        self.certificate = ""
        if tls:
            self.certificate = certificate()
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(self.certificate)
            self.server.socket = context.wrap_socket(
                self.server.socket, server_side=True, do_handshake_on_connect=False
            )
        threading.Thread(target=self.server.serve_forever, args=(0.02,), daemon=True).start()

    def __enter__(self) -> HttpFake:
        return self

    def __exit__(self, *_: object) -> None:
        self.ended.set()
        self.server.shutdown()
        self.server.server_close()

    def answer(self, request: BaseHTTPRequestHandler) -> None:
        path = request.path
        with self.lock:
            self.asked.append(path)
        if request.command == "POST":
            request.rfile.read(int(request.headers.get("Content-Length") or 0))
        if self.key and path != "/ready" and request.headers.get("Authorization") != "Bearer " + self.key:
            self.send(request, [401, {"error": "Unauthorized"}])
        elif path == "/generate":
            self.generation(request)
        elif path == "/metrics" and self.metrics is not None:
            self.send(request, page(self.metrics, time.monotonic() - self.began))
        else:
            self.send(request, self.answers.get(path, 404))

    def generation(self, request: BaseHTTPRequestHandler) -> None:
        with self.lock:
            self.generations += 1
            self.at_once += 1
            self.most_at_once = max(self.most_at_once, self.at_once)
        try:
            self.ended.wait(600.0 if self.generate == "silent" else self.generate_s)
        finally:
            with self.lock:
                self.at_once -= 1
        meta = {"completion_tokens": 2, "prompt_tokens": 3, "e2e_latency": 0.1}
        self.send(request, self.generate if self.generate is not None else {"text": "4 5", "meta_info": meta})

    def send(self, request: BaseHTTPRequestHandler, value: Any) -> None:
        status, body = value if isinstance(value, list) and len(value) == 2 else (200, value)
        if isinstance(body, int):
            status, body = body, ""
        data = (body if isinstance(body, str) else json.dumps(body)).encode()
        try:
            request.send_response(status)
            request.send_header("Content-Length", str(len(data)))
            request.end_headers()
            request.wfile.write(data)
        except OSError:
            pass


def page(told: dict[str, float], seconds: float) -> str:
    """A metrics page: `running`, `queued`, `accept`, `kv`, `cap` as they are; `tok_s` grows the token counter."""
    names = {
        "running": "num_running_reqs",
        "queued": "num_queue_reqs",
        "accept": "spec_accept_length",
        "kv": "token_usage",
        "cap": "max_running_requests",
        "gen": "gen_throughput",
    }
    lines = [f'sglang:{names[key]}{{model_name="m"}} {told[key]}' for key in names if key in told]
    if "tok_s" in told:
        tokens = 1000 + told["tok_s"] * seconds
        lines.append(f'sglang:generation_tokens_total{{model_name="m"}} {tokens}')
        lines.append(f'sglang:realtime_tokens_total{{model_name="m",mode="decode"}} {tokens}')
    return "\n".join(lines) + "\n"


def certificate() -> str:
    """Path of a fresh self-signed certificate for 127.0.0.1 with its key."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "127.0.0.1")])
    now = datetime.datetime.now(datetime.UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=2))
        .add_extension(
            x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]), False
        )
        .add_extension(x509.BasicConstraints(True, None), True)
        .sign(key, hashes.SHA256())
    )
    with tempfile.NamedTemporaryFile(prefix="specdash-tls-", suffix=".pem", delete=False) as file:
        file.write(made.public_bytes(serialization.Encoding.PEM))
        pem, form = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8
        file.write(key.private_bytes(pem, form, serialization.NoEncryption()))
    return str(Path(file.name))
