"""Snapshot: a release as it lies on this machine, pinned and checked."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar, Literal

from day0.artifacts.base import Artifact, Frozen
from day0.errors import EvidenceMissing

FaultKind = Literal[
    "size", "digest", "header", "layout", "dtype", "name", "missing_shard", "missing_tensor", "extra_tensor",
    "duplicate_tensor", "index", "scale_pair", "unsafe_path", "not_regular", "incomplete_download", "unsafe_file",
]  # fmt: skip


class Fault(Frozen):
    """Something wrong with a checkpoint, named to the file and, where there is one, the tensor."""

    kind: FaultKind
    file: str | None = None
    tensor: str | None = None
    detail: str


class Snapshot(Artifact):
    """A model folder whose every file is known by size and SHA-256 (in `files`, relative to `location`).

    A survey is a snapshot that is not `complete`: the small files are there and checked, of the weights only the
    headers. What needs no more than headers works on it; whoever reads weights takes them from `day0.landing`.
    """

    kind: ClassVar[str] = "snapshot"

    source: str
    """As the user may write it again: `hf:ORG/NAME`, `ms:ORG/NAME` or `dir:PATH`."""
    name: str
    """Short name for people and for slugs: `ORG/NAME`, or the folder's name."""
    revision: str
    """The hub's commit; for a folder the digest of its file list."""
    location: str
    """Absolute path of the model folder."""
    bytes: int
    tensors: int
    faults: tuple[Fault, ...] = ()
    warnings: tuple[Fault, ...] = ()
    digests_from: Literal["hub", "manifest", "none"]
    """What the contents were compared with; `none`: hashed, but there was nothing to compare with."""
    complete: bool = True
    lands: str | None = None
    """Of a survey: absolute path of the folder that the whole release will lie in."""

    def require_weights(self) -> None:
        """Raise EvidenceMissing if the weights are not there."""
        if not self.complete:
            raise EvidenceMissing(
                f"{self.location} holds only the headers of {self.name}; its weights are not there yet"
            )

    @property
    def summary(self) -> str:
        if not self.complete:
            return f"{self.tensors:,} tensors by their headers alone; {self.bytes / 1e9:.2f} GB are still to be checked"
        compared = {"none": "nothing to compare their digests with"}.get(
            self.digests_from, f"every digest as the {self.digests_from} says"
        )
        return f"{len(self.files)} files, {self.bytes / 1e9:.2f} GB, {self.tensors:,} tensors; {compared}"

    def tree(self, store_tree: Path) -> Path:
        return Path(self.location)
