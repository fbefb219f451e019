"""Why it died: the first cause, not the last line; with evidence, numbers, and advice in the right direction.

Evidence was gathered by the story as the log came in. Here it is judged: root signs before plain exceptions
before what only follows from another one's end, each by its place in the log. What happened at the end of
the process (exit code, signal) comes from whoever knows it, and is used where the log is silent.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import AbstractSet, Any, Dict, List, Optional, Sequence, Tuple

from specdash.sglang import advice, conditions, qualify, signs
from specdash.sglang.signtable import SIGNS
from specdash.sglang.storytypes import Evidence, Story

EVIDENCE_LINES = 6
FRACTION_STEP = 0.02
"""A gap of the memory fraction that is not worth another launch."""


@dataclass(frozen=True)
class Cause:
    """A named reason. `category` is a stable word; all texts are untrusted (from the log): no markup."""

    category: str
    sentence: str
    severity: str = "fatal"
    """"fatal", "fatal_soon" (cannot start, still alive), "warning" (serves, but wrong), "info" (was asked to)."""
    evidence: Tuple[str, ...] = ()
    rank: str = ""
    ranks: Tuple[str, ...] = ()
    numbers: Dict[str, Any] = field(default_factory=dict)
    """What the evidence names, by key with its unit: need_mib, free_mib, gpu_index, weights_gb, port, flags, …"""
    advice: Tuple[str, ...] = ()
    advice_direction: str = ""
    """"increase" or "decrease" where the advice turns one knob (the static memory fraction)."""
    about: Tuple[str, ...] = ()
    """Flags that the cause is about, as the operator gave them (or should have)."""
    flags: Tuple[str, ...] = ()
    """Flags that the advice uses; valid for the version as far as it is known."""
    traceback: Tuple[str, ...] = ()
    """The first traceback, whole within bounds; for unknown causes it is all there is to show."""
    exit_code: Optional[int] = None
    signal: Optional[int] = None
    offset: Optional[int] = None
    line: Optional[int] = None
    phase: str = ""
    was_serving: bool = False

    @property
    def crashed(self) -> bool:
        return self.severity in ("fatal", "fatal_soon")


@dataclass(frozen=True)
class Candidate:
    """One piece of evidence, judged."""

    priority: int
    sign: str
    numbers: Dict[str, Any]
    evidence: Evidence
    text: str


def first_cause(
    story: Story,
    exit_code: Optional[int] = None,
    signal: Optional[int] = None,
    version: Optional[str] = None,
    flags: Optional[AbstractSet[str]] = None,
    http_port: Optional[int] = None,
    gone: bool = False,
) -> Optional[Cause]:
    """The first cause of an end, else the most pressing condition of a living server, else None.

    `exit_code` is what wait() gave (negative: signal) or a shell's (128 + signal); `signal` a number; both None
    when the process lives or nobody knows; `gone`: it is known to be no more, but not how. `version` and `flags` (option strings that the installed parser
    knows) keep the advice valid; without `flags` the log's own arguments and the version decide.
    """
    code, number = normal_exit(exit_code, signal)
    ended = gone or code is not None or number is not None or story.phase == "exited"
    known = advice.Known(version or story.version, flags, story)
    chosen = _choose(story, ended)
    if chosen is not None and chosen.priority == 3 and (chosen.evidence.head or not code):
        chosen = None  # It was reported and survived; only an uncaught one (exit code 1) may be the end.
    if ended and _asked_to_stop(story, chosen, code, number):
        return _stopped(story, code, number)
    if chosen is not None and not (chosen.priority >= 2 and number is not None):
        return _cause(story, chosen, ended, known, code, number, http_port)
    if number is not None:
        return _signalled(story, number, known, chosen, code)
    if (code is not None and code != 0) or (gone and code is None and story.phase != "exited"):
        return _silent(story, code, chosen)
    if ended:
        return _unknown(story, code)
    living = conditions.conditions(story)
    return _condition(story, living[0], known) if living else None


def all_conditions(story: Story, version: Optional[str] = None) -> Tuple[Cause, ...]:
    """Everything that is wrong with a living server, by the log alone, most pressing first."""
    known = advice.Known(version or story.version, None, story)
    return tuple(_condition(story, item, known) for item in conditions.conditions(story))


def across(causes: Sequence[Cause]) -> Optional[Cause]:
    """What several attempts of one profile say together: whether any static memory fraction can fit.

    One attempt had no room for the KV pool, another ran out beside it, and there is nothing between their
    fractions. None when they do not say that.
    """
    low = [c for c in causes if c.category in ("oom_kv_pool", "oom_no_feasible_fraction")]
    high = [c for c in causes if c.category in ("oom_graph_capture", "oom_runtime", "oom_kv_alloc")]
    too_low = [c.numbers["mem_fraction_static"] for c in low if "mem_fraction_static" in c.numbers]
    too_high = [c.numbers["mem_fraction_static"] for c in high if "mem_fraction_static" in c.numbers]
    if not too_low or not too_high or min(too_high) - max(too_low) > FRACTION_STEP:
        return None
    numbers = {"too_low": max(too_low), "too_high": min(too_high)}
    sentence = (
        "No memory fraction fits: {} leaves the KV pool no room, {} leaves too little beside it.".format(
            max(too_low), min(too_high)
        )
    )
    said = advice.advise("oom_no_feasible_fraction", numbers, advice.Known("", None, Story()), "")
    evidence = tuple(row for c in (low[-1], high[-1]) for row in c.evidence[-1:])
    return Cause(
        "oom_no_feasible_fraction", sentence, "fatal", evidence, numbers=numbers, advice=said.sentences
    )


def normal_exit(exit_code: Optional[int], signal: Optional[int]) -> Tuple[Optional[int], Optional[int]]:
    """(exit code, signal): of -9 and of a shell's 137 it is signal 9."""
    if signal is not None and signal > 0:
        return exit_code, signal
    if exit_code is None:
        return None, None
    if exit_code < 0:
        return exit_code, -exit_code
    if 128 < exit_code < 160:
        return exit_code, exit_code - 128
    return exit_code, None


