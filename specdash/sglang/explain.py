"""Explain a file that somebody sent: what a log tells, in one value and in plain text. No host at all.

`kind_of` looks at what the bytes are; `verbs/explain_pages.py` reads the kinds that are no log.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import AbstractSet, Any, Dict, List, NamedTuple, Optional, Tuple

from specdash.sglang import redact
from specdash.sglang.causes import Cause, all_conditions, first_cause, normal_exit
from specdash.sglang.lines import visible
from specdash.sglang.phases import TITLES, Phase
from specdash.sglang.stall import median, span
from specdash.sglang.story import Story, feed, finish

SERIES = 48
"""Points of the series over time."""
BARS = "▁▂▃▄▅▆▇█"


class Spread(NamedTuple):
    """Over decode lines that hold no waiting time. `lines`: how many."""

    low: float
    median: float
    high: float
    lines: int


@dataclass(frozen=True)
class Explanation:
    """The story of a log, concluded. Texts come from the log: no markup."""

    story: Story
    phase: str
    """The phase at the end; "exited" also when the exit code says so."""
    state: str
    """"starting", "warmup", "ready", "serving", "exited" or "unknown"."""
    cause: Optional[Cause]
    conditions: Tuple[Cause, ...] = ()
    version: str = ""
    accept_len: Optional[Spread] = None
    """Tokens per verify step, bonus token included."""
    tok_s: Optional[Spread] = None
    """Tokens a second, per log line (so per data-parallel rank)."""
    accept_series: Tuple[Optional[float], ...] = ()
    tok_series: Tuple[Optional[float], ...] = ()
    seconds: Optional[float] = None
    """From the first to the last record, by the log's clock."""
    exit_code: Optional[int] = None
    signal: Optional[int] = None
    facts: Dict[str, Any] = field(default_factory=dict)


def explain(
    data: bytes,
    exit_code: Optional[int] = None,
    signal: Optional[int] = None,
    version: Optional[str] = None,
    flags: Optional[AbstractSet[str]] = None,
    http_port: Optional[int] = None,
) -> Explanation:
    """Explain a whole log. Exit and version as far as somebody knows them besides the log."""
    return conclude(finish(feed(Story(), data)), exit_code, signal, version, flags, http_port)


def conclude(
    story: Story,
    exit_code: Optional[int] = None,
    signal: Optional[int] = None,
    version: Optional[str] = None,
    flags: Optional[AbstractSet[str]] = None,
    http_port: Optional[int] = None,
) -> Explanation:
    """The same for a story that was fed already."""
    code, number = normal_exit(exit_code, signal)
    ended = code is not None or number is not None
    phase = "exited" if ended else story.phase
    cause = first_cause(story, exit_code, signal, version, flags, http_port)
    span_s = None
    if story.first_time is not None and story.last_time is not None:
        span_s = max(0.0, story.last_time - story.first_time)
    return Explanation(
        story,
        phase,
        _state(story, phase),
        cause,
        all_conditions(story, version),
        version or story.version,
        _spread(story, "accept_len"),
        _spread(story, "tok_s"),
        _series(story, "accept_len"),
        _series(story, "tok_s"),
        span_s,
        code,
        number,
        _facts(story),
    )


def _state(story: Story, phase: str) -> str:
    if phase in ("ready", "serving", "exited", "unknown"):
        return phase
    return "warmup" if phase == "starting_http_or_warmup" else "starting"


def _spread(story: Story, name: str) -> Optional[Spread]:
    """Of the single lines while they are all kept, else of the history's points."""
    if story.decode_count <= len(story.decodes):
        values = [getattr(d, name) for d in story.decodes if name != "tok_s" or not d.first_after_idle]
    else:
        values = [getattr(point, name) for point in story.history]
    known = [v for v in values if v is not None and (v > 0 or name != "accept_len")]
    middle = median(known)
    if middle is None:
        return None
    lows, highs = list(known), list(known)
    if name == "tok_s":
        lows += [p.tok_s_min for p in story.history if p.tok_s_min is not None]
        highs += [p.tok_s_max for p in story.history if p.tok_s_max is not None]
    return Spread(min(lows), middle, max(highs), story.decode_count)


