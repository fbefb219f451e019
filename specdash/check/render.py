"""Results as a monitoring system reads them: one line with perfdata, or JSON of a versioned schema."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from specdash import __version__
from specdash.check.findings import limit_of, plain
from specdash.check.run import Result
from specdash.check.states import Finding, State, worst

SCHEMA = "specdash.check/1"
LONGEST = 400
UNITS = {"accept_rate": "", "kv": "", "cache_hit": ""}
_ORDER = (State.CRITICAL, State.UNKNOWN, State.WARNING, State.OK)
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\u200b-\u200f\u202a-\u202e\u2066-\u2069\ufeff|]+")


def clean(text: str, longest: int = LONGEST) -> str:
    """One line, without `|` (it begins perfdata), control characters, and what turns or hides text."""
    return _CONTROL.sub(" ", text)[:longest].strip()


def sorted_findings(findings: Iterable[Finding]) -> list[Finding]:
    """The worst first, otherwise in their order."""
    return sorted(findings, key=lambda finding: _ORDER.index(finding.state))


def summary(result: Result) -> str:
    """One target in words: its worst findings, or what is well."""
    ordered = sorted_findings(result.findings)
    bad = [f for f in ordered if f.state is not State.OK]
    shown = bad[:3] or ordered
    said = "; ".join(clean(f.sentence.removeprefix(f"{result.target}: ").rstrip("."), 200) for f in shown)
    if len(bad) > 3:
        said += f"; and {len(bad) - 3} more"
    if not bad:
        said += _numbers(result)
    return f"{clean(result.target, 80)}: {said or 'nothing was seen'}"


def _numbers(result: Result) -> str:
    out = []
    for readings in result.values.values():
        for name, label in (("tok/s", "tok/s"), ("accept", "accept length")):
            reading = readings.get(name)
            if reading is not None and reading.value is not None and reading.note != "idle":
                out.append(f"{label} {reading.value:.4g}")
    return f"; {', '.join(out)}" if out else ""


def line(results: list[Result]) -> str:
    """`SPECDASH STATE: the worst first | perfdata`."""
    state = worst(result.state for result in results)
    ordered = sorted(results, key=lambda result: _ORDER.index(result.state))
    bad = [result for result in ordered if result.state is not State.OK]
    if len(results) == 1 or not bad:
        said = " / ".join(summary(result) for result in ordered[:8])
        if len(ordered) > 8:
            said += f" / and {len(ordered) - 8} more"
    else:
        said = " / ".join(summary(result) for result in bad[:8])
        said += f" ({len(results) - len(bad)} of {len(results)} OK)"
    perf = " ".join(perfdata(results))
    return f"SPECDASH {state.name}: {said}" + (f" | {perf}" if perf else "")


def perfdata(results: list[Result]) -> list[str]:
    """`'label'=value[unit];warn;crit;min;max`. A missing value is left out, never 0."""
    out: list[str] = []
    many = len(results) > 1
    for result in results:
        prefix = f"{result.target} " if many else ""
        out += _perf(prefix + "time", result.took_s, "s")
        host = result.host
        out += _perf(prefix + "rtt", host.get("rtt_ms"), "ms")
        used, total = host.get("gpu_memory_used_mib"), host.get("gpu_memory_total_mib")
        out += _perf(prefix + "gpu_mem", used, "MB", most=total)
        out += _perf(prefix + "mem_available", host.get("mem_available_kb"), "KB")
        out += _perf(prefix + "disk_free", host.get("disk_free_bytes"), "B")
        for name, readings in result.values.items():
            inner = f"{name} " if len(result.values) > 1 else ""
            for key, reading in readings.items():
                warn, crit = limit_of(result.rules.warn, key), limit_of(result.rules.crit, key)
                out += _perf(prefix + inner + key, reading.value, UNITS.get(key, ""), warn, crit)
    # Targets that are called the same: a label comes once, or whoever stores it mixes two curves in one.
    once: dict[str, str] = {}
    for item in out:
        once.setdefault(item.partition("'=")[0], item)
    return list(once.values())


def _perf(label: str, value: Any, unit: str, warn: str = "", crit: str = "", most: Any = None) -> list[str]:
    if not isinstance(value, (int, float)) or isinstance(value, bool):
        return []
    name = clean(label, 120).replace("'", "").replace("=", "_")
    limit = plain(most) if isinstance(most, (int, float)) else ""
    number = plain(value)
    return [f"'{name}'={number}{unit};{warn};{crit};0;{limit}".rstrip(";")] if number else []


def verbose(results: list[Result]) -> list[str]:
    """Every finding with its evidence and next step, for a person."""
    out = []
    for result in results:
        out.append(f"{result.state.name:<8} {clean(result.target)} ({result.kind}, {result.took_s:.2f} s)")
        for finding in sorted_findings(result.findings):
            out.append(f"  {finding.state.name:<8} {clean(finding.sentence)}")
            out += [f"           {clean(text)}" for text in finding.evidence]
            if finding.step:
                out.append(f"           → {clean(finding.step)}")
        for name, readings in result.values.items():
            told = [
                f"{key} {r.value:.4g}{' ' + r.unit if r.unit else ''} ({r.source}{_window(r.window_s)})"
                for key, r in readings.items()
                if r.value is not None
            ]
            if told:
                out.append(f"  {clean(name)}: " + ", ".join(told))
    return out


def _window(window_s: float | None) -> str:
    return f", last {window_s:.0f} s" if window_s is not None else ""


def as_json(results: list[Result]) -> dict[str, Any]:
    """The document of `--json`. `schema` changes with every incompatible change."""
    state = worst(result.state for result in results)
    return {
        "schema": SCHEMA,
        "specdash": __version__,
        "state": state.name,
        "code": int(state),
        "line": line(results),
        "targets": [_target(result) for result in results],
    }


def _target(result: Result) -> dict[str, Any]:
    return {
        "target": result.target,
        "kind": result.kind,
        "state": result.state.name,
        "code": int(result.state),
        "sentence": summary(result),
        "took_s": round(result.took_s, 3),
        "findings": [
            {
                "state": f.state.name,
                "name": f.name,
                "sentence": clean(f.sentence),
                "evidence": [clean(text) for text in f.evidence],
                "step": clean(f.step),
            }
            for f in sorted_findings(result.findings)
        ],
        "host": dict(result.host),
        "servers": {
            name: {key: _reading(r, result.now) for key, r in told.items()}
            for name, told in result.values.items()
        },
    }


def _reading(reading: Any, now: float) -> Mapping[str, Any]:
    age = reading.age(now)
    return {
        "value": reading.value,
        "unit": reading.unit,
        "source": reading.source,
        "window_s": reading.window_s,
        "age_s": None if age is None or reading.value is None else round(age, 3),
        "load": reading.load,
        "includes_bonus": reading.includes_bonus,
        "note": reading.note,
    }
