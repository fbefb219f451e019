"""What to do about a cause: short sentences, in the right direction, with flags that the version has.

A flag is named only when it is known to be valid: by the installed parser's own list, else by the hints that the
engine printed with the failure, else by the arguments that it logged, else by the version.
"""

from __future__ import annotations

import re
from typing import AbstractSet, Any, Dict, List, NamedTuple, Optional, Tuple

from specdash.sglang import versions
from specdash.sglang.storytypes import Story

FRACTION = "--mem-fraction-static"
_FLAG = re.compile(r"(?<![\w-])--[A-Za-z][\w-]*")


class Said(NamedTuple):
    sentences: Tuple[str, ...] = ()
    direction: str = ""
    flags: Tuple[str, ...] = ()


class Known(NamedTuple):
    """What tells which flags are valid."""

    version: str
    flags: Optional[AbstractSet[str]]
    story: Story

    def pick(self, spellings: Tuple[Tuple[str, str, str], ...], hints: str = "") -> str:
        """The first spelling that this engine has, of (flag with value, first version, last version)."""
        names = [(text, text.split("=")[0].split(" ")[0], first, last) for text, first, last in spellings]
        if self.flags is not None:
            return next((text for text, name, _, _ in names if name in self.flags), "")
        printed = set(_FLAG.findall(hints))
        hinted = next((text for text, name, _, _ in names if name in printed), "")
        if hinted:
            return hinted
        if versions.known(self.version):
            return next((text for text, _, a, b in names if versions.between(self.version, a, b)), "")
        always = next((text for text, _, a, b in names if not a and not b), "")
        logged = {"--" + key.replace("_", "-") for key in self.story.server_args}
        return next((text for text, name, _, _ in names if name in logged), always)


GRAPH_SIZE = (
    ("--cuda-graph-max-bs-decode", "0.5.20", ""),
    ("--cuda-graph-max-bs", "", "0.5.18"),
    ("--cuda-graph-max-bs-decode", "0.5.15", ""),
)
NO_GRAPH = (
    ("--cuda-graph-backend-decode=disabled", "0.5.20", ""),
    ("--disable-cuda-graph", "", "0.5.18"),
    ("--cuda-graph-backend-decode=disabled", "0.5.15", ""),
    ("--disable-cuda-graph", "", ""),
)
PREFILL_SIZE = (("--chunked-prefill-size", "", ""),)
RUNNING = (("--max-running-requests", "", ""),)
NCCL_PORT = (("--nccl-port", "0.4.9", ""),)
DIST_TIMEOUT = (("--dist-timeout", "0.4.3", ""),)
DRAFT_QUANT = (("--speculative-draft-model-quantization unquant", "0.5.8", ""),)


