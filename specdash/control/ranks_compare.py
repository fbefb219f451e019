"""What must be the same on all hosts of one server: SGLang, interpreter, model files, GPUs, clocks. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from specdash.control.plans import Check
from specdash.control.preflight_facts import Facts
from specdash.control.preflight_host import on_cpu, wanted_gpus
from specdash.control.ranks import Ranks
from specdash.sglang import envcheck

SKEW_S = 5.0
MATTERS = (
    *(
        ".json",
        ".safetensors",
        ".bin",
        ".pt",
        ".pth",
        ".gguf",
        ".model",
        ".tiktoken",
        ".txt",
        ".jinja",
        ".py",
    ),
)
"""Endings of files that an engine reads; a README or an image may differ."""


def layout(ranks: Ranks) -> list[Check]:
    """What specdash filled in; and whether the parallel sizes can be cut into so many parts."""
    told = ", ".join(f"rank {one.rank} on {one.host}" for one in ranks.ranks)
    out = [Check("ranks", "ok", f"{told}; they meet at {ranks.init.text} ({ranks.init.rule}).")]
    flags, nodes = ranks.ranks[0].spec.flags, len(ranks.ranks)
    out.append(Check("parallel", "ok", parallel(flags, nodes)))
    tp, pp = envcheck.whole(flags, envcheck.TP, 1), envcheck.whole(flags, envcheck.PP, 1)
    if tp is not None and pp is not None and (tp * pp) % nodes:
        sentence = f"tp {tp} x pp {pp} cannot be cut into {nodes} hosts."
        remedy = f"Make tp-size (or pp-size) a multiple of {nodes}."
        out.append(Check("ranks", "block", sentence, (), remedy, "ranks_do_not_divide"))
    return out


EP = ("--ep-size", "--expert-parallel-size", "--ep")


def parallel(flags: Sequence[tuple[str, Any]], nodes: int) -> str:
    """Tensor, pipeline, data and expert parallel sizes in words, and which GPUs of the whole each host has."""
    tp, pp = envcheck.whole(flags, envcheck.TP, 1), envcheck.whole(flags, envcheck.PP, 1)
    dp, ep = envcheck.whole(flags, envcheck.DP, 1), envcheck.whole(flags, EP, 1)
    shared = any(option in ("--enable-dp-attention", "--attn-dp-size") for option, _ in flags)
    parts = [f"tensor parallel {tp}"]
    if pp != 1:
        parts.append(f"pipeline of {pp} stages")
    if dp != 1:
        parts.append(f"data parallel {dp}{' in attention, on the same GPUs' if shared else ', each a copy'}")
    if ep != 1:
        parts.append(f"expert parallel {ep}")
    per_host = envcheck.gpus_needed(flags)
    each = f": {per_host} GPU(s) on each of {nodes} hosts" if per_host is not None else ""
    if pp is not None and pp > 1 and pp % nodes == 0:
        each += f", {pp // nodes} whole stage(s) a host"
    return f"{', '.join(parts)}{each}."


def sglang(facts: Mapping[str, Facts]) -> list[Check]:
    """One version of SGLang, one minor version of Python."""
    out: list[Check] = []
    versions: dict[str, list[str]] = {}
    pythons: dict[str, list[str]] = {}
    unknown = []
    for host, found in facts.items():
        if found.probe is None or found.probe.reading is None:
            unknown.append(host)
            continue
        versions.setdefault(found.probe.reading.version or "unknown", []).append(host)
        pythons.setdefault(".".join(found.probe.python.split(".")[:2]), []).append(host)
    if unknown:
        sentence = f"SGLang of {', '.join(unknown)} could not be read, so it was not compared."
        out.append(Check("same sglang", "not_checked", sentence))
    if len(versions) > 1:
        told = _told(versions)
        sentence = f"The hosts have different versions of SGLang: {told}."
        remedy = "Install one version on all hosts, or correct `python` under [on.HOST]."
        out.append(Check("same sglang", "block", sentence, (), remedy, "versions_differ"))
    elif versions and not unknown:
        version = next(iter(versions))
        if version == "unknown":
            out.append(Check("same sglang", "not_checked", "No host tells its version of SGLang."))
        else:
            out.append(Check("same sglang", "ok", f"SGLang {version} on all {len(facts)} hosts."))
    if len(pythons) > 1:
        sentence = f"The hosts have different Pythons: {_told(pythons)}. The ranks exchange pickled objects."
        out.append(Check("same python", "warn", sentence, (), "Use one minor version.", "pythons_differ"))
    elif pythons:
        out.append(Check("same python", "ok", f"Python {next(iter(pythons))} on all hosts that were read."))
    return out


def _told(groups: Mapping[str, list[str]]) -> str:
    return ", ".join(f"{what} on {' and '.join(hosts)}" for what, hosts in groups.items())


def models(files: Mapping[str, Mapping[str, Mapping[str, Any]]], facts: Mapping[str, Facts]) -> list[Check]:
    """Same files, sizes, and hashes of configs and indexes, compared with the first host's."""
    out: list[Check] = []
    hosts = list(facts)
    for who in ("target", "drafter"):
        if not any(who in found for found in files.values()):
            continue
        first, mine = hosts[0], files.get(hosts[0], {}).get(who)
        missing = [host for host in hosts if not files.get(host, {}).get(who)]
        if not mine or missing:
            sentence = f"The {who}'s files on {', '.join(missing or [first])} could not be compared."
            out.append(Check(f"same {who}", "not_checked", sentence))
            continue
        before = len(out)
        for host in hosts[1:]:
            told = _differences(mine, files[host][who], first, host)
            if told:
                more = f" and {len(told) - 1} more" if len(told) > 1 else ""
                sentence = f"The {who} is not the same on {first} and {host}: {told[0]}{more}."
                out.append(
                    Check(
                        f"same {who}",
                        "block",
                        sentence,
                        tuple(told[:20]),
                        "Copy it again, or correct the path under [on.HOST.server].",
                        "models_differ",
                    )
                )
        if len(out) == before:
            hashed = sum(1 for one in mine.values() if one.get("sha256"))
            sentence = f"The {who} is the same on all hosts: {len(mine)} files by size, {hashed} by SHA-256."
            out.append(Check(f"same {who}", "ok", sentence))
    return out


