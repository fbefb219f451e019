"""Results as Prometheus text, for node_exporter's textfile collector: gauges in base units, nothing for a dash.

A value that is not available has no line: Prometheus then shows a gap, which is what it is.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from specdash import __version__
from specdash.check.run import Result
from specdash.check.states import State, worst
from specdash.monitor.untrusted import number

LONGEST_LABEL = 200
STATES = ("check_state", "check_finding_state")
HOST: Mapping[str, tuple[str, float, str]] = {
    "rtt_ms": ("link_rtt_seconds", 1e-3, "Round trip to the agent on the host."),
    "gpus": ("gpus", 1.0, "GPUs that the host's driver tells of."),
    "gpu_memory_used_mib": ("gpu_memory_used_bytes", 1048576.0, "GPU memory in use, all GPUs of the host."),
    "gpu_memory_total_mib": ("gpu_memory_total_bytes", 1048576.0, "GPU memory, all GPUs of the host."),
    "mem_available_kb": ("memory_available_bytes", 1024.0, "MemAvailable of the host."),
    "disk_free_bytes": ("disk_free_bytes", 1.0, "Free where runs are kept."),
}
"""Key of `Result.host` → (metric, factor to its unit, help)."""
SERVER: Mapping[str, tuple[str, str]] = {
    "accept": ("accept_length", "Tokens per target verify step, bonus token included."),
    "accept_start": ("accept_length_since_start", "The same since the server started."),
    "accept_rate": ("accept_rate", "Share of draft tokens that were accepted, 0 to 1."),
    "tok/s": ("decode_tokens_per_second", "Generated tokens per second, all requests."),
    "running": ("running_requests", "Requests that run."),
    "queue": ("queued_requests", "Requests that wait."),
    "cap": ("running_requests_cap", "Most requests that may run at once."),
    "kv": ("kv_used_ratio", "Share of the KV cache in use, 0 to 1."),
    "log_errors": ("log_errors_since_last_check", "Errors in the log since the last check."),
    "cache_hit": ("cache_hit_ratio", "Share of prompt tokens found in the prefix cache, 0 to 1."),
}
"""Name of a threshold → (metric, help)."""


def text(results: list[Result], now_unix: float) -> str:
    """The whole exposition; every family with HELP and TYPE once, its samples together."""
    families: dict[str, tuple[str, dict[str, str]]] = {}

    def add(name: str, help_text: str, value: float, **labels: str) -> None:
        inner = ",".join(f'{key}="{_label(text)}"' for key, text in labels.items())
        series = f"specdash_{name}{'{' + inner + '}' if inner else ''}"
        # Targets that are called the same are one series: twice the same labels would void the whole file.
        known = families.setdefault(name, (help_text, {}))[1]
        if series not in known or (name in STATES and _graver(value, float(known[series]))):
            known[series] = repr(float(value))

    add("build_info", "The specdash that checked.", 1.0, version=__version__)
    add("check_time_seconds", "When the check ended, Unix time.", now_unix)
    for result in results:
        add(
            "check_state",
            "0 OK, 1 WARNING, 2 CRITICAL, 3 UNKNOWN.",
            float(result.state),
            target=result.target,
            kind=result.kind,
        )
        add("check_duration_seconds", "How long the target took.", result.took_s, target=result.target)
        for name, state in _problems(result):
            add(
                "check_finding_state",
                "The worst of what is not OK, by its name.",
                float(state),
                target=result.target,
                finding=name,
            )
        for key, (name, factor, help_text) in HOST.items():
            value = number(result.host.get(key))
            if value is not None:
                add(name, help_text, value * factor, target=result.target)
        for server, readings in result.values.items():
            for key, (name, help_text) in SERVER.items():
                reading = readings.get(key)
                if reading is not None and reading.value is not None:
                    add(f"server_{name}", help_text, reading.value, target=result.target, server=server)
    lines = []
    for name, (help_text, samples) in families.items():
        lines += [f"# HELP specdash_{name} {help_text}", f"# TYPE specdash_{name} gauge"]
        lines += [f"{series} {value}" for series, value in samples.items()]
    return "\n".join(lines) + "\n"


def _graver(value: float, than: float) -> bool:
    return value != than and worst((State(int(value)), State(int(than)))) == value


def _problems(result: Result) -> Iterator[tuple[str, State]]:
    order = (State.WARNING, State.UNKNOWN, State.CRITICAL)
    found: dict[str, State] = {}
    for finding in result.findings:
        if finding.state is State.OK:
            continue
        known = found.get(finding.name)
        if known is None or order.index(finding.state) > order.index(known):
            found[finding.name] = finding.state
    yield from found.items()


def _label(text: str) -> str:
    clean = "".join(char if char.isprintable() else " " for char in text)[:LONGEST_LABEL]
    return clean.replace("\\", "\\\\").replace('"', '\\"')
