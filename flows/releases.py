"""What has been released: repositories of an organisation on a hub, sub-folders of a folder.

Nothing is fetched: a candidate tells its content's digest at little cost, and what it still lacks when asked.
"""

from __future__ import annotations

import os
import re
import stat
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx
from pydantic import AliasPath, BaseModel, Field, TypeAdapter, ValidationError

from day0.checkpoint import INDEX, MAX_INDEX_BYTES, SINGLE, examine_folder, unsafe_name
from day0.errors import InputError, Unavailable
from day0.files import digest_of, sha256_file
from day0.http import http_client
from day0.release import parse_source
from day0.strict_json import JsonFault, decode

TIMEOUT = 30.0
MAX_PAGES = 1000

_COMMIT = re.compile(r"[0-9a-f]{40}")
_CONTENT = (".safetensors", ".json", ".jinja", ".model", ".tiktoken")
_CONTENT_NAMES = ("merges.txt", "vocab.txt")
_TOKENIZERS = ("tokenizer.json", "tokenizer.model", "tekken.json", "vocab.json", "vocab.txt")
_UNFINISHED = (".incomplete", ".part", ".partial", ".aria2", ".crdownload", ".download", ".tmp", ".swp")
_RSYNC = re.compile(r"\..+\.[A-Za-z0-9]{6}")


def matters(name: str) -> bool:
    """Whether a file is part of what is adapted: weights, configs, tokenizer and template in the release's root."""
    return "/" not in name and (name.endswith(_CONTENT) or name in _CONTENT_NAMES)


class Candidate(ABC):
    """A release that was seen."""

    source: str
    """As SOURCE of the command line, without the revision."""
    revision: str
    pinned: str
    """As SOURCE, at just this revision."""
    content: str
    """Digest of the files that matter: what a release is, whichever commit it is seen at."""
    changed: float
    """When anything in it last changed, seconds since the epoch."""
    endpoint: str | None = None
    """The hub, where it is not that of HF_ENDPOINT."""

    @abstractmethod
    def lacks(self) -> str | None:
        """What is still missing from the release, or None when it is whole."""

    @abstractmethod
    def again(self) -> Candidate:
        """The same, as it is by now."""


class HubCandidate(Candidate):
    """A repository at its newest commit."""

    def __init__(self, hub: Hub, listed: Listed) -> None:
        self.hub, self.name, self.revision = hub, listed.id, listed.sha
        self.source, self.endpoint = f"hf:{listed.id}", hub.named
        self.pinned = f"{self.source}@{listed.sha}"
        self.changed = listed.changed.timestamp()
        self.files = hub.files(listed.id, listed.sha)
        self.content = digest_of(sorted([f.path, f.size, f.digest] for f in self.files.values() if matters(f.path)))

    def lacks(self) -> str | None:
        names = set(self.files)
        if bad := next((problem for name in sorted(names) if (problem := unsafe_name(name))), None):
            raise InputError(f"it is refused, because the hub lists a file with an unusable name: {bad}")
        if missing := _lacks_small(names):
            return missing
        if INDEX in names:
            if (size := self.files[INDEX].size) > MAX_INDEX_BYTES:
                raise InputError(f"{INDEX} has {size:,} bytes; at most {MAX_INDEX_BYTES:,} are read")
            shards = _shards(self.hub.read(self.name, self.revision, INDEX, size))
            absent = sorted(shards - names)
            return f"{len(absent)} of {len(shards)} shards are not there yet, first {absent[0]}" if absent else None
        return None if _single(names) else f"neither {INDEX} nor {SINGLE} is there yet"

    def again(self) -> Candidate:
        return self  # a commit stays what it is


