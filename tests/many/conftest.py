from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.many import machines as kit
from tests.many.desk import ManyDesk
from tests.many.results import Results
from tests.support import engine as engines


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
def results() -> Iterator[Results]:
    found = Results()
    yield found
    found.write()


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ManyDesk]:
    """A desk with two machines, `a` and `b`. Whatever still runs at the end is stopped."""
    why = kit.missing()
    if why:
        pytest.skip(why)
    with kit.machines(2) as made:
        desk = ManyDesk(tmp_path_factory.mktemp("many"), made)
        try:
            yield desk
        finally:
            for one in made:
                one.mend()
                listed = desk.run("runs", one.name, "--json")
                if listed.returncode == 0:
                    for run in engines.live(listed.stdout):
                        desk.run(
                            "stop", run, "--host", one.name, "--yes", "--confirm", run, "--deadline", "5"
                        )
