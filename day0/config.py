"""Reading the data that people edit: every wrong key is named, with its file and the nearest right one."""

from __future__ import annotations

import difflib
import json
from pathlib import Path
from typing import Any, TypeVar

import yaml
from pydantic import BaseModel, ValidationError

from day0.errors import InputError

Model = TypeVar("Model", bound=BaseModel)

#: libyaml's parser where it is built in: all families are read in a tenth of the time.
_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def read_yaml(path: Path) -> Any:
    """The value of a YAML file.

    Raises:
        InputError: it cannot be read or is not YAML.
    """
    try:
        return yaml.load(path.read_text(encoding="utf-8"), Loader=_LOADER)
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path} cannot be read: {error}") from error
    except (yaml.YAMLError, ValueError, RecursionError) as error:  # the latter two: a huge number, too deep a nesting
        raise InputError(f"{path} is not valid YAML: {' '.join(str(error).split())}") from error


def load_config(path: Path, model: type[Model]) -> Model:
    """The file's content as `model`.

    Raises:
        InputError: names the file, the key and, for an unknown key, the nearest right one.
    """
    try:
        return model.model_validate(read_yaml(path))
    except ValidationError as error:
        raise InputError(f"{path}: {explain(error, model)}") from error


def named_config(folder: Path, name: str, model: type[Model]) -> Model:
    """The config `folder/name.yaml`.

    Raises:
        InputError: there is none by that name (the nearest one is named), or it is malformed.
    """
    path = folder / f"{name}.yaml"
    if not path.is_file() or path.parent != folder:
        known = sorted(p.stem for p in folder.glob("*.yaml"))
        near = difflib.get_close_matches(name, known, n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"there is: {', '.join(known) or 'none'}"
        raise InputError(f"no {folder.name} config named {name!r} in {folder}; {hint}")
    return load_config(path, model)


def explain(error: ValidationError, model: type[BaseModel]) -> str:
    """A validation error as one clause: an unknown key if there is one (another is then missing), else the first."""
    faults = error.errors()
    first = next((fault for fault in faults if fault["type"] == "extra_forbidden"), faults[0])
    where = ".".join(str(part) for part in first["loc"]) or "the top level"
    if first["type"] == "extra_forbidden":
        near = difflib.get_close_matches(str(first["loc"][-1]), _keys(model), n=1)
        return f"unknown key {where!r}" + (f"; did you mean {near[0]!r}?" if near else "")
    return f"{where}: {first['msg']}"


def _keys(model: type[BaseModel]) -> list[str]:
    """Every field name of a model and of the models within it."""
    keys: list[str] = list(model.model_fields)
    schema = json.dumps(model.model_json_schema().get("$defs", {}))
    for definition in json.loads(schema).values():
        keys.extend(definition.get("properties", {}))
    return keys
