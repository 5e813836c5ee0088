"""From a model folder and a plan to the exact command that serves it, after the checks that need no engine."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Set
from pathlib import Path
from typing import Any

from day0.architecture.structure import structure_of
from day0.artifacts.base import Frozen
from day0.artifacts.service import LaunchSpec, Runtime
from day0.checkpoint import read_config
from day0.errors import CheckFailed, InputError
from day0.target import machine_memory
from tasks.service.engine import EngineConfig
from tasks.service.environment import Prepared

CONTAINER_PORT = 8000
CONTAINER_MODEL = "/model"
RANKS = "ranks.json"
TOKENIZERS = ("tokenizer.json", "tokenizer.model", "tekken.json", "vocab.json")


def launch_spec(
    model: Path,
    engine_args: Mapping[str, Any],
    engine_name: str,
    engine: EngineConfig,
    runtime: Runtime,
    prepared: Prepared,
    *,
    served_name: str,
    attention: Set[str],
    memory_bytes: int,
    ready_timeout: float | None = None,
) -> LaunchSpec:
    """What is needed to serve `model` (its files are not opened).

    Args:
        engine_args: a plan's neutral arguments.
        attention: the kinds that the model has (`attention_kinds`).
        memory_bytes: the whole engine's: a container gets no more.

    Raises:
        InputError: an argument that this engine has no option for, or must not be given.
    """
    docker = runtime == "docker"
    command = [
        "python", "-m", engine.module,
        "--host", "0.0.0.0" if docker else "127.0.0.1",
        "--port", str(CONTAINER_PORT) if docker else "{port}",
        "--model", CONTAINER_MODEL if docker else str(model),
        "--served-model-name", served_name,
        "--load-format", load_format(model, engine),
        *_options(engine_args, engine_name, engine),
        *engine.arguments,
        *(word for needs in engine.for_attention if attention & set(needs.kinds) for word in needs.arguments),
    ]  # fmt: skip
    return LaunchSpec(
        engine=engine_name,
        engine_version=engine.version,
        runtime=runtime,
        environment=prepared.environment,
        lock_digest=prepared.lock_digest,
        model_path=str(model),
        served_model_name=served_name,
        command=tuple(command),
        env=dict(engine.env),
        memory_bytes=memory_bytes,
        ready_timeout=ready_timeout or engine.ready_timeout,
    )


def attention_kinds(model: Path) -> frozenset[str]:
    """Of the model in a folder, by its config.json.

    Raises:
        InputError: it cannot be read, or no family describes such a model.
    """
    structure = structure_of(read_config(model), str(model))
    return frozenset(entry.attention.kind for entry in structure.attention)


def load_format(model: Path, engine: EngineConfig) -> str:
    """The engine's `--load-format`: resharded folders have a ranks.json."""
    return engine.sharded_load_format if (model / RANKS).is_file() else "auto"


class Ranks(Frozen):
    """The layout that a folder is split for."""

    tp: int = 1
    pp: int = 1


def ranks_of(model: Path) -> Ranks:
    """The layout of a folder, from its ranks.json; one rank without it.

    Raises:
        CheckFailed: ranks.json is not what the reshard stage writes.
    """
    if not (model / RANKS).is_file():
        return Ranks()
    ranks: Any = _json(model / RANKS).get("ranks")
    try:
        return Ranks(tp=1 + max(rank["tp"] for rank in ranks), pp=1 + max(rank["pp"] for rank in ranks))
    except (TypeError, KeyError, ValueError) as error:
        raise CheckFailed(f"{model / RANKS} does not say which ranks there are: reshard the model again") from error


def _options(engine_args: Mapping[str, Any], name: str, engine: EngineConfig) -> list[str]:
    options: list[str] = []
    for argument, value in engine_args.items():
        if reason := engine.refused.get(argument):
            raise InputError(f"engine {name!r} cannot serve the plan's {argument} {value}: {reason}")
        if argument not in engine.options:
            raise InputError(
                f"engine {name!r} has no option for the plan's {argument!r}: add it to its config's `options`"
            )
        # The cache's type is the model's unless the plan wants another: engines take the word for that as `auto`.
        if value is None or (argument == "kv_cache_dtype" and value == engine_args.get("dtype")):
            continue
        options += [engine.options[argument], str(value)]
    return options


