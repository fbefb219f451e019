"""At most one generation at a time for a port: turns between threads, processes and agents."""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
import sys
import time

import pytest

from specdash.config.hosts import Host
from specdash.host.open import open_link
from specdash.host.remote import turns
from specdash.host.turns import turn


@pytest.fixture
def port() -> int:
    """A number that is no port of any test: only its turn is used."""
    return 100_000 + os.getpid()


def never() -> bool:
    return False


def test_one_has_it_and_the_others_are_told_how_it_ended(port: int) -> None:
    mine = turns.take(str(port))
    assert mine is not None
    assert turns.take(str(port)) is None
    assert turns.wait(str(port), 0.0, never)["over"] is False

    async def both() -> list[dict[str, object]]:
        waiting = [asyncio.to_thread(turns.wait, str(port), 10.0, never) for _ in range(3)]
        tasks = [asyncio.create_task(one) for one in waiting]
        await asyncio.sleep(0.1)
        mine.done({"good": True})
        return await asyncio.gather(*tasks)

    told = asyncio.run(both())
    assert [one["result"] for one in told] == [{"good": True}] * 3
    assert {one["uid"] for one in told} == {os.getuid()}
    again = turns.take(str(port))
    assert again is not None, "over: it is free"
    again.done()


def test_a_process_that_dies_gives_its_turn_back_without_a_result(port: int) -> None:
    code = (
        f"from specdash.host.remote import turns; import time\nt = turns.take('{port}')\n"
        "print('held', flush=True); time.sleep(60)"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as other:
        assert other.stdout is not None and other.stdout.readline() == b"held\n"
        assert turns.take(str(port)) is None
        other.kill()
        got, told = turns.take_or_wait(str(port), 10.0, never)
    assert got is not None and told == {}
    got.done()


async def test_agents_of_two_connections_take_turns(port: int) -> None:
    host = Host(name="here", python=sys.executable)
    first, second = await asyncio.gather(open_link(host), open_link(host))
    try:
        at_once = most = 0
        results = []

        async def one(link: object) -> None:
            nonlocal at_once, most
            async with turn(link, "127.0.0.1", port, wait_s=10.0) as mine:  # type: ignore[arg-type]
                if mine.held:
                    at_once += 1
                    most = max(most, at_once)
                    await asyncio.sleep(0.2)
                    at_once -= 1
                    mine.result = {"good": True, "sentence": ""}
                results.append((mine.held, mine.result))

        await asyncio.gather(one(first), one(second), one(None))
        assert most == 1 and [held for held, _ in results].count(True) == 1
        assert all(result == {"good": True, "sentence": ""} for _, result in results)

        async with turn(first, "127.0.0.1", port, wait_s=0.0) as mine:
            assert mine.held
            async with turn(second, "127.0.0.1", port, wait_s=0.1) as other:
                assert not other.held and other.result is None and other.uid == os.getuid() and not other.over
            # The link goes without a word: its agent ends, and with it the turn.
            await first.close()
            began = time.monotonic()
            async with turn(second, "127.0.0.1", port, wait_s=10.0) as other:
                assert other.held and time.monotonic() - began < 5
            with contextlib.suppress(Exception):
                await first.call("ping")
    except* Exception as problems:  # the outer turn's end on a closed link
        assert "LinkLost" in repr(problems.exceptions)
    finally:
        await second.close()
