"""Would this profile start here? Every check that needs no launch, each with evidence and what to do.

`gather` asks the host, `judge` concludes, purely. A check that could not be made says so (*not checked*) and is
never taken for a good one.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from specdash.control import preflight_host
from specdash.control.plans import Check
from specdash.control.preflight_facts import Facts, draft_path, gather, made, target_path
from specdash.control.preflight_leaving import without
from specdash.host.link import Link
from specdash.sglang import envcheck, fit, fit_shapes, flagcheck, known_bad, notes, offer
from specdash.sglang.commandline import LaunchSpec
from specdash.sglang.gpus import compute_capability

ORDER = {"block": 0, "warn": 1, "not_checked": 2, "ok": 3}


async def preflight(
    link: Link, spec: LaunchSpec, *, leaving: str = "", use_cache: bool = True
) -> tuple[Check, ...]:
    """All checks of a profile on a host, in reading order. Changes nothing. Raises LinkLost.

    `leaving`: a run that will be gone by then (a switch): what it holds counts as free.
    """
    facts = await gather(link, spec, use_cache=use_cache)
    return judge(without(facts, leaving) if leaving else facts)


def judge(facts: Facts) -> tuple[Check, ...]:
    """The checks from what was gathered. Pure."""
    return (
        *interpreter(facts),
        *flags(facts),
        *algorithm(facts),
        *model(facts, "target", target_path(facts.spec)),
        *model(facts, "drafter", draft_path(facts.spec)),
        *drafter_fit(facts),
        *combinations(facts),
        *preflight_host.checks(facts),
    )


def worst(checks: tuple[Check, ...]) -> str:
    """block | warn | not_checked | ok"""
    return min((check.status for check in checks), key=lambda status: ORDER[status], default="ok")


def interpreter(facts: Facts) -> list[Check]:
    spec, probe = facts.spec, facts.probe
    python = spec.python or "python3"
    if probe is None:
        category = {"no_python": "no_interpreter", "old_python": "old_interpreter", "no_folder": "no_folder"}
        if facts.probe_code in category:
            key = "cwd" if facts.probe_code == "no_folder" else "python"
            return [
                Check(
                    "interpreter",
                    "block",
                    facts.probe_problem,
                    remedy=f"Correct `{key}` in the profile.",
                    category=category[facts.probe_code],
                )
            ]
        return [Check("interpreter", "not_checked", f"{python} could not be asked: {facts.probe_problem}")]
    out = [Check("interpreter", "ok", f"{python} is Python {probe.python}.", evidence=(probe.executable,))]
    if probe.reading is None:
        out.append(
            Check(
                "sglang",
                "block",
                f"{python} cannot import sglang: {probe.problem}.",
                remedy="Install SGLang there, or correct `python` or `cwd` in the profile.",
                category="no_sglang",
            )
        )
        return out
    others = [c for c in probe.copies if not c.wins]
    where = probe.winner.path if probe.winner else ""
    version = probe.reading.version or "of a version that no file tells"
    evidence = (
        f"{where} ({probe.version_from})",
        *(f"also on the path: {c.path} {c.version}" for c in others),
    )
    if others:
        words = f"{len(others) + 1} copies of sglang are on the path; {where} wins ({version})."
        out.append(
            Check(
                "sglang",
                "warn",
                words,
                evidence,
                "Check `cwd` and PYTHONPATH if another was meant.",
                "sglang_copies",
            )
        )
    else:
        out.append(Check("sglang", "ok", f"SGLang {version}.", evidence))
    if probe.reading.unread:
        out.append(
            Check(
                "reading",
                "not_checked",
                f"Not all of SGLang's files could be read: {probe.unread_sentence}.",
                category="probe_unknown",
            )
        )
    return out


def flags(facts: Facts) -> list[Check]:
    probe, spec = facts.probe, facts.spec
    out: list[Check] = []
    problems = list(envcheck.check(spec.flags, spec.env))
    if probe is not None and probe.reading is not None:
        problems = [*flagcheck.check(facts.flags, probe.reading.flags), *problems]
    elif probe is not None:
        out.append(Check("flags", "not_checked", "Flags: there is no SGLang to check them against."))
    else:
        words = "Flags, algorithm, models and drafter fit: without the interpreter nothing could read them."
        out.append(Check("flags", "not_checked", words))
    unchecked = [p for p in problems if p.status == "not_checked"]
    for problem in problems:
        # The algorithm has a check of its own, which says more.
        if problem.status != "not_checked" and problem.category != "unknown_algorithm":
            remedy = f"Use {problem.use}." if problem.use else ""
            if not remedy and problem.near:
                remedy = f"Did you mean {', '.join(problem.near)}?"
            status = "block" if problem.status == "block" else "warn"
            out.append(made("flags", status, problem.sentence, (problem.flag,), remedy, problem.category))
    if unchecked:
        sentence = f"{len(unchecked)} flag value(s) only the engine can check."
        out.append(Check("flags", "not_checked", sentence, tuple(p.sentence for p in unchecked)))
    if not out:
        out.append(Check("flags", "ok", f"All {len(facts.flags)} flags are known and well-formed."))
    return out


def algorithm(facts: Facts) -> list[Check]:
    name = facts.spec.algorithm
    if not name or facts.probe is None or facts.probe.reading is None:
        return []
    reading = facts.probe.reading
    status, category, sentence, near = offer.judge_algorithm(reading, name)
    remedy = f"Did you mean {', '.join(near)}?" if near else ""
    where = reading.algorithms.where(offer.resolve_name(reading, name) or "")
    out = [made("algorithm", status, sentence, (where,) if where else (), remedy, category)]
    note = notes.get(offer.resolve_name(reading, name) or name)
    if status == "ok" and note is not None:
        capped = facts.spec.flag("--max-running-requests") is None
        told = [
            c
            for c in notes.changes(note, reading.version)
            if capped or not c.startswith("Caps running requests")
        ]
        caps = [c for c in told if c.startswith("Caps running requests")]
        if caps:
            # A note: every speculative profile without the flag has it, and a warning that is always there is not read.
            out.append(
                Check(
                    "side effects",
                    "ok",
                    f"{caps[0]} Set it to what you want to compare under.",
                    tuple(c for c in told if c != caps[0]),
                    category="capped_by_speculation",
                )
            )
        elif told:
            out.append(Check("side effects", "ok", f"{note.name} changes more than drafts.", tuple(told)))
    return out


def model(facts: Facts, who: str, path: str) -> list[Check]:
    """A model folder: readable config, all shards, none cut off, a tokenizer."""
    found = facts.model(path) if path else None
    if not path or found is None:
        return []
    category = {"target": "model_path_missing", "drafter": "drafter_path_missing"}[who]
    if found["kind"] == "missing":
        near = f"{found['full']} does not exist."
        return [
            Check(who, "block", f"The {who} is not there: {near}", (path,), "Correct the path.", category)
        ]
    if found["kind"] == "hub_id":
        offline = str(facts.spec.env.get("HF_HUB_OFFLINE", "")).lower() in ("1", "true", "yes", "on")
        if offline:
            sentence = f"{path} is in no local cache, and HF_HUB_OFFLINE is set."
            return [Check(who, "block", sentence, (), "Download it first.", category)]
        sentence = f"{path} is no folder here: the engine would download it as it starts."
        return [Check(who, "not_checked", sentence, (), "Download it first, or name a folder.")]
    if found.get("config") is None:
        sentence = f"The {who}'s config cannot be used: {found['problem']}."
        return [Check(who, "block", sentence, (found["full"],), "Complete the folder.", "config_unreadable")]
    dummy = (
        facts.spec.flag("--load-format" if who == "target" else "--speculative-draft-load-format") == "dummy"
    )
    return [*_shards(found, who, dummy), *(_context(facts, found) if who == "target" else ())]


def _context(facts: Facts, target: Mapping[str, Any]) -> list[Check]:
    """The context length that is asked for against the target's own, which matters without a drafter too."""
    found = fit_shapes.served_context(target["config"], fit_context(facts, target, None))
    return [made("target", f.status, f.sentence, (target["full"],), f.remedy, f.category) for f in found]


