"""From a sign to a cause: the same words mean different things in different phases and places.

An allocation that fails while graphs are captured wants the opposite of a pool that is too small; sizes that do
not match speak of the drafter when the drafter's code is on the stack.
"""

from __future__ import annotations

import re
from typing import Any, Callable, Dict, NamedTuple, Optional, Tuple

from specdash.sglang.replaced import OTHER_ENGINES, SGLANG
from specdash.sglang.storytypes import Evidence, Story

FLAG = re.compile(r"(?<![\w-])--[A-Za-z][\w-]*")
DRAFT_FRAMES = re.compile(
    r"/speculative/|speculative_hook|draft|eagle|nextn|dflash|dspark|_mtp\b", re.IGNORECASE
)
CAPTURE_FRAMES = re.compile(r"(?:cuda|cpu|npu)_graph|graph_runner|capture_one|Capture .{0,40}graph failed")
SUSPECTS_OF_KILL = ("host out-of-memory killer", "cgroup limit", "someone killed it")
NO_ROOM_SHARE = 0.95
"""Share of GPU memory that weights may take: above, what graphs and activations need is not left at any fraction."""
SIGNALS = {
    1: "hangup: its terminal or session was closed",
    2: "an interrupt (Control-C)",
    3: "SIGQUIT, SGLang's own way to end a broken tree",
    4: "an illegal instruction: a package built for another CPU",
    6: "abort: a C++ library gave up",
    7: "a bus error: /dev/shm or a mapped file ran out",
    8: "an arithmetic fault",
    9: "SIGKILL",
    11: "a segmentation fault",
    15: "SIGTERM",
}


class Verdict(NamedTuple):
    category: str
    sentence: str
    numbers: Dict[str, Any]
    flags: Tuple[str, ...]


class Facts(NamedTuple):
    """What a qualifier may look at."""

    story: Story
    numbers: Dict[str, Any]
    found: Evidence
    text: str
    http_port: Optional[int]

    @property
    def stack(self) -> str:
        return "\n".join(self.found.lines)

    @property
    def drafting(self) -> bool:
        """Whether the drafter's load or code is where it happened."""
        frames = "\n".join(line for line in self.found.lines if line.lstrip().startswith("File "))
        return self.found.sub == "draft" or DRAFT_FRAMES.search(frames) is not None


def qualify(
    story: Story,
    sign: str,
    numbers: Dict[str, Any],
    found: Evidence,
    text: str,
    http_port: Optional[int] = None,
) -> Verdict:
    """The cause that a sign stands for, in its place."""
    port = http_port if http_port is not None else _int(story.server_args.get("port"))
    facts = Facts(story, dict(numbers), found, text, port)
    return TABLE.get(sign, _other)(sign, facts)


def _other(sign: str, facts: Facts) -> Verdict:
    sentence = SENTENCES.get(sign)
    flags = tuple(dict.fromkeys(FLAG.findall(facts.text[:2000])))
    if sentence is None:
        first = facts.text.splitlines()[0] if facts.text else facts.found.head
        who = "The scheduler" if "Scheduler" in facts.found.head or "scheduler" in facts.stack else "It"
        category = "scheduler_exception" if who == "The scheduler" else "unknown_exception"
        return Verdict(
            category,
            "{} raised an exception of no known kind: {}".format(who, first[:300]),
            facts.numbers,
            (),
        )
    return Verdict(sign, sentence.format_map(_Known(facts.numbers)), facts.numbers, flags)


class _Known(Dict[str, Any]):
    def __missing__(self, key: str) -> str:
        return "?"


