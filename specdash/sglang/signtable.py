"""The table of lines that speak of failure: pattern → category. Order is from the special to the general.

One table serves single lines of the log and the exception lines of tracebacks. `kind` says how far it explains: "root"
a cause by itself, "symptom" what follows from another one's end, "state" a condition of a living server, "plain" an
exception of no known kind. Wording: surface notes sections 5 and 7, and the captures; torch, NCCL and CUDA by their own
messages.
"""

from __future__ import annotations

import re
from typing import NamedTuple, Pattern, Tuple


class Sign(NamedTuple):
    category: str
    kind: str
    pattern: Pattern[str]


def _sign(category: str, kind: str, pattern: str) -> Sign:
    return Sign(category, kind, re.compile(pattern, re.DOTALL))


_OOM = (
    r"out of memory|OutOfMemoryError|cudaErrorMemoryAllocation|CUDA_ERROR_OUT_OF_MEMORY|can't allocate memory"
)
_ALLOC = (
    r"(?=.*?(?:Tried to allocate (?P<need>[\d.]+) (?P<need_unit>[KMGT]i?B)"
    r"|tried to allocate (?P<need_bytes>\d+) bytes))?"
    r"(?=.*?GPU (?P<gpu>\d+) has a total capacity of (?P<total>[\d.]+) (?P<total_unit>[KMGT]i?B)"
    r" of which (?P<free>[\d.]+) (?P<free_unit>[KMGT]i?B) is free)?"
)