def _differences(a: Mapping[str, Any], b: Mapping[str, Any], first: str, host: str) -> list[str]:
    out = []
    for name in sorted({*a, *b}):
        if not name.endswith(MATTERS) or name.startswith("."):
            continue
        one, other = a.get(name), b.get(name)
        if one is None or other is None:
            out.append(f"{name} is missing on {first if one is None else host}")
        elif one.get("size") != other.get("size"):
            out.append(f"{name} has {one.get('size')} bytes on {first}, {other.get('size')} on {host}")
        elif one.get("sha256") != other.get("sha256"):
            out.append(f"{name} has the same size but other content")
    return out


def gpus(facts: Mapping[str, Facts]) -> list[Check]:
    """The same GPUs for each host's ranks; how many there must be is each host's own check."""
    kinds: dict[str, list[str]] = {}
    for host, found in facts.items():
        if on_cpu(found):
            return []
        chosen = wanted_gpus(found)
        needed = envcheck.gpus_needed(found.spec.flags)
        if chosen is None or needed is None:
            return [Check("same gpus", "not_checked", f"{host} told nothing about its GPUs.")]
        names = sorted({str(gpu.get("name") or "unknown") for gpu in chosen[:needed]})
        kinds.setdefault(f"{needed} x {' and '.join(names) or 'none'}", []).append(host)
    if len(kinds) > 1:
        sentence = f"The hosts' GPUs differ: {_told(kinds)}. The slowest one sets the pace."
        return [Check("same gpus", "warn", sentence, (), "", "gpus_differ")]
    return [Check("same gpus", "ok", f"{next(iter(kinds))} on each host.")] if kinds else []


def clocks(facts: Mapping[str, Facts]) -> list[Check]:
    """The hosts' clocks against each other, by way of this machine's."""
    known = {host: found for host, found in facts.items() if found.skew_s is not None}
    missing = [host for host in facts if host not in known]
    if missing:
        return [Check("clocks", "not_checked", f"The clock of {', '.join(missing)} was not read.")]
    by_skew = sorted(known, key=lambda host: known[host].skew_s or 0.0)
    if len(by_skew) < 2:
        return []
    low, high = by_skew[0], by_skew[-1]
    apart = (known[high].skew_s or 0.0) - (known[low].skew_s or 0.0)
    within = known[high].skew_within_s + known[low].skew_within_s
    if apart - within > SKEW_S:
        sentence = f"The clock of {high} is {apart:.0f} s ahead of {low}'s."
        return [Check("clocks", "warn", sentence, (), "Set up NTP; log times will not agree.", "clock_skew")]
    return [Check("clocks", "ok", f"The hosts' clocks agree within {max(apart, within):.1f} s.")]