SENTENCES: Dict[str, str] = {
    "flag_abbreviation": "{flag} is no flag of this version: it is taken for an abbreviation, and could be {choices}.",
    "bad_flag_value": "A flag has a value that this version does not take: {flag} {value}{rest}.",
    "gpu_in_use_by_others": "The GPUs do not have the same memory free: another process holds some of it.",
    "hidden_failure_in_capture": "Something failed while graphs were captured, and the capture hides what it was.",
    "drafter_mismatch_vocab": "The drafter's vocabulary is not the target's.",
    "aux_layer_ids_out_of_range": "The drafter wants hidden states of a layer that the target does not have.",
    "algorithm_does_not_fit_target": "This version cannot run the algorithm on this target: its class lacks {attribute}.",
    "drafter_too_deep": "This version runs EAGLE3 drafters of one layer only.",
    "tp_does_not_divide": "The model does not divide by the tensor-parallel size.",
    "disk_full": "The disk is full.",
    "open_files_limit": "Too many files are open: the limit of the process is too low.",
    "model_access_denied": "The model hub refused access to the model.",
    "checkpoint_corrupt": "A weight file cannot be read: it is cut off or damaged.",
    "checkpoint_mismatch": "The weights do not have the shape or names that the model code expects.",
    "quantization_mismatch": "The quantization asked for is not the checkpoint's, or not known here.",
    "launcher_missing": "The command to start was not found.",
    "permission_denied": "A file or device may not be read or written by this user.",
    "bind_failed": "The HTTP address {address}:{port} cannot be bound: {rest}.",
    "driver_mismatch": "The NVIDIA driver does not fit: library, kernel module and CUDA disagree, or there is none.",
    "gpu_lost": "A GPU was lost or reports uncorrectable errors.",
    "gpu_missing": "Fewer GPUs are visible than the launch needs.",
    "gpu_too_old": "A kernel has no code for this GPU.",
    "cuda_error": "CUDA failed: {rest}.",
    "nccl_error": "NCCL failed.",
    "nccl_connect_failed": "The ranks could not connect to each other.",
    "nccl_timeout": "A collective operation timed out: one rank did not come.",
    "dist_timeout": "Distributed init timed out: not all ranks came.",
    "peer_rank_gone": "The process at the other end went away; its own log has the cause.",
    "watchdog_timeout": "The watchdog ended it: one forward pass took longer than its limit ({rest}).",
    "child_died": "A child process failed; the log does not say why.",
    "child_exited": "A child process ended during initialization; the log does not say why.",
    "init_failed": "Initialization failed; the log does not say why.",
    "warmup_failed": "The warm-up request failed.",
}


def _oom(sign: str, facts: Facts) -> Verdict:
    numbers, phase = dict(facts.numbers), facts.found.phase
    if "mem_fraction_static" in facts.story.numbers:
        numbers["mem_fraction_static"] = facts.story.numbers["mem_fraction_static"]
    host = (
        "DefaultCPUAllocator" in facts.text
        or "you tried to allocate" in facts.text
        or re.search(r"\bMemoryError\b|bad_alloc", facts.text) is not None
    )
    need, free = numbers.get("need_mib"), numbers.get("free_mib")
    asked = (
        " It asked for {} MiB{}.".format(need, " with {} MiB free".format(free) if free is not None else "")
        if need
        else ""
    )
    where = (
        "of the host"
        if host
        else "of GPU {}".format(numbers["gpu_index"])
        if "gpu_index" in numbers
        else "of a GPU"
    )
    if facts.found.serving:
        usage = next(
            (d.token_usage for d in reversed(facts.story.decodes) if d.offset < facts.found.offset), None
        )
        numbers["kv_usage"] = usage
        pool = (
            ""
            if usage is None
            else " The KV pool was {:.0%} full{}.".format(
                usage, ": not the pool, but what runs beside it" if usage < 0.9 else ""
            )
        )
        return Verdict(
            "oom_runtime", "The memory {} ran out while serving.{}{}".format(where, asked, pool), numbers, ()
        )
    if phase == "graph_capture" or CAPTURE_FRAMES.search(facts.text + facts.stack):
        return Verdict(
            "oom_graph_capture",
            "The memory {} ran out while graphs were captured.{}".format(where, asked),
            numbers,
            (),
        )
    if phase == "kv_alloc" and re.search(r"memory_pool|kv_cache|KVPool|init_memory_pool", facts.stack):
        return Verdict(
            "oom_kv_alloc",
            "The memory {} ran out while the KV pool was allocated.{}".format(where, asked),
            numbers,
            (),
        )
    whose = "the drafter was" if facts.found.sub == "draft" else "the weights were"
    return Verdict(
        "oom_load", "The memory {} ran out while {} loaded.{}".format(where, whose, asked), numbers, ()
    )


