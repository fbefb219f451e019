"""What is wrong with a server that lives, as far as its log tells: KV pressure, a useless drafter, a cap."""

from __future__ import annotations

from typing import Any, Dict, List, NamedTuple, Optional, Tuple

from specdash.sglang.decode import DecodeLine
from specdash.sglang.storytypes import Story

USELESS_LENGTH = 1.05
"""Accept length at which a drafter gives nothing (1.0 is the bonus token alone)."""
USELESS_RATE = 0.03
USELESS_WINDOWS = 8
FULL = 0.9
"""Share of the KV pool from which a retraction is still the present state."""
RECENT_LINES = 30


class Condition(NamedTuple):
    category: str
    sentence: str
    numbers: Dict[str, Any]
    evidence: Tuple[str, ...]
    offset: Optional[int]


def conditions(story: Story) -> Tuple[Condition, ...]:
    """Conditions of a serving story, most pressing first."""
    if story.phase not in ("ready", "serving"):
        return ()
    found = [kv_pressure(story), drafter_useless(story), capped(story), health_fails(story)]
    return tuple(item for item in found if item is not None)


def kv_pressure(story: Story) -> Optional[Condition]:
    """Requests were put back because the pool was full, and it still is nearly so."""
    last = story.last_decode
    if not story.retractions or story.retract_offset is None:
        return None
    after = [line for line in story.decodes if line.offset > (story.retract_offset or 0)]
    eased = len(after) > RECENT_LINES or (
        len(after) > 2 and all((line.token_usage or 0.0) < FULL for line in after[-3:])
    )
    if eased:
        return None
    numbers: Dict[str, Any] = {"retracted": story.retracted, "retractions": story.retractions}
    if last is not None:
        numbers.update(queue=last.queued, running=last.running, kv_used=last.token_usage)
    sentence = "The KV pool is full: {} request(s) were put back into the queue; {} run, {} wait.".format(
        story.retracted, _said(last.running if last else None), _said(last.queued if last else None)
    )
    return Condition("kv_pressure", sentence, numbers, (story.retract_line,), story.retract_offset)


def drafter_useless(story: Story) -> Optional[Condition]:
    """Accept length 1.00 over many windows: a broken pairing, not a weak drafter. 0.00 is "nothing was speculated"."""
    lines = [line for line in story.decodes if line.accept_len][-max(USELESS_WINDOWS, 20) :]
    if len(lines) < USELESS_WINDOWS:
        return None
    if any((line.accept_len or 0.0) > USELESS_LENGTH for line in lines):
        return None
    rates = [line.accept_rate for line in lines if line.accept_rate is not None]
    mean = sum(line.accept_len or 0.0 for line in lines) / len(lines)
    zero = bool(rates) and max(rates) <= USELESS_RATE
    numbers: Dict[str, Any] = {
        "accept_len": round(mean, 3),
        "windows": len(lines),
        "likely": ["wrong drafter or wiring", "version change"],
    }
    how = "nothing is ever accepted: the pairing is broken" if zero else "almost nothing is accepted"
    sentence = "Accept length is {:.2f} over {} windows: {}.".format(mean, len(lines), how)
    last = lines[-1]
    shown = "last: accept len {}, accept rate {}, {} tok/s".format(
        last.accept_len, last.accept_rate, last.tok_s
    )
    return Condition("drafter_useless", sentence, numbers, (shown,), last.offset)


def capped(story: Story) -> Optional[Condition]:
    """Requests wait although the KV pool has room, because speculation set the cap."""
    last = story.last_decode
    cap = story.capped_by_speculation
    if last is None or cap is None or not last.queued or last.running is None:
        return None
    limit = story.max_running_requests or cap
    if last.running < limit or limit != cap or (last.token_usage or 0.0) >= FULL:
        return None
    numbers: Dict[str, Any] = {
        "max_running_requests": limit,
        "queue": last.queued,
        "running": last.running,
        "set_by": "speculation default",
    }
    sentence = "{} requests wait while {} run: the cap of {} was set by speculation, not by you.".format(
        last.queued, last.running, limit
    )
    shown = "last: #running-req {}, #queue-req {}, token usage {}".format(
        last.running, last.queued, last.token_usage
    )
    return Condition("capped_by_speculation", sentence, numbers, (shown,), last.offset)


def health_fails(story: Story) -> Optional[Condition]:
    """Health checks time out while prefills go on: busy, not down."""
    if not story.health_failures or not story.prefills:
        return None
    moving: List[DecodeLine] = list(story.decodes[-1:])
    last = story.prefills[-1]
    if (last.new_tokens or 0) < 1024 or (moving and moving[-1].offset > last.offset):
        return None
    numbers: Dict[str, Any] = {"new_tokens": last.new_tokens, "queue": last.queued, "running": last.running}
    sentence = "Health checks fail while it works through a long prefill ({} tokens in the last batch): busy, not down.".format(
        last.new_tokens
    )
    return Condition("long_prefill", sentence, numbers, (), last.offset)


def _said(value: Optional[int]) -> str:
    return "—" if value is None else str(value)
