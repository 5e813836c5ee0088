"""What lies in a model folder: its files, and what should not be among them.

Contents are not read, save pickles' and what may be a git-LFS pointer.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from day0.artifacts.snapshot import Fault, FaultKind
from day0.checkpoint import SINGLE, PathFault, locate, shown, unsafe_name
from day0.disguise import LFS_POINTER, disguise
from tasks.download.pickles import hostile_calls

#: Folders of tools, which are no part of a release.
_TOOL_FOLDERS = {".git", ".cache", "__pycache__"}

_UNFINISHED = (".incomplete", ".part", ".partial", ".aria2", ".crdownload", ".download", ".tmp")
_PICKLES = (".bin", ".pt", ".pth", ".ckpt", ".pkl", ".pickle", ".joblib", ".msgpack", ".h5", ".npy", ".npz")
_CODE = (".py", ".pyc", ".so", ".sh", ".ipynb", ".dll", ".exe")
_MAX_POINTER = 1024  # bytes, by git-LFS's specification
_NUMBERED = re.compile(r"(.*?)-?(\d+)-of-(\d+)(.*)\.safetensors")


@dataclass
class Listing:
    """The regular files of a release (`files`: name → size), and what was found beside them."""

    files: dict[str, int] = field(default_factory=dict)
    unsafe: set[str] = field(default_factory=set)
    """Of `files`, those that hold code or may run it when loaded: never loaded, never handed on."""
    faults: list[Fault] = field(default_factory=list)
    warnings: list[Fault] = field(default_factory=list)

    def fault(self, kind: FaultKind, file: str, detail: str) -> None:
        self.faults.append(Fault(kind=kind, file=shown(file), detail=detail))

    def warning(self, kind: FaultKind, file: str | None, detail: str) -> None:
        self.warnings.append(Fault(kind=kind, file=file and shown(file), detail=detail))


def is_unsafe(name: str) -> bool:
    """Whether a file's name says that it holds code, or a format that can run some when it is loaded."""
    return name.lower().endswith((*_PICKLES, *_CODE))


def list_folder(root: Path, indexed: set[str]) -> Listing:
    """Every file of the folder. `indexed` are the shards that the checkpoint consists of."""
    listing = Listing()
    folded: dict[str, str] = {}
    for name, mode in _walk(root):
        if _unfinished(name):
            listing.fault("incomplete_download", name, "an unfinished download; fetch the release again")
            continue
        if name.split("/")[0] in _TOOL_FOLDERS:
            continue
        if problem := unsafe_name(name):
            listing.fault("unsafe_path", name, problem)
        elif not (stat.S_ISREG(mode) or stat.S_ISLNK(mode)):
            listing.fault("not_regular", name, "neither a file nor a folder")
        else:
            _one(root, name, indexed, listing)
            if (other := folded.setdefault(name.casefold(), name)) != name:
                listing.warning("unsafe_path", name, f"its name differs from {other} in case only")
    _gaps(indexed, listing)
    return listing


def _walk(root: Path) -> Iterator[tuple[str, int]]:
    """Name and mode of everything that is not a folder; a link to a folder is not entered. Sorted."""
    for folder, folders, names in os.walk(root, followlinks=False):
        folders.sort()
        links = [name for name in folders if os.path.islink(os.path.join(folder, name))]
        for name in sorted([*names, *links]):
            path = os.path.join(folder, name)
            try:
                mode = os.lstat(path).st_mode
            except FileNotFoundError:
                continue  # gone since the folder was read: a download renames its files
            yield os.path.relpath(path, root), mode


def _one(root: Path, name: str, indexed: set[str], listing: Listing) -> None:
    try:
        real = locate(root, name)
        status = real.stat()
    except PathFault as fault:
        if name not in indexed:  # of an indexed one the examination of the checkpoint has told
            listing.fault(fault.kind, name, fault.detail)
        return
    except FileNotFoundError:
        listing.fault("incomplete_download", name, "it vanished while the folder was read; is a download running?")
        return
    listing.files[name] = status.st_size
    if status.st_size <= _MAX_POINTER and name not in indexed and real.read_bytes().startswith(LFS_POINTER):
        listing.fault("incomplete_download", name, f"it is {disguise(LFS_POINTER)}")
    if is_unsafe(name):
        listing.unsafe.add(name)
        if calls := hostile_calls(real):
            listing.fault("unsafe_file", name, f"loading it would call {', '.join(calls[:3])}; day0 does not load it")
        elif name.lower().endswith(_CODE):
            listing.warning("unsafe_file", name, "code that came with the model; day0 does not run it")
        else:
            listing.warning("unsafe_file", name, "a format that can run code when loaded; day0 does not load it")
    elif name.endswith(".safetensors") and name not in indexed:
        instead = "; transformers would load it in place of those that are named" if name == SINGLE else ""
        listing.warning("extra_tensor", name, f"no index names this file; it is not used{instead}")
    if name in indexed and status.st_blocks * 512 < status.st_size // 2:
        allocated = f"{status.st_blocks * 512:,} of its {status.st_size:,} bytes"
        listing.warning("size", name, f"only {allocated} are on the disk: holes read as zeros")


def _gaps(indexed: set[str], listing: Listing) -> None:
    """Shards that are numbered `-00001-of-00003` should be as many. Only a warning: the index decides, not a name."""
    series: dict[tuple[str, int, str], set[int]] = {}
    for name in indexed:
        if match := _NUMBERED.fullmatch(name):
            series.setdefault((match[1], int(match[3]), match[4]), set()).add(int(match[2]))
    for (stem, count, _), numbers in sorted(series.items()):
        if len(numbers) < count:
            detail = f"the names {stem}-…-of-{count} say {count} files, the index names {len(numbers)}"
            listing.warning("missing_shard", None, detail)


def _unfinished(name: str) -> bool:
    return name.lower().endswith(_UNFINISHED)