def check_launch(spec: LaunchSpec) -> None:
    """Find, before any engine is started, what would make it fail minutes later.

    Raises:
        CheckFailed: the folder cannot be served as it is, or the machine has not the memory.
        InputError: there is no such folder.
    """
    model = Path(spec.model_path)
    if not model.is_dir():
        raise InputError(f"there is no model folder {model}")
    _check_config(model)
    _check_tokenizer(model)
    _check_weights(model, spec.engine_version)
    machine = machine_memory()
    if spec.memory_bytes > machine:
        raise CheckFailed(
            f"the engine needs {spec.memory_bytes / 2**30:.1f} GiB and this machine has {machine / 2**30:.1f} GiB: "
            "plan a shorter context or a lower concurrency"
        )


def _check_config(model: Path) -> None:
    config = _json(model / "config.json")
    if not isinstance(config.get("architectures"), list) or not config["architectures"]:
        raise CheckFailed(f"{model / 'config.json'} names no architecture: the engine cannot choose the model's class")


def _check_tokenizer(model: Path) -> None:
    if not any((model / name).is_file() for name in TOKENIZERS):
        raise CheckFailed(f"tokenizer missing: {model} has none of {', '.join(TOKENIZERS)}")
    if (model / "chat_template.jinja").is_file() or (model / "chat_template.json").is_file():
        return
    settings = model / "tokenizer_config.json"
    if not settings.is_file() or not _json(settings).get("chat_template"):
        raise CheckFailed(
            f"chat template missing: {model} has neither chat_template.jinja nor a chat_template in "
            "tokenizer_config.json, so that the service would start and refuse the first chat request; "
            "add the template that the model was trained with"
        )


def _check_weights(model: Path, version: str) -> None:
    if not (model / RANKS).is_file():
        if not any(model.glob("*.safetensors")):
            raise CheckFailed(f"{model} has no safetensors files to serve")
        return
    record = _json(model / RANKS)
    ranks, written_for = record.get("ranks"), str(record.get("engine", "no engine"))
    if not isinstance(ranks, list) or not ranks:
        raise CheckFailed(f"{model / RANKS} lists no ranks: reshard the model again")
    # Tensors' names move from one version of an engine to the next.
    if written_for.split(" ")[-1] != version:
        raise CheckFailed(
            f"{model} is written for {written_for} (layout {record.get('layout')!r}), the engine here is of version "
            f"{version}: reshard the model for it"
        )
    for rank in ranks:
        files = rank.get("files") if isinstance(rank, dict) else None
        if not files:
            raise CheckFailed(f"{model / RANKS} lists no files for rank {rank!r}: reshard the model again")
        for file in files:
            name = file["name"] if isinstance(file, dict) else str(file)
            if not (model / name).is_file():
                raise CheckFailed(f"{model / name} is missing, though {RANKS} lists it: reshard the model again")


def _json(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise CheckFailed(f"{path} is missing: the engine cannot start without it") from None
    except (OSError, ValueError) as error:
        raise CheckFailed(f"{path} cannot be read: {error}") from error
    if not isinstance(value, dict):
        raise CheckFailed(f"{path} is not a JSON object")
    return value


def check_readable(model: Path, own: bool) -> None:
    """A container's user is neither root nor the files' owner: all files must be readable for others.

    Args:
        own: day0 made the folder, so that it may open it up itself.

    Raises:
        CheckFailed: a file is not readable, or is a link that leads out of the folder, which is not in the container.
    """
    root = model.resolve()
    for path in (model, *model.rglob("*")):
        if path.is_symlink() and not path.resolve().is_relative_to(root):
            raise CheckFailed(
                f"{path} is a link out of the model folder, which a container does not see: copy the folder by `cp -rL`"
            )
        mode = path.stat().st_mode
        wanted = 0o005 if path.is_dir() else 0o004
        if mode & wanted == wanted:
            continue
        if not own:
            raise CheckFailed(
                f"{path} (mode {mode & 0o777:o}) is not readable for the container's user: run `chmod -R o+rX {model}`"
            )
        os.chmod(path, mode & 0o7777 | wanted)
