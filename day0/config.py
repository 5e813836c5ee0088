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
        return parse_yaml(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path} cannot be read: {error}") from error
    except (yaml.YAMLError, ValueError, RecursionError) as error:  # the latter two: a huge number, too deep a nesting
        raise InputError(f"{path} is not valid YAML: {' '.join(str(error).split())}") from error


def parse_yaml(text: str) -> Any:
    """The value of a YAML document. libyaml takes the last of two equal keys without a word; here they are an error.

    Raises:
        yaml.YAMLError, ValueError, RecursionError: it is not valid YAML, or a key stands twice in a mapping.
    """
    loader = _LOADER(text)
    try:
        node = loader.get_single_node()
        _refuse_repeated(loader, node)
        return None if node is None else loader.construct_document(node)
    finally:
        loader.dispose()


def _refuse_repeated(loader: Any, root: yaml.Node | None) -> None:
    """Before anything is merged into a mapping: what `<<` brings may be overridden."""
    left, seen = [root], set[int]()
    while left:
        node = left.pop()
        if node is None or id(node) in seen:  # an anchor's node stands wherever it is named
            continue
        seen.add(id(node))
        if isinstance(node, yaml.SequenceNode):
            left += node.value
        elif isinstance(node, yaml.MappingNode):
            lines: dict[Any, int] = {}
            for key, value in node.value:
                left += [key, value]
                if isinstance(key, yaml.ScalarNode) and key.tag != "tag:yaml.org,2002:merge":
                    name, line = loader.construct_object(key), key.start_mark.line + 1
                    if name in lines:
                        where = f"in lines {lines[name]} and {line}" if line != lines[name] else f"in line {line}"
                        raise ValueError(f"the key {key.value[:60]!r} stands twice in one mapping, {where}")
                    lines[name] = line


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
    where = ".".join(str(part) for part in first["loc"])
    if first["type"] == "extra_forbidden":
        near = difflib.get_close_matches(str(first["loc"][-1]), _keys(model), n=1)
        return f"unknown key {where!r}" + (f"; did you mean {near[0]!r}?" if near else "")
    said = "it has no keys" if first["type"] == "model_type" else str(first["msg"]).removeprefix("Value error, ")
    return f"{where}: {said}" if where else said


def _keys(model: type[BaseModel]) -> list[str]:
    """Every field name of a model and of the models within it."""
    keys: list[str] = list(model.model_fields)
    schema = json.dumps(model.model_json_schema().get("$defs", {}))
    for definition in json.loads(schema).values():
        keys.extend(definition.get("properties", {}))
    return keys
