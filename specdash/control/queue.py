"""A queue of drafters over a base: what it will do, how far it is, and which one is the best.

Nothing here acts; `control.queue_run` does. The queue's state is JSON-able and kept by the operator's machine, so
that an interrupted queue goes on where it was. Each drafter is tried by an ordinary switch, which the host itself
carries out, from whatever serves then.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from specdash.control import hostruns, switch, switch_notes
from specdash.control.launch import READY_S
from specdash.control.plans import Check, Danger, Plan, Step
from specdash.errors import Refused, UsageError
from specdash.host.link import Link
from specdash.sglang.commandline import LaunchSpec

Leave = Literal["best", "first", "base"]


@dataclass
class Row:
    """One profile of the queue. Numbers that were not measured are None; `tok_s` is that of one stream."""

    profile: str
    spec: dict[str, Any]
    base: bool = False
    outcome: str = ""
    """Empty: not yet. served, rolled_back, blocked, refused, aborted, failed, died (it served, and ended later),
    not_tried."""
    tok_s: float | None = None
    accept_length: float | None = None
    load_s: float | None = None
    why: str = ""
    run: str = ""
    switch: str = ""


@dataclass
class Serving:
    """What serves now. `spec` None: adopted, so that nothing could start it again but the switch's own way back."""

    run: str
    profile: str
    spec: dict[str, Any] | None = None
    pulse: dict[str, Any] | None = None


@dataclass
class Queue:
    """All that going on needs. `current`: the switch or launch under way, by id."""

    id: str
    host: str
    leave: Leave
    rows: list[Row]
    serving: Serving | None = None
    first: Serving | None = None
    options: dict[str, Any] = field(default_factory=dict)
    current: dict[str, Any] | None = None
    runs: list[str] = field(default_factory=list)
    """Every run that the queue made or replaced: what it may clear away when nothing serves."""
    ended: str = ""
    """Empty while it goes on; then one sentence."""

    def as_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Queue:
        """Raises KeyError or TypeError when `data` is not what `as_json` gave."""
        fields = dict(data)
        for name in ("serving", "first"):
            fields[name] = Serving(**fields[name]) if fields.get(name) else None
        return cls(**{**fields, "rows": [Row(**row) for row in fields["rows"]]})

    @property
    def base(self) -> Row:
        return next(row for row in self.rows if row.base)

    @property
    def best(self) -> Row | None:
        """The fastest of those that served, the base among them; None: none was measured."""
        found = [row for row in self.rows if row.outcome == "served" and row.tok_s is not None]
        return max(found, key=lambda row: row.tok_s or 0.0, default=None)

    def wanted(self) -> tuple[str, dict[str, Any]] | None:
        """(profile, spec) of what is to serve at the end; None: there is no such thing to start."""
        if self.leave == "first" and self.first is not None:
            return None if self.first.spec is None else (self.first.profile, self.first.spec)
        row = self.best if self.leave == "best" else self.base
        return None if row is None else (row.profile, row.spec)


def same(a: Mapping[str, Any] | None, b: Mapping[str, Any] | None) -> bool:
    """Whether two launches (`LaunchSpec.as_json`) are the same server: all but the name of the host."""
    if a is None or b is None:
        return False
    one, two = (LaunchSpec.from_json(spec).as_json() for spec in (a, b))
    return {**one, "host": ""} == {**two, "host": ""}


def serving_now(
    runs: Sequence[Mapping[str, Any]], base: LaunchSpec, specs: Sequence[LaunchSpec], start: str = ""
) -> Mapping[str, Any] | None:
    """The record of the run that the queue replaces: `start`, else one of the base, else who has its port.

    Raises UsageError when several would do, or `start` is none of them.
    """
    alive = [run for run in runs if run.get("alive")]
    if start:
        named = [run for run in alive if start in (run["id"], run.get("profile"))]
        if named:
            return named[0]
        there = ", ".join(str(run["id"]) for run in alive) or "none"
        raise UsageError(f'No running run "{start}".', f"Running: {there}.")
    ports = {spec.http()[1] for spec in (base, *specs)}
    for found in (
        [run for run in alive if run.get("profile") == base.profile],
        [run for run in alive if (run.get("http") or {}).get("port") in ports],
    ):
        if len(found) == 1:
            return found[0]
        if found:
            names = ", ".join(str(run["id"]) for run in found)
            raise UsageError(f"Several runs could be replaced: {names}.", "Name one with --from.")
    return None


