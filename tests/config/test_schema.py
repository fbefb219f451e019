"""The schemas are those of the models, valid, and right about our own files."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from specdash.config.schema import texts
from tests.config.test_settings import FULL

ROOT = Path(__file__).parents[2]


def schema(name: str) -> Any:
    return json.loads((ROOT / "docs" / "schema" / f"{name}.json").read_text(encoding="utf-8"))


def test_committed_schemas_are_fresh() -> None:
    for name, text in texts().items():
        committed = (ROOT / "docs" / "schema" / name).read_text(encoding="utf-8")
        assert committed == text, "run: python -m specdash.config.schema docs/schema"


@pytest.mark.parametrize("name", ["config", "profile"])
def test_they_are_schemas(name: str) -> None:
    jsonschema.Draft7Validator.check_schema(schema(name))
    text = json.dumps(schema(name))
    for line in text.split('"$ref": "')[1:]:
        target = line.split('"')[0].removeprefix("#/definitions/")
        assert target in schema(name)["definitions"]


@pytest.mark.parametrize("path", sorted((ROOT / "profiles").glob("*.toml")), ids=lambda p: p.stem)
def test_shipped_profiles_validate_and_name_their_schema(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert text.startswith("#:schema ../docs/schema/profile.json\n")
    jsonschema.validate(tomllib.loads(text), schema("profile"), jsonschema.Draft7Validator)


def test_config() -> None:
    jsonschema.validate(tomllib.loads(FULL), schema("config"), jsonschema.Draft7Validator)
    for bad in ('them = "x"', "[hosts.a]\nprot = 1", "[[hosts]]\nssh = 'x'"):
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate(tomllib.loads(bad), schema("config"), jsonschema.Draft7Validator)


@pytest.mark.parametrize(
    "bad",
    [
        "tp = 8",
        "[server]\napi-key = 'literal'",
        "[env]\nA = true",
        "[check]\nwarn = 3",
        "extends = 3",
        "[server]\nx = 2026-01-01",
    ],
)
def test_profile_schema_refuses(bad: str) -> None:
    data = json.loads(json.dumps(tomllib.loads(bad), default=lambda d: None))
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(data, schema("profile"), jsonschema.Draft7Validator)


def test_profile_schema_accepts_every_kind_of_value() -> None:
    text = """
    python = { bytes = 'x\\xe9' }
    launcher = ["-m", "sglang.launch_server"]
    [server]
    a = true
    b = [1, "x"]
    c = [["1"], ["2"]]
    d = { e = { f = 1 } }
    api-key = "env:K"
    admin-api-key = { ref = "host-file:/x" }
    [env]
    N = 1
    T = { ref = "env:T" }
    [check]
    timeout-s = 3
    """
    jsonschema.validate(tomllib.loads(text), schema("profile"), jsonschema.Draft7Validator)
