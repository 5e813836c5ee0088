"""A model folder's config, and its checkpoint as the tensor headers describe it. Reads no tensor data.

`open_checkpoint` is for those who need a sound checkpoint; `examine_folder` reads as much as can be read and returns
everything that is wrong with it, for whoever reports on the folder.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any

from day0 import collector, safetensors_header
from day0.artifacts.snapshot import Fault, FaultKind
from day0.errors import InputError
from day0.safetensors_header import Header, TensorInfo
from day0.strict_json import JsonFault, NotRegular, decode, read_capped

MAX_CONFIG_BYTES = 16 << 20
MAX_INDEX_BYTES = 128 << 20
MAX_SHARDS = 10_000

INDEX = "model.safetensors.index.json"
SINGLE = "model.safetensors"
QUANTISATION = "hf_quant_config.json"


class PathFault(Exception):
    """A file that may not or cannot be opened, and why."""

    def __init__(self, kind: FaultKind, detail: str) -> None:
        super().__init__(detail)
        self.kind = kind
        self.detail = detail


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint whose index and headers agree.

    `files` are the shards that belong to it, by their names in the folder; `tensors` are all tensors, by name;
    `bytes` is the size of the shards together.
    """

    root: Path
    config: dict[str, Any]
    files: Mapping[str, Header]
    tensors: Mapping[str, TensorInfo]
    index: str | None
    """The index file's name; None for a checkpoint of a single file."""

    @property
    def bytes(self) -> int:
        return sum(header.file_bytes for header in self.files.values())

    @property
    def tensor_bytes(self) -> int:
        return sum(tensor.nbytes for tensor in self.tensors.values())

    def path(self, file: str) -> Path:
        """Where a shard's bytes lie; checked again, since the folder may have changed.

        Raises:
            InputError: the shard is gone or points outside the folder.
        """
        try:
            return locate(self.root, file)
        except PathFault as fault:
            raise InputError(f"{self.root}: {file}: {fault.detail}") from fault


@dataclass
class Examination:
    """What was found in a model folder. With faults, `files` and `tensors` hold what could be read nevertheless."""

    files: dict[str, Header] = field(default_factory=dict)
    tensors: dict[str, TensorInfo] = field(default_factory=dict)
    index: str | None = None
    absent: dict[str, str] = field(default_factory=dict)
    """Tensors that the index names, with their files, and that no readable file holds where it says."""
    total_size: Any = None
    """The index's own statement, which may be absent or wrong: it is advisory."""
    faults: list[Fault] = field(default_factory=list)

    def fault(self, kind: FaultKind, file: str | None, tensor: str | None, detail: str) -> None:
        self.faults.append(Fault(kind=kind, file=file, tensor=tensor, detail=detail))


def read_config(path: Path) -> dict[str, Any]:
    """The config of a model folder, or of a config.json alone.

    Raises:
        InputError: there is none, or it is not the JSON object that it should be.
    """
    path = Path(path)
    if not path.exists():
        raise InputError(f"{path} does not exist; give a model folder or a config.json")
    file = path / "config.json" if path.is_dir() else path
    try:
        if path.is_dir():
            file = locate(path, "config.json")
        value = decode(read_capped(file, MAX_CONFIG_BYTES), infinity=True)
    except PathFault as fault:
        raise InputError(f"{file}: {fault.detail}; a model folder needs a config.json") from fault
    except (JsonFault, NotRegular) as error:
        raise InputError(f"{file} {error}") from error
    except OSError as error:
        raise InputError(f"{file} cannot be read: {error.strerror}") from error
    if not isinstance(value, dict):
        raise InputError(f"{file} must hold a JSON object, not {type(value).__name__}")
    return value


def has_weights(path: Path) -> bool:
    """Whether a folder holds anything that should be a safetensors checkpoint."""
    return path.is_dir() and any(
        name.endswith((".safetensors", ".safetensors.index.json")) for name in os.listdir(path)
    )


def read_quantisation(path: Path) -> dict[str, Any] | None:
    """The quantisation file beside the config of a model folder, or of a config.json alone; None: there is none.

    Raises:
        InputError: it is not the JSON object that it should be.
    """
    folder = path if path.is_dir() else path.parent if path.name == "config.json" else None
    found = folder / QUANTISATION if folder else None
    return read_config(found) if found is not None and found.is_file() else None


