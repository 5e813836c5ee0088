"""An operator list: one file of configs/operators/lists/, made from one file of a vendor's repository."""

from __future__ import annotations

import datetime
import re
from pathlib import Path
from typing import Any, Literal

import yaml
from pydantic import Field, field_validator

from day0.artifacts.base import Frozen
from day0.artifacts.operators import Status
from day0.config import load_config, named_config
from day0.files import atomic_write
from day0.home import configs

#: `aten::mul.Tensor`, `aten::mm` (the overload without a name), or `aten::mul.*` (every overload).
LISTED_NAME = re.compile(r"\w+::\w+(\.(\w+|\*))?")

DTYPE = re.compile(r"(float|bfloat|uint|int|complex|bool|bits|quint|qint|float8_)[a-z0-9_]*")

Role = Literal["backend", "backend_doubts", "library", "library_lacks"]


class Entry(Frozen):
    """What a list says of an operator."""

    status: Status = "native"
    via: str | None = None
    """The out= overload that computes it, what kind of composite it is, or the name that a library has for it."""
    dtypes: tuple[str, ...] = ()
    """With these dtypes only; empty: the list does not tell."""
    fails: tuple[str, ...] = ()
    """With these dtypes the vendor's own tests fail, or are left out."""
    note: str | None = None

    @field_validator("dtypes", "fails")
    @classmethod
    def _dtypes(cls, names: tuple[str, ...]) -> tuple[str, ...]:
        if wrong := [name for name in names if not DTYPE.fullmatch(name)]:
            raise ValueError(f"{wrong[0]!r} is no dtype of torch")
        return names


class Source(Frozen):
    """The file that a list was made from."""

    repository: str
    path: str
    commit: str | None
    """Of the repository, or the release of a package. None: it is not known."""
    date: datetime.date | None
    """Of that commit. None: it is not known, and the list counts as undated."""
    licence: str
    retrieved: datetime.date
    sha256: str

    def describe(self) -> str:
        """For people: repository, commit, date and path."""
        commit = self.commit[:12] if self.commit else "of an unknown commit"
        return f"{self.repository} {commit}{f' ({self.date})' if self.date else ''}, {self.path}"


class OperatorList(Frozen):
    """A list as it is kept. `operators` is by overload."""

    what: str
    role: Role = "backend"
    """`backend`: what the backend has. `backend_doubts`: where its vendor's tests fail. `library`: what a library of
    kernels has beside the backend; `library_lacks`: what of it does not work on a vendor's devices."""
    parser: str
    """Which of parsers.PARSERS reads the source."""
    options: dict[str, str] = Field(default_factory=dict)
    """For that parser."""
    source: Source
    operators: dict[str, Entry]

    @field_validator("operators", mode="before")
    @classmethod
    def _short(cls, value: Any) -> Any:
        """A status alone stands for an entry."""
        if not isinstance(value, dict):
            return value
        return {name: {"status": e} if isinstance(e, str) else e for name, e in value.items()}

    @field_validator("operators")
    @classmethod
    def _names(cls, value: dict[str, Entry]) -> dict[str, Entry]:
        if not value:
            raise ValueError("lists no operator at all")
        if wrong := next((name for name in value if not LISTED_NAME.fullmatch(name)), None):
            raise ValueError(f"{wrong!r} is not an operator's name, such as aten::mul.Tensor, aten::mm or aten::mul.*")
        return value

    def find(self, overload: str) -> Entry | None:
        """What the list says of exactly this overload, or of every overload of its operator."""
        return self.operators.get(overload) or self.operators.get(f"{overload.partition('.')[0]}.*")


def lists_folder() -> Path:
    return configs() / "operators" / "lists"


def list_names() -> tuple[str, ...]:
    return tuple(sorted(path.stem for path in lists_folder().glob("*.yaml")))


def load_list(name: str) -> OperatorList:
    """The list of that name.

    Raises:
        InputError: there is none (the nearest is named), or it is malformed.
    """
    return named_config(lists_folder(), name, OperatorList)


def read_list(path: Path) -> OperatorList:
    """The list in a file. Raises InputError as `load_list`."""
    return load_config(path, OperatorList)


def write_list(path: Path, content: OperatorList) -> None:
    """Write a list, atomically: an operator a line, sorted, so that a difference is read by line."""
    head = content.model_dump(mode="json", exclude={"operators"}, exclude_defaults=True)
    head["source"] = content.source.model_dump(mode="json")
    lines = [yaml.safe_dump(head, sort_keys=False, allow_unicode=True, width=110), "operators:\n"]
    lines += [f"  {name}: {_line(entry)}\n" for name, entry in sorted(content.operators.items())]
    with atomic_write(path) as file:
        file.write("".join(lines).encode())


def _line(entry: Entry) -> str:
    content = entry.model_dump(mode="json", exclude_defaults=True)
    if not content.keys() - {"status"}:
        return entry.status
    content = {"status": entry.status, **content}
    return yaml.safe_dump(content, sort_keys=False, allow_unicode=True, width=1 << 20, default_flow_style=True).strip()
