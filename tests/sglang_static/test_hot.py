"""Rules of the hot switch and of tuning: what is offered, what is proven, what an answer means."""

from __future__ import annotations

import json

import pytest

from specdash.sglang import hot, hot_fit, tune
from specdash.sglang.tree import DictTree, Source

CLASSES = "".join(
    f'class {name}(BaseReq, kw_only=True):\n    selector: Literal["target", "draft", "all"] = "all"\n'
    for name in hot_fit.SELECTING
)
SERVED = "".join(
    f'@app.post("{path}")\n@level(1)\nasync def f{i}(x): ...\n' for i, path in enumerate(hot_fit.ROUTES)
)
FILES = {hot_fit.IO: CLASSES.encode(), hot_fit.HTTP: SERVED.encode()}


def source(**changed: bytes | None) -> Source:
    files = {**FILES, **{getattr(hot_fit, name): data for name, data in changed.items()}}
    return Source(DictTree({path: data for path, data in files.items() if data is not None}))


def test_offered_where_the_files_show_all_of_it() -> None:
    found = hot_fit.capability(source())
    assert found["able"] and len(found["evidence"]) == 7


@pytest.mark.parametrize(
    "changed",
    [
        {"IO": None},
        {"HTTP": None},
        {"IO": b"def broken("},
        {"IO": CLASSES.replace('"draft", ', "").encode()},
        {"IO": CLASSES.replace("selector", "chooser", 1).encode()},
        *({"HTTP": SERVED.replace(path, "/other").encode()} for path in hot_fit.ROUTES),
    ],
)
def test_not_offered_when_any_of_it_is_missing(changed: dict[str, bytes | None]) -> None:
    found = hot_fit.capability(source(**changed))
    assert not found["able"] and found["missing"]


def test_what_the_target_owns_is_never_sent() -> None:
    names = ("fc.weight", "model.embed_tokens.weight", "lm_head.weight", "d2t", "t2d")
    own_head = {"draft_vocab_size": 8}
    assert hot_fit.not_sent(own_head, names) == ("d2t", "model.embed_tokens.weight", "t2d")
    for config in ({}, {"draft_vocab_size": 8, "tie_word_embeddings": True}):
        assert "lm_head.weight" in hot_fit.not_sent(config, names)


@pytest.mark.parametrize("key", ["dp_size", "pp_size", "nnodes", "tp_size"])
def test_what_a_server_does_not_tell_is_a_block(key: str) -> None:
    info = {
        "speculative_algorithm": "EAGLE3",
        "dp_size": 1,
        "pp_size": 1,
        "nnodes": 1,
        "tp_size": 1,
        "device": "cpu",
    }
    run = {"phase": "ready"}
    assert hot_fit.server(info, run) == []
    del info[key]
    assert [f.status for f in hot_fit.server(info, run)] == ["block"]


def test_a_gpu_is_a_warning_until_it_has_been_seen() -> None:
    info = {
        "speculative_algorithm": "EAGLE3",
        "dp_size": 1,
        "pp_size": 1,
        "nnodes": 1,
        "tp_size": 8,
        "device": "cuda",
    }
    assert [f.category for f in hot_fit.server(info, {"phase": "ready"})] == ["hot_unseen"]


@pytest.mark.parametrize(
    ("answer", "word"),
    [
        ({"status": 200}, "done"),
        ({"status": 400}, "refused"),
        ({"status": 500}, "unknown"),
        ({"status": None, "problem": "refused"}, "refused"),
        ({"status": None, "problem": "timeout"}, "unknown"),
        ({"status": None, "problem": "closed"}, "unknown"),
    ],
)
def test_an_answer_that_did_not_come_proves_nothing(answer: dict[str, object], word: str) -> None:
    assert hot.outcome(answer) == word
    assert hot.closed(answer) is (answer["status"] in (200, 400))


def test_checksums_are_one_word_and_none_is_not_a_word() -> None:
    ranks: list[dict[str, dict[str, object]]] = [
        {"checksums": {"a": "1"}, "parallelism_info": {"tp_rank": 0}}
    ]
    one = hot.checksum({"status": 200, "body": json.dumps({"ranks": ranks}).encode()})
    ranks[0]["checksums"]["a"] = "2"
    two = hot.checksum({"status": 200, "body": json.dumps({"ranks": ranks}).encode()})
    assert one and two and one != two
    for body in (b"", b"[]", b'{"ranks": []}', b"{}"):
        assert hot.checksum({"status": 200, "body": body}) is None
    assert hot.checksum({"status": 400, "body": json.dumps({"ranks": ranks}).encode()}) is None


def passed(length: float | None, steps: int = 300, ok: bool = True) -> dict[str, object]:
    tokens = round(steps * (length or 1))
    return {
        "version": 1,
        "ok": ok,
        "problem": "" if ok else "HTTP 500",
        "answered": 4 if ok else 1,
        "asked": 4,
        "tokens": tokens,
        "seconds": 1.0,
        "verify_steps": steps if length is not None else None,
        "tok_s": float(tokens),
        "accept_length": length,
        "accept_source": "",
    }


@pytest.mark.parametrize(
    ("length", "at_least", "ok", "decision"),
    [
        (1.0, None, True, "back"),
        (1.04, None, True, "back"),
        (1.06, None, True, "keep"),
        (2.0, 2.2, True, "back"),
        (2.3, 2.2, True, "keep"),
        (2.3, 0.5, True, "keep"),
        (1.0, 0.5, True, "back"),
        (None, None, True, "back"),
        (2.3, None, False, "back"),
    ],
)
def test_keep_or_back(length: float | None, at_least: float | None, ok: bool, decision: str) -> None:
    passes = [passed(length, ok=ok), passed(length, ok=ok)]
    assert hot.judge(passes, at_least)["decision"] == decision
    assert f"{hot.floor(at_least):.2f}" in hot.rule(at_least)[0]


def test_tune_offers_numbers_that_can_be_put_back() -> None:
    handlers = (
        "class A:\n    def _update_handlers(self):\n        return {'a_b': 1, 'c_clear_d': 2, 'e_f': 3}\n"
        "    def other(self):\n        return {'g_h': 1}\n"
    )
    files = {
        hot_fit.HTTP: b'@app.api_route("/set_internal_state", methods=["POST"])\nasync def f(): ...\n',
        tune.PLACES[0]: handlers.encode(),
    }
    found = tune.capability(Source(DictTree(files)))
    assert sorted(found["keys"]) == ["a_b", "e_f"] and found["corpora"] is False
    rows = tune.offered(found, {"internal_states": [{"a_b": 0, "e_f": None}], "e_f": True})
    assert [(row["key"], row["value"]) for row in rows] == [("a_b", 0)]
    del files[hot_fit.HTTP]
    assert tune.capability(Source(DictTree(files))) == {"keys": {}, "corpora": False}


def test_tune_takes_numbers_and_believes_only_a_yes_of_all() -> None:
    assert (tune.number("4"), tune.number("0.5"), tune.number("nan"), tune.number("x")) == (
        4,
        0.5,
        None,
        None,
    )
    assert tune.accepted(200, b"[true, true]")[0]
    for status, body in (
        (200, b"[true, false]"),
        (200, b"[]"),
        (400, b"[true]"),
        (200, b"<html>"),
        (None, b""),
    ):
        assert not tune.accepted(status, body)[0]