@collector.paused()
def open_checkpoint(root: Path) -> Checkpoint:
    """The checkpoint in a model folder: what the index names, or the one safetensors file.

    Raises:
        InputError: names the first fault, with its file and tensor.
    """
    root = Path(root)
    config = read_config(root)
    found = examine_folder(root)
    if found.faults:
        first = found.faults[0]
        where = ": ".join([str(root), *filter(None, [first.file, first.tensor])])
        more = f" (and {len(found.faults) - 1} more faults; `day0 verify` lists them)" if found.faults[1:] else ""
        raise InputError(f"{where}: {first.detail}{more}")
    return Checkpoint(root, config, found.files, found.tensors, found.index)


def examine_folder(root: Path) -> Examination:
    """Read the index and every indexed header, and hold them against each other both ways."""
    found = Examination()
    if not root.is_dir():
        raise InputError(f"{root} is not a folder; give the folder that a model's files lie in")
    placed = _placement(root, found)
    if placed is None:
        return found
    shards = sorted(set(placed.values()))
    if len(shards) > MAX_SHARDS:
        found.fault("index", found.index, None, f"it names {len(shards):,} files; {MAX_SHARDS:,} are accepted")
        return found
    if found.index:
        _compare(root, shards, placed, found)
    else:
        for file in shards:
            if header := _read_shard(root, file, found):
                found.tensors.update(header.tensors)
    if not found.faults and not found.tensors:
        found.fault("header", shards[0] if shards else None, None, "the checkpoint holds no tensors")
    return found


def locate(root: Path, name: str) -> Path:
    """The real path of a file that belongs to a model folder.

    A link is followed inside the folder, or into the blobs of the hub cache that the folder is part of.

    Raises:
        PathFault: the name is no plain relative path, leads elsewhere, or names no regular file.
    """
    if problem := unsafe_name(name):
        raise PathFault("unsafe_path", problem)
    real_root = root.resolve()
    try:
        real = (real_root / name).resolve(strict=True)
    except FileNotFoundError as error:
        link = real_root / name
        dangling = f"it is a link to {os.readlink(link)}, which is not there" if link.is_symlink() else "it is missing"
        raise PathFault("missing_shard", dangling) from error
    except (OSError, RuntimeError) as error:  # a loop of links, a file in place of a folder
        raise PathFault("not_regular", f"it cannot be reached: {error}") from error
    if not any(real.is_relative_to(base) for base in (real_root, *_blob_folders(real_root))):
        raise PathFault("unsafe_path", f"it leads out of the model folder, to {real}")
    if not real.is_file():
        raise PathFault("not_regular", "it is not a regular file")
    return real


def unsafe_name(name: str) -> str | None:
    """Why a file name from an index, a manifest or a hub may not be used, or None."""
    if not name or len(name) > 1024 or any(ord(c) < 32 or 0xD800 <= ord(c) <= 0xDFFF for c in name):
        return f"{name[:80]!a} is no usable file name"
    if "\\" in name or "://" in name or re.match(r"[A-Za-z]:", name):
        return f"{name[:80]!r} is no plain relative path"
    if PurePosixPath(name).is_absolute() or any(part in ("..", ".", "") for part in name.split("/")):
        return f"{name[:80]!r} leads out of the model folder"
    return None


def shown(name: str) -> str:
    """A name from a stranger as it may be shown on a terminal and written as JSON."""
    return name if name.isprintable() and len(name) <= 1024 else ascii(name[:80])[1:-1]


def _blob_folders(real_root: Path) -> list[Path]:
    """For a snapshot in a hub cache (`models--ORG--NAME/snapshots/REV`), where its files' contents may lie."""
    if real_root.parent.name != "snapshots" or not real_root.parent.parent.name.startswith("models--"):
        return []
    repository = real_root.parent.parent
    return [repository / "blobs", repository.parent / "blobs"]  # the second is shared between repositories


