"""The host's GPUs as the agent samples them: pynvml if this interpreter has it, else nvidia-smi, said which.

One thread asks the driver and nobody else does: a bad card can hang any such call for ever, so a caller waits
a little, then gets the last answer with its age, and no second question is put while one is in flight.
Nothing is asked while nobody samples; after `IDLE_S` the driver is let go of. Python 3.8.
"""

from __future__ import annotations

import copy
import threading
from typing import Any, Callable, Dict, Mapping, Optional

from .gpu_board import Board, Taken, blank_sample, boot_s

WAIT_S = 2.0
IDLE_S = 30.0


class Sampler:
    """`get` gives one sample dict; `take` is the question itself (tests put their own in its place)."""

    def __init__(self, take: Callable[[], Taken], let_go: Callable[[], None] = lambda: None) -> None:
        self.take = take
        self.let_go = let_go
        self.cond = threading.Condition()
        self.thread: Optional[threading.Thread] = None
        self.wanted = 0
        self.answered = 0
        self.asked_at: Optional[float] = None
        self.last: Dict[str, Any] = {}
        self.good: Dict[str, Any] = {}

    def get(self, wait_s: float = WAIT_S) -> Dict[str, Any]:
        """A sample taken after this call, or the last good one with `age_s` and a sentence in `problem`."""
        with self.cond:
            self.wanted += 1
            ticket = self.wanted
            if self.thread is None:
                self.thread = threading.Thread(target=self._work, name="gpu", daemon=True)
                self.thread.start()
            self.cond.notify_all()
            fresh = self.cond.wait_for(lambda: self.answered >= ticket, wait_s)
            last = copy.deepcopy(self.last)
            good = copy.deepcopy(self.good)
            waited = 0.0 if self.asked_at is None else boot_s() - self.asked_at
        if fresh and not last.get("stuck"):
            return last
        why = last.get("problem") if fresh else ""
        return stale(good, boot_s(), why or "The GPU driver has not answered for %.0f s" % waited)

    def _work(self) -> None:
        while True:
            with self.cond:
                if not self.cond.wait_for(lambda: self.wanted > self.answered, IDLE_S):
                    self.let_go()
                    self.thread = None
                    return
                ticket = self.wanted
                self.asked_at = boot_s()
            try:
                gpus, about = self.take()
            except Exception as e:  # the thread must outlive what nobody thought of
                gpus, about = None, blank_sample("GPUs cannot be read: %r" % e, "failed", boot_s())
            sample = dict(about, gpus=gpus, t_boot=boot_s(), age_s=0.0)
            with self.cond:
                self.answered = ticket
                self.last = sample
                if gpus is not None:
                    self.good = sample
                self.cond.notify_all()


def age_words(age_s: float) -> str:
    return "%.0f s old (stale)" % age_s


def stale(good: Mapping[str, Any], now_boot: float, why: str) -> Dict[str, Any]:
    """The last good sample with its age, when there is no newer answer. Never drawn as live."""
    if not good:
        return blank_sample(why + ".", "stuck", now_boot)
    age = max(0.0, now_boot - good["t_boot"])
    sentence = "%s; what is shown is %s." % (why.rstrip("."), age_words(age))
    return dict(good, age_s=age, problem=sentence, category="stale")


_board = Board()
_sampler = Sampler(_board.take, _board.close)


def sample(params: Mapping[str, Any]) -> Dict[str, Any]:
    """The `gpu` sample. Keys: source, driver, problem, category, t_boot, age_s, gpus (None: cannot be told)."""
    return _sampler.get(float(params.get("wait_s", WAIT_S)))


def static(params: Mapping[str, Any], blob: bytes = b"") -> Dict[str, Any]:
    """Call `gpu.static`: one sample, waited for longer: the first nvidia-smi of a host can take seconds."""
    return _sampler.get(float(params.get("wait_s", 8.0)))


SAMPLES: Dict[str, Callable[[Mapping[str, Any]], Dict[str, Any]]] = {"gpu": sample}
CALLS: Dict[str, Callable[..., Dict[str, Any]]] = {"gpu.static": static}