def _kv_pool(sign: str, facts: Facts) -> Verdict:
    numbers, measured = dict(facts.numbers), facts.story.numbers
    fraction = numbers.pop("fraction", None)
    fraction = fraction if fraction is not None else measured.get("mem_fraction_static")
    if fraction is not None:
        numbers["mem_fraction_static"] = fraction
    for key in ("weights_gb", "draft_weights_gb"):
        if key in measured:
            numbers[key] = measured[key]
    weights = measured.get("weights_gb", 0.0) + measured.get("draft_weights_gb", 0.0)
    total = measured.get("avail_begin_gb")
    if total is None and "avail_gb" in measured and weights:
        total = measured["avail_gb"] + weights
    share = weights / total if total and weights else None
    if "fraction_min" in numbers:
        numbers["mem_fraction_min"] = numbers.pop("fraction_min")
    elif share is not None:
        numbers["mem_fraction_min"] = round(share, 3)
    low = numbers.get("mem_fraction_min")
    said = "The KV pool has no room: the weights{} take what --mem-fraction-static{} allows.".format(
        " ({:.1f} GB a GPU)".format(weights) if weights else "",
        "={}".format(fraction) if fraction is not None else "",
    )
    if "profiled_tokens" in numbers:
        said = "The KV pool would hold {} tokens: it cannot start.".format(numbers["profiled_tokens"])
    high = max(v for v in (low, fraction, 0.0) if isinstance(v, (int, float)))
    if high >= NO_ROOM_SHARE:
        if share is not None:
            numbers["weights_share"] = round(share, 3)
        said = "No memory fraction fits: the weights need {:.0%} of a GPU, and graphs and activations need more than the rest.".format(
            high
        )
        return Verdict("oom_no_feasible_fraction", said, numbers, ())
    return Verdict("oom_kv_pool", said, numbers, ())


def _unknown_flag(sign: str, facts: Facts) -> Verdict:
    flags = tuple(dict.fromkeys(FLAG.findall(str(facts.numbers.get("rest", "")))))
    numbers: Dict[str, Any] = {"flags": list(flags), "rest": facts.numbers.get("rest", "")}
    engines = sorted({OTHER_ENGINES[f].engine for f in flags if f in OTHER_ENGINES})
    if engines:
        numbers["hint"] = "names of another engine ({})".format(", ".join(engines))
    instead = {f: (OTHER_ENGINES.get(f) or SGLANG[f]).use for f in flags if f in OTHER_ENGINES or f in SGLANG}
    numbers["instead"] = {f: use for f, use in instead.items() if use}
    sentence = "This version has no {}{}.".format(
        " and no ".join(flags) or "such argument ({})".format(str(numbers["rest"])[:120]),
        ": {}".format(numbers["hint"]) if engines else "",
    )
    return Verdict("unknown_flag", sentence, numbers, flags)


def _unknown_algorithm(sign: str, facts: Facts) -> Verdict:
    numbers: Dict[str, Any] = {"value": facts.numbers.get("value")}
    choices = facts.numbers.get("choices")
    sentence = "This version does not know the algorithm {}.".format(numbers["value"])
    if isinstance(choices, str):
        numbers["choices"] = [c.strip().strip("'\"") for c in choices.split(",") if c.strip()]
        sentence = "This version does not know the algorithm {}: it has {}.".format(
            numbers["value"], ", ".join(numbers["choices"])
        )
    return Verdict("unknown_algorithm", sentence, numbers, ("--speculative-algorithm",))


def _missing_flag(sign: str, facts: Facts) -> Verdict:
    flags = tuple(
        dict.fromkeys(FLAG.findall(str(facts.numbers.get("rest") or facts.numbers.get("flag") or facts.text)))
    )
    return Verdict(
        "missing_flag", "{} must be given.".format(" and ".join(flags) or "A flag"), facts.numbers, flags
    )


def _flag_conflict(sign: str, facts: Facts) -> Verdict:
    flags = list(dict.fromkeys(FLAG.findall(facts.text[:2000])))
    if "attention backend" in facts.text and "--attention-backend" not in flags:
        flags.append("--attention-backend")
    numbers = dict(facts.numbers)
    algorithm = numbers.get("algorithm") or facts.story.server_args.get("speculative_algorithm")
    if algorithm:
        numbers["algorithm"] = algorithm
    words = re.sub(r"^[\w.]*(?:Error|Exception): ", "", facts.text.splitlines()[0])
    return Verdict("flag_conflict", "Flags do not go together: {}".format(words[:300]), numbers, tuple(flags))


