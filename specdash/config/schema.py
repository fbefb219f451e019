"""JSON Schemas of config and profiles, for editors. `python -m specdash.config.schema DIR` writes them.

Both spellings of a key are accepted, as specdash does; completion offers kebab.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from specdash.config.keys import kebab
from specdash.config.profile import Profile
from specdash.config.secrets import SCHEMES
from specdash.config.settings import Settings

_DRAFT = "http://json-schema.org/draft-07/schema#"
_REFERENCE = {
    "type": "string",
    "pattern": f"^({'|'.join(s.rstrip(':') for s in SCHEMES)}):.+",
    "description": "A secret by reference: env:NAME, file:PATH (here), host-file:PATH (on the host).",
}
_REF = {
    "type": "object",
    "properties": {"ref": {"$ref": "#/definitions/Reference"}},
    "required": ["ref"],
    "additionalProperties": False,
}
_WORD = {"anyOf": [{"type": "string"}, {"type": "number"}, {"$ref": "#/definitions/BytesText"}]}
_FLAG = {
    "anyOf": [
        {"type": "boolean", "description": "true: the switch is given; false: it is left out."},
        {"type": "string"},
        {"type": "number"},
        {
            "type": "array",
            "items": {"$ref": "#/definitions/Word"},
            "description": "One option, several values.",
        },
        {
            "type": "array",
            "items": {"type": "array", "items": {"$ref": "#/definitions/Word"}},
            "description": "The option several times.",
        },
        {"type": "object", "description": "One JSON value; or { ref = … }, or { bytes = … }."},
    ]
}


def profile_schema() -> dict[str, Any]:
    """JSON Schema (draft 7, as taplo reads it) of a profile."""
    schema = _kebab(Profile.model_json_schema(ref_template="#/definitions/{model}"))
    schema["definitions"].update(Reference=_REFERENCE, Ref=_REF, Word=_WORD, Flag=_FLAG)
    flags = {"$ref": "#/definitions/Flag"}
    for table in ("server", "speculation"):
        described = schema["properties"][table]["description"]
        schema["properties"][table] = {
            "type": "object",
            "description": described,
            "properties": _KNOWN[table],
            "additionalProperties": flags,
        }
    schema["properties"]["env"] = {
        "type": "object",
        "description": schema["properties"]["env"]["description"],
        "additionalProperties": {"anyOf": [{"$ref": "#/definitions/Word"}, {"$ref": "#/definitions/Ref"}]},
    }
    return _finished(schema, "profile", "specdash launch profile")


_SECRET = {"anyOf": [{"$ref": "#/definitions/Reference"}, {"$ref": "#/definitions/Ref"}]}
_KNOWN: dict[str, dict[str, Any]] = {
    "server": {"api-key": _SECRET, "admin-api-key": _SECRET, "ssl-keyfile-password": _SECRET},
    "speculation": {
        "algorithm": {
            "type": "string",
            "description": "As the installed SGLang spells it; see specdash probe.",
        },
        "draft-model-path": {"type": "string", "description": "The drafter, on the host."},
        "num-steps": {"type": "integer", "description": "Draft steps for each verify step."},
        "eagle-topk": {"type": "integer", "description": "Branches for each draft step."},
        "num-draft-tokens": {"type": "integer", "description": "Draft tokens that one verify step takes."},
    },
}


def config_schema() -> dict[str, Any]:
    """JSON Schema (draft 7) of config.toml."""
    schema = _kebab(Settings.model_json_schema(ref_template="#/definitions/{model}"))
    named = {**schema["definitions"]["Host"], "required": ["name"]}
    schema["definitions"]["Host"].pop("required", None)
    schema["definitions"]["NamedHost"] = named
    schema["properties"]["hosts"] = {
        "description": "Hosts: [hosts.NAME] tables, or [[hosts]] with a name.",
        "anyOf": [
            {"type": "object", "additionalProperties": {"$ref": "#/definitions/Host"}},
            {"type": "array", "items": {"$ref": "#/definitions/NamedHost"}},
        ],
    }
    return _finished(schema, "config", "specdash config.toml")


def _finished(schema: dict[str, Any], name: str, title: str) -> dict[str, Any]:
    schema.pop("description", None)
    return {"$schema": _DRAFT, "$id": f"urn:specdash:schema:{name}", **schema, "title": title}


def _kebab(schema: Any) -> Any:
    """Kebab keys, with the snake spelling beside where it differs; `$defs` as draft 7 has it."""
    if isinstance(schema, list):
        return [_kebab(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    out: dict[str, Any] = {}
    for key, value in schema.items():
        if key == "properties":
            out[key] = {}
            for name, inner in value.items():
                plain = _kebab(inner)
                out[key][kebab(name)] = plain
                if kebab(name) != name:
                    out[key][name] = {**plain, "deprecated": False, "x-same-as": kebab(name)}
        elif key == "$defs":
            out["definitions"] = {name: _kebab(inner) for name, inner in value.items()}
        elif key not in ("default", "title") or not isinstance(value, str | dict | list | type(None)):
            out[key] = _kebab(value)
    return out


def texts() -> dict[str, str]:
    """File name → text of each schema, as committed in docs/schema."""
    return {
        f"{name}.json": json.dumps(schema, indent=2, ensure_ascii=False) + "\n"
        for name, schema in (("config", config_schema()), ("profile", profile_schema()))
    }


def write(folder: Path) -> None:
    """Writes both into `folder`, over what is there."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in texts().items():
        (folder / name).write_text(text, encoding="utf-8")


def directive(file: Path, name: str, config_folder: Path) -> tuple[str, ...]:
    """The `#:schema` comment for a file in the config folder, whose `schema` folder is brought up to date.

    None elsewhere: a path of this machine does not belong into a file that others share.
    """
    try:
        depth = len(file.absolute().relative_to(config_folder.absolute()).parts) - 1
    except ValueError:
        return ()
    write(config_folder / "schema")
    return (f":schema {'../' * depth}schema/{name}.json",)


if __name__ == "__main__":
    write(Path(sys.argv[1] if len(sys.argv) > 1 else "docs/schema"))
