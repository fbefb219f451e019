# ruff: noqa: PTH118, PTH123, PTH202, PTH208
"""From nothing to a served model: the phases of a launch with believable times, memory, lines and failures."""

from __future__ import annotations

import json
import os
import time
from typing import Any, Protocol

from . import board, templates
from .drafting import Drafting

GB = 1024.0
TOTAL_GB = 139.8
BASE_GB = 0.56
KV_BYTES = 70_272
"""Per token and GPU: 61 layers of multi-head latent attention, 576 values of 2 bytes."""
GRAPH_SIZES = (1, 2, 4, 8, 12, 16, 24, 32, 40, 48, 56, 64)
SECONDS = {
    "import": 3.0,
    "workers": 3.0,
    "dist": 1.5,
    "weights": 12.0,
    "draft": 1.2,
    "kv": 1.0,
    "graph": 6.0,
    "draft_graph": 3.0,
}


class Died(Exception):
    """The scheduler raised; the text is the last line of its traceback, `where` the frames before it."""

    def __init__(self, last: str, *where: str) -> None:
        self.last, self.where = last, where
        super().__init__(last)


class Engine(Protocol):
    args: Any
    drafting: Drafting
    workers: list[int]
    gpus: str
    target_class: str

    def say(self, template: str, /, *, rank: int | None = 0, tp: bool = True, **values: Any) -> None: ...
    def raw(self, text: str) -> None: ...
    def nap(self, seconds: float) -> None: ...


