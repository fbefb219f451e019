"""A demo home with a leash, and simulated engines in it."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from demokit import Engine

from specdash.demo import house


@pytest.fixture
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    place = tmp_path_factory.mktemp("d") / "home"
    house.build(place, speed=50)
    os.chdir(place)  # a unix socket's path may be no longer than 107 bytes
    with socket.socket(socket.AF_UNIX) as leash:
        leash.bind(".sim/leash")
        leash.listen(8)
        yield place
    os.chdir("/")


@pytest.fixture
def engine(home: Path) -> Iterator[Callable[..., Engine]]:
    made: list[Engine] = []

    def make(*flags: str, **env: str) -> Engine:
        made.append(Engine(home, list(flags), env))
        return made[-1]

    yield make
    for one in made:
        one.process.kill()
        one.process.wait()
