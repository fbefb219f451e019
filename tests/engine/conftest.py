from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support import engine as engines
from tests.support import sshd as sshds


@pytest.fixture(scope="session")
def engine() -> Path:
    found = engines.folder()
    if found is None:
        why = "no real SGLang: run `.ci/engine DIR` and set SPECDASH_ENGINE=DIR"
        if os.environ.get("CI"):
            pytest.fail(why)
        pytest.skip(why)
    return found


@pytest.fixture(scope="module")
def desk(engine: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[engines.Desk]:
    """An operator's desk with a real sshd as its one host. Whatever still runs at the end is stopped."""
    if sshds.missing():
        pytest.skip(sshds.missing())
    server = sshds.Sshd().start()
    made = engines.Desk(tmp_path_factory.mktemp("desk"), server, engine)
    try:
        yield made
    finally:
        listed = made.run("runs", "gpu", "--json")
        if listed.returncode == 0:
            for run in engines.live(listed.stdout):
                made.run("stop", run, "--host", "gpu", "--yes", "--confirm", run)
        server.remove()
