"""The lines that SGLang 0.5.15 on GPUs writes, as `str.format` templates.

Written from captures of a real server (`tests/data/demo/` has extracts); a test matches each template against
those captures, so that the demo cannot drift into what our own parser happens to like.
"""

from __future__ import annotations

SPEC_CAP = (
    "Max running requests is reset to 48 for speculative decoding. You can override this by explicitly "
    "setting --max-running-requests."
)
SERVER_ARGS = "server_args=ServerArgs({args})"
CHAT_TEMPLATE = "Using default HuggingFace chat template with detected content format: string"
DIST_BEGIN = "Init torch distributed begin."
DIST_END = "Init torch distributed ends. elapsed={s:.2f} s, mem usage={gb:.2f} GB"
WEIGHT_BEGIN = "Load weight begin. avail mem={avail:.2f} GB"
WEIGHT_END = (
    "Load weight end. elapsed={s:.2f} s, type={cls}, avail mem={avail:.2f} GB, mem usage={gb:.2f} GB."
)
SHARDS = "Multi-thread loading shards: {pct:3d}% Completed | {done}/{total} [{spent}<{left}, {rate}it/s]"
KV = "KV Cache is allocated. dtype: torch.bfloat16, #tokens: {tokens}, K size: {gb:.2f} GB, V size: {gb:.2f} GB"
POOL_END = "Memory pool end. avail mem={avail:.2f} GB"
GRAPH_BEGIN = (
    "Capture {what} CUDA graph begin. backend={backend}, num_tokens_per_bs={per_bs}, bs={bs}, "
    "avail mem={avail:.2f} GB"
)
GRAPH_STEP = "Capturing batches (bs={bs} avail_mem={avail:.2f} GB): {pct:3d}%|{bar}| {done}/{total} [{spent}<{left}, {per}s/it]"
GRAPH_END = (
    "Capture {what} CUDA graph end. elapsed={s:.2f} s, mem usage={gb:.2f} GB, avail mem={avail:.2f} GB."
)
LIMITS = (
    "max_total_num_tokens={tokens}, chunked_prefill_size={chunk}, max_prefill_tokens=16384, "
    "max_running_requests={running}, context_len={context}, available_gpu_mem={avail:.2f} GB"
)
TREE_CACHE = (
    "Tree cache initialized: source=default impl=RadixCache hybrid_swa=False hybrid_ssm=False "
    "hierarchical=False streaming_wrapped=False"
)
UVICORN = (
    "INFO:     Started server process [{pid}]",
    "INFO:     Waiting for application startup.",
    "INFO:     Application startup complete.",
    "INFO:     Uvicorn running on http://{host}:{port} (Press CTRL+C to quit)",
)
BIND_FAILED = "ERROR:    [Errno 98] error while attempting to bind on address ('{host}', {port}): address already in use"
ACCESS = 'INFO:     {host}:{port} - "{method} {path} HTTP/1.1" {status} {reason}'
FIRED_UP = "The server is fired up and ready to roll!"
PREFILL = (
    "Prefill batch, #new-seq: {seqs}, #new-token: {new}, #cached-token: {cached}, token usage: {usage:.2f}, "
    "#running-req: {running}, #queue-req: {queued}, #pending-token: 0, cuda graph: True, "
    "input throughput (token/s): {rate:.2f}"
)
DECODE = (
    "Decode batch, #running-req: {running}, #token: {tokens}, token usage: {usage:.2f}, {spec}cuda graph: True, "
    "gen throughput (token/s): {rate:.2f}, #queue-req: {queued}"
)
DECODE_SPEC = "accept len: {length:.2f}, accept rate: {share:.2f}, "
SHUTDOWN = (
    "INFO:     Shutting down",
    "INFO:     Waiting for connections to close. (CTRL+C to force quit)",
    "INFO:     Waiting for application shutdown.",
    "INFO:     Application shutdown complete.",
    "INFO:     Finished server process [{pid}]",
)
TERM = "SIGTERM received. signum=None frame=None. Draining requests and shutting down..."
GRACEFUL = "Gracefully exiting... Remaining number of requests {n}. Remaining requests remaining_rids=[]."
KILL_TREE = "kill_process_tree called: parent_pid={pid}, include_parent=True, pid={pid}"
EXCEPTION = "Scheduler hit an exception: {trace}"
CHILD_FAILED = "Received sigquit from a child process. It usually means the child failed."
OOM = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 88.00 MiB. GPU {gpu} has a total capacity of "
    "139.80 GiB of which 52.31 MiB is free. Including non-PyTorch memory, this process has 139.74 GiB memory in "
    "use. Of the allocated memory 138.96 GiB is allocated by PyTorch, and 49.01 MiB is reserved by PyTorch but "
    "unallocated."
)
NO_HOT_TOKENS = "AttributeError: 'LlamaForCausalLM' object has no attribute 'hot_token_id'"
MISFIT = "RuntimeError: Check failed: input.size(1) == weight.size(0) ({target} vs. {draft}) : "
WRONG_SHAPE = (
    "AssertionError: Attempted to load weight (torch.Size([{rows}, {got}])) into parameter "
    "(torch.Size([{rows}, {want}]))"
)
