"""Runs every case of a folder and prints a line each: id, pass or fail, what was expected, what came."""

from __future__ import annotations

import argparse
import collections
import json
import sys
import traceback
from pathlib import Path
from typing import Any

from specdash.errors import SpecdashError
from specdash.sglang import phases
from tests.cases import adapter
from tests.cases.shape import Case

EXPLAINS = ("note",)
"""Keys of `expect` that explain and are not checked, as the cases' README says."""
MISSING = object()


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.cases", description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--only", default="", help="ids that begin so")
    args = parser.parse_args(argv)
    passed = failed = 0
    unmapped: collections.Counter[str] = collections.Counter()
    unserved: dict[tuple[Any, str], list[str]] = collections.defaultdict(list)
    empty: list[str] = []
    for file, sidecar in cases(args.folder):
        if not str(sidecar["id"]).startswith(args.only):
            continue
        if not inputs(file, sidecar):
            empty.append(sidecar["id"])
            continue
        mapped, wrong, got = run(file, sidecar, unmapped)
        if got is None or not mapped:
            unserved[(sidecar.get("group"), sidecar["kind"])].append(sidecar["id"])
            continue
        passed, failed = (passed, failed + 1) if wrong else (passed + 1, failed)
        expected = {key: sidecar["expect"].get(key) for key in (wrong or mapped)}
        print(
            f"{sidecar['id']} {'FAIL' if wrong else 'pass'} expected {show(expected)} got {show(shown(expected, got))}"
        )
    for key, count in sorted(unmapped.items()):
        print(f"not mapped: {key} ({count})")
    for (group, kind), ids in sorted(unserved.items(), key=str):
        print(f"not served: group {group} kind {kind}: {len(ids)} cases ({', '.join(ids)})")
    if empty:
        print(
            f"no input of their own (it is the case's own file, or not there): {len(empty)} cases ({', '.join(empty)})"
        )
    print(f"{passed} passed, {failed} failed")
    return 1 if failed else 0


def cases(folder: Path) -> list[tuple[Path, dict[str, Any]]]:
    found = []
    for file in sorted(folder.glob("*.json")):
        try:
            data = json.loads(file.read_bytes())
        except ValueError:
            continue
        if isinstance(data, dict) and {"id", "kind", "expect"} <= data.keys():
            found.append((file, data))
    return found


def inputs(file: Path, sidecar: dict[str, Any]) -> tuple[Path, ...]:
    """The case's input files. Its own file is none: it says what is expected."""
    names = sidecar.get("input") or []
    found = [file.parent / name for name in (names if isinstance(names, list) else [names])]
    return tuple(path for path in found if path != file and path.is_file())


def run(
    file: Path, sidecar: dict[str, Any], unmapped: collections.Counter[str]
) -> tuple[list[str], list[str], dict[str, Any] | None]:
    """(keys that were checked, keys that are wrong, the answer)."""
    case = Case(sidecar["kind"], sidecar.get("context") or {}, inputs(file, sidecar))
    try:
        got = adapter.ANSWERS[case.kind](case) if case.kind in adapter.ANSWERS and case.inputs else None
    except SpecdashError as error:  # an answer too: a sentence for the operator
        got = {"error": error.sentence, "user_message": str(error)}
    except Exception:
        traceback.print_exc()
        return ["error"], ["error"], {"error": "the product raised"}
    if got is None:
        return [], [], None
    checked, wrong = [], []
    for key, want in sidecar["expect"].items():
        if key in EXPLAINS:
            continue
        verdict = judge(key, want, got)
        if verdict is None:
            unmapped[key] += 1
        else:
            checked.append(key)
            if not verdict:
                wrong.append(key)
    return checked, wrong, got


def judge(key: str, want: Any, got: dict[str, Any]) -> bool | None:
    """True, False, or None: the adapter does not map this key."""
    if key in got:
        return same(want, got[key])
    for prefix in ("not_",):
        if key.startswith(prefix) and key[len(prefix) :] in got:
            have = got[key[len(prefix) :]]
            bad = want if isinstance(want, list) else [want]
            return not any(item == have or (isinstance(have, list) and item in have) for item in bad)
    for suffix, enough in (("_any_of", any), ("_any", any), ("_must_contain", all), ("_contains", all)):
        base = key[: -len(suffix)]
        if key.endswith(suffix) and base in got:
            have = got[base] if isinstance(got[base], list) else [got[base]]
            items = want if isinstance(want, list) else [want]
            return enough(any(speaks(item, one) for one in have) for item in items)
    if key.endswith("_min") and key[:-4] in got:
        return got[key[:-4]] is not None and got[key[:-4]] >= want
    return None


def same(want: Any, got: Any) -> bool:
    """Equal; a dict asks only for its own keys; a list of dicts for one like each; floats within 1 %."""
    if isinstance(want, dict) and isinstance(got, dict):
        if not want:
            return not got
        return all(key in got and same(value, got[key]) for key, value in want.items())
    if isinstance(want, list) and isinstance(got, list):
        if want and all(isinstance(item, dict) for item in want):
            return all(any(same(item, one) for one in got) for item in want)
        return len(want) == len(got) and all(same(a, b) for a, b in zip(want, got, strict=True))
    if (
        isinstance(want, str)
        and isinstance(got, str)
        and want.casefold().rstrip(".") == got.casefold().rstrip(".")
    ):
        return True
    if isinstance(want, str) and want.endswith("_or_later") and isinstance(got, str):
        return phases.position(got) >= phases.position(want.removesuffix("_or_later"))
    if isinstance(want, float) and isinstance(got, (int, float)) and not isinstance(got, bool):
        return abs(want - got) <= 0.01 * max(abs(want), 1e-9)
    return (type(want) is type(got) and bool(want == got)) or (want == got and not isinstance(want, bool))


def speaks(item: Any, one: Any) -> bool:
    """Equal, text within text, or free words that name the subject of a finding."""
    if isinstance(item, str) and isinstance(one, dict):
        subject = str(one.get("flag") or one.get("subject") or "").strip("-").replace("-", "_")
        words = item.replace("-", "_").split()
        return bool(subject) and (subject in words or subject.removesuffix("_size") in words)
    if isinstance(item, str) and isinstance(one, str):
        return item.casefold() in one.casefold()
    return same(item, one)


def shown(expected: dict[str, Any], got: dict[str, Any]) -> dict[str, Any]:
    """The part of the answer that stands against what was expected."""
    out: dict[str, Any] = {}
    for key in expected:
        value = next(
            (
                got[name]
                for name in (
                    key,
                    key.removeprefix("not_"),
                    key.partition("_any")[0],
                    key.partition("_must")[0],
                )
                if name in got
            ),
            None,
        )
        if isinstance(value, dict) and isinstance(expected[key], dict):
            value = {name: value.get(name) for name in expected[key]}
        out[key] = value
    return out


def show(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=True, default=str)
    return text if len(text) < 600 else text[:600] + "…"


if __name__ == "__main__":
    sys.exit(main())
