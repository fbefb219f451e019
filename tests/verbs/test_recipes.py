"""docs/operators.md, run: each command line as it stands, units and manifests through the tools that read them.

`specdash` and `/usr/local/bin/specdash` stand for this checkout, the host gpu1 for this machine.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from specdash.check import prometheus
from specdash.config.settings import load
from tests.monitor.conftest import free_port  # noqa: F401  (fixture)
from tests.support.http_fake import HttpFake

DOC = Path(__file__).parents[2] / "docs" / "operators.md"
ROOT = Path(__file__).parents[2]


@dataclass(frozen=True)
class Block:
    kind: str
    text: str
    line: int

    @property
    def name(self) -> str:
        """The file that its first line names."""
        match = re.match(r"#\s*(\S+)", self.text)
        return match.group(1) if match else ""


def blocks(*kinds: str) -> list[Block]:
    text = DOC.read_text("utf-8")
    found = []
    for match in re.finditer(r"^```(\w+)\n(.*?)^```$", text, re.M | re.S):
        found.append(Block(match.group(1), match.group(2), text.count("\n", 0, match.start()) + 2))
    return [one for one in found if one.kind in kinds]


def commands() -> list[tuple[int, str]]:
    """(line, command) of all `sh` blocks."""
    return [
        (block.line + at, line)
        for block in blocks("sh")
        for at, line in enumerate(block.text.splitlines())
        if line.strip()
    ]


@pytest.fixture
def box(tmp_path: Path) -> Iterator[dict[str, str]]:
    """An environment in which `specdash` is this checkout, and gpu1 is this machine."""
    program = tmp_path / "bin" / "specdash"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nPYTHONPATH={ROOT} exec {sys.executable} -m specdash "$@"\n')
    program.chmod(0o755)
    (tmp_path / "config.toml").write_text(
        f'read-only = true\n[hosts.gpu1]\nssh = ""\npython = "{sys.executable}"\n'
        f'run_root = "{tmp_path}/runs"\n[defaults]\nhost = "gpu1"\n'
    )
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("XDG_", "SPECDASH"))}
    yield {
        **kept,
        "HOME": str(tmp_path),
        "PATH": f"{program.parent}:{os.environ['PATH']}",
        "SPECDASH_CONFIG": str(tmp_path / "config.toml"),
    }


def shell(line: str, box: dict[str, str], **more: str) -> subprocess.CompletedProcess[str]:
    line = line.replace("/usr/local/bin/specdash", "specdash")
    return subprocess.run(
        ["sh", "-c", line],
        env={**box, **more},
        cwd=box["HOME"],
        capture_output=True,
        text=True,
        timeout=90,
        stdin=subprocess.DEVNULL,
    )


def test_the_recipes_are_all_looked_at() -> None:
    kinds = {block.kind for block in blocks(*re.findall(r"^```(\w+)$", DOC.read_text("utf-8"), re.M))}
    assert kinds == {"toml", "sh", "cron", "ini", "yaml", "icinga2", "nagios", "console"}, (
        "a kind without a test"
    )


@pytest.mark.parametrize(("line", "command"), commands(), ids=lambda value: str(value)[:60])
def test_command_lines_work_as_they_stand(line: int, command: str, box: dict[str, str]) -> None:
    done = shell(command, box)
    # No server runs here, so that 2 is the truth for a profile, and 4 for a plan on a machine without SGLang.
    allowed = {0, 1, 4} if " try " in f" {command} " else {0, 1, 2}
    assert done.returncode in allowed, (line, done.stdout, done.stderr)
    assert "Traceback" not in done.stderr and "usage" not in done.stderr.lower()
    if "--json" in command:
        json.loads(done.stdout)
    target = re.search(r"(?:-o|--bundle) (\S+)", command)
    if target:
        assert Path(box["HOME"], target.group(1)).stat().st_size > 0


def test_the_config_is_one(tmp_path: Path) -> None:
    (block,) = blocks("toml")
    (tmp_path / "config.toml").write_text(block.text)
    settings = load(tmp_path / "config.toml")
    assert settings.read_only and settings.host("gpu1").ssh and settings.check.warn and settings.check.crit


def test_the_crontab_line(box: dict[str, str], free_port: int) -> None:  # noqa: F811
    (block,) = blocks("cron")
    (line,) = block.text.splitlines()
    *when, user, command = line.split(None, 6)
    assert len(when) == 5 and all(re.fullmatch(r"[\d*/,-]+", field) for field in when) and user == "ops"
    assert "%" not in command
    well = shell(command, box)
    assert (well.returncode, well.stdout) == (0, ""), "silent while all is well"
    bad = shell(command.replace("--all", f"127.0.0.1:{free_port}"), box)
    assert bad.stdout.startswith("SPECDASH CRITICAL"), "and told what is not"


def units() -> list[Block]:
    return [block for block in blocks("ini") if block.name.endswith((".service", ".timer"))]


@pytest.mark.skipif(not shutil.which("systemd-analyze"), reason="no systemd-analyze here")
def test_units_are_accepted_by_systemd(tmp_path: Path, box: dict[str, str]) -> None:
    assert len(units()) == 3
    program = shutil.which("specdash", path=box["PATH"])
    names = []
    for unit in units():
        text = unit.text.replace("/usr/local/bin/specdash", str(program)).replace(
            "User=specdash", "User=root"
        )
        names.append(tmp_path / Path(unit.name).name)
        names[-1].write_text(text)
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", *map(str, names)],
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, "SYSTEMD_UNIT_PATH": f"{tmp_path}:"},
    )
    ours = [line for line in (done.stdout + done.stderr).splitlines() if "specdash" in line]
    assert done.returncode == 0 and not ours, (ours, done.stderr)
    broken = tmp_path / "specdash-broken.service"
    broken.write_text("[Service]\nExecStart=relative\n")
    check = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", str(broken)], capture_output=True, text=True, timeout=60
    )
    assert check.returncode != 0 or "specdash-broken" in check.stderr, "it would have said so"


@pytest.mark.slow
def test_the_commands_of_the_units_run(box: dict[str, str]) -> None:
    for unit in units():
        for command in re.findall(r"^ExecStart=(.*)$", unit.text, re.M):
            line = command.replace("/var/lib/prometheus/node-exporter", box["HOME"])
            if "--watch" in line:
                done = shell(f"timeout -s INT 6 {line}", box)
                assert done.returncode in (124, 130), done.stderr
                assert re.match(r"\S+T\S+ OK gpu1: ", done.stdout) and done.stdout.count("\n") == 1
            else:
                done = shell(line, box)
                codes = re.search(r"^SuccessExitStatus=(.*)$", unit.text, re.M)
                good = {0, *map(int, codes.group(1).split())} if codes else {0}
                assert done.returncode in good, done.stderr
                assert Path(box["HOME"], "specdash.prom").read_text().startswith("# HELP specdash_")


def manifests() -> dict[str, Block]:
    return {block.name: block for block in blocks("yaml")}


def as_json(block: Block, tmp_path: Path) -> dict[str, object]:
    """A manifest by kubectl's own YAML reader, which asks no cluster for this."""
    file = tmp_path / block.name
    file.write_text(block.text)
    words = ["kubectl", "label", "--local", "--dry-run=client", "-o", "json", "-f", str(file), "test=recipe"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return dict(json.loads(done.stdout))


@pytest.mark.skipif(not shutil.which("kubectl"), reason="no kubectl here")
def test_the_probes_of_the_pod(tmp_path: Path, box: dict[str, str], free_port: int) -> None:  # noqa: F811
    pod = as_json(manifests()["pod.yml"], tmp_path)
    (container,) = pod["spec"]["containers"]  # type: ignore[index]
    assert "livenessProbe" not in container, "a load looks like silence, and a liveness probe kills"
    for kind in ("startupProbe", "readinessProbe"):
        probe = container[kind]
        words = probe["exec"]["command"]
        assert probe["timeoutSeconds"] > int(words[words.index("--timeout") + 1]), "or Kubernetes cuts it off"
        absent = shell(shlex.join(words).replace("30000", str(free_port)), box)
        assert absent.returncode != 0 and "CRITICAL" in absent.stdout, "nobody serves: the probe fails"
    for answer, ready in ((503, False), (200, True)):
        with HttpFake({"/ready": answer, "/v1/loads": {"loads": []}}) as fake:
            done = shell(shlex.join(words).replace(":30000", f":{fake.port}"), box)
            assert (done.returncode == 0) is ready and not fake.generations, done


def test_the_readiness_probe_sends_nothing_to_a_server_that_warms_up(box: dict[str, str]) -> None:
    text = (ROOT / "docs" / "recipes" / "kubernetes.md").read_text("utf-8")
    words = json.loads(re.search(r"readinessProbe:\n  exec:\n    command: (\[.*\])", text).group(1))  # type: ignore[union-attr]
    seconds = int(re.search(r"timeoutSeconds: (\d+)", text).group(1))  # type: ignore[union-attr]
    assert seconds > int(words[words.index("--timeout") + 1]), "or Kubernetes cuts it off"
    for answer, code in ((503, 1), (200, 0)):
        with HttpFake({"/ready": answer, "/v1/loads": {"loads": []}}) as fake:
            done = shell(shlex.join(words).replace(":30000", f":{fake.port}"), box)
            assert done.returncode == code and fake.generations == (answer == 200), done


def test_the_alert_rules_use_metrics_that_are_there() -> None:
    told = {"specdash_check_state", "specdash_check_time_seconds", "specdash_check_finding_state"}
    told |= {f"specdash_server_{name}" for name, _ in prometheus.SERVER.values()}
    text = manifests()["rules.yml"].text
    used = set(re.findall(r"\bspecdash_\w+", text))
    assert used and used <= told, used - told
    assert text.count("- alert:") == text.count("expr:") == 4


def test_icinga_and_nagios_run_the_command_that_they_define(box: dict[str, str]) -> None:
    (icinga,) = blocks("icinga2")
    assert icinga.text.count("{") == icinga.text.count("}") and icinga.text.count("[") == icinga.text.count(
        "]"
    )
    words = re.findall(r'"([^"]*)"', re.search(r"command = \[(.*?)\]", icinga.text).group(1))  # type: ignore[union-attr]
    options = re.findall(r'"(--[\w-]+)" =', icinga.text)
    assert options == ["--timeout", "--warn", "--crit"]
    timeout = re.search(r"specdash_timeout = (\d+)", icinga.text).group(1)  # type: ignore[union-attr]
    warn = re.search(r'specdash_warn = \[ "(.*?)" \]', icinga.text).group(1)  # type: ignore[union-attr]
    line = shlex.join([*words, "--timeout", timeout, "--warn", warn, "--crit", "tok/s<40", "gpu1"])
    done = shell(line, box)
    assert done.returncode == 0 and " | " in done.stdout, done.stderr
    assert float(re.search(r"timeout = (\d+)s", icinga.text).group(1)) > float(timeout)  # type: ignore[union-attr]

    (nagios,) = blocks("nagios")
    line = re.search(r"command_line\s+(.*)", nagios.text).group(1)  # type: ignore[union-attr]
    name, *arguments = re.search(r"check_command\s+(\S+)", nagios.text).group(1).split("!")  # type: ignore[union-attr]
    assert f"command_name    {name}" in nagios.text
    for at, argument in enumerate(arguments, 1):
        line = line.replace(f"$ARG{at}$", argument)
    assert "$" not in line
    done = shell(line, box)
    assert done.returncode == 2 and done.stdout.startswith("SPECDASH CRITICAL"), (
        "the profile does not run here"
    )


def test_what_is_shown_and_not_run_parses() -> None:
    from specdash import cli

    found = blocks("console")
    assert len(found) == 2
    for line in "".join(block.text for block in found).splitlines():
        words = shlex.split(line.removeprefix("$ ").partition(" > ")[0])
        if "specdash" in words:
            verb, rest, _ = cli._split(words[words.index("specdash") + 1 :])
            cli.verb_parser(str(verb)).parse_args(rest)
