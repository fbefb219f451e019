"""Logs: what the story, its first cause and the stall rule conclude. Only names are translated here."""

from __future__ import annotations

from typing import Any

from specdash.sglang import explain, lines, phases, prefix, stall
from tests.cases.adapter import Answer, Case, answers

NAMED = (
    "value",
    "choices",
    "algorithm",
    "hint",
    "suspects",
    "port",
    "gpu_index",
    "kv_usage",
    "set_by",
    "likely",
)


class Phase(str):
    """A phase; `X_or_later` is how a case says "at least X"."""

    def __eq__(self, other: object) -> bool:
        least = str(other).removesuffix("_or_later")
        later = least != str(other) and phases.position(self) >= phases.position(least)
        return later or str.__eq__(self, str(other))

    __hash__ = str.__hash__


@answers("log")
def log(case: Case) -> Answer:
    data, known = case.data(), case.context
    version, port = known.get("sglang_version"), known.get("http_port")
    found = explain.explain(data, known.get("exit_code"), known.get("signal"), version, http_port=port)
    story, cause, bar = found.story, found.cause, found.story.last_bar
    memory = [stall.Sample(row["t"], gpu_mib=row["used"]) for row in known.get("gpu0_mem_mib_samples", ())]
    hung = stall.judge(story.phase, known.get("seconds_since_last_byte"), samples=memory)
    text = [lines.visible(row) for row in data.split(b"\n")]
    heads = [prefix.read(part) for row in data.split(b"\n") for _, part in lines.unglue(lines.clean(row))]
    steady = [line for line in story.decodes if not line.first_after_idle]
    said: dict[str, Any] = {**story.numbers, **(cause.numbers if cause else {})}
    for n in range(1, len(steady) + 1):
        said[f"accept_len_mean_{n}"] = sum(line.accept_len or 0.0 for line in steady[-n:]) / n
        said[f"tok_s_mean_{n}"] = sum(line.tok_s or 0.0 for line in steady[-n:]) / n
    said["dropped_first_window"] = next((line.tok_s for line in story.decodes if line.first_after_idle), None)
    answer: Answer = {
        "phase": Phase(found.phase), "sub_phase": story.sub_phase, "state": found.state, "numbers": said,
        "progress": {"done": bar.done, "total": bar.total} if bar else None,
        "ready": story.ready_seen, "ready_seen": story.ready_seen, "was_serving": story.was_serving,
        "hang_suspected": hung.suspected, "eta_reliable": stall.eta(story.phase, "", None, ()) is not None,
        "expected_wait_minutes": [s / 60 for s in hung.expected_s or ()],
        "loaded_anything": any(p.name == "loading_weights" for p in story.phases),
        "ranks_seen": sorted(story.ranks), "ranks": [head.rank or None for head in heads if head],
        "records": story.records, "errors": story.errors, "warnings": story.warnings,
        "folded_warning_count": max((note.seen for note in story.notes), default=0),
        "line_chars": max(map(len, text)), "visible_text": "\n".join(text), "effective": story.server_args,
        "drawn_text_equals_input": "\n".join(text).encode() == data, "crash": False, "exceptions": 0,
        "accept_len": [line.accept_len for line in story.decodes], "tok_s": [line.tok_s for line in story.decodes],
        "running": [line.running for line in story.decodes], "accept_len_includes_bonus": True,
        "token_usage": [line.token_usage for line in story.decodes], "exit_code": found.exit_code,
        "category": "", "crashed": found.phase == "exited",
    }  # fmt: skip
    if cause is not None:
        answer.update({key: cause.numbers[key] for key in NAMED if key in cause.numbers})
        answer.update(
            category=cause.category, severity=cause.severity, crashed=cause.crashed, signal=cause.signal
        )
        answer.update(
            advice_direction=cause.advice_direction,
            flags=list(cause.about),
            advice=" ".join(cause.advice).lower(),
        )
    return answer