def _choose(story: Story, ended: bool) -> Optional[Candidate]:
    found = [c for c in (judge(e) for e in story.all_evidence) if c is not None]
    if not ended:
        if story.phase in ("ready", "serving"):
            since = story.phases[-1].offset if story.phases else 0
            found = [c for c in found if c.evidence.offset >= since]
            found = [c for c in found if c.evidence.fatal == 2 or c.sign in ("watchdog_timeout", "gpu_lost")]
        else:
            found = [c for c in found if c.priority < 2]
    return min(found, key=lambda c: (c.priority, c.evidence.offset), default=None)


def judge(evidence: Evidence) -> Optional[Candidate]:
    """What a piece of evidence says. Priority: 0 root, 1 plain exception or a child's signal, 2 symptom, 3 survived."""
    if evidence.kind == "line" and not evidence.errors:
        kind = _kind(evidence.category)
        priority = {"root": 0, "plain": 1, "symptom": 2}.get(kind, 2)
        if evidence.category == "killed_by_signal":
            priority = 1
        return Candidate(priority, evidence.category, dict(evidence.numbers), evidence, evidence.head)
    best: Optional[Tuple[int, str, Dict[str, Any], str]] = None
    for text in evidence.errors or (evidence.head,):
        hit = signs.match(text)
        kind = hit[0].kind if hit else "plain"
        rank = {"root": 0, "plain": 1, "symptom": 2}[kind]
        if hit and hit[0].category == "killed_by_signal":
            rank = 1
        elif text.startswith("KeyboardInterrupt"):
            rank = 2  # what an interrupt looks like in Python, wherever it happened to be
        if best is None or rank < best[0]:
            best = (rank, hit[0].category if hit else "exception", hit[1] if hit else {}, text)
    if best is None:
        return None
    priority = best[0]
    if evidence.fatal == 0 and evidence.kind == "exception" and not evidence.category:
        priority = 3
    return Candidate(priority, best[1], best[2], evidence, best[3])


def _kind(category: str) -> str:
    return next((s.kind for s in SIGNS if s.category == category), "plain")


def _cause(
    story: Story,
    chosen: Candidate,
    ended: bool,
    known: "advice.Known",
    code: Optional[int],
    number: Optional[int],
    http_port: Optional[int],
) -> Cause:
    found = chosen.evidence
    verdict = qualify.qualify(story, chosen.sign, chosen.numbers, found, chosen.text, http_port)
    said = advice.advise(verdict.category, verdict.numbers, known, _whole(found))
    severity = "fatal" if ended or found.fatal else "fatal_soon"
    return Cause(
        verdict.category,
        verdict.sentence,
        severity,
        _evidence_lines(found, chosen.text),
        found.rank,
        found.ranks,
        verdict.numbers,
        said.sentences,
        said.direction,
        verdict.flags,
        said.flags,
        found.lines if found.kind == "exception" else (),
        code,
        verdict.numbers.get("signal", number),
        found.offset,
        found.line,
        found.phase,
        found.serving or story.was_serving,
    )


def _whole(found: Evidence) -> str:
    return "\n".join((found.head,) + found.lines)