async def plan(
    link: Link,
    base: LaunchSpec,
    specs: Sequence[LaunchSpec],
    *,
    leave: Leave = "best",
    start: str = "",
    checks: Mapping[str, tuple[Check, ...]] | None = None,
    force: bool = False,
    options: Mapping[str, Any] | None = None,
) -> Plan:
    """The whole queue as one plan. Changes nothing. `checks`: preflight by profile; one that blocks is passed over.

    `options`: drain_s, deadline_s, ready_s, settle_s as for a switch. Raises Refused or UsageError.
    """
    busy = (await link.call("switches.list", {"base": hostruns.base(link)}))["running"]
    if busy:
        raise Refused(
            f"A switch by {busy['by']} runs already ({busy['title']}, step {busy['step']}).",
            f"Follow it (`specdash switch --attach {busy['id']}`), or take it back (`--abort`).",
        )
    runs = (await link.call("runs.list", {"base": hostruns.base(link)}, timeout=30))["runs"]
    now = serving_now(runs, base, specs, start)
    if now is not None and now.get("managed_by"):
        raise Refused(
            f"{now['id']} is managed by {now['managed_by']}.", f"Stop it there: {now.get('stop_with')}."
        )
    serving = None
    if now is not None:
        serving = Serving(str(now["id"]), str(now.get("profile") or now["id"]), now.get("spec") or None)
    rows = [Row(base.profile, base.as_json(), base=True)]
    rows += [Row(spec.profile, spec.as_json()) for spec in specs]
    # What serves already is measured before it is replaced, so that nothing is loaded twice.
    rows.sort(key=lambda row: not (serving and same(serving.spec, row.spec)))
    settings = {"drain_s": 60.0, "deadline_s": 60.0, "ready_s": READY_S, "settle_s": switch.SETTLE_S}
    settings.update({k: v for k, v in (options or {}).items() if v is not None}, force=force)
    queue = Queue(
        id=hostruns.new_id("try"),
        host=link.name,
        leave=leave,
        rows=rows,
        serving=serving,
        first=serving,
        options=settings,
        runs=[serving.run] if serving else [],
    )
    if leave == "first" and serving is None:
        queue.leave = "base"
    if leave == "first" and serving is not None and serving.spec is None:
        raise Refused(
            f"{serving.profile} was adopted: nothing is known to start it by at the end.",
            "Use --leave best or --leave base.",
        )
    blocked = () if force else _blocked(queue, checks or {})
    return Plan(
        id=queue.id,
        kind="queue",
        host=link.name,
        title=f"Try {', '.join(spec.profile for spec in specs)} over {base.profile} on {link.name}",
        danger=Danger.DESTROYS if serving else Danger.CHANGES,
        steps=_steps(queue),
        checks=blocked,
        notes=tuple(_notes(queue, runs, checks or {}, force)),
        typed_name=serving.profile if serving and (now or {}).get("adopted") else "",
        spec={"queue": queue.as_json()},
    )


def _blocked(queue: Queue, checks: Mapping[str, tuple[Check, ...]]) -> tuple[Check, ...]:
    """Blocks of the plan as a whole: the base cannot start, or no drafter can."""
    bad = {name: [c for c in found if c.status == "block"] for name, found in checks.items()}
    base = queue.base
    if bad.get(base.profile) and not (queue.serving and same(queue.serving.spec, base.spec)):
        return tuple(bad[base.profile])
    drafters = [row.profile for row in queue.rows if not row.base]
    if all(bad.get(name) for name in drafters):
        return tuple(one for name in drafters for one in bad[name])
    return ()


def _steps(queue: Queue) -> tuple[Step, ...]:
    steps = []
    before = queue.serving.profile if queue.serving else ""
    for at, row in enumerate(queue.rows, 1):
        if queue.serving and same(queue.serving.spec, row.spec):
            steps.append(Step(str(at), f"Pulse of {row.profile}", "it serves already: fixed prompts, greedy"))
        elif not before:
            steps.append(Step(str(at), f"Launch {row.profile}", "nothing serves now; then a pulse"))
        else:
            what = "drain, stop with proof, launch, pulse; back to what served when it fails"
            steps.append(Step(str(at), f"Switch to {row.profile}", what))
        before = before or row.profile
    last = {"best": "the fastest of all that served", "base": queue.base.profile}
    title = queue.first.profile if queue.leave == "first" and queue.first else last.get(queue.leave, "")
    return (*steps, Step("leave", f"Leave {title} serving", "a last switch, where another one serves"))


def _notes(
    queue: Queue, runs: Sequence[Mapping[str, Any]], checks: Mapping[str, tuple[Check, ...]], force: bool
) -> list[str]:
    notes = []
    if queue.serving:
        notes.append(f"{queue.serving.profile} serves now (run {queue.serving.run}) and is replaced.")
    notes.append(downtime(queue, runs))
    options = queue.options
    notes.append(
        f"Each drafter: drain at most {options['drain_s']:.0f} s, given up when not ready after "
        f"{options['ready_s']:.0f} s, has to live {options['settle_s']:.0f} s. A slower one is kept until the next."
    )
    notes.append("A failure is recorded and passed over: what served before is brought back, then the next.")
    told: dict[str, list[str]] = {}
    for name, found in checks.items():
        for check in found:
            if check.status == "block":
                what = "is tried all the same (--force)" if force else "will be passed over"
                notes.append(f"{name} {what}: {check.sentence}")
            elif check.status == "warn":
                told.setdefault(check.sentence, []).append(name)
    # What is true of the host is said once, and not for each profile.
    for sentence, names in told.items():
        notes.append(f"{', '.join(names) if len(names) < len(checks) else 'All'}: {sentence}")
    notes.append(
        "Each switch runs on the host and ends healthy without us; a lost link is taken up again, for ever."
    )
    return notes


def downtime(queue: Queue, runs: Sequence[Mapping[str, Any]]) -> str:
    """The expected downtime of the whole queue, from this host's own history of each profile's loads."""
    known, unknown = 0.0, []
    loads = 0
    for row in queue.rows:
        if queue.serving and same(queue.serving.spec, row.spec):
            continue
        loads += 1
        found = switch_notes.load_seconds(runs, row.profile)[:5]
        if found:
            known += statistics.median(found)
        else:
            unknown.append(row.profile)
    words = f"{known:.0f} s" if known < 120 else f"{known / 60:.0f} min"
    if len(unknown) == loads:
        said = f"Expected downtime in all: not known, none of these {loads} loads has a history on this host"
    elif unknown:
        said = f"Expected downtime in all: {words} plus the loads of {', '.join(unknown)} (no history here)"
    else:
        said = f"Expected downtime in all: {words} for {loads} loads"
    return f"{said}; one more load for each failure, and one at the end unless the last is the one to leave."