class FolderCandidate(Candidate):
    """A folder as it is now. What has no digest yet is told apart by size and time of change: nothing large is read."""

    def __init__(self, path: Path) -> None:
        self.path = path.resolve()
        self.source = self.pinned = f"dir:{self.path}"
        self.unfinished: str | None = None
        self.names: set[str] = set()
        self.changed = self.path.stat().st_ctime
        rows = []
        for name in sorted(_walk(self.path)):
            status = (self.path / name).stat()
            self.names.add(name)
            self.changed = max(self.changed, status.st_ctime)
            if _is_unfinished(name):
                self.unfinished = name
            elif not stat.S_ISREG(status.st_mode):
                raise InputError(f"{name} is no regular file")
            elif matters(name):
                large = name.endswith(".safetensors") or status.st_size > MAX_INDEX_BYTES
                rows.append([name, status.st_size, status.st_mtime_ns if large else sha256_file(self.path / name)])
        self.content = self.revision = digest_of(rows)

    def lacks(self) -> str | None:
        if self.unfinished:
            return f"{self.unfinished} is an unfinished copy or download"
        if missing := _lacks_small(self.names):
            return missing
        if INDEX not in self.names and not _single(self.names):
            return f"neither {INDEX} nor {SINGLE} is there yet"
        faults = examine_folder(self.path).faults
        if not faults:
            return None
        more = f" (and {len(faults) - 1} more; `day0 verify {self.path}` lists them)" if faults[1:] else ""
        return f"not whole yet, or damaged: {faults[0].file or self.path.name}: {faults[0].detail}{more}"

    def again(self) -> Candidate:
        return FolderCandidate(self.path)


@dataclass(frozen=True)
class Unreadable:
    """Something that was seen and cannot be used as it is."""

    source: str
    reason: str


def in_folder(folder: Path, wants: Callable[[str], bool]) -> Iterator[Candidate | Unreadable]:
    """The releases in a folder: its sub-folders whose name `wants` accepts."""
    try:
        names = sorted(entry.name for entry in os.scandir(folder) if entry.is_dir() and entry.name[0] != ".")
    except OSError as error:
        yield Unreadable(f"dir:{folder}", f"the watched folder cannot be read: {error.strerror}")
        return
    for name in filter(wants, names):
        try:
            yield FolderCandidate(folder / name)
        except FileNotFoundError as error:  # being moved away, or a link that leads nowhere
            yield Unreadable(f"dir:{folder / name}", f"{error.filename} is not there any more")
        except InputError as error:
            yield Unreadable(f"dir:{folder / name}", str(error))
        except OSError as error:
            yield Unreadable(f"dir:{folder / name}", f"{error.filename} cannot be read: {error.strerror}")


class Listed(BaseModel):
    """A repository as the hub lists it."""

    id: str
    sha: str
    changed: datetime = Field(validation_alias="lastModified")


class HubFile(BaseModel):
    """A file as the hub lists it in a commit's tree."""

    type: str
    path: str
    size: int = 0
    oid: str = ""
    sha256: str | None = Field(default=None, validation_alias=AliasPath("lfs", "oid"))

    @property
    def digest(self) -> str:
        return self.sha256 or self.oid