def _series(story: Story, name: str) -> Tuple[Optional[float], ...]:
    points = story.history
    if not points:
        return ()
    per = max(1, -(-len(points) // SERIES))
    series: List[Optional[float]] = []
    for start in range(0, len(points), per):
        known = [v for v in (getattr(p, name) for p in points[start : start + per]) if v is not None]
        series.append(round(sum(known) / len(known), 3) if known else None)
    return tuple(series)


def _facts(story: Story) -> Dict[str, Any]:
    args = story.server_args
    names = (
        "model_path", "speculative_algorithm", "speculative_draft_model_path", "speculative_num_steps",
        "speculative_eagle_topk", "speculative_num_draft_tokens", "tp_size", "dp_size", "port", "mem_fraction_static",
    )  # fmt: skip
    return {name: args[name] for name in names if args.get(name) is not None}


def kind_of(data: bytes) -> str:
    """ "log", "metrics" (a Prometheus page), "server_info" (JSON), or "nvidia_smi" (CSV)."""
    head = data[:4096].lstrip()
    if re.match(rb"(?:# (?:HELP|TYPE) |sglang[:_][a-z_]+[ {])", head):
        return "metrics"
    if re.match(rb"\[?\s*\{", head) and _of_server(data[:200000]):
        return "server_info" if not re.match(rb'\{"(?:message|asctime|level|time|log)"', head) else "log"
    if (
        b"\n" in head
        and re.match(rb"(?:index|name|uuid|pid|gpu_\w+|\d+), ", head)
        and b"[20" not in head[:64]
    ):
        return "nvidia_smi"
    return "log"


def _of_server(text: bytes) -> bool:
    """The JSON of a server: its info in any version (0.4.1 has its arguments alone), `/v1/loads`, `/get_load`."""
    if re.search(rb'"(?:internal_states|max_total_num_tokens|server_args|last_gen_throughput)"\s*:', text):
        return True
    if re.search(rb'"loads"\s*:\s*\[\s*\{[^}]*"num_running_reqs"\s*:', text):
        return True
    if re.match(rb'\s*\[\s*\{[^}]*"num_reqs"\s*:', text):
        return True
    return b'"model_path":' in text and b'"tp_size":' in text


def as_json(found: Explanation) -> Dict[str, Any]:
    """For `--json` and scripts: redacted, every number with its unit in the name."""
    story, cause = found.story, found.cause
    body = {
        "kind": "log",
        "phase": found.phase,
        "sub_phase": story.sub_phase,
        "state": found.state,
        "ready_seen": story.ready_seen,
        "false_ready": story.false_ready,
        "was_serving": story.was_serving,
        "version": found.version or None,
        "attempts": story.attempts,
        "attempt_offset": story.attempt_offset,
        "bytes": story.size,
        "lines": story.lines,
        "records": story.records,
        "errors": story.errors,
        "warnings": story.warnings,
        "ranks": list(story.ranks),
        "seconds": found.seconds,
        "phases": [
            {"phase": p.name, "sub": p.sub, "seconds": p.seconds, "began": p.began, "offset": p.offset}
            for p in story.phases
        ],
        "progress": None if story.progress is None else story.progress._asdict(),
        "numbers": story.numbers,
        "server_args": found.facts,
        "max_running_requests": story.max_running_requests,
        "capped_by_speculation": story.capped_by_speculation,
        "exit_code": found.exit_code,
        "signal": found.signal,
        "cause": None if cause is None else cause_json(cause),
        "conditions": [cause_json(item) for item in found.conditions],
        "accept_length": _spread_json(found.accept_len, found.accept_series),
        "tok_s": _spread_json(found.tok_s, found.tok_series),
        "decode_lines": story.decode_count,
        "notes": [
            {"kind": n.kind, "text": n.text, "count": n.seen, "ranks": list(n.ranks)} for n in story.notes
        ],
    }
    return redact.json_value(body)  # type: ignore[no-any-return]


def cause_json(cause: Cause) -> Dict[str, Any]:
    return {
        "category": cause.category,
        "severity": cause.severity,
        "sentence": cause.sentence,
        "evidence": list(cause.evidence),
        "rank": cause.rank,
        "ranks": list(cause.ranks),
        "numbers": cause.numbers,
        "advice": list(cause.advice),
        "advice_direction": cause.advice_direction or None,
        "about": list(cause.about),
        "flags": list(cause.flags),
        "offset": cause.offset,
        "line": None if cause.line is None else cause.line + 1,
        "phase": cause.phase,
        "was_serving": cause.was_serving,
    }


def _spread_json(spread: Optional[Spread], series: Tuple[Optional[float], ...]) -> Optional[Dict[str, Any]]:
    if spread is None:
        return None
    return {
        "min": spread.low,
        "median": spread.median,
        "max": spread.high,
        "lines": spread.lines,
        "series": list(series),
    }


def as_text(found: Explanation, name: str = "") -> str:
    """Plain text for a terminal or a ticket: redacted, no colours, no controls."""
    story = found.story
    rows: List[str] = []
    title = "SGLang{} log".format(" " + found.version if found.version else "")
    rows.append("{}{}: {} lines, {} records{}".format(
        title, " " + name if name else "", story.lines, story.records,
        ", {}".format(span(found.seconds)) if found.seconds is not None else ""))  # fmt: skip
    if found.facts:
        rows.append("  " + ", ".join("{}={}".format(key, value) for key, value in found.facts.items()))
    if len(story.ranks) > 1:
        rows.append(
            "  {} ranks: {}".format(
                len(story.ranks), ", ".join(story.ranks[:8]) + (" …" if len(story.ranks) > 8 else "")
            )
        )
    if story.attempts > 1:
        rows.append(
            "  launch {} in this log, from byte {} on; earlier ones are not told".format(
                story.attempts, story.attempt_offset
            )
        )
    rows += ["", "State: {}".format(_state_line(found)), ""]
    if story.phases:
        rows.append("Phases")
        rows += [_phase_row(p) for p in story.phases]
        rows.append("")
    if found.cause is not None:
        rows += _cause_rows(found.cause) + [""]
    extra = [c for c in found.conditions if found.cause is None or c.category != found.cause.category]
    for item in extra:
        rows += _cause_rows(item) + [""]
    rows += _numbers_rows(found)
    notes = [n for n in story.notes if n.seen > 1 or n.kind == "error"][:6]
    if notes:
        rows.append("Also said")
        rows += ["  {}× {}".format(n.seen, n.text[:140]) for n in notes]
    text = redact.text("\n".join(rows).rstrip() + "\n")
    return "\n".join(visible(row.encode("utf-8", "replace")) for row in text.split("\n"))


def _state_line(found: Explanation) -> str:
    story = found.story
    words = TITLES.get(found.phase, found.phase)
    if found.phase == "exited":
        last = next((p for p in reversed(story.phases) if p.name != "exited"), None)
        if found.signal is not None:
            words += " by signal {}".format(found.signal)
        elif found.exit_code is not None:
            words += " with code {}".format(found.exit_code)
        if last is not None:
            words += ", from {}".format(_phase_name(last))
    elif story.false_ready:
        words += ' ("fired up" came from another server: its own port was not bound)'
    elif story.progress is not None and found.phase not in ("ready", "serving"):
        words += ", {} of {} {}".format(story.progress.done, story.progress.total, story.progress.unit)
    if story.draining and found.phase != "exited":
        left = story.drain_remaining
        words += ", draining{}".format("" if left is None else " ({} requests left)".format(left))
    return words


def _phase_name(phase: Phase) -> str:
    return TITLES.get(phase.name, phase.name) + (" ({})".format(phase.sub) if phase.sub else "")


def _phase_row(phase: Phase) -> str:
    took = "" if phase.seconds is None else span(phase.seconds)
    return "  {:<34}{:>10}".format(_phase_name(phase), took or "…").rstrip()


def _cause_rows(cause: Cause) -> List[str]:
    titles = {"fatal": "Cause", "fatal_soon": "It cannot start", "warning": "Warning", "info": "Why it ended"}
    where = " [{}]".format(cause.rank) if cause.rank else ""
    many = " on {} ranks".format(len(cause.ranks)) if len(cause.ranks) > 1 else ""
    rows = ["{}{}{}: {}".format(titles.get(cause.severity, "Cause"), where, many, cause.sentence)]
    place = "" if cause.line is None else "line {}: ".format(cause.line + 1)
    rows += ["  | {}{}".format(place if i == 0 else "", row[:200]) for i, row in enumerate(cause.evidence)]
    rows += ["  > {}".format(row) for row in cause.advice]
    shown = (
        cause.traceback if cause.category in ("unknown", "scheduler_exception", "unknown_exception") else ()
    )
    rows += ["    {}".format(row.rstrip()[:200]) for row in shown[-24:]]
    return rows


def _numbers_rows(found: Explanation) -> List[str]:
    story = found.story
    rows: List[str] = []
    if story.max_running_requests is not None:
        by = " (set by speculation)" if story.capped_by_speculation == story.max_running_requests else ""
        rows.append("At most {} running requests{}.".format(story.max_running_requests, by))
    for label, spread, series, unit in (
        ("Accept length", found.accept_len, found.accept_series, "tokens a step, bonus token included"),
        ("Decode", found.tok_s, found.tok_series, "tok/s a log line, first lines after idle left out"),
    ):
        if spread is not None:
            rows.append("{}: min {:.2f}, median {:.2f}, max {:.2f} {} ({} lines)".format(
                label, spread.low, spread.median, spread.high, unit, spread.lines))  # fmt: skip
            rows.append("  " + spark(series))
    if rows:
        rows.append("")
    return rows


def spark(series: Tuple[Optional[float], ...]) -> str:
    """A line of blocks from 0 to the largest value; a blank where there is none."""
    known = [v for v in series if v is not None]
    top = max(known) if known else 0.0
    if top <= 0:
        return ""
    return "".join(" " if v is None else BARS[min(7, max(0, int(v / top * 7.999)))] for v in series)
