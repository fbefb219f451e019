"""What a launch's environment and flags say of the GPUs, before any host is asked."""

from __future__ import annotations

from typing import Any, List, Mapping, Optional, Sequence, Tuple

from specdash.sglang.flagcheck import FlagProblem


def visible(env: Mapping[str, str]) -> Optional[List[str]]:
    """The devices that CUDA_VISIBLE_DEVICES leaves, or None when it is not set. CUDA stops at a bad entry."""
    text = env.get("CUDA_VISIBLE_DEVICES", env.get("HIP_VISIBLE_DEVICES"))
    if text is None:
        return None
    out: List[str] = []
    for part in text.split(","):
        name = part.strip()
        if not name or name.startswith("-"):
            break
        out.append(name)
    return out


def whole(pairs: Sequence[Tuple[str, Any]], names: Sequence[str], default: int) -> Optional[int]:
    """A whole number from the last flag so named; None when it is there and no number."""
    found: Any = default
    for option, value in pairs:
        if option in names:
            found = value
    try:
        return int(str(found))
    except ValueError:
        return None


TP = ("--tp-size", "--tensor-parallel-size", "--tp")
DP = ("--dp-size", "--data-parallel-size", "--dp")
PP = ("--pp-size", "--pipeline-parallel-size", "--pp")
NODES = ("--nnodes",)


def gpus_needed(pairs: Sequence[Tuple[str, Any]]) -> Optional[int]:
    """GPUs that the launch takes on this host: tp x pp (x dp, unless attention DP shares them) / nodes."""
    tp, pp = whole(pairs, TP, 1), whole(pairs, PP, 1)
    dp, nodes = whole(pairs, DP, 1), whole(pairs, NODES, 1)
    if tp is None or pp is None or dp is None or not nodes:
        return None
    shared = any(option in ("--enable-dp-attention", "--attn-dp-size") for option, _ in pairs)
    return max(1, tp * pp * (1 if shared else dp) // nodes)


def check(pairs: Sequence[Tuple[str, Any]], env: Mapping[str, str]) -> Tuple[FlagProblem, ...]:
    """Problems of the environment that the flags alone do not show."""
    out: List[FlagProblem] = []
    devices = visible(env)
    text = env.get("CUDA_VISIBLE_DEVICES", "")
    if any(c.isspace() for c in text):
        sentence = "CUDA_VISIBLE_DEVICES has blanks ({!r}); some readers stop at them.".format(text)
        use = ",".join(p.strip() for p in text.split(","))
        out.append(FlagProblem("CUDA_VISIBLE_DEVICES", "blanks", "warn", sentence, use, category="env_value"))
    needed = gpus_needed(pairs)
    if devices is not None and needed is not None and needed > len(devices):
        sentence = "The launch takes {} GPUs and CUDA_VISIBLE_DEVICES shows {}.".format(needed, len(devices))
        out.append(
            FlagProblem("CUDA_VISIBLE_DEVICES", "gpu_missing", "block", sentence, category="gpu_missing")
        )
    return tuple(out)
