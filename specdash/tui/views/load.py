"""A load: its phases with times, progress, ETA, the verdict and the evidence for it; or how it ended."""

from __future__ import annotations

import re
from dataclasses import dataclass

from specdash.monitor.state import HostState, ServerState
from specdash.tui.cells import cut, cut_line, thin_bar, width_of, wrap
from specdash.tui.views.link import server_word
from specdash.tui.words import Line, clock, one_line

PHASE_WORDS = {
    "starting": "start",
    "init_distributed": "distributed init",
    "loading_weights": "weights",
    "kv_alloc": "KV cache",
    "graph_capture": "graph capture",
    "jit_compile": "JIT compile",
    "starting_http_or_warmup": "warmup",
    "ready": "ready",
    "serving": "serving",
    "exited": "exited",
}
USUAL = (
    "starting",
    "init_distributed",
    "loading_weights",
    "kv_alloc",
    "graph_capture",
    "starting_http_or_warmup",
)


@dataclass(frozen=True)
class PhaseRow:
    """One phase as drawn. `seconds` is its length so far, None when not known."""

    name: str
    status: str
    """"done", "now", "next" or "failed"."""
    seconds: float | None = None
    done: int | None = None
    total: int | None = None
    note: str = ""

    @property
    def words(self) -> str:
        return PHASE_WORDS.get(self.name, self.name.replace("_", " "))


@dataclass(frozen=True)
class CauseRow:
    """Why it failed: the first cause, not the last line."""

    sentence: str
    evidence: tuple[str, ...] = ()
    step: str = ""


GLYPH = {"done": ("✓", "ok"), "now": ("▶", "warn"), "next": ("·", "dim"), "failed": ("✗", "bad-strong")}
VERDICT_ROLE = {
    "starting": "",
    "progressing": "ok",
    "slow": "warn-strong",
    "stalled": "bad-strong",
    "dead": "bad-strong",
    "stopped": "dim",
    "unknown": "dim",
}
VERDICT_WORD = {
    "starting": "starting",
    "progressing": "progressing",
    "slow": "slow, but moving",
    "stalled": "STALLED",
    "dead": "failed",
    "stopped": "stopped",
    "unknown": "unknown",
    "ready": "ready",
}


def load_rows(
    host: HostState, server: ServerState, now: float, width: int, height: int, dull: bool
) -> list[Line]:
    """Rows for a server that loads, stalled, failed or stopped."""
    from specdash.tui.views.story import cause_of, elapsed_of, phases_of

    phases = phases_of(server, now)
    rows: list[Line] = []
    word = server_word(server)
    verdict = server.verdict
    over = word in ("failed", "stopped")
    summary: Line = [
        (" ", ""),
        (
            VERDICT_WORD.get(verdict.kind, verdict.kind),
            "stale" if dull else VERDICT_ROLE.get(verdict.kind, ""),
        ),
    ]
    elapsed = elapsed_of(host, server, now)
    if elapsed is not None:
        summary.append((f" after {clock(elapsed)}" if over else f"  {clock(elapsed)} elapsed", "dim"))
    if over:
        summary.append((f"  {_ending(server)}", "dim"))
    elif server.eta_s is not None:
        summary.append((f"  ready in about {clock(server.eta_s)}", "strong" if not dull else "stale"))
        if server.eta_source:
            summary.append((f" ({one_line(server.eta_source)})", "dim"))
    else:
        summary.append(("  no ETA yet (no finished load to go by)", "dim"))
    cause = cause_of(server)
    words: list[Line] = []
    for text, role in (
        (cause.sentence if cause else "", "bad-strong"),
        (cause.step if cause else "", ""),
        # Of a failure the verdict says the cause once more, and the summary how it ended.
        (
            "" if cause or word == "stopped" else _same_count(verdict.sentence, phases),
            VERDICT_ROLE.get(verdict.kind, ""),
        ),
        (str(server.status.stopped_proof.get("sentence") or "") if word == "stopped" else "", ""),
        (STUCK if word == "stalled" and not dull else "", ""),
    ):
        if text:
            words += [[(" " + row, "stale" if dull else role)] for row in wrap(one_line(text), width - 2)]
    evidence = [
        [(" · " + cut(one_line(item), width - 4), "dim")]
        for item in (cause.evidence if cause else () if word == "stopped" else verdict.evidence)
    ]
    spare = height - 1 - len(words)
    vertical = spare >= len(phases) + 1
    rows.append(cut_line(summary, width))
    rows += _vertical(phases, width, dull) if vertical else _flowing(phases, width, dull)[: max(2, spare)]
    rows += words
    rows += evidence
    return rows[:height]


STUCK = "K shows where each process is stuck, s stops it."


def _same_count(sentence: str, phases: list[PhaseRow]) -> str:
    """The sentence with the count that the bar has: it was judged up to a second before the bar was read."""
    now = next((phase for phase in phases if phase.status == "now" and phase.total), None)
    if now is None:
        return sentence
    return re.sub(rf"\b\d+ of {now.total}\b", f"{now.done} of {now.total}", sentence)


def _ending(server: ServerState) -> str:
    status = server.status
    asked = " after a stop was asked" if status.stop_asked else ""
    if status.exit_signal is not None:
        return f"ended by signal {status.exit_signal}{asked}"
    if status.exit_code is not None:
        return f"exit code {status.exit_code}{asked}"
    return "nobody recorded how it ended"


def _progress(phase: PhaseRow) -> str:
    return f"{phase.done}/{phase.total}" if phase.done is not None and phase.total else ""


def _vertical(phases: list[PhaseRow], width: int, dull: bool) -> list[Line]:
    rows: list[Line] = []
    for phase in phases:
        glyph, role = GLYPH[phase.status]
        if dull:
            role = "stale"
        line: Line = [(f" {glyph} ", role), (f"{phase.words:<17}", "strong" if phase.status == "now" else "")]
        line.append((f"{clock(phase.seconds) if phase.seconds is not None else '':>8}  ", "dim"))
        if phase.status == "now" and phase.done is not None and phase.total:
            room = max(8, min(30, width - width_of(line) - 22))
            filled, rest = thin_bar(phase.done / phase.total, room)
            line += [(filled, "bar"), (rest + " ", "rule"), (_progress(phase), "")]
        elif _progress(phase):
            line.append((_progress(phase), "dim"))
        if phase.note:
            line.append((f"  {one_line(phase.note)}", "dim"))
        rows.append(cut_line(line, width))
    return rows


def _flowing(phases: list[PhaseRow], width: int, dull: bool) -> list[Line]:
    """All phases in as few rows as they need."""
    rows: list[Line] = []
    row: Line = []
    for phase in phases:
        glyph, role = GLYPH[phase.status]
        piece: Line = [(f" {glyph} ", "stale" if dull else role)]
        piece.append(
            (phase.words, "strong" if phase.status == "now" else "dim" if phase.status == "next" else "")
        )
        if phase.seconds is not None:
            piece.append((f" {clock(phase.seconds)}", "dim"))
        if phase.status == "now" and phase.done is not None and phase.total:
            filled, rest = thin_bar(phase.done / phase.total, 8)
            piece += [(" " + filled, "bar"), (rest + " ", "rule"), (_progress(phase), "")]
        if row and width_of(row) + width_of(piece) > width:
            rows.append(row)
            row = []
        row += piece
    return [*rows, row]
