#!/usr/bin/env python3
"""A SIMULATED rank of an engine over several hosts: not SGLang, no model. It meets the others at --dist-init-addr.

Rank 0 listens there, the others connect; when one of them goes, the rest say so in gloo's words and exit, as real
ranks do. Rank 0 answers /generate, the others print the line of the dummy health server. As on the real one, TERM
on a rank above 0 only waits for rank 0 to go.
"""

import argparse
import json
import os
import select
import signal
import socket
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

parser = argparse.ArgumentParser()
parser.add_argument("--port", type=int, required=True)
parser.add_argument("--nnodes", type=int, default=1)
parser.add_argument("--node-rank", type=int, default=0)
parser.add_argument("--dist-init-addr", default="")
parser.add_argument("--load", type=float, default=0.2)
parser.add_argument("--die-rank", type=int, default=-1)
parser.add_argument("--accept", type=float, default=0.0)
args, _ = parser.parse_known_args()
RANK = args.node_rank


def say(text):
    print(time.strftime("[%Y-%m-%d %H:%M:%S TP") + f"{RANK}] {text}", flush=True)


def leave(number, frame):
    say("SIGTERM received. Draining requests and shutting down...")
    os._exit(0)


def interrupted(number, frame):
    os._exit(130)


signal.signal(signal.SIGTERM, leave if RANK == 0 else lambda *_: say("waiting for rank 0"))
signal.signal(signal.SIGINT, leave if RANK == 0 else interrupted)

peers = []
say("Init torch distributed begin.")
if args.nnodes > 1:
    host, _, port = args.dist_init_addr.rpartition(":")
    if RANK == 0:
        meeting = socket.create_server((host, int(port)))
        while len(peers) < args.nnodes - 1:
            peers.append(meeting.accept()[0])
        for one in peers:
            one.sendall(b"go")
    else:
        while not peers:
            try:
                peers.append(socket.create_connection((host, int(port)), 1))
            except OSError:
                time.sleep(0.05)
        peers[0].settimeout(None)
        peers[0].recv(2)
say("Init torch distributed ends. mem usage=0.00 GB")


loaded = threading.Semaphore(0)


def watch():
    while True:
        readable, _, _ = select.select(peers, [], [], 60)
        for one in readable:
            if one.recv(1):
                loaded.release()
            else:
                say("Scheduler hit an exception: Traceback (most recent call last):")
                print(
                    "RuntimeError: [../third_party/gloo/gloo/transport/tcp/pair.cc:547] Connection closed by peer "
                    "[127.0.0.1]:1\n",
                    flush=True,
                )
                os._exit(0 if RANK else 1)


if peers:
    threading.Thread(target=watch, daemon=True).start()
say("Load weight begin. avail mem=70.00 GB")
time.sleep(args.load)
if args.die_rank == RANK:
    time.sleep(0.1)
    say("Scheduler hit an exception: Traceback (most recent call last):")
    print("RuntimeError: Not enough memory. Please try to increase --mem-fraction-static.\n", flush=True)
    sys.exit(1)
if RANK:
    peers[0].sendall(b"k")
else:
    for _ in peers:  # no rank generates without the others
        loaded.acquire()


class Handler(BaseHTTPRequestHandler):
    def log_message(self, *_):
        pass

    def reply(self, status, value):
        body = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_GET(self):
        self.reply(200 if self.path == "/health" else 404, {})

    def do_POST(self):
        if RANK:
            self.reply(404, {})
            return
        tokens = json.loads(self.rfile.read(int(self.headers["Content-Length"])))["sampling_params"][
            "max_new_tokens"
        ]
        took = tokens / 2000
        time.sleep(took)
        meta = {"completion_tokens": tokens, "prompt_tokens": 5, "e2e_latency": took}
        if args.accept:
            meta["spec_verify_ct"] = max(1, round(tokens / args.accept))
        self.reply(200, {"text": "x", "meta_info": meta})


server = ThreadingHTTPServer(("127.0.0.1", args.port), Handler)
if RANK:
    say(f"Dummy health check server started in background thread at 127.0.0.1:{args.port}")
else:
    say(f"INFO:     Uvicorn running on http://127.0.0.1:{args.port} (Press CTRL+C to quit)")
    say("The server is fired up and ready to roll!")
server.serve_forever()