def advise(category: str, numbers: Dict[str, Any], known: Known, hints: str) -> Said:
    """Advice for a category; empty when there is nothing honest to say. `hints` is the engine's own text."""
    lower = "Lower {} a little{}: it leaves more room beside the KV pool.".format(FRACTION, _now(known))
    if category == "oom_kv_pool":
        low = numbers.get("mem_fraction_min")
        above = " above {}".format(low) if low is not None else ""
        more = [
            "Raise {}{}{}: it is the share for weights and KV pool together.".format(
                FRACTION, above, _now(known)
            ),
            "Or make the weights smaller: more GPUs (--tp-size), a quantized checkpoint, a smaller drafter.",
        ]
        return Said(tuple(more), "increase", (FRACTION,))
    if category == "oom_no_feasible_fraction":
        return Said(
            (
                "No value of {} helps: use more GPUs (--tp-size), a quantized checkpoint, or a smaller drafter.".format(
                    FRACTION
                ),
            )
        )
    if category == "oom_graph_capture":
        rows, flags = [lower], [FRACTION]
        size = known.pick(GRAPH_SIZE, hints)
        if size:
            rows.append("Or capture fewer graphs: {} 16.".format(size))
            flags.append(size)
        off = known.pick(NO_GRAPH, hints)
        if off:
            rows.append("Graphs can be switched off by {}, at a great loss of speed.".format(off))
        return Said(tuple(rows), "decrease", tuple(flags))
    if category in ("oom_runtime", "oom_kv_alloc", "oom_load"):
        rows, flags = [lower], [FRACTION]
        if category == "oom_load":
            rows = [
                "The weights do not fit: use more GPUs (--tp-size), a quantized checkpoint or a smaller drafter; see who else holds GPU memory."
            ]
            return Said(tuple(rows), "decrease", ())
        asked = known.story.server_args.get("max_total_tokens") if category == "oom_kv_alloc" else None
        if asked and str(asked).isdigit():  # it, and no share, says how big the pool is
            rows.insert(
                0, "Lower --max-total-tokens (now {}): it sets the size of the KV pool.".format(asked)
            )
            flags.insert(0, "--max-total-tokens")
        if category == "oom_runtime":
            for spelling in (PREFILL_SIZE, RUNNING):
                flag = known.pick(spelling, hints)
                if flag:
                    rows.append("Or lower {}.".format(flag))
                    flags.append(flag)
        return Said(tuple(rows), "decrease", tuple(flags))
    if category == "killed_by_signal":
        return _signal(numbers)
    if category == "unknown_flag":
        instead = numbers.get("instead") or {}
        rows = [
            "Instead of {} use {}.".format(flag, use)
            for flag, use in instead.items()
            if known.flags is None or use in known.flags
        ]
        return Said(
            tuple(rows) or ("Look at the flags that this version has: `specdash probe`.",),
            "",
            tuple(instead.values()),
        )
    if category == "drafter_context_too_short":
        return Said(
            (
                "Give --context-length {}, or set SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN=1 if the drafter stands it.".format(
                    numbers.get("draft_context", "of the drafter")
                ),
            ),
            "",
            ("--context-length",),
        )
    if category == "internal_port_in_use":
        flag = known.pick(NCCL_PORT, hints)
        other = "Or give other ports: {}another base --port.".format(flag + ", or " if flag else "")
        return Said(("Retry: such ports are chosen anew at each start.", other), "", (flag,) if flag else ())
    if category == "quantization_mismatch":
        flag = known.pick(DRAFT_QUANT, hints)
        return Said(
            ("The target's --quantization is given to the drafter too: {}.".format(flag),) if flag else (),
            "",
            (),
        )
    if category in ("peer_timeout_during_jit", "dist_timeout", "nccl_timeout"):
        flag = known.pick(DIST_TIMEOUT, hints)
        rows = list(PLAIN.get(category, ()))
        if flag:
            rows.append("Or give the ranks more time: {} 3600.".format(flag))
        return Said(tuple(rows), "", (flag,) if flag else ())
    if category == "hidden_failure_in_capture":
        off = known.pick(NO_GRAPH, hints)
        return Said(("Start once without graphs ({}) to see what really fails; do not turn memory knobs before.".format(off or "disable graphs"),
                     "CUDA_LAUNCH_BLOCKING=1 names the kernel."), "", (off.split("=")[0],) if off else ())  # fmt: skip
    return Said(PLAIN.get(category, ()))


def _now(known: Known) -> str:
    value = known.story.numbers.get("mem_fraction_static")
    return "" if value is None else " (now {})".format(value)


def _signal(numbers: Dict[str, Any]) -> Said:
    number = numbers.get("signal")
    if number == 9:
        return Said(("Look at `dmesg -T | grep -i -e oom -e killed` and the cgroup's memory.events on the host.",
                     "If it was host memory: load with fewer ranks at once, or give the container more."))  # fmt: skip
    if number == 7:
        return Said(
            (
                "Make /dev/shm larger (docker: --shm-size or --ipc=host), and look for room on the disk of the weights.",
            )
        )
    if number == 11 or number == 6:
        return Said(
            (
                "A native library failed: look for frames above, and for versions of torch, sgl-kernel and driver that do not fit.",
            )
        )
    if number == 1:
        return Said(("Start it in a session of its own, so that a closed terminal does not end it.",))
    if number == 15:
        return Said(
            (
                "Somebody or a service manager ended it. Send SIGTERM to the launcher alone, never to the group.",
            )
        )
    return Said()


