#!/usr/bin/env python3
"""A SIMULATED engine for tests of the supervisor: a process tree, a load, a port and answers like SGLang's.

Not SGLang, and no model: one parent, two children in its session, a "load" of --load seconds, the ready line,
/generate with meta_info, /metrics, /v1/loads. Flags make it misbehave in ways a real one was seen to.
"""

import argparse
import ctypes
import json
import os
import signal
import subprocess
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

parser = argparse.ArgumentParser()
parser.add_argument("--port", type=int, required=True)
parser.add_argument("--load", type=float, default=0.2)
parser.add_argument("--die", default="", help="exit code at the end of the load, or a signal name")
parser.add_argument("--ignore-term", action="store_true")
parser.add_argument("--deaf", action="store_true", help="TERM and INT are caught and do nothing")
parser.add_argument("--ignore-int", action="store_true")
parser.add_argument(
    "--leak", action="store_true", help="a child in a session of its own that outlives the parent"
)
parser.add_argument("--no-bind", action="store_true", help="fail to bind, say ready anyhow, never exit")
parser.add_argument("--no-children", action="store_true")
parser.add_argument("--requests", type=int, default=0, help="requests that /v1/loads says are running")
parser.add_argument("--requests-for", type=float, default=1e9, help="seconds until they are done")
parser.add_argument("--accept", type=float, default=0.0, help="accept length; 0: no speculation")
parser.add_argument("--tok-s", type=float, default=500.0)
parser.add_argument("--tell-rid", action="store_true", help="log each request's id when it is begun")
parser.add_argument(
    "--least",
    type=float,
    default=0.0,
    help="seconds that an answer takes at least, where a request has an id",
)
parser.add_argument("--die-after", type=float, default=0.0, help="seconds after ready")
parser.add_argument("--die-if", default="", help="path: exit 1 at the end of the load when it exists")
parser.add_argument("--key", default="")
parser.add_argument("--config", default="")
parser.add_argument("--role", default="parent")
parser.add_argument("--tell", type=int, default=-1)
args, _ = parser.parse_known_args()

if args.role in ("scheduler", "detokenizer", "leak"):
    if args.role == "leak":
        os.setsid()
    else:
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PDEATHSIG, as SGLang's children have
        signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.write(args.tell, b".")
    os.close(args.tell)
    while True:
        time.sleep(60)


def say(text):
    print(time.strftime("[%Y-%m-%d %H:%M:%S] ") + text, flush=True)


def child(role):
    """A child, once it has set itself up (before that, the parent's death would leak it, as with the real one)."""
    reader, writer = os.pipe()
    words = [sys.executable, os.path.abspath(__file__), "--port", "1", "--role", role, "--tell", str(writer)]
    one = subprocess.Popen(words, pass_fds=[writer])
    os.close(writer)
    os.read(reader, 1)
    os.close(reader)
    return one


began = time.monotonic()
children = [] if args.no_children else [child("scheduler"), child("detokenizer")]
if args.leak:
    children.append(child("leak"))


def leave(number, frame):
    say("SIGTERM received. Draining requests and shutting down...")
    for one in children:
        if one is not children[-1] or not args.leak:
            one.kill()
    os._exit(0)


signal.signal(
    signal.SIGTERM, (lambda *_: None) if args.deaf else signal.SIG_IGN if args.ignore_term else leave
)
if args.deaf:
    signal.signal(signal.SIGINT, lambda *_: None)
if args.ignore_int:
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def close_door(number, frame):
    """As uvicorn on INT: no new connection, what was accepted is answered, a second INT ends it at once."""
    if door.is_set():
        leave(number, frame)
    door.set()


door = threading.Event()
key = args.key
if args.config:
    with open(args.config) as file:
        for line in file:
            if line.startswith("api-key:"):
                key = json.loads(line.partition(":")[2])
say("Load weight begin. avail mem=70.00 GB")
try:
    time.sleep(args.load)
except KeyboardInterrupt:
    for one in children:
        one.kill()
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    os.kill(os.getpid(), signal.SIGINT)
if args.die_if and os.path.exists(args.die_if):
    args.die = "1"
if args.die:
    say("Scheduler hit an exception: simulated")
    if args.die.startswith("SIG"):
        os.kill(os.getpid(), getattr(signal, args.die))
    sys.exit(int(args.die))


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def reply(self, status, value):
        body = value if isinstance(value, bytes) else json.dumps(value).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def allowed(self):
        return not key or self.headers.get("Authorization") == "Bearer " + key

    def do_GET(self):
        busy = args.requests if time.monotonic() - began < args.requests_for else 0
        if not self.allowed():
            return self.reply(401, {"error": "Unauthorized"})
        if self.path == "/v1/loads":
            return self.reply(200, {"loads": [{"num_running_reqs": busy, "num_waiting_reqs": 0}]})
        if self.path == "/metrics":
            return self.reply(200, b'sglang:num_running_reqs{model_name="x"} %d.0\n' % busy)
        return self.reply(404, {})

    def do_POST(self):
        with answering:
            if over:  # a kept connection's next request, after the last look: closed, not begun
                self.close_connection = True
                return
            busy.append(1)
        try:
            self.generate()
        finally:
            with answering:
                busy.pop()

    def generate(self):
        if not self.allowed():
            return self.reply(401, {"error": "Unauthorized"})
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        tokens = body["sampling_params"]["max_new_tokens"]
        if args.tell_rid:
            say("Receive: rid=" + str(body.get("rid")))
        took = tokens / args.tok_s
        if body.get("rid"):
            took = max(took, args.least)
        time.sleep(took)
        meta = {"completion_tokens": tokens, "prompt_tokens": 5, "e2e_latency": took}
        if args.accept:
            meta["spec_verify_ct"] = max(1, round(tokens / args.accept))
        return self.reply(200, {"text": "x", "meta_info": meta})


answering, busy, over = threading.Lock(), [], []


BIND_ERROR = (
    "ERROR:    [Errno 98] error while attempting to bind on address "
    f"('127.0.0.1', {args.port}): address already in use"
)


class Server(ThreadingHTTPServer):
    allow_reuse_address = True
    daemon_threads = True


if args.no_bind:
    say(BIND_ERROR)
    say("The server is fired up and ready to roll!")
    while True:
        time.sleep(60)
try:
    server = Server(("127.0.0.1", args.port), Handler)
except OSError:
    say(BIND_ERROR)
    say("The server is fired up and ready to roll!")
    sys.exit(3)
say(f"INFO:     Uvicorn running on http://127.0.0.1:{args.port} (Press CTRL+C to quit)")
threading.Thread(target=server.serve_forever, daemon=True).start()
if not args.deaf and not args.ignore_int:
    signal.signal(signal.SIGINT, close_door)
say("The server is fired up and ready to roll!")
if args.die_after:
    time.sleep(args.die_after)
    os.kill(os.getpid(), signal.SIGKILL)
while not door.wait(60):
    pass
say("INFO:     Shutting down")
server.shutdown()
server.server_close()
while not over:
    time.sleep(0.02)
    with answering:
        over.extend([] if busy else [1])
for one in children:
    if one is not children[-1] or not args.leak:
        one.kill()
os._exit(0)
