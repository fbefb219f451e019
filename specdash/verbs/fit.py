"""Whether a drafter fits a target, from their config.json, before anything is loaded.

Everything is on this machine: folders or config.json files, and with --tree an unpacked SGLang for its version,
its models and its flags. `specdash preflight` does the same for what lies on a host.
"""

from __future__ import annotations

import argparse
import difflib
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from specdash.errors import UsageError
from specdash.exits import Exit

if TYPE_CHECKING:
    from specdash.sglang.fit import FitReport
    from specdash.verbs.context import Context

EXAMPLES = """\
examples:
  specdash fit --target ./Kimi-K2.5 --draft ./kimi-eagle3 --algorithm EAGLE3
  specdash fit --target t/config.json --draft d/config.json --algorithm DFLASH --sglang 0.5.23 \\
      -- --speculative-num-draft-tokens 8 --speculative-dflash-block-size 16
  specdash fit --target t --algorithm NEXTN --tree ./sglang-0.5.23 --json

exit codes: 0 fits, 1 warnings, 4 does not fit"""

MARK = {"ok": "ok", "warn": "warn", "block": "BLOCK", "not_checked": "?"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--target", metavar="PATH", required=True, help="the target's folder or config.json")
    parser.add_argument("--draft", metavar="PATH", help="the drafter's folder or config.json")
    parser.add_argument("--algorithm", metavar="NAME", required=True, help="as in --speculative-algorithm")
    parser.add_argument("--tree", metavar="DIR", help="an unpacked SGLang of this machine")
    parser.add_argument("--sglang", metavar="VERSION", default="", help="the version, when there is no tree")
    parser.add_argument("--gpu", metavar="NAME", default="", help="e.g. 'NVIDIA A100-SXM4-80GB'")
    parser.add_argument("flags", metavar="FLAG", nargs="*", help="after --: more of the engine's own flags")


def run(args: argparse.Namespace, context: Context) -> Exit:
    from specdash.control import remote_probe
    from specdash.sglang import drafter_card, fit, notes, offer, reading
    from specdash.sglang.gpus import compute_capability
    from specdash.sglang.tree import Source

    tree = None
    if args.tree:
        tree = remote_probe.local_tree(args.tree)
        if tree is None:
            raise UsageError(
                f"{args.tree} holds no SGLang tree.", "Name a folder with srt/server_args.py below it."
            )
    read = reading.read(tree) if tree is not None else None
    source = Source(tree) if tree is not None else None
    target = _model(args.target, "target", source)
    draft = _model(args.draft, "draft", None) if args.draft else None
    name = args.algorithm
    if read is not None:
        status, _, sentence, near = offer.judge_algorithm(read, name)
        if status == "block":
            step = f"Did you mean {', '.join(near)}?" if near else ""
            raise UsageError(sentence, step)
        name = offer.resolve_name(read, name) or name
    elif notes.get(name) is None and name.upper() != "NEXTN":
        near = tuple(difflib.get_close_matches(name.upper(), notes.NOTES, n=3, cutoff=0.6))
        step = f"Did you mean {', '.join(near)}?" if near else "Name a tree whose SGLang has it: --tree DIR."
        raise UsageError(f"specdash knows no algorithm {name}.", step)
    tensors = (draft or {}).get("tensors")
    report = fit.fit(
        target["config"],
        draft["config"] if draft is not None else None,
        fit.Context(
            algorithm=name,
            version=read.version if read is not None else args.sglang,
            flags=fit.flags_from_argv(args.flags),
            architectures=read.architectures if read is not None and read.architectures.readable else None,
            captures=(target.get("captures") or {}).get(name.upper()),
            gpu_compute_cap=compute_capability(args.gpu),
            gpu_name=args.gpu,
            draft_tensors=tuple(tensors) if tensors is not None else None,
        ),
    )
    card = None
    if draft is not None:
        card = drafter_card.card(
            draft["config"], draft["full"], draft.get("size_bytes"), draft.get("tensor_count")
        )
    if context.json:
        context.print_json(as_json(report, drafter_card.as_json(card) if card is not None else None))
    else:
        rows = drafter_card.lines(card) if card is not None else []
        context.print(*lines(report, rows))
    return {"block": Exit.REFUSED, "warn": Exit.WARNING}.get(report.verdict, Exit.OK)


def _model(path: str, who: str, source: Any) -> dict[str, Any]:
    from specdash.control import remote_models

    found = remote_models.model(str(Path(path).expanduser()), source)
    if found.get("config") is None:
        raise UsageError(
            f"--{who} {path}: {found['problem'] or 'it has no config.json'}.",
            "Name a folder or a config.json.",
        )
    return found


def as_json(report: FitReport, card: dict[str, Any] | None) -> dict[str, Any]:
    """{verdict, category, findings, numbers, aux_layer_ids, spec, drafter, …}; null is *the config does not say*."""
    return {
        "verdict": report.verdict,
        "category": report.category,
        "findings": [asdict(finding) for finding in report.findings],
        "numbers": report.numbers,
        "aux_layer_ids": report.aux_layer_ids,
        "target_architecture": report.target_architecture,
        "draft_architecture": report.draft_architecture,
        "spec": asdict(report.spec) if report.spec is not None else None,
        "drafter": card,
    }


def lines(report: FitReport, card: list[tuple[str, str]]) -> list[str]:
    out = [f"{label:<20}{value}" for label, value in card]
    out += [""] if out else []
    for finding in report.findings:
        holds = f" [{finding.holds_for}]" if finding.holds_for else ""
        out.append(f"{MARK[finding.status]:<6}{finding.sentence}{holds}")
        if finding.remedy and finding.status != "ok":
            out.append(f"      → {finding.remedy}")
    if report.spec is not None and not report.spec.blocked and report.spec.draft_tokens is not None:
        out.append(
            f"runs with {report.spec.steps} steps, topk {report.spec.topk}, {report.spec.draft_tokens} draft tokens"
        )
    word = {"ok": "fits", "warn": "fits, with warnings", "block": "does not fit"}[report.verdict]
    return [*out, "", word]
