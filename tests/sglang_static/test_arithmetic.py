"""What the engine makes of steps, topk and draft tokens, by algorithm and version."""

from __future__ import annotations

import pytest

from specdash.sglang.arithmetic import Wanted, resolve

LLAMA, DEEPSEEK, QWEN = "LlamaForCausalLM", "DeepseekV3ForCausalLM", "Qwen3ForCausalLM"


@pytest.mark.parametrize(
    ("algorithm", "version", "target", "numbers"),
    [
        ("EAGLE", "0.4.3", DEEPSEEK, (5, 4, 8)),
        ("EAGLE", "0.4.6", DEEPSEEK, (5, 4, 8)),
        ("EAGLE", "0.5.5", DEEPSEEK, (3, 1, 4)),
        ("EAGLE3", "0.5.5", QWEN, (5, 4, 8)),
        ("EAGLE3", "0.5.9", QWEN, (3, 1, 4)),
        ("EAGLE3", "0.5.23", LLAMA, (5, 4, 8)),
        ("STANDALONE", "0.5.5", LLAMA, (3, 1, 4)),
        ("DFLASH", "0.5.23", LLAMA, (1, 1, 16)),
        ("DSPARK", "0.5.23", LLAMA, (1, 1, 8)),
        ("NGRAM", "0.5.9", LLAMA, (None, 10, 12)),
        ("NGRAM", "0.5.23", LLAMA, (1, 10, 12)),
        ("SOMETHING_NEW", "0.9", LLAMA, (None, None, None)),
    ],
)
def test_defaults(algorithm: str, version: str, target: str, numbers: tuple[int | None, ...]) -> None:
    found = resolve(algorithm, version, Wanted(), target)
    assert (found.steps, found.topk, found.draft_tokens) == numbers and not found.blocked


@pytest.mark.parametrize(
    ("wanted", "blocked", "tokens"),
    [
        (Wanted(3, 1, 4), False, 4),
        (Wanted(3, 1, None), False, 4),
        (Wanted(3, 1, 16), False, 4),
        (Wanted(5, 4, 8), False, 8),
        (Wanted(None, 4, None), True, None),
        (Wanted(None, None, 8), True, 8),
        (Wanted(3, None, 4), True, 4),
        (Wanted(3, 4, None), True, None),
        (Wanted(2, 2, 7), False, 7),
        (Wanted(2, 2, 8), True, 8),
        (Wanted(0, 1, 1), True, 1),
        (Wanted(5, 4, 3), False, 3),
    ],
)
def test_eagle_numbers_agree_or_are_refused(wanted: Wanted, blocked: bool, tokens: int | None) -> None:
    found = resolve("EAGLE", "0.5.23", wanted, LLAMA)
    assert (found.blocked, found.draft_tokens) == (blocked, tokens)


def test_an_adjustment_is_a_warning_only_when_something_set_is_changed() -> None:
    changed = resolve("EAGLE", "0.5.23", Wanted(3, 1, 16))
    assert [i.status for i in changed.issues] == ["warn"]
    assert [i.status for i in resolve("EAGLE", "0.5.23", Wanted(3, 1, None)).issues] == ["ok"]


@pytest.mark.parametrize(
    ("version", "backend", "blocked", "topk"),
    [
        ("0.4.6", "triton", False, 1),
        ("0.5.3", "fa3", True, 4),
        ("0.5.9", "fa3", False, 4),
        ("0.5.9", "triton", True, 4),
        ("0.5.23", "triton", False, 4),
        ("0.5.23", "flashmla", True, 4),
        ("0.5.23", "", False, 4),
    ],
)
def test_trees_in_pages(version: str, backend: str, blocked: bool, topk: int) -> None:
    found = resolve("EAGLE", version, Wanted(5, 4, 8, page_size=64, attention_backend=backend), LLAMA)
    assert (found.blocked, found.topk) == (blocked, topk)


def test_block_drafters() -> None:
    draft = {"block_size": 16}
    assert resolve("DFLASH", "0.5.23", Wanted(draft_tokens=8, block_size=16), draft_config=draft).blocked
    assert [
        i.category for i in resolve("DFLASH", "0.5.23", Wanted(draft_tokens=8), draft_config=draft).issues
    ] == ["block_size_differs"]
    assert resolve("DSPARK", "0.5.23", Wanted(draft_tokens=8, block_size=7)).draft_tokens == 8
    assert resolve("DSPARK", "0.5.23", Wanted(draft_tokens=7, block_size=7)).blocked


def test_uno_trees() -> None:
    assert resolve("UNO", "0.5.23", Wanted()).blocked
    assert not resolve("UNO", "0.5.23", Wanted(draft_tokens=8)).blocked
    assert resolve("UNO", "0.5.23", Wanted(topk=4, draft_tokens=8)).blocked
    assert not resolve("UNO", "0.5.23", Wanted(3, 4, 8)).blocked
    assert resolve("UNO", "0.5.23", Wanted(3, 4, 129)).blocked
    assert resolve("UNO", "0.5.23", Wanted(3, 4, 3)).blocked


@pytest.mark.parametrize(("version", "steps"), [("0.5.13.post1", None), ("0.5.15.post1", 1), ("0.5.23", 1)])
def test_ngram_derives_its_steps_from_0_5_15_on(version: str, steps: int | None) -> None:
    assert resolve("NGRAM", version, Wanted()).steps == steps
