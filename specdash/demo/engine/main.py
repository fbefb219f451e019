# ruff: noqa: PTH100, PTH118, PTH120, PTH123
"""One simulated server from argv to exit code, with SGLang's process tree, lines, signals and exit codes."""

from __future__ import annotations

import dataclasses
import os
import signal
import sys
import threading
import time
from typing import Any

from . import board, drafting, family, load, templates
from .batch import TICK_S, Batch, Request
from .web import Server

SPEC_CAP = 48
BASE_CAP = 4096
DRAIN_S = 2.0


class Simulated:
    """The running engine: what the loader, the batch and the port share."""

    def __init__(self, args: Any, version: str) -> None:
        self.args, self.version = args, version
        sim = board.sim_folder(__file__)
        self.gpus = os.path.join(sim, "gpus")
        self.leash = os.path.join(sim, "leash")
        self.speed = max(0.01, float(os.environ.get("SPECDASH_DEMO_SPEED") or _read(sim, "speed") or 1))
        self.drafting = drafting.choose(args, sim)
        self.children: dict[int, str] = {}
        self.workers: list[int] = []
        self.batch: Batch
        self.target_class = ""
        self.ready = self.stopping = False
        self.lock = threading.Lock()

    def say(self, template: str, /, *, rank: int | None = 0, tp: bool = True, **values: Any) -> None:
        """One log line with SGLang's prefix; ranks are named when there are several."""
        who = f" TP{rank}" if tp and rank is not None and len(self.workers) > 1 else ""
        stamp = time.strftime("%Y-%m-%d %H:%M:%S")
        self.raw(f"[{stamp}{who}] " + (template.format(**values) if values else template) + "\n")

    def raw(self, text: str) -> None:
        data = text.encode()
        with self.lock:
            while data:
                data = data[os.write(2, data) :]

    def nap(self, seconds: float) -> None:
        """Load time passes, `speed` times faster; dead children are noticed."""
        end = time.monotonic() + seconds / self.speed
        while True:
            self._family()
            left = end - time.monotonic()
            if left <= 0:
                return
            time.sleep(min(left, 0.2))

    def told(self) -> dict[str, Any]:
        return dataclasses.asdict(self.args)

    def run(self) -> int:
        """Until it is signalled or dies; the exit code where it exits by itself."""
        self.nap(load.SECONDS["import"])
        try:
            model = load.config(self.args.model_path)
        except (OSError, ValueError) as e:
            raise OSError(f"Can't load the configuration of '{self.args.model_path}'.") from e
        self.target_class = str((model.get("architectures") or ["?"])[0])
        speculates = bool(self.drafting.algorithm)
        if speculates and not self.args.max_running_requests:
            self.say(templates.SPEC_CAP, tp=False)
        pairs = ((f.name, getattr(self.args, f.name)) for f in dataclasses.fields(self.args))
        self.say(templates.SERVER_ARGS, tp=False, args=", ".join(f"{k}={v!r}" for k, v in pairs))
        self.say(templates.CHAT_TEMPLATE, tp=False)
        self._start_workers()
        loader = load.Loader(self)
        try:
            loader.run()
        except load.Died as death:
            return self._die(death)
        cap = self.args.max_running_requests or (SPEC_CAP if speculates else BASE_CAP)
        self.say(
            templates.LIMITS, tokens=loader.kv_tokens, chunk=self.args.chunked_prefill_size or 8192, running=cap,
            context=self.args.context_length or 262144, avail=loader.avail,
        )  # fmt: skip
        self.say(templates.TREE_CACHE)
        streams = int(os.environ.get("SPECDASH_DEMO_STREAMS") or 1)
        every = self.args.decode_log_interval
        self.batch = Batch(self.drafting, self.say, cap, loader.kv_tokens, every, 0)
        return self._serve(loader, streams)

    def _start_workers(self) -> None:
        ranks = self.args.tp_size
        names = [f"sglang::scheduler_TP{i}" if ranks > 1 else "sglang::scheduler" for i in range(ranks)]
        self.workers = [family.spawn(name) for name in names]
        self.children = dict(zip(self.workers, names, strict=True))
        self.children[family.spawn("sglang::detokenizer")] = "sglang::detokenizer"
        family.leash(self.leash)

    def _serve(self, loader: load.Loader, streams: int) -> int:
        values = {"pid": os.getpid(), "host": self.args.host, "port": self.args.port}
        for line in templates.UVICORN[:3]:
            self.say(line, tp=False, **values)
        try:
            web = Server(self)
        except OSError:
            self.say(templates.BIND_FAILED, tp=False, **values)
            self._end_children()
            return 3
        self.say(templates.UVICORN[3], tp=False, **values)
        threading.Thread(target=web.serve_forever, daemon=True).start()
        stop, door = threading.Event(), threading.Event()
        signal.signal(signal.SIGTERM, lambda *_: stop.set())

        def interrupt(*_: object) -> None:
            if door.is_set():  # a second one ends it without waiting
                self._end_children()
                os._exit(0)
            door.set()

        signal.signal(signal.SIGINT, interrupt)
        threading.Thread(target=self._warm_up, args=(streams,), daemon=True).start()
        last = time.monotonic()
        while not stop.is_set() and not door.is_set():
            time.sleep(TICK_S)
            last = self._turn(loader, last)
        if door.is_set():
            return self._close(web, loader, last)
        self.stopping = self.batch.draining = True
        self.say(templates.TERM, tp=False)
        end = time.monotonic() + DRAIN_S / self.speed
        while time.monotonic() < end or self.batch.outside():
            time.sleep(TICK_S)
            last = self._turn(loader, last)
        self.say(templates.GRACEFUL, tp=False, n=0)
        return self._kill_tree()

    def _close(self, web: Server, loader: load.Loader, last: float) -> int:
        """As uvicorn on INT: nothing new is accepted, what was accepted is answered, then the tree ends."""
        self.batch.draining = True
        for line in templates.SHUTDOWN[:2]:
            self.say(line, tp=False)
        threading.Thread(target=web.close, daemon=True).start()
        while not web.over():
            time.sleep(TICK_S)
            last = self._turn(loader, last)
        for line in templates.SHUTDOWN[2:]:
            self.say(line, tp=False, pid=os.getpid())
        self.say(
            templates.KILL_TREE.replace("include_parent=True", "include_parent=False"),
            tp=False,
            pid=os.getpid(),
        )
        self._end_children()
        return 0

    def _turn(self, loader: load.Loader, last: float) -> float:
        now = time.monotonic()
        self.batch.tick(min(1.0, now - last))
        if int(now * 2) != int(last * 2):
            loader.hold(loader.held_gb, self.batch.busy())
            self._family()
        return now

    def _warm_up(self, streams: int) -> None:
        time.sleep(1.5 / self.speed)
        request = Request(14, 8)
        self.batch.submit(request)
        seen = 0
        while not request.ended:
            seen = self.batch.wait(request, seen)
        self.say(
            templates.ACCESS, tp=False, host="127.0.0.1", port=48842, method="POST", path="/generate", status=200,
            reason="OK",
        )  # fmt: skip
        self.ready = True
        self.say(templates.FIRED_UP, tp=False)
        self.batch.streams = streams

    def _family(self) -> None:
        """A child that ended takes the server down, as SGLang's parent does."""
        for name, code in family.dead(self.children):
            self.say(f"Subprocess {name} crashed with exit code {code}", tp=False)
            self._kill_tree()

    def _die(self, death: load.Died) -> int:
        site = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
        frames = [
            f'  File "{site}/srt/managers/scheduler.py", line 4325, in run_scheduler_process\n    scheduler = Scheduler('
        ]
        for number, place in enumerate(death.where):
            file, function = place.rsplit(":", 1)
            frames.append(
                f'  File "{site}/srt/{file}", line {424 + 97 * number}, in {function}\n    self.{function}()'
            )
        trace = "\n".join(["Traceback (most recent call last):", *frames, death.last])
        self.say(templates.EXCEPTION, trace=trace + "\n")
        self.say(templates.CHILD_FAILED, tp=False)
        return self._kill_tree()

    def _end_children(self) -> None:
        for pid in self.children:
            os.kill(pid, signal.SIGKILL)
        for pid in self.children:
            os.waitpid(pid, 0)

    def _kill_tree(self) -> int:
        """SGLang ends itself with its children: exit by SIGKILL, not by a code."""
        self.say(templates.KILL_TREE, tp=False, pid=os.getpid())
        self._end_children()
        os.kill(os.getpid(), signal.SIGKILL)
        return 137


def _read(folder: str, name: str) -> str:
    try:
        with open(os.path.join(folder, name)) as f:
            return f.read(64).strip()
    except OSError:
        return ""


def main(args: Any, version: str) -> int:
    """`args`: the dataclass of `sglang.srt.server_args`."""
    if args.tp_size > 8:
        print("RuntimeError: CUDA error: invalid device ordinal", file=sys.stderr)  # noqa: T201
        return 1
    return Simulated(args, version).run()
