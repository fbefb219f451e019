"""One host as the operator configured it (`[hosts.NAME]` in config.toml)."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, field_validator

LOCAL = "local"


class Host(BaseModel):
    """How to reach a host and what may be done there. Unknown keys are refused."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: Annotated[str, Field(min_length=1, max_length=100)]
    """The operator's name for it; `local` with no `ssh` is this machine."""
    ssh: str = ""
    """Alias of ~/.ssh/config, a host name or an address, or user@host; empty: this machine, without SSH."""
    user: str | None = None
    port: Annotated[int, Field(ge=1, le=65535)] | None = None
    python: Annotated[str, Field(min_length=1)] = "python3"
    """The interpreter for the agent (3.8 or newer), a command or a path; `~/` is the home folder there."""
    label: str = ""
    """Drawn beside the name, always, e.g. "simulated"."""
    known_hosts: str | None = None
    """In place of ~/.ssh/known_hosts and what the ssh config says."""
    identity: str | None = None
    """A private key file, in place of what the ssh config says."""
    ssh_config: str | None = None
    """In place of ~/.ssh/config."""
    run_root: Annotated[str, Field(min_length=1)] = "~/.specdash"
    """The folder on the host where runs are kept."""
    read_only: bool = False
    """Refuse everything that changes this host."""

    @property
    def is_local(self) -> bool:
        return not self.ssh

    @field_validator("name", "ssh", "user", "python", "known_hosts", "identity", "ssh_config", "run_root")
    @classmethod
    def _one_line(cls, value: str | None) -> str | None:
        if value is not None and any(ord(char) < 32 or ord(char) == 127 for char in value):
            raise ValueError("no control characters or line breaks")
        return value

    @field_validator("ssh", "user")
    @classmethod
    def _not_an_option(cls, value: str | None) -> str | None:
        # `ssh -G` gets it as a word: it must not be able to be an option, nor two words.
        if value is not None and (value.startswith("-") or any(char.isspace() for char in value)):
            raise ValueError("must be one word that does not start with '-'")
        return value


def local_host() -> Host:
    """This machine, with nothing configured."""
    return Host(name=LOCAL)
