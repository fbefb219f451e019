"""First causes: one small log for each kind of end, in the words of SGLang, torch, CUDA and the shell."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from specdash.sglang.advice import all_flags
from specdash.sglang.causes import Cause, across, all_conditions, first_cause
from specdash.sglang.story import Story, feed, finish

ORACLES = Path(__file__).parent.parent / "data" / "oracles"


def sched(*rows: str, rank: str = "TP0", before: str = "") -> str:
    """A scheduler of `rank` dies of an exception."""
    head = f"[2026-05-04 09:14:10 {rank}] Scheduler hit an exception: Traceback (most recent call last):\n"
    frame = (
        '  File "/opt/venv/sglang/srt/managers/scheduler.py", line 2828, in run_scheduler_process\n    x()\n'
    )
    end = "\n\n[2026-05-04 09:14:11] Received sigquit from a child process. It usually means the child failed.\n"
    return before + head + frame + "\n".join(rows) + end


def alone(*rows: str) -> str:
    """The launcher dies of an exception."""
    return (
        'Traceback (most recent call last):\n  File "/x/run.py", line 1, in <module>\n'
        + "\n".join(rows)
        + "\n"
    )


def why(log: str, **more: object) -> Cause:
    cause = first_cause(finish(feed(Story(), log.encode())), **more)  # type: ignore[arg-type]
    assert cause is not None
    return cause


LOAD = (
    "[2026-05-04 09:13:00] server_args=ServerArgs(model_path='/m', speculative_algorithm='EAGLE3', "
    "speculative_draft_model_path='/d', port=30000, mem_fraction_static={})\n"
    "[2026-05-04 09:13:10 TP0] Load weight begin. avail mem=78.50 GB\n"
    "[2026-05-04 09:13:40 TP0] Load weight end. type=X, dtype=torch.bfloat16, avail mem=2.10 GB, mem usage=76.40 GB.\n"
)
LOADING = "[2026-05-04 09:13:10 TP0] Load weight begin. avail mem=78.50 GB\n"
CAPTURE = "[2026-05-04 09:14:00 {}] Capture cuda graph begin. This can take up to several minutes. avail mem=5.61 GB\n"
JIT = "[2026-05-04 09:12:34 TP0] Entering DeepGEMM JIT Pre-Compile session. It may take a long time\n"
OOM = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.32 GiB. GPU 3 has a total capacity of 79.19 GiB of which 1.10 GiB is free."
PEER = "RuntimeError: [../gloo/transport/tcp/pair.cc:553] Connection closed by peer [10.0.0.1]:33421"

KINDS: list[tuple[str, str]] = [
    ("oom_kv_pool", sched("RuntimeError: Not enough memory. Please try to increase --mem-fraction-static.")),
    ("oom_no_feasible_fraction", sched("RuntimeError: Not enough memory. Please try to increase --mem-fraction-static. Current value: mem_fraction_static=0.95", before=LOAD.format(0.95))),
    ("oom_no_feasible_fraction", sched("ValueError: Loaded weights leave no GPU memory for the KV cache under --mem-fraction-static=0.9. Raise --mem-fraction-static above 0.981 (minimum viable = 1 - available/pre = 0.9805).")),
    ("oom_graph_capture", sched(OOM, before=CAPTURE.format("TP0"))),
    ("oom_load", sched(OOM, before=LOADING)),
    ("oom_load", sched("RuntimeError: [enforce fail at alloc_cpu.cpp:121] err == 0. DefaultCPUAllocator: can't allocate memory: you tried to allocate 10589282624 bytes. Error code 12 (Cannot allocate memory)", before=LOADING)),
    ("hidden_failure_in_capture", sched("Exception: Capture cuda graph failed: CUDA error: operation failed due to a previous error during capture", "Possible solutions:", "1. set --mem-fraction-static to a smaller value (e.g., 0.8 or 0.7)", before=CAPTURE.format("TP0"))),
    ("hidden_failure_in_capture", sched("Exception: Capture cuda graph failed: 'NoneType' object is not callable", "Possible solutions:", "1. set --mem-fraction-static to a smaller value (e.g., 0.8 or 0.7)", before=CAPTURE.format("TP0"))),
    ("peer_timeout_during_jit", JIT + sched("torch.distributed.DistBackendError: [Rank 3] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=3)", rank="TP3")),
    ("peer_timeout_during_jit", JIT + sched("RuntimeError: [gloo/unbound_buffer.cc:81] Timed out waiting 1800000ms for recv operation to complete", rank="TP3")),
    ("peer_timeout_during_jit", JIT + sched(PEER, rank="TP3")),
    ("peer_rank_gone", sched(PEER, rank="TP3")),
    ("nccl_timeout", sched("torch.distributed.DistBackendError: [Rank 3] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=3)")),
    ("nccl_connect_failed", sched("torch.distributed.DistBackendError: NCCL error in: NCCLUtils.hpp:268, remote process exited or there was a network error", "ncclRemoteError: A call failed possibly due to a network error.", "Last error:", "socketPollConnect: Connect to 10.0.0.2<40123> returned 113(No route to host) errno 113")),
    ("nccl_connect_failed", sched("torch.distributed.DistNetworkError: The client socket has failed to connect to any network address of (node0, 20000). The client socket has timed out after 600000ms")),
    ("driver_mismatch", alone("RuntimeError: The NVIDIA driver on your system is too old (found version 11080).")),
    ("gpu_lost", sched("torch.AcceleratorError: CUDA error: uncorrectable ECC error encountered")),
    ("gpu_missing", sched("RuntimeError: CUDA error: invalid device ordinal")),
    ("cuda_error", sched("RuntimeError: CUDA error: an illegal memory access was encountered")),
    ("checkpoint_mismatch", sched("AssertionError: Attempted to load weight (torch.Size([4096, 14336])) into parameter (torch.Size([4096, 2048]))")),
    ("checkpoint_mismatch", sched("KeyError: 'model.layers.61.eh_proj.weight'")),
    ("checkpoint_corrupt", sched("safetensors_rust.SafetensorError: Error while deserializing header: MetadataIncompleteBuffer")),
    ("architecture_unknown_on_host", sched("ValueError: Model architectures ['DFlash2DraftModel'] are not supported for now. Supported architectures: dict_keys(['A'])")),
    ("drafter_mismatch_vocab", alone("ValueError: STANDALONE speculative decoding requires the draft model to share the same vocabulary as the target (152064 vs 151936).")),
    ("drafter_mismatch_hidden", sched('  File "/x/sglang/srt/speculative/eagle_worker.py", line 7, in draft', "RuntimeError: mat1 and mat2 shapes cannot be multiplied (7x12288 and 6144x2048)")),
    ("shape_mismatch", sched("RuntimeError: mat1 and mat2 shapes cannot be multiplied (7x12288 and 6144x2048)")),
    ("drafter_context_too_short", sched("ValueError: Warning: Target model's context_length (131072) is greater than the derived context_length (2048). This may lead to incorrect model outputs.")),
    ("algorithm_does_not_fit_target", sched("AttributeError: 'Gemma3ForCausalLM' object has no attribute 'set_eagle3_layers_to_capture'")),
    ("algorithm_does_not_fit_drafter", sched("AttributeError: 'LlamaForCausalLM' object has no attribute 'hot_token_id'", before=LOAD.format(0.8))),
    ("aux_layer_ids_out_of_range", sched("ValueError: DFLASH target_layer_ids contains an out-of-range layer id 40 for 32 layers")),
    ("missing_flag", alone("ValueError: DFLASH speculative decoding requires setting --speculative-draft-model-path.")),
    ("missing_flag", "usage: x\nlaunch_server.py: error: the following arguments are required: --model-path/--model\n"),
    ("missing_flag", alone('  File "/x/sglang/srt/server_args.py", line 404, in __post_init__', "    assert self.speculative_eagle_topk is None", "AssertionError")),
    ("flag_conflict", alone("ValueError: Currently standalone speculative decoding does not support dp attention.")),
    ("flag_abbreviation", "usage: x\nlaunch_server.py: error: ambiguous option: --cuda-graph-max-bs could match --cuda-graph-max-bs-decode, --cuda-graph-max-bs-prefill\n"),
    ("bad_flag_value", "usage: x\nlaunch_server.py: error: argument --tp-size: invalid int value: 'eight'\n"),
    ("watchdog_timeout", "[2026-05-04 09:14:10 TP0] Scheduler watchdog timeout (self.watchdog_timeout=300, self.soft=False)\n[2026-05-04 09:14:11] SIGQUIT received. signum=None, frame=None. It usually means one child failed.\n"),
    ("disk_full", sched("OSError: [Errno 28] No space left on device")),
    ("open_files_limit", sched("OSError: [Errno 24] Too many open files")),
    ("import_error", alone("ModuleNotFoundError: No module named 'sgl_kernel'")),
    ("import_error", "/usr/bin/python3: No module named sglang.launch_server\n"),
    ("launcher_missing", "bash: line 1: sglang: command not found\n"),
    ("model_path_missing", alone("OSError: /models/x is not a local folder and is not a valid model identifier listed on 'https://huggingface.co/models'")),
    ("model_access_denied", alone("huggingface_hub.errors.GatedRepoError: 401 Client Error.")),
    ("quantization_mismatch", sched("ValueError: Quantization method specified in the model config (fp8) does not match the quantization method specified in the `quantization` argument (awq).")),
    ("tp_does_not_divide", sched("AssertionError: 28 is not divisible by 8")),
    ("killed_by_signal", "[2026-05-04 10:03:00] Rank 0 scheduler is dead. Please check if there are relevant logs.\n[2026-05-04 10:03:00] Exit code: -9\n"),
    ("killed_by_signal", "Fatal Python error: Segmentation fault\n\nCurrent thread 0x00007f (most recent call first):\n  File \"x.py\", line 1 in f\n"),
    ("killed_by_signal", "bash: line 1: 4101 Killed                  python3 -m sglang.launch_server\n"),
    ("killed_by_signal", "[4242.1] Out of memory: Killed process 4101 (sglang::schedul) total-vm:1kB\n"),
    ("http_port_in_use", "[2026-05-04 09:14:10] ERROR:    [Errno 98] error while attempting to bind on address ('0.0.0.0', 30000): address already in use\n"),
    ("internal_port_in_use", sched("zmq.error.ZMQError: Address already in use (addr='tcp://127.0.0.1:34567')")),
    ("internal_port_in_use", sched("ValueError: Port is already in use. dist_init_port=5000 was derived")),
    ("gpu_in_use_by_others", sched("ValueError: The memory capacity is unbalanced. Some GPUs may be occupied by other processes. pre_model_load_memory=20.1")),
    ("scheduler_exception", sched("ZeroDivisionError: division by zero")),
    ("unknown_exception", alone("ZeroDivisionError: division by zero")),
]  # fmt: skip


@pytest.mark.parametrize(("category", "log"), KINDS, ids=[f"{i}-{kind}" for i, (kind, _) in enumerate(KINDS)])
def test_kind_of_end(category: str, log: str) -> None:
    cause = why(log, exit_code=None if "Scheduler" in log else 1)
    assert cause.category == category
    assert (cause.severity == "fatal" and cause.sentence.endswith(".")) or category.endswith("_exception")
    assert cause.evidence, "a cause shows what it is from"
    assert "{" not in cause.sentence and "None" not in cause.sentence


def test_first_cause_is_not_the_last_line() -> None:
    log = sched(OOM, rank="TP5", before=CAPTURE.format("TP5")) + sched(PEER, rank="TP0")
    cause = why(log)
    assert (cause.category, cause.rank) == ("oom_graph_capture", "TP5")


def test_what_follows_from_another_end_is_not_first_although_it_is_earlier() -> None:
    log = sched(PEER, rank="TP0", before=CAPTURE.format("TP0")) + sched(OOM, rank="TP5")
    cause = why(log, exit_code=-9)
    assert (cause.category, cause.rank) == ("oom_graph_capture", "TP5")


def test_a_failure_that_was_survived_is_no_cause() -> None:
    log = (
        "[2026-05-04 09:14:10] The server is fired up and ready to roll!\n"
        "[2026-05-04 09:14:11] ERROR:    Exception in ASGI application\n"
        + alone("AttributeError: '_IncludedRouter' object has no attribute 'path'")
        + "[2026-05-04 09:15:10 TP0] Decode batch, #running-req: 1, token usage: 0.10, gen throughput (token/s): 9.0, #queue-req: 0\n"
    )
    assert first_cause(finish(feed(Story(), log.encode()))) is None
    cause = why(log, exit_code=1)
    assert cause.category == "died_silently" and cause.was_serving
    assert why(log, gone=True).category == "died_silently"


def test_chatter_of_the_engine_is_no_evidence() -> None:
    log = LOADING + "".join(
        f"[2026-05-04 09:14:10 TP0] {text}\n"
        for text in (
            "Import deep_ep failed: No module named 'deep_ep'",
            "Please set --enable-metrics to see more.",
            "Custom allreduce is disabled: not supported with this GPU.",
            "Some weights are not initialized from checkpoint: {'lm_head.weight'}",
            "max_total_tokens=2000 is larger than the profiled value 82724083. Use the profiled value instead.",
        )
    )
    story = finish(feed(Story(), log.encode()))
    assert first_cause(story) is None and not story.all_evidence


@pytest.mark.parametrize(
    ("code", "signal", "category", "number"),
    [
        (-9, None, "killed_by_signal", 9),
        (137, None, "killed_by_signal", 9),
        (None, 11, "killed_by_signal", 11),
        (1, None, "died_silently", None),
        (0, None, "ended", None),
    ],
)
def test_the_end_by_its_code_where_the_log_is_silent(
    code: int | None, signal: int | None, category: str, number: int | None
) -> None:
    cause = why(LOADING, exit_code=code, signal=signal)
    assert (cause.category, cause.signal) == (category, number)
    assert category == "ended" or cause.phase == "loading_weights"


def test_a_living_server_without_trouble_has_no_cause() -> None:
    assert first_cause(finish(feed(Story(), LOADING.encode()))) is None
    assert first_cause(Story()) is None


def test_kv_pressure_passes() -> None:
    full = "[2026-05-04 15:02:12 TP0] KV cache pool is full. Retract requests. #retracted_reqs: 3, #new_token_ratio: 0.59 -> 0.70\n"
    line = "[2026-05-04 15:02:14 TP0] Decode batch, #running-req: 45, token usage: {}, gen throughput (token/s): 1466.40, #queue-req: 4\n"
    now = finish(feed(Story(), (line.format("1.00") + full + line.format("0.97")).encode()))
    assert [c.category for c in all_conditions(now)] == ["kv_pressure"]
    later = feed(now, (line.format("0.50") * 4).encode())
    assert all_conditions(later) == ()


@pytest.mark.parametrize("version", sorted(path.stem for path in ORACLES.glob("0.*.json")))
def test_advice_names_only_flags_that_the_version_has(version: str) -> None:
    from specdash.sglang import advice

    options = set(json.loads((ORACLES / f"{version}.json").read_bytes())["option_strings"])
    for category, log in KINDS:
        if category in (
            "unknown_flag",
            "flag_abbreviation",
            "missing_flag",
            "flag_conflict",
            "bad_flag_value",
        ):
            continue
        story = finish(feed(Story(), log.encode()))
        known = advice.Known(version, None, story)
        said = advice.advise(category, {}, known, "")
        named = {flag for flag in all_flags(said) if flag not in ("--shm-size", "--ipc")}
        if version == "0.4.1":
            named -= {"--kv-cache-dtype", "--dist-timeout"}
        assert named <= options, (category, named - options)


def test_advice_prefers_what_the_engine_printed() -> None:
    text = (
        "Exception: Capture cuda graph failed: CUDA out of memory.",
        "Possible solutions:",
        "2. set --cuda-graph-max-bs to a smaller value (e.g., 16)",
    )
    cause = why(sched(*text, before=CAPTURE.format("TP0")))
    assert "--cuda-graph-max-bs" in cause.flags
    newer = why(sched(text[0], before=CAPTURE.format("TP0")), version="0.5.23")
    assert "--cuda-graph-max-bs-decode" in newer.flags and "--cuda-graph-max-bs" not in newer.flags
    unknown = why(sched(text[0], before=CAPTURE.format("TP0")))
    assert not any("max-bs" in flag for flag in unknown.flags), "no version told: no flag that may not exist"
    asked = why(sched(text[0], before=CAPTURE.format("TP0")), flags=frozenset({"--cuda-graph-max-bs"}))
    assert "--cuda-graph-max-bs" in asked.flags


def attempt(fraction: float, *rows: str, before: str = "") -> Cause:
    args = f"[2026-05-04 09:13:00] server_args=ServerArgs(model_path='/m', port=30000, mem_fraction_static={fraction})\n"
    return why(sched(*rows, before=args + before))


def test_two_attempts_tell_that_no_fraction_fits() -> None:
    low = attempt(0.86, "RuntimeError: Not enough memory. Please try to increase --mem-fraction-static.")
    high = attempt(0.87, OOM, before=CAPTURE.format("TP0"))
    both = across((low, high))
    assert both is not None and both.category == "oom_no_feasible_fraction"
    assert both.numbers == {"too_low": 0.86, "too_high": 0.87} and len(both.evidence) == 2
    assert across((low,)) is None
    assert across((low, attempt(0.95, OOM, before=CAPTURE.format("TP0")))) is None, "there is room between"
