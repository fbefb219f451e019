"""A FAKE router with the real one's options: asks the prefill server, then answers with what the decode server says."""

import argparse
import urllib.request
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

parser = argparse.ArgumentParser()
parser.add_argument("--pd-disaggregation", action="store_true", required=True)
parser.add_argument("--prefill", nargs="+", required=True)
parser.add_argument("--decode", required=True)
parser.add_argument("--host", default="127.0.0.1")
parser.add_argument("--port", type=int, default=30000)
args = parser.parse_args()
assert args.prefill[1].isdigit(), "the bootstrap port comes with the prefill server"


class Handler(BaseHTTPRequestHandler):
    def log_message(self, *_):
        pass

    def do_GET(self):
        self.send_error(404)

    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"]))
        answer = b"{}"
        try:
            for url in (args.prefill[0], args.decode):
                request = urllib.request.Request(url + self.path, body, {"Content-Type": "application/json"})
                with urllib.request.urlopen(request, timeout=10) as reply:
                    answer = reply.read()
        except OSError as error:
            self.send_error(503, str(error))
            return
        self.send_response(200)
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)


print("FAKE router", vars(args), flush=True)
ThreadingHTTPServer((args.host, args.port), Handler).serve_forever()