class Hub:
    """A hub, read only. Spoken to directly: the hub's own client lists without any time limit and retries by itself.

    Every method raises Unavailable where the hub does not answer as one, InputError where it refuses.
    """

    def __init__(self, client: httpx.Client, endpoint: str, named: str | None = None) -> None:
        self.client, self.endpoint, self.named = client, endpoint, named

    def listed(self, organisation: str, since: datetime | None) -> Iterator[Listed]:
        """The organisation's repositories that changed after `since`, the newest change first."""
        query = {"author": organisation, "sort": "lastModified", "direction": "-1", "limit": "100", "full": "true"}
        for row in self._pages(f"{self.endpoint}/api/models?{httpx.QueryParams(query)}"):
            listed = self._parse(row, Listed)
            if since and listed.changed < since:
                return
            yield listed

    def look(self, listed: Listed) -> Candidate | Unreadable:
        """A repository at the commit that the list gives."""
        try:
            parse_source(f"hf:{listed.id}")
            if not _COMMIT.fullmatch(listed.sha):
                raise InputError(f"the hub lists it at {listed.sha[:60]!r}, which is no commit")
            return HubCandidate(self, listed)
        except (InputError, Unavailable) as error:
            return Unreadable(f"hf:{listed.id[:200]}", str(error))

    def files(self, repository: str, commit: str) -> dict[str, HubFile]:
        """The files of a commit, with sizes and digests."""
        rows = self._pages(f"{self.endpoint}/api/models/{repository}/tree/{commit}?recursive=true&expand=false")
        files = [self._parse(row, HubFile) for row in rows]
        return {file.path: file for file in files if file.type == "file"}

    def read(self, repository: str, commit: str, name: str, size: int) -> bytes:
        """A small file of a commit."""
        url = f"{self.endpoint}/{repository}/resolve/{commit}/{quote(name)}"
        data = bytearray()
        with self._errors(url), self.client.stream("GET", url) as response:
            self._check(response)
            for piece in response.iter_bytes():
                data += piece
                if len(data) > size:
                    raise InputError(f"{name} is longer than the {size:,} bytes that the hub itself lists")
        return bytes(data)

    def _pages(self, url: str) -> Iterator[Any]:
        for _ in range(MAX_PAGES):
            with self._errors(url):
                response = self.client.get(url)
                self._check(response)
            try:
                yield from TypeAdapter(list[Any]).validate_json(response.content)
            except ValidationError as error:
                raise Unavailable(f"{self.endpoint} answers no list; is it a model hub?") from error
            if not (following := response.links.get("next", {}).get("url")):
                return
            if httpx.URL(following).netloc != httpx.URL(self.endpoint).netloc:
                raise Unavailable(f"{self.endpoint} continues its list at another host, {following[:100]!r}")
            url = following
        raise Unavailable(f"{self.endpoint} sends a list of more than {MAX_PAGES} pages")

    def _parse(self, row: Any, model: type[Any]) -> Any:
        try:
            return model.model_validate(row)
        except ValidationError as error:
            where = ".".join(map(str, error.errors()[0]["loc"]))
            raise Unavailable(f"{self.endpoint} lists an entry without a usable {where!r}") from error

    @contextmanager
    def _errors(self, url: str) -> Iterator[None]:
        try:
            yield
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            text = str(error) or type(error).__name__
            raise Unavailable(f"the hub {self.endpoint} does not answer ({httpx.URL(url).path}): {text}") from error

    def _check(self, response: httpx.Response) -> None:
        code = response.headers.get("X-Error-Code", "")
        if code == "GatedRepo":
            raise InputError(f"it is gated; accept its terms on {self.endpoint} and set HF_TOKEN")
        if response.status_code in (401, 403):
            raise InputError(f"{self.endpoint} refuses it to this account; set HF_TOKEN to one that may read it")
        if response.status_code == 404:
            raise InputError(
                f"{self.endpoint} has it not: {response.headers.get('X-Error-Message', 'not found')[:200]}"
            )
        if response.status_code >= 400:
            raise Unavailable(f"the hub {self.endpoint} answers {response.status_code} for {response.url.path}")


@contextmanager
def open_hub(endpoint: str | None) -> Iterator[Hub]:
    """The hub at `endpoint`, by default that of HF_ENDPOINT, with the user's token."""
    from huggingface_hub import get_token

    address = (endpoint or os.environ.get("HF_ENDPOINT") or "https://huggingface.co").rstrip("/")
    token = get_token()
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    with http_client(timeout=TIMEOUT, follow_redirects=True, headers=headers) as client:
        yield Hub(client, address, endpoint)


def since(days: float | None) -> datetime | None:
    """The moment so many days ago."""
    return datetime.fromtimestamp(datetime.now(UTC).timestamp() - days * 86400, UTC) if days else None


def _lacks_small(names: Iterable[str]) -> str | None:
    if "config.json" not in names:
        return "config.json is not there yet"
    if not any(name in names for name in _TOKENIZERS):
        return "no tokenizer is there yet"
    return None


def _single(names: Iterable[str]) -> bool:
    weights = [name for name in names if "/" not in name and name.endswith(".safetensors")]
    return SINGLE in weights or (len(weights) == 1 and "-of-" not in weights[0])


def _shards(index: bytes) -> set[str]:
    try:
        value = decode(index)
    except JsonFault as fault:
        raise InputError(f"{INDEX} {fault}") from fault
    placed = value.get("weight_map") if isinstance(value, dict) else None
    if not isinstance(placed, dict) or not placed or not all(isinstance(file, str) for file in placed.values()):
        raise InputError(f"{INDEX} has no `weight_map` that places tensors in files")
    return set(placed.values())


def _walk(root: Path) -> Iterator[str]:
    def fail(error: OSError) -> None:
        raise error

    for folder, folders, names in os.walk(root, onerror=fail):
        folders[:] = [name for name in folders if name not in (".git", "__pycache__")]
        for name in names:
            yield os.path.relpath(os.path.join(folder, name), root)


def _is_unfinished(name: str) -> bool:
    base = os.path.basename(name)
    return base.endswith(_UNFINISHED) or bool(_RSYNC.fullmatch(base) and not base.startswith(".git"))
