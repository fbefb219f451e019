"""Kinds that need no server: source files, config pairs, profiles."""

from __future__ import annotations

import shlex
import sys
from typing import Any

from specdash.sglang import algorithms, architectures, envcheck, fit, flagcheck
from specdash.sglang.commandline import LaunchSpec
from specdash.sglang.tree import DictTree
from tests.cases.adapter import Answer, Case, answers
from tests.cases.tables import flag_table


@answers("spec_info_py")
def source(case: Case) -> Answer:
    files = {f"sglang/srt/speculative/{case.part(i)}": case.data(i) for i in range(len(case.inputs))}
    found = algorithms.read(DictTree(files))
    return {
        "algorithms": None if found.names is None else list(found.names),
        "aliases": found.aliases,
        "style": found.style,
        "category": "probe_unknown" if found.names is None else "",
        "must_not_import": "torch" not in sys.modules and "sglang" not in sys.modules,
    }


@answers("config_pair")
def pair(case: Case) -> Answer:
    known = architectures.from_names(case.json(2)) if len(case.inputs) > 2 else None
    context = fit.Context(
        algorithm=case.context.get("algorithm", ""),
        version=case.context.get("sglang_version", ""),
        flags=fit.flags_from_argv(case.context.get("args", [])),
        env=case.context.get("env", {}),
        architectures=known,
        gpu_compute_cap=case.context.get("gpu_compute_cap", ""),
        gpu_name=case.context.get("gpu_name", ""),
    )
    report = fit.fit(case.json(0), case.json(1), context)
    return {
        "verdict": report.verdict,
        "category": report.category,
        "numbers": report.numbers,
        "aux_layer_ids": report.aux_layer_ids,
        "architecture": report.draft_architecture,
        "flags": list(report.worst.flags) if report.worst else [],
    }


@answers("profile")
def profile(case: Case) -> Answer:
    given = case.json()
    table = flag_table(case.context.get("sglang_version", ""))
    pairs: list[tuple[str, Any]] = [
        ("--" + key.replace("_", "-"), value)
        for key, value in given.items()
        if key not in ("name", "env", "args", "extra_args")
    ]
    pairs += flagcheck.from_argv([*given.get("args", []), *shlex.split(given.get("extra_args", ""))], table)
    spec = LaunchSpec(
        "case", "local", "python3", ("-m", "sglang.launch_server"), tuple(pairs), given.get("env", {})
    )
    problems = [*flagcheck.check(pairs, table), *envcheck.check(pairs, spec.env)]
    return {
        "category": flagcheck.category(problems),
        "problems": [{"flag": p.flag, "kind": p.kind, "use": p.use} for p in problems],
        "launch_allowed": not any(p.status == "block" for p in problems),
        "argv": spec.argv(),
    }