SIGNS: Tuple[Sign, ...] = (
    # The command line (argparse; exits 2 before anything is loaded).
    _sign(
        "flag_abbreviation",
        "root",
        r"error: ambiguous option: (?P<flag>--[\w-]+)(?:=\S*)? could match (?P<choices>.+)",
    ),
    _sign("unknown_flag", "root", r"error: unrecognized arguments: (?P<rest>.+)"),
    _sign("missing_flag", "root", r"error: the following arguments are required: (?P<rest>.+)"),
    _sign(
        "unknown_algorithm",
        "root",
        r"error: argument (?P<flag>--speculative-algo\w*)\S*: invalid choice: '?(?P<value>[^'\s]+)'?(?: \(choose from (?P<choices>.+?)\))?",
    ),
    _sign(
        "bad_flag_value",
        "root",
        r"error: argument (?P<flag>--?[\w-]+)\S*: (?:invalid choice: '?(?P<value>[^'\n]*?)'?(?: \(choose from (?P<choices>.+?)\))?$|invalid \S+ value: '?(?P<value2>[^'\n]*)'?|expected .*|(?!not allowed|ignored).+)",
    ),
    _sign(
        "bad_flag_value",
        "root",
        r"^[\w ./-]*(?:launch_server|sglang|__main__|router)[\w .-]*: error: (?P<rest>.+)",
    ),
    _sign("unknown_algorithm", "root", r"Unknown speculative algorithm(?: name)?:? '?(?P<value>[\w.-]+)"),
    # Memory.
    _sign(
        "oom_kv_pool",
        "root",
        r"Not enough memory\b.*?increase --mem-fraction-static(?:.*?mem_fraction_static=(?P<fraction>[\d.e-]+))?",
    ),
    _sign(
        "oom_kv_pool",
        "root",
        r"leave no (?:GPU )?memory for the KV cache(?:.*?--mem-fraction-static=(?P<fraction>[\d.e-]+))?(?:.*?above (?P<fraction_min>[\d.]*\d))?",
    ),
    _sign("oom_kv_pool", "root", r"larger than the profiled value (?P<profiled_tokens>-\d+|0\b)"),
    _sign("gpu_in_use_by_others", "root", r"memory capacity is unbalanced|Some GPUs may be occupied"),
    _sign(
        "killed_by_signal",
        "root",
        r"(?:[Oo]ut of memory|oom|cgroup).{0,80}?(?P<word>Killed) process (?P<pid>\d+)|(?P<word2>Killed) process (?P<pid2>\d+)|\d+ (?P<word3>Killed)\s{2,}",
    ),
    _sign("oom", "root", r"(?s)(?:" + _OOM + r")" + _ALLOC),
    _sign(
        "hidden_failure_in_capture",
        "root",
        r"previous error during capture|cudaErrorStreamCapture\w*|not permitted when stream is capturing|capture (?:was|has been) invalidated",
    ),
    # The drafter and the algorithm.
    _sign(
        "drafter_mismatch_vocab",
        "root",
        r"share the same vocabulary|vocab(?:ulary)?(?:[ _]size)?\b.{0,60}(?:mismatch|differ|does not match|must (?:match|be equal|be the same))",
    ),
    _sign(
        "aux_layer_ids_out_of_range",
        "root",
        r"layer_ids? contains? an out-of-range|layer id.{0,40}out of range",
    ),
    _sign(
        "drafter_context_too_short",
        "root",
        r"(?P<who>Target model's|User-specified) context_length \((?P<target_context>\d+)\) is greater than the derived context_length \((?P<draft_context>\d+)\)",
    ),
    _sign(
        "algorithm_does_not_fit_drafter",
        "root",
        r"'(?P<model>\w+)' object has no attribute '(?P<attribute>hot_token_id|\w*(?:draft|d2t|fc)\w*)'",
    ),
    _sign(
        "algorithm_does_not_fit_target",
        "root",
        r"'(?P<model>\w+)' object has no attribute '(?P<attribute>set_(?:eagle3?|dflash|dspark)\w*|get_embed_and_head|set_embed\w*)'|does not implement set_(?:dflash|dspark|eagle3)\w*",
    ),
    _sign("drafter_too_deep", "root", r"EAGLE3 currently only supports 1 layer"),
    _sign(
        "shape_mismatch",
        "root",
        r"Sizes of tensors must match except in dimension \d+\. Expected size (?P<first>\d+) but got size (?P<second>\d+)",
    ),
    _sign(
        "shape_mismatch",
        "root",
        r"mat1 and mat2 shapes cannot be multiplied \((?P<m>\d+)x(?P<first>\d+) and (?P<second>\d+)x(?P<n>\d+)\)",
    ),
    _sign(
        "shape_mismatch",
        "root",
        r"input\.size\(\S+\) == weight\.size\(\S+\) \((?P<first>\d+) vs\. (?P<second>\d+)\)",
    ),
    _sign(
        "shape_mismatch",
        "root",
        r"The size of tensor a \((?P<first>\d+)\) must match the size of tensor b \((?P<second>\d+)\)",
    ),
    _sign(
        "shape_mismatch",
        "root",
        r"(?:expanded size|shape mismatch|Shape mismatch|shapes? .{0,40}(?:not|cannot) be (?:broadcast|multiplied))",
    ),
    _sign(
        "architecture_unknown_on_host",
        "root",
        r"Model architectures \[?(?P<architectures>[^\]]*)\]? are not supported",
    ),
    _sign(
        "architecture_unknown_on_host",
        "root",
        r"model type `(?P<architectures>[^`]+)` but Transformers does not recognize|does not recognize this architecture|Unsupported model architecture:? (?P<architectures2>\S+)",
    ),
    # Flags that do not go together.
    _sign(
        "flag_conflict",
        "root",
        r"(?:\b(?P<algorithm>[A-Z][A-Z0-9_]{2,})\b[^\n]*?)?does not accept (?P<flag>--[\w-]+)",
    ),
    _sign(
        "missing_flag",
        "root",
        r"(?:requires? (?:setting |specifying |explicit(?:ly)? )*|[Pp]lease (?:set|specify|provide) |must (?:set|specify|provide) )(?P<flag>--[\w-]+)",
    ),
    _sign(
        "missing_flag", "root", r"(?P<flag>--[\w-]+) (?:is required|must be (?:set|specified|given|provided))"
    ),
    _sign(
        "flag_conflict",
        "root",
        r"(?P<algorithm>\b[A-Z][A-Z0-9]+\b) is not supported in (?P<what>[\w ]*attention backend \w+)",
    ),
    _sign(
        "flag_conflict",
        "root",
        r"(?:cannot be (?:used|set|enabled|combined)|(?:is|are) (?:not compatible|incompatible|mutually exclusive)|not supported (?:with|when|together)|only supports? CUDA|only supported|conflicts? with|does not support)",
    ),
    _sign(
        "tp_does_not_divide", "root", r"(?:must be|not|isn't) (?:evenly )?divisible by|is not a multiple of"
    ),
    # Files and packages.
    _sign("disk_full", "root", r"No space left on device|Disk quota exceeded|\[Errno 28\]|\[Errno 122\]"),
    _sign("open_files_limit", "root", r"Too many open files|\[Errno 24\]"),
    _sign(
        "model_access_denied",
        "root",
        r"GatedRepoError|gated repo|401 Client Error|403 Client Error|Access to model .{0,80} is restricted",
    ),
    _sign(
        "model_path",
        "root",
        r"couldn't connect to 'https?://|LocalEntryNotFoundError|is not a local folder and is not a valid model identifier|RepositoryNotFoundError|Repository Not Found"
        r"|Repo id must|HFValidationError|does not appear to have a file named|Cannot find any model weights|OfflineModeIsEnabled|[Uu]nrecognized model in"
        r"|(?:No such file or directory|does not exist|not found)\W{0,4}.{0,120}(?:config\.json|safetensors|tokenizer)|[Mm]odel path .{0,160}(?:not exist|not found)",
    ),
    _sign(
        "checkpoint_corrupt",
        "root",
        r"Error while deserializing header|HeaderTooLarge|InvalidHeader|MetadataIncompleteBuffer|SafetensorError|PytorchStreamReader failed|invalid load key",
    ),
    _sign(
        "checkpoint_mismatch",
        "root",
        r"size mismatch for|Missing key\(s\)|Unexpected key\(s\)|param(?:\.data|eter)?\.(?:size\(\)|shape) == loaded_weight|Attempted to load weight|loaded_weight\.shape"
        r"|KeyError: '(?P<weight>[\w.]*(?:layers?|embed|lm_head|weight|mlp|attn|norm|proj|experts?)[\w.]*)'|not initialized from checkpoint",
    ),
    _sign(
        "quantization_mismatch",
        "root",
        r"[Qq]uantization method .{0,80}(?:not (?:supported|match)|does not match)|Cannot find the config file for|[Uu]nknown quantization method",
    ),
    _sign(
        "import_error",
        "root",
        r"No module named '?(?P<module>[\w.]+)'?|ImportError: (?P<rest>[^\n]+)|undefined symbol: (?P<symbol>\S+)|cannot open shared object file",
    ),
    _sign(
        "launcher_missing",
        "root",
        r"(?:: command not found|[Cc]an't open file|cannot execute|not found)\s*$(?<!model not found)",
    ),
    _sign("permission_denied", "root", r"PermissionError|Permission denied"),
    # Ports.
    _sign(
        "http_port_in_use",
        "root",
        r"error while attempting to bind on address \('?(?P<address>[^',]*)'?, (?P<port>\d+).*?\):? (?:\[errno \d+\] )?address already in use",
    ),
    _sign(
        "bind_failed",
        "root",
        r"error while attempting to bind on address \('?(?P<address>[^',]*)'?, (?P<port>\d+).*?\):? (?P<rest>[^\n]*)",
    ),
    _sign(
        "internal_port_in_use",
        "root",
        r"failed to listen on any local network address.*?port: (?P<port>\d+)|EADDRINUSE(?:.*?port: (?P<port2>\d+))?",
    ),
    _sign(
        "port_in_use",
        "root",
        r"Port (?P<port>\d+)? ?is (?:already|not available).{0,40}(?:dist_init_port=(?P<port2>\d+))?|port at (?P<port3>\d+) is not available in \d+ seconds|is not available in \d+ seconds",
    ),
    _sign(
        "port_in_use",
        "root",
        r"[Aa]ddress already in use(?: \(addr='tcp://[^:']*:(?P<port>\d+)'\))?|\[Errno (?:98|48)\]",
    ),
    # GPUs, drivers.
    _sign(
        "driver_mismatch",
        "root",
        r"Driver/library version mismatch|driver version is insufficient|driver (?:on your system )?is too old|Found no NVIDIA driver|Failed to initialize NVML|NVML_ERROR_LIB_RM_VERSION_MISMATCH|forward compatibility was attempted",
    ),
    _sign(
        "gpu_lost",
        "root",
        r"fell? off the bus|GPU is lost|GPU_IS_LOST|uncorrectable (?:NVLink|ECC)|NVRM: Xid|\bXid\b.{0,40}\d+|cudaErrorECCUncorrectable",
    ),
    _sign(
        "gpu_missing",
        "root",
        r"invalid device ordinal|no CUDA-capable device|No CUDA GPUs are available|No accelerator|device >= 0 && device < num_gpus|CUDA unknown error",
    ),
    _sign(
        "gpu_too_old",
        "root",
        r"no kernel image is available|requires? (?:device|GPU)s? with (?:compute )?capability|[Cc]ompute capability .{0,40}not supported|sm_\d+ is not",
    ),
    _sign(
        "cuda_error",
        "root",
        r"illegal memory access|device-side assert|misaligned address|unspecified launch failure|CUDA error: (?P<rest>[^\n]+)|CUBLAS_STATUS_(?!ALLOC)\w+|Triton Error \[CUDA\]",
    ),
    # Ranks that wait for each other.
    _sign(
        "nccl_timeout",
        "root",
        r"Watchdog caught collective operation timeout|collective operation timed? ?out|Some NCCL operations have failed or timed out",
    ),
    _sign(
        "nccl_connect_failed",
        "root",
        r"client socket has failed to connect|client socket has timed out|ncclRemoteError|socketStartConnect|socketPollConnect|Connect to .{0,80} failed|[Nn]o route to host|failed to connect to any network|Network is unreachable|ncclSystemError|ncclInvalidUsage|Bootstrap : no socket interface",
    ),
    _sign(
        "dist_timeout",
        "root",
        r"[Tt]imed out after \d+ ?(?:seconds|ms|milliseconds).{0,60}(?:client|peer|rank|store)|DistStoreError|wait timeout after \d+ms|Timed out waiting|barrier.{0,30}timed? ?out|timed out.{0,40}(?:rendezvous|store|connect)",
    ),
    _sign(
        "nccl_error", "root", r"NCCL (?:error|failure|WARN .*error)|ncclUnhandledCudaError|ncclInternalError"
    ),
    _sign(
        "peer_rank_gone",
        "symptom",
        r"Connection closed by peer|Connection reset by peer|recvValue failed|sendBytes failed|gloo.{0,80}(?:closed|reset)|Broken pipe|BrokenPipeError|EOFError",
    ),
    # Watchdog, children, signals.
    _sign("watchdog_timeout", "root", r"[Ww]atchdog timeout(?: \((?P<rest>[^)]*)\))?"),
    _sign(
        "killed_by_signal",
        "root",
        r"Subprocess (?P<process>\S+) \(pid=(?P<pid>\d+)\) crashed with exit code (?P<code>-\d+)",
    ),
    _sign(
        "child_exited",
        "symptom",
        r"Subprocess (?P<process>\S+) \(pid=(?P<pid>\d+)\) crashed with exit code (?P<code>\d+)",
    ),
    _sign(
        "killed_by_signal",
        "root",
        r"(?:Rank (?P<rank_number>\d+) )?scheduler died during initialization \(exit code: (?P<code>-\d+)\)",
    ),
    _sign("killed_by_signal", "root", r"terminated with (?P<code>-\d+)|^Exit code: (?P<code2>-\d+)"),
    _sign(
        "child_exited",
        "symptom",
        r"scheduler died during initialization|(?P<process>Scheduler or DataParallelController) \d+ terminated with (?P<code>\d+)|Rank \d+ scheduler is dead|^Exit code: \d+",
    ),
    _sign(
        "killed_by_signal",
        "root",
        r"^(?:.{0,160}\s)?(?P<word>Killed|Segmentation fault|Bus error|Aborted)(?:\s+\(core dumped\))?\s*$|Fatal Python error: (?P<word2>Segmentation fault|Bus error|Aborted)|Unexpected bus error",
    ),
    _sign("child_died", "symptom", r"[Rr]eceived sigquit from a child|SIGQUIT received"),
    _sign("init_failed", "symptom", r"Initialization failed\. Please see the error messages above"),
    _sign("hidden_failure_in_capture", "plain", r"Capture .{0,40}[Gg]raph failed:|Fail when using backend: "),
    _sign("warmup_failed", "plain", r"Initialization failed\. warmup error"),
)