def _shape(sign: str, facts: Facts) -> Verdict:
    first, second = facts.numbers.get("first"), facts.numbers.get("second")
    speculates = bool(facts.story.server_args.get("speculative_algorithm"))
    if not facts.drafting and not (speculates and facts.found.phase in ("graph_capture", "serving")):
        return Verdict(
            "shape_mismatch",
            "Tensor sizes do not match: {} against {}.".format(first, second),
            facts.numbers,
            (),
        )
    numbers: Dict[str, Any] = {"target_hidden": first, "draft_hidden": second}
    if first is None:
        return Verdict("drafter_mismatch_hidden", "The drafter's tensors do not match the target's.", {}, ())
    sentence = "The drafter does not fit the target: hidden size {} against {}.".format(first, second)
    return Verdict("drafter_mismatch_hidden", sentence, numbers, ("--speculative-draft-model-path",))


def _no_drafter(sign: str, facts: Facts) -> Verdict:
    args = facts.story.server_args
    path = args.get("speculative_draft_model_path")
    algorithm = args.get("speculative_algorithm")
    numbers = dict(facts.numbers, algorithm=algorithm, drafter=path)
    if args and (not path or path == args.get("model_path")):
        sentence = "{} needs a drafter: none was given, so that the target was loaded as its own.".format(
            algorithm or "The algorithm"
        )
        return Verdict("missing_flag", sentence, numbers, ("--speculative-draft-model-path",))
    sentence = "The drafter's class {} is not what {} runs.".format(
        facts.numbers.get("model", "?"), algorithm or "the algorithm"
    )
    return Verdict(
        "algorithm_does_not_fit_drafter",
        sentence,
        numbers,
        ("--speculative-draft-model-path", "--speculative-algorithm"),
    )


def _context(sign: str, facts: Facts) -> Verdict:
    asked, has = facts.numbers.get("target_context"), facts.numbers.get("draft_context")
    if str(facts.numbers.get("who", "")).startswith("Target") or facts.drafting:
        sentence = "The drafter was made for {} tokens of context, the target runs with {}.".format(
            has, asked
        )
        return Verdict("drafter_context_too_short", sentence, facts.numbers, ("--context-length",))
    sentence = "A context of {} tokens was asked for, the model has {}.".format(asked, has)
    return Verdict("context_too_long", sentence, facts.numbers, ("--context-length",))


def _architecture(sign: str, facts: Facts) -> Verdict:
    names = re.findall(r"[A-Za-z_]\w+", str(facts.numbers.get("architectures") or ""))
    whose = "drafter" if facts.drafting else "model"
    sentence = "This version does not know the {}'s architecture {}.".format(whose, ", ".join(names) or "?")
    return Verdict("architecture_unknown_on_host", sentence, {"architectures": names, "whose": whose}, ())


def _model_path(sign: str, facts: Facts) -> Verdict:
    args = facts.story.server_args
    draft = facts.drafting
    path = args.get("speculative_draft_model_path" if draft else "model_path")
    category = "drafter_path_missing" if draft else "model_path_missing"
    what, flag = ("drafter", "--speculative-draft-model-path") if draft else ("model", "--model-path")
    online = (
        "huggingface.co" in facts.text or "disk cache" in facts.text or "LocalEntryNotFound" in facts.text
    )
    sentence = "The {} was not found{}{}.".format(
        what,
        " at {}".format(path) if path else "",
        ": no such folder, and the hub was not reached" if online else "",
    )
    return Verdict(category, sentence, {"path": path}, (flag,))