def _shards(found: Mapping[str, Any], who: str, dummy: bool) -> list[Check]:
    shards = found.get("shards")
    if shards is None:
        return [Check(who, "not_checked", f"The {who}'s weights: only a config was named.", (found["full"],))]
    size = found.get("size_bytes") or 0
    out: list[Check] = []
    if found.get("missing_count"):
        names = ", ".join(shards["missing"][:4])
        sentence = (
            f"{found['missing_count']} of {shards['expected']} shards of the {who} are missing ({names})."
        )
        out.append(
            Check(who, "block", sentence, tuple(shards["missing"]), "Finish the download.", "shards_missing")
        )
    if shards["broken"]:
        sentence = f"{len(shards['broken'])} weight file(s) of the {who} are cut off or unreadable: {shards['broken'][0]}."
        out.append(
            Check(
                who, "block", sentence, tuple(shards["broken"]), "Download them again.", "checkpoint_corrupt"
            )
        )
    if not shards["found"] and not dummy and not found.get("missing_count"):
        sentence = f"There are no weight files in {found['full']}."
        out.append(Check(who, "block", sentence, (), "Complete the folder.", "shards_missing"))
    if found.get("partial") and not out:
        sentence = (
            f"The {who}'s folder has unfinished files ({found['partial'][0]}): is it still being downloaded?"
        )
        out.append(Check(who, "warn", sentence, tuple(found["partial"]), "", "download_unfinished"))
    if found.get("weights_problem"):
        out.append(
            Check(
                who,
                "warn",
                f"The {who}: {found['weights_problem']}.",
                (found["full"],),
                "",
                "index_unreadable",
            )
        )
    if who == "target" and not found.get("tokenizer"):
        sentence = f"There is no tokenizer in {found['full']}."
        out.append(Check(who, "warn", sentence, (), "Give --tokenizer-path.", "tokenizer_missing"))
    if not out or all(c.status == "warn" for c in out):
        words = f"The {who} has {shards['found']} weight file(s), {size / 1e9:.2f} GB."
        out.append(Check(who, "ok", words, (found["full"],)))
    return out


