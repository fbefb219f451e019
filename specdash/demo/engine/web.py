"""The simulated server's HTTP port: status codes, bodies and access lines as SGLang's."""

from __future__ import annotations

import http
import json
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from . import pages, templates
from .batch import Batch, Request

WORDS = [
    "the",
    "quick",
    "brown",
    "fox",
    "jumps",
    "over",
    "a",
    "lazy",
    "dog",
    "while",
    "eight",
    "simulated",
    "cards",
    "hum",
    "and",
    "no",
    "token",
    "is",
    "real",
]


class Server(ThreadingHTTPServer):
    """Raises OSError when the port is taken. `batch` is set once the model is up; `ready` after warm-up."""

    daemon_threads = True
    request_queue_size = 128
    allow_reuse_address = True

    def __init__(self, engine: Any) -> None:
        self.engine = engine
        self.answering = 0
        self.closed = self.ended = False
        self.lock = threading.Lock()
        super().__init__((engine.args.host, engine.args.port), Handler)

    def close(self) -> None:
        """No new connection from here on."""
        self.shutdown()
        self.server_close()
        self.closed = True

    def over(self) -> bool:
        """Is it closed, and has all that it accepted been answered? From then on nothing is begun."""
        with self.lock:
            self.ended = self.closed and not self.answering
        return self.ended

    def begin(self) -> bool:
        with self.lock:
            self.answering += not self.ended
        return not self.ended

    def end(self) -> None:
        with self.lock:
            self.answering -= 1

    def handle_error(self, request: Any, client_address: Any) -> None:
        return None  # a client that went away is nobody's fault


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Server
    timeout = 120

    def do_GET(self) -> None:
        engine = self.server.engine
        batch: Batch = engine.batch
        path = self.path.split("?")[0]
        args, version = engine.told(), engine.version
        if path in ("/health", "/health_generate", "/ready"):
            if not engine.ready or engine.stopping:
                return self._answer(503, b"")
            request = Request(1, 1)
            batch.submit(request)
            batch.wait(request, 0, 20)
            return self._answer(200, b"")
        if not self._allowed():
            return self._json({"error": "Unauthorized"}, 401)
        if path == "/metrics" and engine.args.enable_metrics:
            page = pages.metrics(batch, engine.args.served_model_name or engine.args.model_path)
            return self._answer(200, page.encode(), "text/plain; version=0.0.4; charset=utf-8")
        if path in ("/server_info", "/get_server_info"):
            return self._json(pages.server_info(batch, args, version))
        if path in ("/model_info", "/get_model_info"):
            return self._json(
                {"model_path": engine.args.model_path, "tokenizer_path": engine.args.model_path, "is_generation": True,
                 "weight_version": "default", "architectures": [engine.target_class]}
            )  # fmt: skip
        if path == "/v1/loads":
            return self._json(pages.loads(batch, version))
        if path == "/v1/models":
            name = engine.args.served_model_name or engine.args.model_path
            return self._json(
                {"object": "list", "data": [{"id": name, "object": "model", "owned_by": "sglang"}]}
            )
        return self._json({"detail": "Not Found"}, 404)

    def do_POST(self) -> None:
        if not self.server.begin():
            self.close_connection = True
            return
        try:
            self._post()
        finally:
            self.server.end()

    def _post(self) -> None:
        body = self.rfile.read(min(int(self.headers.get("content-length") or 0), 8_000_000))
        if not self._allowed():
            return self._json({"error": "Unauthorized"}, 401)
        path = self.path.split("?")[0]
        if path == "/flush_cache":
            return self._answer(200, b"Cache flushed.\n")
        try:
            asked = json.loads(body or b"{}")
            if path not in ("/generate", "/v1/completions", "/v1/chat/completions"):
                return self._json({"detail": "Not Found"}, 404)
            self._generate(path, asked)
        except (ValueError, TypeError, AttributeError, KeyError):
            self._json({"error": {"message": "the body is not what this endpoint takes"}}, 400)
        return None

    def _generate(self, path: str, asked: dict[str, Any]) -> None:
        batch: Batch = self.server.engine.batch
        limits = asked.get("sampling_params") or {} if path == "/generate" else asked
        most = (
            limits.get("max_new_tokens", limits.get("max_tokens", limits.get("max_completion_tokens"))) or 128
        )
        ids = asked.get("input_ids")
        text = str(asked.get("text") or asked.get("prompt") or asked.get("messages") or "")
        request = Request(
            max(1, len(ids) if isinstance(ids, list) else len(text) // 4), max(1, min(int(most), 100_000))
        )
        batch.submit(request)
        if asked.get("stream"):
            return self._stream(path, batch, request)
        seen = 0
        while not request.ended:
            seen = batch.wait(request, seen)
        return self._json(self._shape(path, batch, request, 0))

    def _stream(self, path: str, batch: Batch, request: Request) -> None:
        self.send_response(200)
        self.send_header("content-type", "text/event-stream; charset=utf-8")
        self.send_header("transfer-encoding", "chunked")
        self.end_headers()
        seen = 0
        try:
            while not request.ended:
                before, seen = seen, batch.wait(request, seen)
                self._chunk(
                    b"data: " + json.dumps(self._shape(path, batch, request, before, True)).encode() + b"\n\n"
                )
            self._chunk(b"data: [DONE]\n\n")
            self._chunk(b"")
        except OSError:
            request.aborted = True
            self.close_connection = True

    def _shape(self, path: str, batch: Batch, request: Request, start: int, piece: bool = False) -> Any:
        first = 0 if path == "/generate" else start
        text = " ".join(WORDS[i % len(WORDS)] for i in range(first, request.got)) + " "
        if path == "/generate":
            ids = [100 + i % len(WORDS) for i in range(request.got)]
            return {"text": text, "output_ids": ids, "meta_info": batch.meta(request)}
        chat = "chat" in path
        choice: dict[str, Any] = {"index": 0, "finish_reason": "length" if request.ended else None}
        choice.update(
            {"delta" if piece else "message": {"role": "assistant", "content": text}}
            if chat
            else {"text": text}
        )
        usage = {
            "prompt_tokens": request.prompt,
            "completion_tokens": request.got,
            "total_tokens": request.prompt + request.got,
        }
        return {"id": request.rid, "object": "chat.completion" if chat else "text_completion", "created": int(time.time()),
                "choices": [choice], "usage": usage}  # fmt: skip

    def _allowed(self) -> bool:
        key = self.server.engine.args.api_key
        return not key or self.headers.get("authorization") == f"Bearer {key}"

    def _json(self, value: Any, status: int = 200) -> None:
        self._answer(status, json.dumps(value).encode(), "application/json")

    def _chunk(self, data: bytes) -> None:
        self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))
        self.wfile.flush()

    def _answer(self, status: int, body: bytes, kind: str = "") -> None:
        self.send_response(status)
        if kind:
            self.send_header("content-type", kind)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def version_string(self) -> str:
        return "uvicorn"

    def log_request(self, code: int | str = "-", size: int | str = "-") -> None:
        status = int(code)
        self.server.engine.say(
            templates.ACCESS, tp=False, host=self.client_address[0], port=self.client_address[1], method=self.command,
            path=self.path.encode("unicode_escape").decode(), status=status, reason=http.HTTPStatus(status).phrase,
        )  # fmt: skip

    def log_message(self, format: str, *args: Any) -> None:
        return None