def _evidence_lines(found: Evidence, text: str) -> Tuple[str, ...]:
    """The head, the last frame of SGLang's own, and the line that names it."""
    rows: List[str] = [found.head.splitlines()[0]] if found.head.strip() else []
    frames = [line.strip() for line in found.lines if line.lstrip().startswith('File "')]
    own = [line for line in frames if "/sglang/" in line]
    if own or frames:
        rows.append((own or frames)[-1])
    rows.extend(line for line in text.splitlines() if line.strip() and line not in rows)
    return tuple(row[:400] for row in rows[:EVIDENCE_LINES])


def _asked_to_stop(
    story: Story, chosen: Optional[Candidate], code: Optional[int], number: Optional[int]
) -> bool:
    if not story.stop_asked or story.bind_failed:
        return False
    if chosen is not None and chosen.priority < 2:
        # A TERM to the whole group kills the scheduler first, which looks like a crash.
        codes = (chosen.numbers.get("code"), chosen.numbers.get("code2"))
        return chosen.sign == "killed_by_signal" and -15 in codes
    return story.finished_cleanly or story.drain_remaining is not None or code == 0 or number is not None


def _stopped(story: Story, code: Optional[int], number: Optional[int]) -> Cause:
    how = "SIGTERM" if story.stop_asked == "SIGTERM" else "an interrupt or uvicorn's own shutdown"
    sentence = "It was asked to stop ({}) and ended.".format(how)
    left = story.drain_remaining
    if left:
        sentence = "It was asked to stop ({}) and was drained with {} requests left.".format(how, left)
    elif number == 9:
        sentence += " The end by signal 9 is its own: SGLang kills its process tree after draining."
    group = any(c is not None and c.sign == "killed_by_signal" for c in map(judge, story.all_evidence))
    hints: Tuple[str, ...] = ()
    if group:
        sentence = "SIGTERM went to its whole process group, so that the scheduler died first and it looked like a crash."
        hints = ("Send SIGTERM to the launcher alone: it ends its children itself.",)
    return Cause("stopped_on_request", sentence, "info", (), advice=hints, exit_code=code, signal=number,
                 was_serving=story.was_serving)  # fmt: skip


def _signalled(
    story: Story, number: int, known: "advice.Known", chosen: Optional[Candidate], code: Optional[int]
) -> Cause:
    numbers: Dict[str, Any] = {"signal": number}
    if number == 9:
        numbers["suspects"] = list(qualify.SUSPECTS_OF_KILL)
    sentence = qualify.signal_sentence("The launcher", number) + " The log names no earlier cause."
    said = advice.advise("killed_by_signal", numbers, known, "")
    lines = _evidence_lines(chosen.evidence, chosen.text) if chosen else ()
    return Cause("killed_by_signal", sentence, "fatal", lines, numbers=numbers, advice=said.sentences, exit_code=code,
                 signal=number, phase=_died_in(story), was_serving=story.was_serving)  # fmt: skip


def _silent(story: Story, code: Optional[int], chosen: Optional[Candidate]) -> Cause:
    where = _died_in(story)
    how = "It is gone" if code is None else "It exited with code {}".format(code)
    sentence = "{} in phase {}, and its log names no cause.".format(how, where or "unknown")
    lines = _evidence_lines(chosen.evidence, chosen.text) if chosen else ()
    hints = (
        "Look at the host: `dmesg -T | tail`, the disk, and who else stopped it.",
        "If stdout and stderr go to different places, the reason may be in the other one.",
    )
    return Cause("died_silently", sentence, "fatal", lines, advice=hints, exit_code=code, phase=where,
                 was_serving=story.was_serving)  # fmt: skip


def _unknown(story: Story, code: Optional[int]) -> Optional[Cause]:
    if code == 0 or story.finished_cleanly:
        return Cause(
            "ended",
            "It ended by itself with exit code 0.",
            "info",
            exit_code=code,
            was_serving=story.was_serving,
        )
    first = next((e for e in story.all_evidence if e.kind == "exception"), None)
    sentence = "Its end is in the log, but not why."
    return Cause("unknown", sentence, "fatal", traceback=first.lines if first else (), exit_code=code,
                 phase=_died_in(story), was_serving=story.was_serving)  # fmt: skip


def _died_in(story: Story) -> str:
    """The phase that it was in before it ended."""
    return next((p.name for p in reversed(story.phases) if p.name != "exited"), "")


def _condition(story: Story, item: "conditions.Condition", known: "advice.Known") -> Cause:
    said = advice.advise(item.category, item.numbers, known, "")
    return Cause(
        item.category,
        item.sentence,
        "warning",
        item.evidence,
        numbers=item.numbers,
        advice=said.sentences,
        advice_direction=said.direction,
        flags=said.flags,
        offset=item.offset,
        phase=story.phase,
        was_serving=True,
    )
