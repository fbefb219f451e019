"""The simulated engine as a process: it loads, serves, speculates, fails and ends as SGLang does."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from demokit import Engine, alive, eagle3, until
from test_demo_templates import written_by

from specdash.demo import tree
from specdash.demo.engine.drafting import Drafting, chance
from specdash.sglang import algorithms, architectures, flags
from specdash.sglang.tree import DictTree

Make = Callable[..., Engine]


def rates(one: Engine) -> list[float]:
    return [float(r) for r in re.findall(r"gen throughput \(token/s\): ([\d.]+)", one.text())]


@pytest.mark.slow
def test_base_serves_and_ends_as_the_captured_server(engine: Make, home: Path) -> None:
    one = engine("--enable-metrics").ready()
    assert one.get("/health")[0] == 200
    until(lambda: len(rates(one)) >= 4)
    assert all(58 < r < 69 for r in rates(one)[1:]), "one stream of the field's base: 63.6 tok/s"
    ours, others = written_by(one.text())
    assert not others and any("Load weight end" in line for line in ours)
    meta = one.json("/generate", {"text": "hello", "sampling_params": {"max_new_tokens": 12}})["meta_info"]
    assert meta["completion_tokens"] == 12 and "spec_verify_ct" not in meta
    page = one.get("/metrics")[1].decode()
    assert "sglang:num_running_reqs{" in page and 'le="+Inf"' in page
    state = one.json("/server_info")["internal_states"][0]
    assert state["last_gen_throughput"] > 50 and "avg_spec_accept_length" not in state
    smi = [str(home / "bin" / "nvidia-smi"), "--format=csv,noheader,nounits"]
    used = subprocess.run([*smi, "--query-gpu=memory.used"], capture_output=True, check=True).stdout.split()
    apps = subprocess.run([*smi, "--query-compute-apps=pid"], capture_output=True, check=True).stdout.split()
    assert len(used) == 8 and all(100_000 < int(u) < 143_771 for u in used)
    titles = [Path(f"/proc/{int(pid)}/cmdline").read_bytes().rstrip(b"\0").decode() for pid in apps]
    assert titles == [f"sglang::scheduler_TP{i}" for i in range(8)]
    assert one.end() == -9, "0.5.15 ends itself with its children by SIGKILL"
    assert not any(alive(int(pid)) for pid in apps)
    assert "Gracefully exiting" in one.text() and written_by(one.text())[1] == []
    used = subprocess.run([*smi, "--query-gpu=memory.used"], capture_output=True, check=True).stdout.split()
    assert used == [b"4"] * 8, "memory is free again"


@pytest.mark.slow
def test_a_good_drafter_pays_a_weak_one_does_not_and_the_level_can_be_set(engine: Make, home: Path) -> None:
    (home / ".sim" / "accept_length").write_text("1.5")
    one = engine(*eagle3("k2-eagle3-good")).ready()
    meta = one.json("/generate", {"text": "x", "sampling_params": {"max_new_tokens": 150}})["meta_info"]
    assert meta["spec_accept_length"] == meta["completion_tokens"] / meta["spec_verify_ct"]
    assert sum(meta["spec_correct_drafts_histogram"]) == meta["spec_verify_ct"]
    assert 1.2 < meta["spec_accept_length"] < 1.8
    (home / ".sim" / "accept_length").write_text("3.2")
    meta = one.json("/generate", {"text": "x", "sampling_params": {"max_new_tokens": 250}})["meta_info"]
    assert 2.6 < meta["spec_accept_length"] < 3.8
    load = one.json("/v1/loads")["loads"][0]
    assert load["max_running_requests"] == 48 and 1 < load["speculative"]["accept_length"] < 4
    assert "Max running requests is reset to 48" in one.text()
    assert re.search(r"accept len: [1-4]\.\d\d, accept rate: 0\.\d\d, cuda graph: True", one.text())


def test_numbers_of_the_field_come_out_of_the_arithmetic() -> None:
    for wanted in (1.0, 1.5, 2.35, 4.0):
        p = chance(wanted, 3)
        assert 1 + p + p**2 + p**3 == pytest.approx(wanted, abs=1e-6)
    weak = Drafting("EAGLE3", 4, 1.5, 28.8)
    tokens = sum(weak.step(t / 10) for t in range(20_000))
    seconds = sum(weak.cycle_s(1) for _ in range(20_000))
    assert tokens / seconds == pytest.approx(52, rel=0.03)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "env", "code", "last"),
    [
        (["--speculative-algorithm", "FOOBAR"], {}, 1, "ValueError: Unknown speculative algorithm name: FOOBAR"),
        (["--speculative-nope", "3"], {}, 2, "error: unrecognized arguments: --speculative-nope 3"),
        (eagle3("k2-eagle3-broken"), {}, -9, "Attempted to load weight (torch.Size([7168, 14336]))"),
        (eagle3("k2-eagle3-misfit"), {}, -9, "RuntimeError: Check failed: input.size(1) == weight.size(0) (7168 vs. 4096)"),
        (["--speculative-algorithm", "EAGLE3"], {}, -9, "has no attribute 'hot_token_id'"),
        ([], {"SPECDASH_DEMO_FAIL": "oom"}, -9, "torch.OutOfMemoryError: CUDA out of memory."),
        (["--mem-fraction-static", "0.3"], {}, -9, "Not enough memory. Please try to increase --mem-fraction-static"),
        (["--model-path", "data/none"], {}, 1, "Can't load the configuration of 'data/none'"),
    ],
)  # fmt: skip
def test_failures_end_with_sglangs_words_and_exit_codes(
    engine: Make, words: list[str], env: dict[str, str], code: int, last: str
) -> None:
    one = engine(*words, **env)
    assert one.process.wait(40) == code
    assert last in one.text()
    if code == -9:
        assert "Scheduler hit an exception: Traceback" in one.text()
        assert "Received sigquit from a child process" in one.text()


@pytest.mark.slow
def test_a_second_server_finds_the_cards_full_and_the_port_taken(engine: Make) -> None:
    one = engine().ready()
    second = engine("--port", str(one.port))
    assert second.process.wait(40) == -9 and "OutOfMemoryError" in second.text()
    third = engine("--port", str(one.port), "--tp-size", "1", "--mem-fraction-static", "0.96", "--model-path",
                   "data/eagle3/k2-eagle3-good", "--base-gpu-id", "0", "--max-total-tokens", "1000")  # fmt: skip
    assert third.process.wait(40) == 3
    assert "error while attempting to bind" in third.text() and "fired up" not in third.text()


def test_a_dead_scheduler_takes_the_server_down(engine: Make) -> None:
    one = engine().ready()
    children = Path(f"/proc/{one.process.pid}/task/{one.process.pid}/children").read_text().split()
    assert len(children) == 9
    subprocess.run(["kill", "-9", children[3]], check=True)
    assert one.process.wait(20) == -9
    assert "Subprocess sglang::scheduler_TP3 crashed with exit code -9" in one.text()
    until(lambda: not any(alive(int(pid)) for pid in children), 5)


def test_a_hang_in_capture_is_silent_and_a_slow_disk_still_reads(engine: Make) -> None:
    hung = engine(SPECDASH_DEMO_FAIL="hang", SPECDASH_DEMO_SPEED="200")
    assert hung.says("Capturing batches")
    slow = engine("--base-gpu-id", "0", SPECDASH_DEMO_FAIL="slow_disk", SPECDASH_DEMO_SPEED="20")
    assert slow.says("Multi-thread loading shards")

    def read() -> int:
        return int(re.findall(r"rchar: (\d+)", Path(f"/proc/{slow.process.pid}/io").read_text())[0])

    before = read()
    until(lambda: slow.process.poll() is not None or read() > before + (8 << 20))
    size = hung.log.stat().st_size
    until(lambda: hung.log.stat().st_size == size)
    assert hung.process.poll() is None


def test_the_static_readers_read_its_tree() -> None:
    files = DictTree({name: text.encode() for name, text in tree.FILES.items()})
    found = algorithms.read(files)
    assert found.names == ("DFLASH", "EAGLE", "EAGLE3", "FROZEN_KV_MTP", "STANDALONE", "NGRAM")
    assert found.aliases == {"NEXTN": "EAGLE"}
    table = flags.read(files)
    assert not table.unread
    for option in (
        "--model-path",
        "--tp-size",
        "--tp",
        "--speculative-draft-model-path",
        "--mem-fraction-static",
    ):
        assert option in table.by_string, option
    assert architectures.read(files).known("LlamaForCausalLMEagle3")