def _placement(root: Path, found: Examination) -> dict[str, str] | None:
    """Tensor name → file, from the index; for a single file one entry with that file. None: cannot be told."""
    names = sorted(os.listdir(root))
    indexes = [name for name in names if name.endswith(".safetensors.index.json")]
    weights = [name for name in names if name.endswith(".safetensors")]
    index = INDEX if INDEX in indexes else indexes[0] if len(indexes) == 1 and SINGLE not in weights else None
    if index is None:
        if SINGLE in weights or len(weights) == 1:
            return {"": SINGLE if SINGLE in weights else weights[0]}
        if len(indexes) > 1:
            found.fault("index", None, None, f"there are {len(indexes)} index files and none is {INDEX}")
        elif weights:
            found.fault("index", None, None, f"there are {len(weights)} safetensors files but no {INDEX}")
        else:
            found.fault("missing_shard", None, None, "the folder holds no safetensors file")
        return None
    found.index = index
    try:
        value = decode(read_capped(locate(root, index), MAX_INDEX_BYTES))
    except PathFault as fault:
        found.fault(fault.kind, index, None, fault.detail)
        return None
    except (JsonFault, NotRegular) as error:
        found.fault("index", index, None, f"the index {error}")
        return None
    except OSError as error:
        found.fault("index", index, None, f"the index cannot be read: {error.strerror}")
        return None
    return _weight_map(value, index, found)


def _weight_map(value: Any, index: str, found: Examination) -> dict[str, str] | None:
    weight_map = value.get("weight_map") if isinstance(value, dict) else None
    if not isinstance(weight_map, dict) or not weight_map:
        found.fault("index", index, None, "the index must be an object whose `weight_map` names at least one tensor")
        return None
    metadata = value.get("metadata")
    found.total_size = metadata.get("total_size") if isinstance(metadata, dict) else None
    placed = {}
    shards: dict[str, str] = {}  # so that each file's name is in memory once
    for tensor, file in weight_map.items():
        if problem := safetensors_header.name_fault(tensor):
            found.fault("name", index, shown(tensor), problem)
        elif not isinstance(file, str):
            found.fault("index", index, tensor, f"`weight_map` must give a file's name, not {str(file)[:40]}")
        elif file in shards or unsafe_name(file) or file.endswith(".safetensors"):
            placed[tensor] = shards.setdefault(file, file)
        else:
            found.fault("unsafe_file", shown(file), tensor, "the index places it in a file that is not safetensors")
    return placed


def _read_shard(root: Path, file: str, found: Examination) -> Header | None:
    try:
        header, faults = safetensors_header.examine(locate(root, file), file)
    except PathFault as fault:
        named = "the index names this file, but " if found.index else ""
        found.fault(fault.kind, shown(file), None, named + fault.detail)
        return None
    except OSError as error:
        found.fault("not_regular", file, None, f"it cannot be read: {error.strerror}")
        return None
    for wrong in faults:
        found.fault(wrong.kind, file, wrong.tensor, wrong.detail)
    if header:
        found.files[file] = header
    return header


def _compare(root: Path, shards: list[str], placed: dict[str, str], found: Examination) -> None:
    """Read the shards and hold the index against them, both ways. Empties `placed` of what is where it should be."""
    elsewhere: dict[str, list[str]] = {}
    for file in shards:
        header = _read_shard(root, file, found)
        for name, tensor in header.tensors.items() if header else ():
            if placed.get(name) == file:
                found.tensors[name] = tensor
                del placed[name]  # half of the names in memory, otherwise
            else:
                elsewhere.setdefault(name, []).append(file)
    for name, files in elsewhere.items():
        right = found.tensors[name].file if name in found.tensors else placed.get(name)
        for file in files:
            detail = f"the index places it in {right}" if right else "the index does not list it"
            found.fault("extra_tensor", file, name, detail)
        held_by = sorted({*files, found.tensors[name].file} if name in found.tensors else files)
        if len(held_by) > 1:
            found.fault("duplicate_tensor", held_by[1], name, f"it is in {' and in '.join(held_by)}")
    known = {(fault.file, fault.tensor) for fault in found.faults}
    for name, file in placed.items():
        if file in found.files and (file, name) not in known:
            where = f"; it is in {elsewhere[name][0]}" if name in elsewhere else ""
            found.fault("missing_tensor", file, name, f"the index places it in this file, which lacks it{where}")
    found.absent = placed
