"""The document of `--check --json`, as types; its JSON Schema is docs/schema/check.json.

`python -m specdash.check.document docs/schema` writes it, `specdash --check --schema` prints it. What is read by scripts stays:
a field is added, never renamed or given another meaning, without a new number in `schema`.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

SCHEMA = "specdash.check/1"
StateName = Literal["OK", "WARNING", "CRITICAL", "UNKNOWN"]
Code = Literal[0, 1, 2, 3]


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", json_schema_serialization_defaults_required=True)


class Found(_Part):
    """One thing found."""

    state: StateName
    name: str = Field(
        description="Short stable word: link, timeout, gpu, memory, disk, clock, health, verdict, …"
    )
    sentence: str
    evidence: list[str]
    step: str = Field(description="What to do; empty where there is nothing to say.")


class Value(_Part):
    """A value of a server. Null is *not available*, never 0."""

    value: float | None
    unit: str
    source: str = Field(description="Where it comes from: the log, a metric, an endpoint.")
    window_s: float | None = Field(description="Seconds that it covers; null: a moment, or not told.")
    age_s: float | None
    load: int | None = Field(description="Requests that ran meanwhile.")
    includes_bonus: bool | None = Field(description="Whether an accept length counts the bonus token.")
    note: str


class HostValues(_Part):
    """What the host told."""

    rtt_ms: float | None
    gpus: int | None
    gpu_memory_used_mib: float | None
    gpu_memory_total_mib: float | None
    mem_available_kb: float | None
    disk_free_bytes: float | None = Field(description="Where runs are kept.")


class TargetDocument(_Part):
    target: str
    kind: Literal["host", "profile", "port", "url"]
    state: StateName
    code: Code
    sentence: str = Field(description="The target in words: its worst findings, or what is well.")
    took_s: float
    findings: list[Found] = Field(description="The worst first.")
    host: HostValues
    servers: dict[str, dict[str, Value]] = Field(
        description="Server → accept, accept_start, accept_rate, tok/s, running, queue, cap, kv, cache_hit;"
        " and from the second check on log_errors (since the last one)."
    )


class Document(_Part):
    """What `specdash --check --json` prints; with --watch one a line, each with `at_unix`."""

    schema_: Literal["specdash.check/1"] = Field(alias="schema")
    specdash: str = Field(description="Version of specdash.")
    state: StateName = Field(description="The worst of all targets: CRITICAL, UNKNOWN, WARNING, OK.")
    code: Code = Field(description="The exit code.")
    line: str = Field(description="The line that the text format prints.")
    targets: list[TargetDocument] = Field(description="In the order in which they were named.")
    at_unix: float = Field(default=0.0, description="Only with --watch: when it was seen, Unix time.")


def schema() -> dict[str, Any]:
    """JSON Schema (2020-12)."""
    found = Document.model_json_schema(by_alias=True)
    head = {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": "specdash --check --json"}
    return {**found, **head}


def text() -> str:
    return json.dumps(schema(), indent=2, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    Path(sys.argv[1], "check.json").write_text(text(), encoding="utf-8")
