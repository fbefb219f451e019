"""Does this drafter fit this target, under this algorithm of this version? Known before anything is loaded.

From the two `config.json`, and where the tree is at hand from the model files. Every finding says for which
versions it holds. Nothing found to compare is *not checked*, never taken for a match.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Dict, List, Mapping, Optional, Sequence, Tuple

from specdash.sglang import arithmetic
from specdash.sglang.architectures import Architectures
from specdash.sglang.envcheck import TP, whole

Config = Mapping[str, Any]
ORDER = {"block": 0, "warn": 1, "not_checked": 2, "ok": 3}


@dataclass(frozen=True)
class Finding:
    """One rule's outcome. `status`: ok | warn | block | not_checked."""

    status: str
    category: str
    sentence: str
    remedy: str = ""
    holds_for: str = ""
    """The SGLang versions that the rule holds for, in words."""
    flags: Tuple[str, ...] = ()


@dataclass(frozen=True)
class Context:
    """What is known beside the two configs. Anything may be left out; then its rules are *not checked*."""

    algorithm: str
    version: str = ""
    flags: Tuple[Tuple[str, Any], ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    architectures: Optional[Architectures] = None
    captures: Optional[bool] = None
    """Whether the target's class hands out hidden states for this algorithm; None: cannot tell."""
    gpu_compute_cap: str = ""
    gpu_name: str = ""
    draft_tensors: Optional[Tuple[str, ...]] = None
    """Names of the drafter's tensors, when its index or headers were read."""
    target_architecture_file: str = ""

    def flag(self, *names: str) -> Any:
        found = None
        for option, value in self.flags:
            if option in names:
                found = value
        return found

    def number(self, *names: str) -> Optional[int]:
        from specdash.sglang.flagcheck import readable_int

        value = self.flag(*names)
        try:
            return readable_int(str(value)) if value is not None else None
        except ValueError:
            return None

    @property
    def tp(self) -> int:
        return whole(self.flags, TP, 1) or 1


@dataclass(frozen=True)
class FitReport:
    """`verdict`: ok | warn | block. `numbers`: what was compared, by name; None: the config does not say."""

    verdict: str
    category: str
    findings: Tuple[Finding, ...]
    numbers: Dict[str, Optional[int]]
    aux_layer_ids: Optional[List[int]] = None
    draft_architecture: str = ""
    target_architecture: str = ""
    spec: Optional[arithmetic.Numbers] = None

    @property
    def worst(self) -> Optional[Finding]:
        return self.findings[0] if self.findings else None


def fit(target: Config, draft: Optional[Config], context: Context) -> FitReport:
    """All rules. `draft` None: no drafter is given. Never raises on any config."""
    from specdash.sglang import fit_rules, fit_shapes
    from specdash.sglang import modelconfig as mc

    numbers = fit_shapes.numbers(target, draft)
    findings: List[Finding] = []
    findings.extend(fit_rules.known_algorithm(context))
    findings.extend(fit_rules.path_rules(target, draft, context))
    if draft is not None and context.algorithm.upper() not in ("NGRAM", "UNO"):
        for rule in (
            fit_rules.architecture,
            fit_rules.algorithm_fits,
            fit_shapes.hidden,
            fit_shapes.vocabulary,
            fit_shapes.layers,
            fit_shapes.aux_layers,
            fit_rules.capture,
            fit_shapes.context_length,
            fit_shapes.heads,
            fit_rules.quantization,
            fit_rules.old_gpu,
            fit_rules.block_drafter,
            fit_rules.overrides,
        ):
            findings.extend(rule(target, draft, context))
    elif draft is None:
        findings.extend(fit_rules.capture(target, {}, context))
    spec = arithmetic.resolve(
        context.algorithm, context.version, wanted(context), mc.architecture(target), draft
    )
    findings.extend(
        Finding(issue.status, issue.category, issue.sentence, flags=issue.flags)
        for issue in spec.issues
        if issue.status != "ok"
    )
    findings.sort(key=lambda f: ORDER[f.status])
    worst = findings[0] if findings else None
    serious = worst is not None and worst.status in ("block", "warn")
    ids, _ = mc.aux_layer_ids(draft or {})
    return FitReport(
        worst.status if worst is not None and serious else "ok",
        worst.category if worst is not None and serious else "",
        tuple(findings),
        numbers,
        ids,
        mc.architecture(draft or {}),
        mc.architecture(target),
        spec,
    )


def wanted(context: Context) -> arithmetic.Wanted:
    """The speculative numbers among the flags."""
    block = (
        "--speculative-dspark-block-size"
        if context.algorithm.upper() == "DSPARK"
        else "--speculative-dflash-block-size"
    )
    backend = context.flag("--attention-backend")
    decode, prefill = context.flag("--decode-attention-backend"), context.flag("--prefill-attention-backend")
    return arithmetic.Wanted(
        steps=context.number(arithmetic.STEPS),
        topk=context.number(arithmetic.TOPK),
        draft_tokens=context.number(arithmetic.TOKENS),
        block_size=context.number(block),
        bfs_breadth=context.number("--speculative-ngram-max-bfs-breadth") or 10,
        match_window=context.number("--speculative-ngram-max-match-window-size") or 12,
        page_size=context.number("--page-size"),
        attention_backend=str(backend) if backend not in (None, True) else "",
        other_backends=tuple(str(b) for b in (decode, prefill) if b not in (None, True)),
        adaptive=context.flag("--speculative-adaptive") is True,
    )


def flags_from_argv(words: Sequence[str]) -> Tuple[Tuple[str, Any], ...]:
    """Extra arguments as pairs, for a fit that is asked for on the command line."""
    from specdash.sglang.flagcheck import from_argv

    return tuple(from_argv(words))
