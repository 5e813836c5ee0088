"""Making a list anew from a file of its repository, and what that changed."""

from __future__ import annotations

import datetime
import hashlib
import re
from dataclasses import dataclass
from pathlib import Path

import httpx
from pydantic import ValidationError

from day0.config import explain
from day0.errors import InputError, Unavailable
from day0.http import http_client
from tasks.operators.lists.document import MOST_BYTES, Document, read_document
from tasks.operators.lists.model import Entry, OperatorList, lists_folder, load_list, write_list
from tasks.operators.lists.parsers import parse

#: Seconds to connect, and between two pieces.
PATIENCE = 60.0

#: A file that has lost more of a list's operators is believed to be cut off, or another one, unless that is confirmed.
MOST_LOST = 0.1

COMMIT = re.compile(r"(?<![0-9a-f])[0-9a-f]{40}(?![0-9a-f])")


@dataclass(frozen=True)
class Refreshed:
    """A list as it was and as it is now."""

    name: str
    before: OperatorList
    after: OperatorList

    @property
    def added(self) -> tuple[str, ...]:
        return tuple(sorted(self.after.operators.keys() - self.before.operators.keys()))

    @property
    def removed(self) -> tuple[str, ...]:
        return tuple(sorted(self.before.operators.keys() - self.after.operators.keys()))

    @property
    def changed(self) -> tuple[str, ...]:
        """Operators in both of which the list says something else now."""
        both = self.after.operators.keys() & self.before.operators.keys()
        return tuple(sorted(name for name in both if self.after.operators[name] != self.before.operators[name]))


def refresh(
    name: str,
    origin: str,
    *,
    commit: str | None = None,
    date: datetime.date | None = None,
    folder: Path | None = None,
    force: bool = False,
) -> Refreshed:
    """Read the list's source anew from a file or URL, and write the list; nothing is written unless all of it parses,
    nor if it has lost over MOST_LOST of its operators, which `force` takes all the same.

    The commit is the one given, or the one that the URL names; with neither it, and the date, are recorded as not
    known.

    Raises:
        InputError: there is no such list, or the file is not what the list is made from, or has lost too much of it.
        Unavailable: the server does not send it.
    """
    before = load_list(name)
    document = fetch(origin) if re.match(r"https?://", origin) else read_document(Path(origin))
    if commit is None and (named := COMMIT.search(origin)):
        commit = named[0]
    after = remade(before, document, commit=commit, date=date)
    done = Refreshed(name, before, after)
    lost, had = len(done.removed), len(before.operators)
    if lost > MOST_LOST * had and not force:
        raise InputError(
            f"{document.name} lacks {lost:,} of the {had:,} operators that {name} has now, as a file that was cut off "
            "or is another one would; if it is whole and the right one, say --force"
        )
    write_list((folder or lists_folder()) / f"{name}.yaml", after)
    return done


def remade(
    header: OperatorList, document: Document, *, commit: str | None = None, date: datetime.date | None = None
) -> OperatorList:
    """A list like `header` from this document. Of the same content, or commit, what was known of it stays so.

    Raises:
        InputError: the document is not what the list's parser reads.
    """
    try:
        operators = parse(document, header.parser, header.options)
    except ValidationError as error:  # what an entry may not be, such as a dtype that torch does not have
        raise InputError(f"{document.name}: {explain(error, Entry)}") from error
    old = header.source
    digest = hashlib.sha256(document.text.encode()).hexdigest()
    if commit is None and digest == old.sha256:
        commit = old.commit
    if date is None and commit is not None and commit == old.commit:
        date = old.date
    today = datetime.datetime.now(datetime.UTC).date()
    source = old.model_copy(update={"commit": commit, "date": date, "retrieved": today, "sha256": digest})
    return header.model_copy(update={"source": source, "operators": operators})


def fetch(url: str) -> Document:
    """The document at a URL, read no further than a list may be long.

    Raises:
        InputError: the address is wrong, or what it has is too long or no text.
        Unavailable: the server cannot be reached or fails.
    """
    content = bytearray()
    try:
        with http_client(follow_redirects=True, timeout=PATIENCE) as client, client.stream("GET", url) as answer:
            if answer.status_code >= 500:
                raise Unavailable(f"{url} cannot be had: the server answers {answer.status_code}; try again later")
            if answer.status_code != 200:
                raise InputError(f"{url} cannot be had: the server answers {answer.status_code}")
            for piece in answer.iter_bytes():
                content += piece
                if len(content) > MOST_BYTES:
                    break
    except (httpx.InvalidURL, httpx.UnsupportedProtocol) as error:
        raise InputError(f"{url} is no address to read from: {error}") from error
    except httpx.HTTPError as error:
        raise Unavailable(f"{url} cannot be had: {error or type(error).__name__}; try again later") from error
    return Document(url, bytes(content))
