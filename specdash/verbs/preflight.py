"""Whether a profile would start, without starting it: interpreter, flags, algorithm, models, drafter, host."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

from specdash.exits import Exit

if TYPE_CHECKING:
    from specdash.control.plans import Check
    from specdash.verbs.context import Context

EXAMPLES = """\
examples:
  specdash preflight kimi-k2.5-eagle3
  specdash preflight kimi-k2.5-eagle3 --host gpu2 --json

exit codes: 0 nothing speaks against it, 1 warnings, 4 a check blocks it, 5 the host cannot be reached"""

MARK = {"ok": "ok", "warn": "warn", "block": "BLOCK", "not_checked": "?"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("profile", metavar="PROFILE", help="a profile's name or file")
    parser.add_argument("--host", metavar="HOST", help="another host than the profile's; several with commas")
    parser.add_argument("--fresh", action="store_true", help="read SGLang again, whatever is remembered")


async def run(args: argparse.Namespace, context: Context) -> Exit:
    from specdash.control import preflight, profiles
    from specdash.verbs import many

    layout = many.parts_of(context, args.profile, args.host)
    if layout is not None:
        return await many.preflight(args, context, layout)
    spec = profiles.resolve(args.profile, context.settings)
    if args.host:
        spec = replace(spec, host=args.host, hosts=())
    link = await context.open_link(spec.host)
    try:
        checks = await preflight.preflight(link, spec, use_cache=not args.fresh)
    finally:
        await link.close()
    verdict = preflight.worst(checks)
    if context.json:
        context.print_json(as_json(spec.profile, spec.host, checks, verdict))
    else:
        context.print(*lines(checks))
    return {"block": Exit.REFUSED, "warn": Exit.WARNING}.get(verdict, Exit.OK)


def as_json(profile: str, host: str, checks: Sequence[Check], verdict: str) -> dict[str, Any]:
    return {
        "profile": profile,
        "host": host,
        "verdict": verdict,
        "checks": [asdict(check) for check in checks],
    }


def lines(checks: Sequence[Check]) -> list[str]:
    """One line a check, evidence and remedy below what is not ok, a sum at the end."""
    out: list[str] = []
    width = max((len(check.name) for check in checks), default=0)
    for check in checks:
        out.append(f"{MARK[check.status]:<6}{check.name:<{width}}  {check.sentence}")
        if check.status != "ok":
            out += [f"{'':<{width + 8}}{line}" for line in check.evidence]
            if check.remedy:
                out.append(f"{'':<{width + 8}}→ {check.remedy}")
    count = {status: sum(check.status == status for check in checks) for status in MARK}
    words = {"ok": "ok", "warn": "warnings", "block": "block", "not_checked": "not checked"}
    return [*out, "", ", ".join(f"{count[status]} {words[status]}" for status in words)]
