"""The journal of a switch over several hosts: on rank 0's host, written before each step, by one driver at a time."""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
from collections.abc import Mapping
from typing import Any

from specdash.control import hostruns, ranks_launch
from specdash.control.ranks_party import Party
from specdash.control.ranks_store import Member, Server
from specdash.errors import LinkError, Refused, RemoteError, SpecdashError

BEAT_S, STALE_S = 5.0, 30.0


class Driver:
    """The journal in hand. `save` before each step; the heart-beat says that somebody drives."""

    def __init__(self, party: Party, ident: str, host: str, state: dict[str, Any]) -> None:
        self.party, self.id, self.host, self.state = party, ident, host, state
        self.name = f"{hostruns.operator()} (pid {os.getpid()}, {secrets.token_hex(2)})"
        self.lost_it = ""

    @property
    def old(self) -> Server:
        return server_of(self.state["a"])

    @property
    def new(self) -> Server:
        return server_of(self.state["b"])

    @property
    def back(self) -> Server:
        return server_of(self.state["back"])

    async def save(self, **changes: Any) -> None:
        """Written before the step that it names. Raises Refused when somebody else drives, LinkError without the host."""
        self.state.update(changes)
        try:
            await self._put(self.state)
        except RemoteError as error:
            if error.code == "busy":
                raise Refused(error.sentence, error.step) from None
            raise

    async def _put(self, state: Mapping[str, Any] | None) -> None:
        link = self.party.links.get(self.host)
        if link is None and await self.party.again(self.host):
            link = self.party.links[self.host]
        if link is None:
            raise LinkError(f"{self.host}, which has the journal of this switch, is out of reach.")
        asked = {
            "base": hostruns.base(link),
            "id": self.id,
            "driver": self.name,
            "state": state,
            "stale_s": STALE_S,
        }
        await self.party.call(self.host, "ranks.save", asked)

    async def beat(self) -> None:
        while True:
            await asyncio.sleep(BEAT_S)
            try:
                await self._put(None)
            except RemoteError as error:
                if error.code == "busy":
                    self.lost_it = error.sentence
                    return
            except SpecdashError:
                continue

    async def release(self) -> None:
        """Nobody drives any more: the next one need not wait."""
        with contextlib.suppress(SpecdashError, KeyError):
            base = hostruns.base(self.party.links[self.host])
            asked = {"base": base, "id": self.id, "driver": self.name, "stale_s": STALE_S}
            await self.party.call(self.host, "ranks.save", {**asked, "state": self.state, "release": True})

    async def throw_away(self) -> None:
        """What was prepared and never started, everywhere."""
        await ranks_launch.discard(self.party, [*self.new.members, *self.back.members])


def server_of(data: Mapping[str, Any]) -> Server:
    members = tuple(Member.from_json(one) for one in data["members"])
    return Server(str(data["id"]), str(data["profile"]), members, {})