def fit_context(facts: Facts, target: Mapping[str, Any], draft: Mapping[str, Any] | None) -> fit.Context:
    reading = facts.probe.reading if facts.probe is not None else None
    name = facts.spec.algorithm
    if reading is not None:
        name = offer.resolve_name(reading, name) or name
    gpus = facts.gpu.get("gpus") or []
    gpu = str(gpus[0].get("name") or "") if gpus else ""
    tensors = (draft or {}).get("tensors")
    return fit.Context(
        algorithm=name.upper(),
        version=reading.version if reading is not None else "",
        flags=tuple(facts.spec.flags),
        env=facts.spec.env,
        architectures=reading.architectures
        if reading is not None and reading.architectures.readable
        else None,
        captures=(target.get("captures") or {}).get(name.upper()),
        gpu_compute_cap=compute_capability(gpu),
        gpu_name=gpu,
        draft_tensors=tuple(tensors) if tensors is not None else None,
    )


def drafter_fit(facts: Facts) -> list[Check]:
    """The drafter against the target; only when the algorithm is known to be there."""
    spec = facts.spec
    if (
        not spec.algorithm or facts.probe is None
    ):  # without a probe, `flags` says that all of this is not checked
        return []
    target, draft = (
        facts.model(target_path(spec)),
        facts.model(draft_path(spec)) if draft_path(spec) else None,
    )
    if target is None or target.get("config") is None:
        return [Check("drafter fit", "not_checked", "The target's config could not be read.")]
    if draft_path(spec) and (draft is None or draft.get("config") is None):
        return [Check("drafter fit", "not_checked", "The drafter's config could not be read.")]
    report = fit.fit(target["config"], draft["config"] if draft else None, fit_context(facts, target, draft))
    out: list[Check] = []
    for finding in report.findings:
        if finding.status in ("block", "warn"):
            evidence = (f"holds for: {finding.holds_for}",) if finding.holds_for else ()
            out.append(
                made(
                    "drafter fit",
                    finding.status,
                    finding.sentence,
                    evidence,
                    finding.remedy,
                    finding.category,
                )
            )
    unsure = tuple(f.sentence for f in report.findings if f.status == "not_checked")
    if unsure:
        out.append(
            Check("drafter fit", "not_checked", f"{len(unsure)} rule(s) had nothing to compare.", unsure)
        )
    if report.verdict == "ok":
        good = tuple(f.sentence for f in report.findings if f.status == "ok")
        out.append(Check("drafter fit", "ok", "Nothing speaks against this pair.", good))
    if report.spec is not None and report.spec.draft_tokens is not None and not report.spec.blocked:
        told = f"{report.spec.steps} steps, topk {report.spec.topk}, {report.spec.draft_tokens} draft tokens"
        out.append(Check("speculation", "ok", f"The engine will run with {told}."))
    return out


def combinations(facts: Facts) -> list[Check]:
    reading = facts.probe.reading if facts.probe is not None else None
    if reading is None:
        return []
    return [
        Check(
            "known combination",
            "block" if bad.status == "block" else "warn",
            bad.sentence,
            (f"{bad.id}: {bad.source}", f"versions {bad.first or 'any'} to {bad.last or 'any'}"),
            bad.advice,
            "known_bad",
        )
        for bad in known_bad.find(reading.version, facts.spec.algorithm, facts.flags, facts.spec.env)
    ]
