"""Change a setting of a running server, as far as its installed files offer it, with the way back written down."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from typing import Any

from specdash.control import hostruns, hot_switch
from specdash.control.plans import Danger, Plan, Step, StepEvent
from specdash.errors import Refused
from specdash.host.link import Link
from specdash.sglang import tune as rules


async def offered(link: Link, run_id: str) -> dict[str, Any]:
    """{"keys": [{key, value, where}], "corpora": bool, "hidden": [keys without an undo], "version"}. Changes nothing."""
    record = await _living(link, run_id)
    look = await hot_switch.look(link, record, "", "")
    info = await hot_switch.server_info(link, run_id)
    keys = rules.offered(look["tune"], info)
    known = {row["key"] for row in keys}
    return {
        "version": str(info.get("version") or look.get("version") or ""),
        "keys": keys,
        "hidden": sorted(set(look["tune"].get("keys") or {}) - known),
        "corpora": bool(look["tune"].get("corpora"))
        and str(info.get("speculative_algorithm") or "").upper() == "NGRAM",
    }


async def _living(link: Link, run_id: str) -> dict[str, Any]:
    record = await hostruns.record(link, run_id)
    if not record["alive"] or record["phase"] != "ready":
        raise Refused(f"Run {run_id} does not serve ({record['phase']}).", "Wait until it is ready.")
    return record


async def plan(link: Link, run_id: str, key: str, value: str) -> Plan:
    """Set `key` to the number `value`. Raises Refused when it is not offered, with the names that are."""
    there = await offered(link, run_id)
    row = next((row for row in there["keys"] if row["key"] == key), None)
    if row is None:
        names = ", ".join(row["key"] for row in there["keys"]) or "none"
        why = (
            "it tells no present value, so nothing could undo it"
            if key in there["hidden"]
            else "it is not offered"
        )
        raise Refused(
            f"SGLang {there['version']}: {key} cannot be changed here, {why}.", f"There is: {names}."
        )
    number = rules.number(value)
    if number is None:
        raise Refused(f"{key} is a number, {value!r} is none.")
    undo = f"specdash tune {run_id} {key} {row['value']:g}"
    return Plan(
        id=hostruns.new_id(f"tune-{run_id}"[:40]),
        kind="tune",
        host=link.name,
        title=f"Set {key} of {run_id} on {link.name}: {row['value']:g} → {number:g}",
        danger=Danger.CHANGES,
        steps=(Step("set", f"Set {key}", f"POST {rules.SET} {{{key}: {number:g}}}", 30.0),),
        notes=(
            f"The server says {row['value']:g} now. Undo: {undo}.",
            "A restart of the run forgets it: its command line stays as it is.",
            f"Seen in {row['where']}.",
        ),
        spec={"run": run_id, "key": key, "value": number, "before": row["value"], "undo": undo},
    )


async def run(link: Link, plan: Plan) -> AsyncIterator[StepEvent]:
    """Set it, and ask the server what it is now. `final` done or failed."""
    spec: Mapping[str, Any] = plan.spec
    run_id, key, value = str(spec["run"]), str(spec["key"]), spec["value"]
    yield StepEvent(plan.id, "set", "running", f"Setting {key} to {value:g}.")
    base = hostruns.base(link)
    request = rules.change(key, value, {"Content-Type": "application/json"})
    answer = await link.call("runs.ask", {"base": base, "run": run_id, "request": request}, timeout=30)
    good, told = rules.accepted(answer["status"], bytes(answer["blob"]))
    now = rules.value(await hot_switch.server_info(link, run_id), key)
    facts = {"key": key, "before": spec["before"], "asked": value, "now": now, "undo": spec["undo"]}
    if not good or now != value:
        said = f"The server did not take it ({told}); it says {'nothing' if now is None else format(now, 'g')} now."
        yield StepEvent(plan.id, "set", "failed", said, final="failed", data=facts)
        return
    note = {**facts, "by": hostruns.operator()}
    await link.call("runs.note", {"base": base, "run": run_id, "event": "tuned", "facts": note}, timeout=30)
    said = f"{key} is {value:g} now. Undo: {spec['undo']}."
    yield StepEvent(plan.id, "set", "done", said, final="done", data=facts)
