#!/usr/bin/env python3
"""A SIMULATED engine that takes draft weights while it serves, with the manners of the real one (SGLang 0.5.23).

An update goes between begin and end; a second begin is refused; a shared file that is not there, or has not the
size that the engine's own tensor has, kills it. Accept length is 2.3 with good weights and 1.0 with others.
"""

import argparse
import base64
import hashlib
import json
import os
import re
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

parser = argparse.ArgumentParser()
parser.add_argument("--port", type=int, required=True)
parser.add_argument("--speculative-draft-model-path", dest="drafter", required=True)
parser.add_argument("--speculative-algorithm", dest="algorithm", default="EAGLE3")
parser.add_argument(
    "--hold", default="", help="endpoint that waits before it acts while the file --gate exists"
)
parser.add_argument("--after", action="store_true", help="it waits after it acted")
parser.add_argument("--gate", default="")
parser.add_argument("--admin-api-key", dest="admin", default="")
parser.add_argument("--tune", type=float, default=1.0)
parser.add_argument("--info", default="{}", help="JSON that goes over /server_info")
args, _ = parser.parse_known_args()

START = b"\x01"
state = {"open": False, "weights": [], "sizes": [], "updates": 0, "tune": args.tune}
lock = threading.Lock()


def load(folder):
    with open(os.path.join(folder, "model.safetensors"), "rb") as file:
        size = int.from_bytes(file.read(8), "little")
        header = json.loads(file.read(size))
        parts = []
        for name, one in header.items():
            if "embed_tokens" in name or "d2t" in name:
                continue
            file.seek(8 + size + one["data_offsets"][0])
            parts.append(file.read(one["data_offsets"][1] - one["data_offsets"][0]))
    return parts


state["weights"] = load(args.drafter)
state["sizes"] = [len(one) for one in state["weights"]]
good = hashlib.sha256(b"".join(state["weights"])).hexdigest()


def wait(path):
    while args.hold == path and args.gate and os.path.exists(args.gate):
        with open(args.gate + ".reached", "w") as file:
            file.write(path)
        time.sleep(0.02)


class Handler(BaseHTTPRequestHandler):
    def log_message(self, *_):
        pass

    def reply(self, status, value):
        body = json.dumps(value).encode()
        try:
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)
        except OSError:
            pass  # whoever asked is gone; what was done stays done, as in the real one

    def do_GET(self):
        if self.path == "/server_info":
            info = {"version": "0.5.23", "speculative_algorithm": args.algorithm, "dp_size": 1, "pp_size": 1}
            info.update(nnodes=1, tp_size=1, device="cpu", weight_cache_mode="off", quantization=None)
            info.update(speculative_draft_model_path=args.drafter, speculative_draft_model_quantization=None)
            info["internal_states"] = [{"speculative_accept_threshold_single": state["tune"]}]
            return self.reply(200, {**info, **json.loads(args.info)})
        return self.reply(404, {})

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])) or b"{}")
        if (
            self.path != "/generate"
            and args.admin
            and self.headers.get("Authorization") != "Bearer " + args.admin
        ):
            return self.reply(401, {"error": "Unauthorized"})
        if not args.after:
            wait(self.path)
        status, answer = self.act(body)
        if args.after:
            wait(self.path)
        return self.reply(status, answer)

    def act(self, body):
        if self.path == "/generate":
            tokens = body["sampling_params"]["max_new_tokens"]
            now = hashlib.sha256(b"".join(state["weights"])).hexdigest()
            steps = max(1, round(tokens / (2.3 if now == good else 1.0)))
            return 200, {"text": "x", "meta_info": {"completion_tokens": tokens, "spec_verify_ct": steps}}
        with lock:
            if self.path == "/begin_weight_update":
                if state["open"]:
                    return 400, {
                        "success": False,
                        "message": "a weight-update session is already open; end it",
                    }
                state["open"] = True
                return 200, {"success": True, "message": "Success"}
            if self.path == "/end_weight_update":
                was, state["open"] = state["open"], False
                return (200 if was else 400), {
                    "success": was,
                    "message": "Success" if was else "no session is open",
                }
            if self.path == "/update_weights_from_tensor":
                return self.update(body)
            if self.path == "/weights_checker":
                sums = {str(i): hashlib.sha256(one).hexdigest() for i, one in enumerate(state["weights"])}
                ranks = [{"checksums": sums, "parallelism_info": {"tp_rank": 0}}]
                return 200, {"success": True, "message": "Success", "ranks": ranks}
            if self.path == "/set_internal_state":
                state["tune"] = body["server_args"]["speculative_accept_threshold_single"]
                return 200, [True]
        return 404, {}

    def update(self, body):
        if not state["open"]:
            return 400, {"success": False, "message": "must run between begin and end"}
        payload = base64.b64decode(body["serialized_named_tensors"][0])
        for number, name in enumerate(re.findall(rb"/specdash-[0-9a-f]+-[0-9a-f]+-\d+", payload)):
            try:
                with open("/dev/shm" + name.decode(), "rb") as file:
                    data = file.read()[64:]
            except OSError:
                os._exit(9)
            if len(data) != state["sizes"][number]:
                os._exit(9)
            state["weights"][number] = data
        state["updates"] += 1
        return 200, {"success": True, "message": "Success"}


class Server(ThreadingHTTPServer):
    allow_reuse_address = True
    daemon_threads = True


server = Server(("127.0.0.1", args.port), Handler)
print(f"INFO:     Uvicorn running on http://127.0.0.1:{args.port} (Press CTRL+C to quit)", flush=True)
threading.Thread(target=server.serve_forever, daemon=True).start()
print("The server is fired up and ready to roll!", flush=True)
while True:
    time.sleep(60)
sys.exit(0)
