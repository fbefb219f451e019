"""From a TOML file to a pydantic model: kebab or snake keys, and errors that name file, line and key."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar, Union, get_args, get_origin

from pydantic import BaseModel, ValidationError

from specdash.config.keys import kebab, snake
from specdash.config.tomlfile import Key, TomlFile, dotted
from specdash.errors import ConfigError

M = TypeVar("M", bound=BaseModel)


def load(model: type[M], file: TomlFile, elsewhere: str = "") -> M:
    """The model that the file describes. Raises ConfigError for the first thing that is off.

    `elsewhere` is what to say of an unknown top key that is near to no known one.
    """
    spelled: dict[Key, Key] = {}
    data = _snake(model, file.data, file, (), (), spelled, elsewhere)
    try:
        return model.model_validate(data)
    except ValidationError as problem:
        raise _first(problem, file, spelled) from None


def _snake(
    model: type[BaseModel],
    data: Mapping[str, Any],
    file: TomlFile,
    at: Key,
    here: Key,
    spelled: dict[Key, Key],
    elsewhere: str = "",
) -> dict[str, Any]:
    """The same data with field names as Python has them. `spelled` keeps how the operator wrote each."""
    fields = model.model_fields
    out: dict[str, Any] = {}
    for key, value in data.items():
        written, name = (*at, key), snake(key)
        if name not in fields:
            raise file.unknown(written, [kebab(f) for f in fields], *([] if at else [elsewhere]))
        if name in out:
            raise file.error(written, f'"{dotted(written)}" is given twice, as kebab and as snake.')
        path = (*here, name)
        spelled[path] = written
        annotation = fields[name].annotation
        inner, mapping = _model_in(annotation)
        if inner and mapping and isinstance(value, dict):
            items: dict[str, Any] = {}
            for item, content in value.items():
                spelled[(*path, item)] = (*written, item)
                if isinstance(content, dict):
                    content = _snake(inner, content, file, (*written, item), (*path, item), spelled)
                items[item] = content
            value = items
        elif inner and isinstance(value, dict):
            value = _snake(inner, value, file, written, path, spelled)
        out[name] = value
    return out


def _model_in(annotation: Any) -> tuple[type[BaseModel] | None, bool]:
    """(the model of a field, whether the field is a mapping of such)."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation, False
    origin, args = get_origin(annotation), get_args(annotation)
    if origin is dict and len(args) == 2:
        return _model_in(args[1])[0], True
    if origin is Union or str(origin) == "<class 'types.UnionType'>":
        return next((found for found in map(_model_in, args) if found[0]), (None, False))
    return None, False


def _first(problem: ValidationError, file: TomlFile, spelled: Mapping[Key, Key]) -> ConfigError:
    error = problem.errors(include_url=False, include_context=True)[0]
    where: Key = ()
    path: Key = ()
    for part in error["loc"]:
        path = (*path, part)
        known = spelled.get(path)
        if known is not None:
            where = known
        elif (*where, part) in file.lines:
            where = (*where, part)
    raised = error.get("ctx", {}).get("error")
    what = str(raised) if raised is not None else error["msg"]
    what = what[:1].lower() + what[1:] if raised is None else what
    return file.error(where, f'"{dotted(where)}": {what.rstrip(".")}.' if where else f"{what.rstrip('.')}.")
