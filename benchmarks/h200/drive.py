"""specdash on a real GPU with a real SGLang, by the commands that an operator types.

    ROOT/venv/bin/python benchmarks/h200/drive.py gpu OUT ROOT --python PYTHON   (a GPU machine, after setup.sh)
    python benchmarks/h200/drive.py cpu OUT ENGINE                               (rehearsal on the CPU engine)

Everything said is kept: OUT/steps/NN-name.txt, OUT/summary.txt, OUT/figures.json, OUT/runs (the run folders).
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from desk import Desk, Load, Smi, gpu_base, gpu_profiles, shell

NUMBERS = ("decode_tok_s", "accept_length", "running", "running_cap", "kv_used", "accept_length_start")


class Story:
    def __init__(self, desk: Desk, smi: Smi, port: int, tokens: int, seconds: float) -> None:
        self.desk, self.smi, self.port, self.tokens, self.seconds = desk, smi, port, tokens, seconds
        self.figures: dict[str, Any] = {}
        self.foreign: subprocess.Popen[bytes] | None = None

    # --- asking -------------------------------------------------------------------------------------------

    def runs(self) -> list[dict[str, Any]]:
        return list(self.desk.json("runs", "runs", "gpu").get("runs", []))

    def live(self, profile: str = "") -> dict[str, Any]:
        return next(r for r in self.runs() if not r.get("ended") and profile in ("", r["profile"]))

    def look(self, name: str, host: str = "gpu") -> dict[str, Any]:
        """One `status --json` and nvidia-smi's word at the moment that its GPU numbers are of."""
        told = self.desk.json(name, "status", host, "--json")
        ended = time.time()
        state = (told.get("hosts") or {}).get(host) or {}
        board = state.get("gpus") or {}
        at = ended if board.get("at") is None else ended - (told["now"] - board["at"])
        time.sleep(0.6)  # the row after it
        servers = {
            ident: {
                "verdict": s["verdict"]["kind"],
                "health": s["health"]["state"],
                "numbers": {k: s["numbers"].get(k) for k in NUMBERS},
                "source": s["numbers"].get("source"),
                "break_even": (s.get("break_even") or {}).get("sentence"),
                "alarms": [a["sentence"] for a in s["alarms"]],
            }
            for ident, s in (state.get("servers") or {}).items()
            if s["verdict"]["kind"] not in ("dead", "stopped")
        }
        seen = {
            "gpus": board.get("gpus"),
            "gpu_source": board.get("source"),
            "gpu_problem": board.get("problem"),
            "gpu_age_s": round(ended - at, 3),
            "nvidia_smi_then": self.smi.around(at),
            "servers": servers,
            "alarms": [a["sentence"] for a in state.get("alarms") or ()],
        }
        self.figures[name] = seen
        return seen

    # --- steps --------------------------------------------------------------------------------------------

    def ask_the_engine(self) -> None:
        self.desk.run("probe", "probe", "base")
        self.desk.run("probe-flags", "probe", "base", "--flag", "speculative")
        for name in ("base", "eagle3", "ngram", "misfit", "oom", "pool"):
            if (self.desk.home / "profiles" / f"{name}.toml").exists():
                self.desk.run(f"preflight-{name}", "preflight", name)

    def launch(self, profile: str, code: int = 0, *more: str) -> None:
        got, _, took = self.desk.run(
            f"launch-{profile}", "launch", profile, "--wait", "--yes", *more, timeout=280
        )
        self.figures[f"launch {profile}"] = {"exit": got, "expected": code, "seconds": round(took, 1)}
        self.desk.run(f"show-{profile}", "show", profile)

    def under_load(self, profile: str, streams: int, check: bool = False) -> None:
        load = Load(self.port, streams, self.seconds, self.tokens)
        time.sleep(
            min(11.5, self.seconds / 3)
        )  # the window of the live numbers is 10 s: all of it under this load
        seen = self.look(f"load-{profile}-{streams}")
        if check:
            self.desk.run(f"check-{profile}-{streams}", "check", profile, "-v")
            self.desk.run(f"check-json-{profile}-{streams}", "check", profile, "--json")
        told = load.end()
        shown = {}
        for server in seen["servers"].values():
            for key in ("decode_tok_s", "accept_length"):
                shown[key] = (server["numbers"].get(key) or {}).get("value")
        self.figures[f"load-{profile}-{streams}"]["truth"] = told
        self.desk.say(
            f"  {profile} {streams} streams: specdash {shown}; clients {told['tok_s']} tok/s, accept length"
            f" {told['accept_length']}; failures {told['failures']}"
        )

    def watch(self, name: str, host: str, seconds: float) -> None:
        """`status --watch` for a while: what changes when nothing is asked of the server any longer."""
        words = [sys.executable, "-m", "specdash", "status", host, "--watch", "1", "--json"]
        process = subprocess.Popen(
            words, env=self.desk.env(), cwd=self.desk.home, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )  # fmt: skip
        # TERM: whatever is started under `nohup … &` has INT ignored, and so have its children.
        threading.Timer(seconds, process.terminate).start()
        assert process.stdout is not None
        rows = []
        for line in process.stdout:
            state = json.loads(line)["hosts"][host]
            gpus = (state.get("gpus") or {}).get("gpus") or []
            row: dict[str, Any] = {"t": round(time.time() - self.desk.began, 1)}
            row["gpu"] = [
                (g["memory_used_mib"], g["utilisation_pct"], g["power_w"], g["pcie_rx_mib_s"]) for g in gpus
            ]
            for server in state["servers"].values():
                if server["verdict"]["kind"] == "ready":
                    n = server["numbers"]
                    row["health"] = f"{server['health']['state']}: {server['health']['sentence']}"
                    row |= {k: (n[k]["value"], n[k]["source"]) for k in ("running", "decode_tok_s", "queued")}
                    row |= {"idle": n["idle"], "alarms": [a["sentence"] for a in server["alarms"]]}
            rows.append(row)
        process.wait(20)
        self.figures[name] = rows
        states = list(dict.fromkeys(str(row.get("health")) for row in rows))
        self.desk.say(f"  {name}: {len(rows)} pictures; health {states}")

    def switch(self, old: str, new: str, *more: str) -> None:
        words = ("switch", old, new, "--yes", "--settle", "5", "--slower", "keep", *more)
        code, _, took = self.desk.run(f"switch-{old}-{new}", *words, timeout=420)
        self.figures[f"switch {old} {new}"] = {"exit": code, "seconds": round(took, 1)}

    def misfit(self) -> None:
        """Blocked before anything is touched; by force it fails while it loads, and what served comes back."""
        old = self.live()["profile"]
        self.desk.run("switch-misfit-refused", "switch", old, "misfit", "--yes")
        self.switch(old, "misfit", "--force")
        self.look("after-misfit")

    def start_foreign(self, python: str) -> None:
        """A stranger's process with 1 GiB of the GPU: never ours, never touched."""
        code = "import torch,time; x=torch.zeros(2**28,device='cuda'); print(1,flush=True); time.sleep(900)"
        self.foreign = subprocess.Popen([python, "-c", code], stdout=subprocess.PIPE)
        assert self.foreign.stdout is not None
        self.foreign.stdout.readline()
        self.desk.say(f"  a stranger holds 1 GiB: pid {self.foreign.pid}")

    def end_foreign(self) -> None:
        if self.foreign is not None:
            self.desk.say(f"  the stranger lives: {self.foreign.poll() is None}")
            self.foreign.kill()
            self.foreign.wait()

    def kill_the_launcher(self) -> None:
        run = self.live()
        pid = int(run["pid"])
        before = self.smi.level()
        os.kill(pid, signal.SIGKILL)
        self.desk.say(f"  kill -9 {pid} ({run['id']}); GPU level {before} MiB")
        time.sleep(1.5)
        self.look("killed-at-once")
        self.desk.keep("killed-smi.txt", shell(["nvidia-smi"]))
        time.sleep(14)
        self.look("killed-later")
        self.desk.run("killed-status", "status", "gpu")
        self.desk.run("killed-stop", "stop", run["id"], "--host", "gpu", "--yes", "--confirm", run["id"])
        time.sleep(1.5)
        self.desk.run("killed-show", "show", run["id"], "--host", "gpu")
        self.figures["kill -9"] = {"level_serving_mib": before, "level_after_stop_mib": self.smi.level()}
        self.proof(run["id"])

    def stop(self, profile: str) -> None:
        run = self.live(profile)
        before = self.smi.level()
        self.desk.run(f"stop-{profile}", "stop", profile, "--yes", "--confirm", run["id"], timeout=120)
        time.sleep(1.5)
        self.figures[f"stop {profile}"] = {"level_before_mib": before, "level_after_mib": self.smi.level()}
        self.proof(run["id"])

    def folder(self, run: str) -> Path:
        return next((self.desk.home / "host").glob(f"hosts/*/runs/{run}"))

    def proof(self, run: str) -> None:
        events = [json.loads(line) for line in (self.folder(run) / "events.jsonl").read_text().splitlines()]
        kept = [
            e
            for e in events
            if e.get("event") in ("gpu_before", "exited", "leftovers", "killed", "stopped", "ended")
        ]
        self.figures[f"proof {run}"] = kept
        self.desk.say(f"  proof: {[e.get('proof', {}).get('sentence') for e in kept if e.get('proof')]}")

    def cost(self, python: str, name: str) -> None:
        """CPU of the sampler alone, then of the agent, the supervisor and the client while a status watches."""
        here = Path(__file__).resolve()
        words = [python, "-I", str(here.parent / "sampler_cost.py"), str(here.parents[2]), "6"]
        text = shell(words, timeout=40)
        self.desk.keep(f"sampler-cost-{name}.txt", text)
        with contextlib.suppress(ValueError):
            self.figures[f"sampler {name}"] = json.loads(text[text.index("\n") + 1 :])
        watch = subprocess.Popen(
            [sys.executable, "-m", "specdash", "status", "gpu", "--watch", "1", "--json"],
            env=self.desk.env(), cwd=self.desk.home, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        try:
            time.sleep(4)
            at, before = time.time(), dict(ours(watch.pid))
            time.sleep(10)
            took, after = time.time() - at, dict(ours(watch.pid))
        finally:
            watch.terminate()
            try:
                watch.wait(10)
            except subprocess.TimeoutExpired:
                watch.kill()
        cpu = {
            f"{what} (pid {pid})": f"{100 * (after[pid, what][0] - was[0]) / took:.2f} % of a core, {was[1]:.0f} MB"
            for (pid, what), was in before.items()
            if (pid, what) in after
        }
        self.figures[f"cpu {name}"] = cpu
        self.desk.say(f"  CPU {name}: {cpu}")


def ours(client: int) -> Iterator[tuple[tuple[int, str], tuple[float, float]]]:
    """(pid, what) → (CPU seconds, RSS MB) of the client, agents, supervisors and nvidia-smi loops."""
    ticks = os.sysconf("SC_CLK_TCK")
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            words = (entry / "cmdline").read_bytes().decode("utf-8", "replace").split("\0")
            fields = (entry / "stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        line, pid = " ".join(words), int(entry.name)
        if pid == client:
            what = "specdash status"
        elif "supervisor.pyz" in line:
            what = "supervisor"
        elif words[0].endswith("nvidia-smi"):
            what = "nvidia-smi " + " ".join(words[-2:])
        elif "python" in words[0] and "-I" in words and "supervisor" not in line:
            what = "agent"
        else:
            continue
        yield (pid, what), ((int(fields[11]) + int(fields[12])) / ticks, int(fields[21]) * 4096 / 1e6)


def second(s: Story, kind: str, python: str) -> None:
    """The shorter story of the second run: switches that are kept, what is shown after a load, the cost."""
    step = s.desk.step
    step("launch base", lambda: s.launch("base"), 60)
    step("base 1", lambda: s.under_load("base", 1), 40)
    step("base 8", lambda: s.under_load("base", 8, True), 40)
    step("after load", lambda: s.watch("after-load", "gpu", 45), 50)
    if kind == "gpu":
        step("other reader", lambda: s.watch("by-nvidia-smi", "gpu-smi", 10), 15)
        step("cost", lambda: s.cost(python, "idle"), 40)
    step("base to standalone", lambda: s.switch("base", "standalone"), 100)
    step("standalone 1", lambda: s.under_load("standalone", 1), 40)
    step("standalone 8", lambda: s.under_load("standalone", 8, True), 40)
    step("standalone to ngram", lambda: s.switch("standalone", "ngram"), 100)
    step("ngram 1", lambda: s.under_load("ngram", 1), 40)
    step("ngram 8", lambda: s.under_load("ngram", 8), 40)
    step("misfit", s.misfit, 90)
    step("stop", lambda: s.stop(s.live()["profile"]), 20)


def story(s: Story, kind: str, python: str) -> None:
    step = s.desk.step
    step("status-empty", lambda: s.look("empty") and None)
    step("ask", s.ask_the_engine)
    step("launch base", lambda: s.launch("base"), 60)
    step("base 1", lambda: s.under_load("base", 1, True), 40)
    step("base 8", lambda: s.under_load("base", 8, True), 40)
    if kind == "gpu":
        step("other reader", lambda: s.look("by-nvidia-smi", "gpu-smi") and None)
        step("local link", lambda: s.look("by-local-link", "local") and None)
        step("cost", lambda: s.cost(python, "idle"), 40)
    step("base to eagle3", lambda: s.switch("base", "eagle3"), 120)
    if kind == "gpu":
        step("foreign", lambda: s.start_foreign(python), 30)
    step("eagle3 1", lambda: s.under_load("eagle3", 1), 40)
    step("eagle3 8", lambda: s.under_load("eagle3", 8, True), 40)
    step("misfit", s.misfit, 200)
    step("kill -9", s.kill_the_launcher, 60)
    step("foreign ends", s.end_foreign, 0)
    step("launch ngram", lambda: s.launch("ngram"), 60)
    step("ngram 1", lambda: s.under_load("ngram", 1), 40)
    step("ngram 8", lambda: s.under_load("ngram", 8, True), 40)
    step("stop ngram", lambda: s.stop("ngram"), 20)
    if kind == "gpu":
        step("pool", lambda: s.launch("pool", 2, "--force"), 60)
        step("oom", lambda: s.launch("oom", 2, "--force"), 60)
        step("standalone", lambda: s.launch("standalone"), 100)
        step("standalone 8", lambda: s.under_load("standalone", 8), 40)
        step("stop standalone", lambda: s.stop("standalone"), 20)
    step("runs", lambda: s.desk.run("runs-at-end", "runs", "gpu") and None, 0)


def config(home: Path, sshd: Any, python: str, bare: str) -> str:
    # Without an sshd the same host is reached by the local link: everything but SSH itself is the same.
    link = "" if sshd is None else (
        f'ssh = "127.0.0.1"\nport = {sshd.port}\nuser = "root"\nidentity = "{sshd.identity}"\n'
        f'known-hosts = "{sshd.known_hosts}"\nssh-config = "/dev/null"\n'
    )  # fmt: skip
    tables = [("gpu", link, python), ("gpu-smi", link, bare), ("local", "", python)]
    return "".join(
        f'[hosts.{name}]\n{how}python = "{which}"\nrun-root = "{home}/host"\n' for name, how, which in tables
    )


def collect(desk: Desk, story: Story) -> None:
    (desk.out / "figures.json").write_text(json.dumps(story.figures, indent=1, default=str))
    for folder in (desk.home / "host").glob("hosts/*/runs/*"):
        to = desk.out / "runs" / folder.name
        to.mkdir(parents=True, exist_ok=True)
        for name in ("run.json", "events.jsonl", "samples.jsonl", "exit", "server.log", "supervisor.err"):
            if (folder / name).is_file():
                data = (folder / name).read_bytes()
                (to / name).write_bytes(
                    data if len(data) < 2_000_000 else data[:1_000_000] + b"\n...\n" + data[-900_000:]
                )


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("kind", choices=("gpu", "cpu"))
    parser.add_argument("out", type=Path)
    parser.add_argument("root", type=Path)
    parser.add_argument("--python", default=sys.executable, help="whose SGLang is launched, and the agent's")
    parser.add_argument("--bare", default="/usr/bin/python3", help="a Python without pynvml")
    parser.add_argument("--deadline", type=float, default=1100)
    parser.add_argument("--second", action="store_true", help="the second, shorter story")
    parser.add_argument("--only", default="", help="steps, by comma; all of them when empty")
    args = parser.parse_args()
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
    from tests.support import sshd as sshds

    home = args.root.absolute() / "desk" if args.kind == "gpu" else args.out.absolute() / "desk"
    shutil.rmtree(home, ignore_errors=True)
    desk = Desk(args.out.absolute(), home, args.deadline)
    port = sshds.free_port()
    sshd = None
    try:
        sshd = None if sshds.missing() else sshds.Sshd().start()
    except (OSError, RuntimeError) as e:
        desk.say(f"no sshd: {str(e)[:500]}")
    desk.say(f"link: {'a real sshd on loopback' if sshd else 'local'}")
    if args.kind == "gpu":
        base, profiles = gpu_base(args.root.absolute(), args.python, port), gpu_profiles(args.root.absolute())
    else:
        from tests.support import engine as engines

        base = engines.base_profile(args.root, port)
        profiles = {
            name.removeprefix("engine-"): f"[speculation]\n{table}"
            for name, table in engines.DRAFTERS.items()
        }
    (home / "profiles" / "base.toml").write_text(base)
    for name, table in profiles.items():
        (home / "profiles" / f"{name}.toml").write_text(f'extends = "base"\n{table}\n')
    agent = args.python if args.kind == "gpu" else sys.executable
    (home / "config.toml").write_text(config(home, sshd, agent, args.bare))
    smi = Smi(desk.out)
    told = Story(desk, smi, port, 256 if args.kind == "gpu" else 32, 24 if args.kind == "gpu" else 14)
    desk.keep("facts.txt", "".join(shell(w) for w in FACTS))
    if args.only:
        wanted, step = args.only.split(","), desk.step

        def chosen(name: str, what: Callable[[], None], needs_s: float = 5) -> None:
            if name in wanted:
                step(name, what, needs_s)

        desk.step = chosen  # type: ignore[method-assign]
    try:
        (second if args.second else story)(told, args.kind, args.python)
        desk.step = Desk.step.__get__(desk)  # type: ignore[method-assign]
    finally:
        for run in told.runs():
            if not run.get("ended"):
                desk.run(
                    "clean", "stop", run["id"], "--host", "gpu", "--yes", "--confirm", run["id"], timeout=60
                )
        collect(desk, told)
        smi.end()
        if sshd is not None:
            sshd.remove()
        desk.say("the end")


FACTS: tuple[tuple[str, ...], ...] = (
    ("uname", "-a"),
    ("nvidia-smi",),
    ("sh", "-c", "env | grep -vi -E 'key|token|secret' | sort; df -h / /dev/shm; free -g; ulimit -a; nproc"),
    (
        "sh",
        "-c",
        "ldconfig -p | grep -i -E 'nvidia|libcuda'; which -a python3 nvidia-smi nvcc gcc sshd ssh ps",
    ),
)

if __name__ == "__main__":
    main()