PLAIN: Dict[str, Tuple[str, ...]] = {
    "unknown_algorithm": ("Use an algorithm that the installed version has (`specdash probe`), or install a version that knows it.",),
    "missing_flag": ("Add the flag to the profile.",),
    "flag_conflict": ("Take one of them out of the profile.",),
    "flag_abbreviation": ("Write the flag in full.",),
    "drafter_mismatch_hidden": ("Use the drafter that was trained for this target: hidden sizes must be equal.",),
    "drafter_mismatch_vocab": ("Use a drafter with the target's tokenizer.",),
    "algorithm_does_not_fit_drafter": ("Check that the drafter's architecture belongs to this algorithm.",),
    "algorithm_does_not_fit_target": ("Use another algorithm for this target, or a version of SGLang that supports it.",),
    "aux_layer_ids_out_of_range": ("Use the drafter that was trained for this target: it names layers by number.",),
    "drafter_too_deep": ("Use SGLang 0.5.13 or later, or a drafter of one layer.",),
    "architecture_unknown_on_host": ("Install a version of SGLang that has this architecture; the checkpoint is not the problem.",),
    "model_path_missing": ("Check the path on the host itself, and that no `~` is inside quotes.",),
    "drafter_path_missing": ("Check the drafter's path on the host itself, and that no `~` is inside quotes.",),
    "model_access_denied": ("Give the host a token of an account that may read the model.",),
    "checkpoint_corrupt": ("Compare the file sizes with the index, and copy the file again.",),
    "checkpoint_mismatch": ("Check that config.json and the weights are of the same model, and that this version supports it.",),
    "http_port_in_use": ("Stop what holds the port (`ss -ltnp`), or give another --port.",),
    "bind_failed": ("Check --host and --port: the address must be the host's own.",),
    "nccl_connect_failed": ("Check NCCL_SOCKET_IFNAME, GLOO_SOCKET_IFNAME and --dist-init-addr, and that the ports are open.",),
    "nccl_timeout": ("Find the rank that did not come: its last line is the cause.",),
    "nccl_error": ("Start with NCCL_DEBUG=INFO to see what NCCL says.",),
    "dist_timeout": ("Find the rank that did not come; on several hosts check --dist-init-addr and --nnodes.",),
    "peer_timeout_during_jit": ("Compile the kernels before the launch: `python3 -m sglang.compile_deep_gemm` with the same flags.",),
    "peer_rank_gone": ("Look at the first rank that ended, on this or another host.",),
    "driver_mismatch": ("Run `nvidia-smi` on the host; after a driver update it must be rebooted.",),
    "gpu_lost": ("Look at `dmesg -T | grep -i xid`; the GPU needs a reset or the host a reboot.",),
    "gpu_missing": ("Compare --tp-size with `nvidia-smi -L` and CUDA_VISIBLE_DEVICES (no blanks in it).",),
    "gpu_too_old": ("Install builds of torch and sgl-kernel for this GPU.",),
    "gpu_in_use_by_others": ("See who holds GPU memory, and stop it or choose other GPUs.",),
    "cuda_error": ("Start with CUDA_LAUNCH_BLOCKING=1 to see the kernel that fails.",),
    "watchdog_timeout": ("Look at the stacks above it for what hung; a longer --watchdog-timeout only hides it.",),
    "import_error": ("Install it into the interpreter that the profile names, or name another interpreter.",),
    "launcher_missing": ("Give the full path of the interpreter in the profile.",),
    "disk_full": ("Make room on the disk that the message names; /dev/shm counts too.",),
    "open_files_limit": ("Raise `ulimit -n` for the user that starts it.",),
    "permission_denied": ("Check the owner of the file, and the user's groups (video, render, docker).",),
    "tp_does_not_divide": ("Choose a --tp-size that divides the heads of target and drafter.",),
    "context_too_long": ("Lower --context-length, or set SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN=1 if you know better.",),
    "kv_pressure": ("Lower --max-running-requests, or make the pool larger: a higher --mem-fraction-static or an fp8 --kv-cache-dtype.",),
    "capped_by_speculation": ("Set --max-running-requests yourself, and look at the free GPU memory.",),
    "drafter_useless": ("Check the pairing of algorithm, drafter and target (EAGLE3 drafters under EAGLE run and accept nothing); else switch speculation off.",),
    "long_prefill": ("Do not restart it. Lower --chunked-prefill-size if health checks must pass.",),
    "warmup_failed": ("The exception above it is the cause; --skip-server-warmup only hides it.",),
}  # fmt: skip


def all_flags(said: Said) -> List[str]:
    """Every flag that an advice names, for tests against a parser's list."""
    return sorted(set(_FLAG.findall(" ".join(said.sentences))) | set(said.flags))