def _port(sign: str, facts: Facts) -> Verdict:
    port = facts.numbers.get("port")
    inner = (
        sign == "internal_port_in_use"
        or "dist_init_port" in facts.text
        or "tcp://" in facts.text
        or (port is not None and facts.http_port is not None and port != facts.http_port)
        or "zmq" in facts.stack.lower()
    )
    if sign == "http_port_in_use" or (not inner and port is not None and port == facts.http_port):
        inner = False
    elif port is None and facts.found.phase != "starting_http_or_warmup":
        inner = True
    numbers = {"port": port}
    if inner:
        return Verdict(
            "internal_port_in_use",
            "{} for its own processes is taken; it is not the HTTP port.".format(
                "A port" if port is None else "Port {}".format(port)
            ),
            numbers,
            (),
        )
    liar = facts.story.false_ready
    sentence = "The HTTP port{} is taken by another process{}.".format(
        "" if port is None else " {}".format(port),
        '; "fired up" in this log came from that one' if liar else "",
    )
    return Verdict("http_port_in_use", sentence, numbers, ("--port",))


def _killed(sign: str, facts: Facts) -> Verdict:
    numbers = dict(facts.numbers)
    code = numbers.pop("code", None)
    word = str(numbers.pop("word", ""))
    number = (
        -code
        if isinstance(code, int)
        else {"Killed": 9, "Segmentation fault": 11, "Bus error": 7, "Aborted": 6}.get(word, 0)
    )
    numbers["signal"] = number or None
    process = numbers.get("process")
    who = "The {}".format(process) if process else "A scheduler" if "cheduler" in facts.text else "A process"
    if number == 9:
        numbers["suspects"] = list(SUSPECTS_OF_KILL)
    return Verdict("killed_by_signal", signal_sentence(who, number), numbers, ())


def signal_sentence(who: str, number: int) -> str:
    """Who was ended by what signal, in words."""
    if number == 9:
        return "{} was killed by signal 9: {}.".format(
            who, ", ".join(SUSPECTS_OF_KILL[:2]) + ", or " + SUSPECTS_OF_KILL[2]
        )
    return "{} was ended by signal {}: {}.".format(
        who, number or "?", SIGNALS.get(number, "see `man 7 signal`")
    )


def _timeout(sign: str, facts: Facts) -> Verdict:
    compiling = facts.found.phase == "jit_compile" or any(
        s.phase == "jit_compile" for s in facts.story.rank_states
    )
    if compiling:
        ranks = [s.rank for s in facts.story.rank_states if s.phase == "jit_compile"]
        sentence = "A rank waited too long for another one that was compiling kernels."
        return Verdict("peer_timeout_during_jit", sentence, {"ranks_in_jit": ranks}, ())
    return _other(sign, facts)


def _import(sign: str, facts: Facts) -> Verdict:
    module = str(facts.numbers.get("module") or "")
    if module.split(".")[0] == "sglang":
        sentence = "This interpreter has no sglang."
    elif module:
        sentence = "The package {} is missing in this environment.".format(module)
    else:
        sentence = "An import failed: {}.".format(
            facts.numbers.get("rest") or facts.numbers.get("symbol") or "a shared library"
        )
    return Verdict("import_error", sentence, facts.numbers, ())


def _assertion(sign: str, facts: Facts) -> Verdict:
    """A bare AssertionError: the source line on the stack tells what it wanted."""
    if facts.text.startswith("AssertionError") and re.search(r"speculative_\w+ is None", facts.stack):
        names = ("--speculative-num-steps", "--speculative-eagle-topk", "--speculative-num-draft-tokens")
        sentence = "Of {}, {} and {} give all three or none.".format(*names)
        return Verdict("missing_flag", sentence, {}, names)
    return _other(sign, facts)


def _int(value: Any) -> Optional[int]:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


TABLE: Dict[str, Callable[[str, Facts], Verdict]] = {
    "oom": _oom,
    "oom_kv_pool": _kv_pool,
    "unknown_flag": _unknown_flag,
    "unknown_algorithm": _unknown_algorithm,
    "missing_flag": _missing_flag,
    "flag_conflict": _flag_conflict,
    "shape_mismatch": _shape,
    "algorithm_does_not_fit_drafter": _no_drafter,
    "drafter_context_too_short": _context,
    "architecture_unknown_on_host": _architecture,
    "model_path": _model_path,
    "http_port_in_use": _port,
    "internal_port_in_use": _port,
    "port_in_use": _port,
    "killed_by_signal": _killed,
    "dist_timeout": _timeout,
    "nccl_timeout": _timeout,
    "peer_rank_gone": _timeout,
    "import_error": _import,
    "exception": _assertion,
}
