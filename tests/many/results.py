"""What the stories over several hosts showed, as a page: docs/results/many-hosts.md, where SPECDASH_RESULTS is set."""

from __future__ import annotations

import os
import re
import time
from pathlib import Path

HEAD = "| what was done | what the operator reads | exit | seconds | on |"


class Results:
    def __init__(self) -> None:
        self.rows: dict[str, str] = {}

    def add(self, name: str, told: str, code: int, took_s: float) -> None:
        text = " ".join(told.replace("|", "\\|").split())
        text = re.sub(r"/tmp/\S+?/(?=hosts/|runs/)", "…/", text)
        text = text if len(text) <= 700 else text[:700].rsplit(" ", 1)[0] + " …"
        day = time.strftime("%Y-%m-%d", time.gmtime())
        self.rows[name] = f"| {name} | {text} | {code} | {took_s:.0f} | {day} |"

    def write(self) -> None:
        folder = os.environ.get("SPECDASH_RESULTS")
        if not folder or not self.rows:
            return
        path = Path(folder) / "many-hosts.md"
        old = path.read_text().partition(HEAD)[2].splitlines()[2:] if path.exists() else []
        rows = {row.split(" | ")[0].removeprefix("| "): row for row in old if row.startswith("| ")}
        rows.update(self.rows)
        lines = [
            "# One server over two hosts",
            "",
            "Written by `tests/many/test_engine.py`; the command is in [many hosts](../many-hosts.md). Do not edit.",
            "",
            "Two machines: network namespaces with own addresses, host names, machine ids and /dev/shm, an OpenSSH sshd in",
            "each; a real SGLang 0.5.23 (CPU) with `--tp-size 2 --nnodes 2`, driven by the `specdash` command. A row is written",
            "only after nothing was left on either machine: no process, no prepared run, no secret, the ports free.",
            "",
            HEAD,
            "| --- | --- | --- | --- | --- |",
            *(rows[name] for name in sorted(rows)),
        ]
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("\n".join(lines) + "\n")