class Loader:
    """Runs the load of one engine; afterwards `kv_tokens` and `held_gb` are set."""

    def __init__(self, engine: Engine) -> None:
        self.e = engine
        self.held_gb = 0.0
        self.kv_tokens = 0
        self.first = int(engine.args.base_gpu_id)
        used = board.read(engine.gpus)
        wanted = used[self.first : self.first + len(engine.workers)]
        self.others_gb = max((g["used_mib"] / GB for g in wanted), default=0.0)

    @property
    def avail(self) -> float:
        return TOTAL_GB - self.others_gb - self.held_gb

    def hold(self, gb: float, busy: float = 0.0) -> None:
        """What each rank's process holds now, as NVML will tell."""
        if self.others_gb + gb > TOTAL_GB:
            raise Died(templates.OOM.format(gpu=self.first), "model_loader/weight_utils.py:load")
        self.held_gb = gb
        mib = round(gb * GB)
        holders = {self.first + i: {"pid": pid, "mib": mib + 6 * i} for i, pid in enumerate(self.e.workers)}
        board.write(self.e.gpus, holders, busy)

    def run(self) -> None:
        e = self.e
        self.hold(0.1)
        e.nap(SECONDS["workers"])
        self._every_rank(templates.DIST_BEGIN)
        e.nap(SECONDS["dist"])
        self.hold(BASE_GB)
        self._every_rank(templates.DIST_END, s=SECONDS["dist"], gb=BASE_GB)
        slow = 10.0 if e.drafting.fail == "slow_disk" else 1.0
        target = e.args.model_path
        self._weights(target, e.target_class, SECONDS["weights"] * slow)
        if e.drafting.algorithm and e.drafting.algorithm != "NGRAM":
            self._drafter(e.args.speculative_draft_model_path or target)
        self._kv()
        self._graphs()

    def _weights(self, path: str, cls: str, seconds: float) -> None:
        e = self.e
        shards = sorted(n for n in os.listdir(path) if n.endswith(".safetensors"))
        if not shards:
            raise Died(
                f"RuntimeError: Cannot find any model weights with `{path}`",
                "model_loader/loader.py:load_model",
            )
        gb = sum(os.path.getsize(os.path.join(path, n)) for n in shards) / 2**30 / len(e.workers)
        before, began = self.held_gb, time.monotonic()
        self._every_rank(templates.WEIGHT_BEGIN, avail=self.avail)
        steps = max(len(shards), 8)
        for i in range(steps + 1):
            done = i * len(shards) // steps
            self._bar(done, len(shards), began)
            if i < steps:
                _touch(os.path.join(path, shards[min(done, len(shards) - 1)]), i)
                e.nap(seconds / steps)
                self.hold(before + gb * (i + 1) / steps, busy=0.06)
        e.raw("\n")
        spent = time.monotonic() - began
        self._every_rank(templates.WEIGHT_END, s=spent, cls=cls, avail=self.avail, gb=gb)

    def _drafter(self, path: str) -> None:
        e = self.e
        draft, target = config(path), config(e.args.model_path)
        cls = str((draft.get("architectures") or ["?"])[0])
        self._every_rank(templates.DIST_BEGIN)
        self._every_rank(templates.DIST_END, s=0.0, gb=0.0)
        if e.drafting.fail == "draft_load":
            self._every_rank(templates.WEIGHT_BEGIN, avail=self.avail)
            e.nap(SECONDS["draft"])
            want = 3 * width(target)
            raise Died(
                templates.WRONG_SHAPE.format(rows=width(target), got=want // 3 * 2, want=want),
                "speculative/eagle_worker_v2.py:__init__", "models/llama_eagle3.py:load_weights",
                "model_loader/weight_utils.py:default_weight_loader",
            )  # fmt: skip
        self._weights(path, cls, SECONDS["draft"])
        if e.drafting.algorithm == "EAGLE3" and "eagle3" not in cls.lower():
            raise Died(templates.NO_HOT_TOKENS, "speculative/eagle_worker_v2.py:__init__")
        self.misfit = (width(target), width(draft)) if width(target) != width(draft) else None

    misfit: tuple[int, int] | None = None

    def _kv(self) -> None:
        e = self.e
        share = e.args.mem_fraction_static or (0.84 if e.drafting.algorithm else 0.87)
        room = TOTAL_GB * share - self.held_gb - self.others_gb
        if room <= 0:
            raise Died(
                "RuntimeError: Not enough memory. Please try to increase --mem-fraction-static. "
                f"Current value: self.mem_fraction_static={share:.3f}",
                "model_executor/model_runner.py:init_memory_pool",
            )
        e.nap(SECONDS["kv"])
        self.kv_tokens = min(int(room * 2**30 / KV_BYTES), int(e.args.max_total_tokens or 1 << 40))
        gb = self.kv_tokens * KV_BYTES / 2**30
        self.hold(self.held_gb + gb)
        self._every_rank(templates.KV, tokens=self.kv_tokens, gb=gb / 2)
        self._every_rank(templates.POOL_END, avail=self.avail)

    def _graphs(self) -> None:
        drafting = self.e.drafting
        if self.e.args.disable_cuda_graph:
            return
        self._graph(
            "target verify" if drafting.algorithm else "target decode",
            drafting.draft_tokens or 1,
            SECONDS["graph"],
        )
        if drafting.algorithm and drafting.algorithm != "NGRAM":
            self._graph("draft decode", 1, SECONDS["draft_graph"], draft=True)

    def _graph(self, what: str, per_bs: int, seconds: float, draft: bool = False) -> None:
        e, began = self.e, time.monotonic()
        most = int(e.args.cuda_graph_max_bs_decode or 64)
        sizes = [s for s in GRAPH_SIZES if s <= most] or [most]
        self._every_rank(
            templates.GRAPH_BEGIN, what=what, backend="full", per_bs=per_bs, bs=sizes, avail=self.avail
        )
        for done, bs in enumerate(reversed(sizes)):
            self._step(done, len(sizes), bs, began)
            e.nap(seconds / len(sizes))
            share = e.args.mem_fraction_static or 0.0
            if e.drafting.fail == "oom" or self.avail < 1.0 or share > 0.97:
                e.raw("\n")
                raise Died(
                    templates.OOM.format(gpu=self.first), "model_executor/model_runner.py:init_cuda_graphs"
                )
            while e.drafting.fail == "hang" and done == len(sizes) // 2:
                time.sleep(3600)
            if draft and self.misfit:
                e.raw("\n")
                target, drafter = self.misfit
                raise Died(
                    templates.MISFIT.format(target=target, draft=drafter),
                    "speculative/eagle_worker_v2.py:init_cuda_graphs", "models/llama_eagle3.py:forward",
                )  # fmt: skip
            self.hold(self.held_gb + 0.9 / len(sizes), busy=0.25)
        self._step(len(sizes), len(sizes), 1, began)
        e.raw("\n")
        self.hold(self.held_gb)
        spent = time.monotonic() - began
        self._every_rank(templates.GRAPH_END, what=what, s=spent, gb=0.9, avail=self.avail)

    def _every_rank(self, template: str, **values: Any) -> None:
        for rank in range(len(self.e.workers)):
            self.e.say(template, rank=rank, **values)

    def _bar(self, done: int, total: int, began: float) -> None:
        spent = time.monotonic() - began
        left = _clock(spent / done * (total - done)) if done else "?"
        rate = f"{done / max(spent, 0.001):5.2f}" if done else "?"
        pct = 100 * done // total
        text = templates.SHARDS.format(
            pct=pct, done=done, total=total, spent=_clock(spent), left=left, rate=rate
        )
        self.e.raw("\r" + text)

    def _step(self, done: int, total: int, bs: int, began: float) -> None:
        spent = time.monotonic() - began
        text = templates.GRAPH_STEP.format(
            bs=bs,
            avail=self.avail,
            pct=100 * done // total,
            bar=("█" * (10 * done // total)).ljust(10),
            done=done,
            total=total,
            spent=_clock(spent),
            left=_clock(spent / done * (total - done)) if done else "?",
            per=f"{spent / done:5.2f}" if done else "?",
        )
        self.e.raw("\r" + text)


def config(path: str) -> dict[str, Any]:
    """A model folder's config.json. Raises OSError, ValueError."""
    with open(os.path.join(path, "config.json")) as f:
        found: dict[str, Any] = json.load(f)
    return found


def width(model: dict[str, Any]) -> int:
    return int(model.get("text_config", model).get("hidden_size", 0))


def _touch(path: str, turn: int) -> None:
    """Really read a little of a shard, so that the bytes read by this process grow while it loads."""
    fd = os.open(path, os.O_RDONLY)
    try:
        offset = (turn * 7919 << 20) % max(1, os.fstat(fd).st_size - (2 << 20))
        os.pread(fd, 2 << 20, max(0, offset))
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(fd)


def _clock(seconds: float) -> str:
    return f"{int(seconds) // 60:02d}:{int(seconds) % 60:02d}"
