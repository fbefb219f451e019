"""What launch, stop and switch share on the command line: showing a running plan, and finding a run by name."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from typing import TYPE_CHECKING, Any

from specdash.errors import UsageError
from specdash.exits import Exit

if TYPE_CHECKING:
    from specdash.control.plans import Plan, StepEvent
    from specdash.host.link import Link
    from specdash.verbs.context import Context

EXITS = {
    "done": Exit.OK,
    "failed": Exit.CRITICAL,
    "rolled_back": Exit.ROLLED_BACK,
    "aborted": Exit.CRITICAL,
}


async def follow(
    context: Context, plan: Plan, events: AsyncIterator[StepEvent], extra: Mapping[str, Any] | None = None
) -> Exit:
    """Narrates each step on stderr; the outcome, or with `--json` all steps, is the data on stdout."""
    titles = {step.name: step.title for step in plan.steps}
    steps: list[dict[str, Any]] = []
    last: StepEvent | None = None
    async for event in events:
        again = last is not None and (event.step, event.status, event.sentence) == (
            last.step,
            last.status,
            last.sentence,
        )
        # The end is the data on stdout: who reads both would read it twice.
        if not again and (context.json or not event.final):
            context.say(
                f"[{event.status}] {titles.get(event.step, event.step)}: {event.sentence}".rstrip(": ")
            )
        last = event
        steps.append(
            {
                "step": event.step,
                "status": event.status,
                "sentence": event.sentence,
                "at_boot_s": event.at_boot_s,
                "final": event.final,
                "data": dict(event.data),
            }
        )
    code = EXITS.get(last.final, Exit.CRITICAL) if last else Exit.CRITICAL
    outcome = last.final if last and last.final else "unknown"
    if context.json:
        context.print_json(
            {
                "schema": "specdash/action/1",
                "plan": plan.id,
                "kind": plan.kind,
                "host": plan.host,
                "outcome": outcome,
                "exit": int(code),
                "steps": steps,
                **(extra or {}),
            }
        )
    else:
        context.print(f"{outcome}: {last.sentence if last else 'nothing happened'}")
    return code


async def find_run(link: Link, name: str, *, live: bool = True) -> str:
    """The run id that `name` means: an id, a unique beginning of one, or a profile (its newest run).

    With `live`, only runs that have not ended count. Raises UsageError with the names that would do.
    """
    from specdash.control import hostruns

    answer = await link.call("runs.list", {"base": hostruns.base(link)}, timeout=30)
    runs = [run for run in answer["runs"] if not live or not run.get("ended")]
    runs.sort(key=lambda run: run.get("created_unix") or 0, reverse=True)
    for run in runs:
        if run["id"] == name:
            return str(run["id"])
    # The one that lives first: beside it may stand a run that a switch only prepared as its way back.
    of_profile = [
        str(run["id"])
        for run in sorted(runs, key=lambda run: not run.get("alive"))
        if run.get("profile") == name
    ]
    if of_profile:
        return of_profile[0]
    begins = [str(run["id"]) for run in runs if str(run["id"]).startswith(name)]
    if len(begins) == 1:
        return begins[0]
    if begins:
        raise UsageError(f'"{name}" begins several runs: {", ".join(begins[:5])}.', "Name one of them.")
    there = ", ".join(str(run["id"]) for run in runs[:5])
    kind = "running " if live else ""
    raise UsageError(
        f'No {kind}run "{name}" on {link.name}.', f"There: {there}." if there else f"No {kind}run is there."
    )


def host_of(context: Context, name: str, host: str | None) -> str:
    """The host to ask: named, or the profile's, or the only one configured. Raises UsageError."""
    if host:
        return host
    from specdash.control.profiles import resolve
    from specdash.errors import ConfigError

    try:
        return resolve(name, context.settings).host
    except ConfigError:
        hosts = list(context.settings.hosts)
        if len(hosts) == 1:
            return hosts[0]
        raise UsageError(
            f'Which host is "{name}" on?', f"Add --host with one of: {', '.join([*hosts, 'local'])}."
        ) from None
