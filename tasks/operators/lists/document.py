"""A vendor's file, hostile until checked: its size, its encoding, its shape."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NoReturn

import yaml

from day0.config import parse_yaml
from day0.errors import InputError
from tasks.operators.lists.model import Entry

#: The largest known, torch's declarations, has 0.6 MB.
MOST_BYTES = 32 << 20

MOST_OPERATORS = 100_000

_NAME = re.compile(r"\w+(\.\w+)?")
_WEB_PAGE = re.compile(r"\s*<(!doctype html|html|head|\?xml)\b", re.IGNORECASE)


class Document:
    """A file's text, and errors that name it."""

    def __init__(self, name: str, content: bytes) -> None:
        self.name = name
        if len(content) > MOST_BYTES:
            self.refuse(f"has over {MOST_BYTES:,} bytes, which no list of operators is believed to have")
        try:
            self.text = content.decode("utf-8-sig")
        except UnicodeDecodeError as error:
            self.refuse(f"is not text in UTF-8: {error}")
        if _WEB_PAGE.match(self.text):
            self.refuse("is a web page, and not the file itself; give the address of the raw file")

    def refuse(self, why: str) -> NoReturn:
        raise InputError(f"{self.name} {why}")

    def yaml(self) -> Any:
        try:
            return parse_yaml(self.text)
        except (yaml.YAMLError, ValueError, RecursionError) as error:
            self.refuse(f"is not valid YAML: {' '.join(str(error).split())[:300]}")

    def mapping(self, value: Any, where: str) -> dict[Any, Any]:
        return value if isinstance(value, dict) else self.refuse(f"should have a mapping as {where}, and has not")

    def sequence(self, value: Any, where: str) -> list[Any]:
        return value if isinstance(value, list) else self.refuse(f"should have a list as {where}, and has not")

    def operator(self, declaration: Any, where: str) -> str:
        """The operator's name at the head of a declaration: `mul.Tensor(Tensor self, …` is mul.Tensor."""
        name = declaration.partition("(")[0].strip() if isinstance(declaration, str) else ""
        if not _NAME.fullmatch(name):
            given = repr(declaration[:60]) if isinstance(declaration, str) else f"a {type(declaration).__name__}"
            self.refuse(f"has under {where} what is no operator's name: {given}")
        return name

    def add(self, found: dict[str, Entry], name: str, entry: Entry) -> None:
        """An entry among those found. What the file says twice it has to say alike."""
        if found.setdefault(name, entry) != entry:
            self.refuse(f"says two things of {name}, and which of them holds is not known")

    def words(self, value: Any) -> list[str]:
        """A list of words, or one word, or words with commas; other things are no words."""
        given = value.split(",") if isinstance(value, str) else value if isinstance(value, list) else []
        return [word.strip() for word in given if isinstance(word, str)]

    def checked(self, operators: dict[str, Entry], what: str) -> dict[str, Entry]:
        """The operators, if there are any and not unbelievably many: nothing found is no list."""
        if not operators:
            self.refuse(f"names no operator that can be read as {what}")
        if len(operators) > MOST_OPERATORS:
            self.refuse(f"names {len(operators):,} operators; over {MOST_OPERATORS:,} are not believed")
        return operators


def read_document(path: Path) -> Document:
    """The file.

    Raises:
        InputError: it cannot be read, is too large, or is not text.
    """
    try:
        with path.open("rb") as file:
            return Document(str(path), file.read(MOST_BYTES + 1))
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror or error}") from error


def in_aten(names: Iterable[str], **fields: Any) -> dict[str, Entry]:
    """Entries of operators of torch's own library, all alike."""
    return {f"aten::{name}": Entry(**fields) for name in names}
