"""RankShards: a checkpoint split for a layout, in the files that an engine loads."""

from __future__ import annotations

from typing import ClassVar

from day0.artifacts.base import Artifact, Frozen


class Dropped(Frozen):
    """A source tensor that is not written, and why."""

    tensor: str
    reason: str


class RankShards(Artifact):
    """A model folder that an engine serves. `files` lists all of it; `ranks.json` tells where each tensor is from."""

    kind: ClassVar[str] = "shards"

    layout: str
    """`vllm` (sharded_state), `hf` or `deepseek`."""
    engine: str
    """The engine and version whose tensor names are written, such as `vllm 0.32.0`; `none` for `hf`."""
    source: str
    """Digest of the source's index and of the hashes of its shards."""
    tp: int
    pp: int
    ep: int
    ranks: int
    bytes_read: int
    """Of tensor data; each byte once."""
    bytes_written: int
    """The sizes of `files` together."""
    dropped: tuple[Dropped, ...] = ()

    @property
    def summary(self) -> str:
        return (
            f"{self.bytes_written / 1e9:.2f} GB in {self.ranks} rank(s) as {self.engine} loads them; "
            f"every source tensor used once, {len(self.dropped)} dropped"
        )
