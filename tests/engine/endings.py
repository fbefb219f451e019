"""How a real SGLang ends badly, as data: what makes it, and what specdash must call it.

`profile` is TOML beneath `extends = "engine-base"`; `{port}` and `{engine}` are filled in. `category` is the
cause that `specdash show` must name first, `words` what the sentence of `specdash launch --wait` must say.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Ending:
    name: str
    category: str
    words: str
    """A regular expression for what the operator reads when the launch ends."""
    profile: str = ""
    quick: bool = False
    """In the short run of every CI pass; the others only in the full suite."""


EAGLE3 = 'algorithm = "EAGLE3"\nnum-steps = 3\neagle-topk = 1\nnum-draft-tokens = 4\n'

REFUSED_BY_ENGINE = (
    Ending(
        "unknown algorithm",
        "unknown_algorithm",
        r"MEDUSA",
        '[speculation]\nalgorithm = "MEDUSA"',
        quick=True,
    ),
    Ending("unknown flag", "unknown_flag", r"--speculative-num-stepz", "[speculation]\nnum-stepz = 3"),
    Ending(
        "model path missing",
        "model_path_missing",
        r"model was not found",
        '[server]\nmodel-path = "/nowhere/at/all"',
    ),
    Ending(
        "drafter path missing",
        "drafter_path_missing",
        r"drafter was not found",
        f'[speculation]\n{EAGLE3}draft-model-path = "/nowhere/drafter"',
    ),
    Ending("drafter not given", "missing_flag", r"EAGLE3 needs a drafter", f"[speculation]\n{EAGLE3}"),
    Ending(
        "misfit drafter",
        "algorithm_does_not_fit_drafter",
        r"LlamaForCausalLM is not what EAGLE3 runs",
        f'[speculation]\n{EAGLE3}draft-model-path = "models/draft"',
        quick=True,
    ),
    Ending(
        "KV pool too small",
        "oom_kv_pool",
        r"KV pool has no room.*--mem-fraction-static",
        'unset = ["server.max-total-tokens"]\n[server]\nmem-fraction-static = 0.00001',
    ),
    Ending(
        "allocation fails under an address-space limit",
        "oom_kv_alloc",
        r"memory of the host ran out while the KV pool was allocated.*Lower --max-total-tokens",
        # The limit is the process's own: it cannot eat the machine's memory. 12 GB let it import and serve; the
        # KV pool asked for does not fit under it.
        'wrapper = ["prlimit", "--as=12000000000"]\n[server]\nmax-total-tokens = 40000000\nmem-fraction-static = 0.9',
    ),
)
"""Each dies by itself before it serves; launched with --force past preflight, which knows most of them."""
