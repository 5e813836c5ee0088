"""The base of every artifact and of every stage's settings."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar, Self

from pydantic import BaseModel, ConfigDict

from day0.files import FileRef, digest_of
from day0.verdict import Check, Verdict, worst


class Frozen(BaseModel):
    """An immutable value that rejects unknown fields and NaN, and is serialised as JSON."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    def to_json(self) -> dict[str, Any]:
        """Plain JSON values."""
        return self.model_dump(mode="json")


class Settings(Frozen):
    """What a stage is asked to do, beside its input artifacts. Part of its cache key."""


class Artifact(Frozen):
    """What a stage produces. Content-addressed: its digest is that of its type and content.

    `checks` are what the stage's verdict rests on. `files` are large files that lie in the artifact's tree
    (a folder in the store, or for a snapshot the model folder itself), named with their digests.
    """

    kind: ClassVar[str]

    checks: tuple[Check, ...]
    files: tuple[FileRef, ...] = ()

    @property
    def verdict(self) -> Verdict:
        return worst(check.verdict for check in self.checks)

    @property
    def reason(self) -> str:
        """One line: what was found if all is well, else the worst check's reason."""
        verdict = self.verdict
        if verdict is Verdict.PASS:
            return self.summary
        return next((c.reason for c in self.checks if c.verdict is verdict), "nothing was checked")

    @property
    def summary(self) -> str:
        """What a person wants to read of a good artifact, in one line with its numbers."""
        return next(c.reason for c in self.checks if c.verdict is Verdict.PASS)

    @property
    def digest(self) -> str:
        return digest_of({"kind": self.kind, "content": self.to_json()})

    def tree(self, store_tree: Path) -> Path:
        """The folder that `files` are relative to; by default the store's own, named in the ledger."""
        return store_tree

    @classmethod
    def from_json(cls, value: Any) -> Self:
        return cls.model_validate(value)
