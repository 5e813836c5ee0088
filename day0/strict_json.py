"""JSON from strangers: size-capped, no duplicate keys, no NaN, and an error that is one clear sentence.

Python's own reader takes the last of two equal keys, others take the first: a file that says two things must not
mean one here and another in the engine.
"""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path
from typing import Any

from day0.disguise import disguise


class JsonFault(ValueError):
    """The text is not the JSON that it should be; the message is a clause such as `is not JSON: …`."""


class NotRegular(ValueError):
    """The path names something other than a regular file."""


class RepeatedKeys(dict[str, Any]):
    """An object in which some keys stand more than once; `repeated` names them."""

    repeated: list[str]


def open_regular(path: Path) -> int:
    """A read-only file descriptor of a regular file. A FIFO or a device is refused and never waited for.

    Raises:
        NotRegular: it is a folder, FIFO, device or socket.
        OSError: it cannot be opened.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    mode = os.fstat(descriptor).st_mode
    if not stat.S_ISREG(mode):
        os.close(descriptor)
        raise NotRegular(f"is {_what(mode)}, not a regular file")
    return descriptor


def read_capped(path: Path, limit: int) -> bytes:
    """The content of a regular file of at most `limit` bytes.

    Raises:
        JsonFault: it is larger.
        NotRegular, OSError: as `open_regular`.
    """
    with os.fdopen(open_regular(path), "rb") as file:
        too_large = os.fstat(file.fileno()).st_size > limit
        data = b"" if too_large else file.read(limit + 1)
    if too_large or len(data) > limit:
        raise JsonFault(f"is larger than the {limit:,} bytes that are accepted for such a file")
    return data


def decode(data: bytes, *, infinity: bool = False, keep_repeated: bool = False) -> Any:
    """The value of a JSON text.

    Args:
        infinity: accept `Infinity` (Mamba configs have it); NaN is never accepted.
        keep_repeated: return an object with equal keys as `RepeatedKeys` in place of refusing it.

    Raises:
        JsonFault: it is not UTF-8, not JSON, nested too deeply, or has an object with equal keys.
    """

    def pairs(items: list[tuple[str, Any]]) -> dict[str, Any]:
        value = dict(items)
        if len(value) == len(items):
            return value
        seen: set[str] = set()
        twice = [key for key, _ in items if key in seen or seen.add(key)]  # type: ignore[func-returns-value]
        if not keep_repeated:
            raise JsonFault(f"has the key {twice[0]!r} twice in one object")
        kept = RepeatedKeys(value)
        kept.repeated = twice
        return kept

    def constant(name: str) -> float:
        if infinity and name != "NaN":
            return float(name)
        raise JsonFault(f"holds {name}, which JSON does not allow")

    try:
        text = data.decode("utf-8")
        if "\\" not in text:
            # Without escapes every two quotation marks are one string, so one that was lost shows in their number.
            value = json.loads(text, parse_constant=constant)
            if 2 * _count_strings(value) == text.count('"'):
                return value
        return json.loads(text, object_pairs_hook=pairs, parse_constant=constant)
    except JsonFault:
        raise
    except UnicodeDecodeError as error:
        what = disguise(data[:64])
        raise JsonFault(f"is not JSON but {what}" if what else f"is not UTF-8 (byte {error.start})") from error
    except RecursionError as error:
        raise JsonFault("is nested too deeply") from error
    except ValueError as error:  # not JSON, or a number of thousands of digits
        what = disguise(data[:64])
        raise JsonFault(f"is not JSON but {what}" if what else f"is not JSON: {error}") from error


def _count_strings(value: Any) -> int:
    """How many strings a JSON value holds, keys among them."""
    count = 0
    left = [value]
    while left:
        match left.pop():
            case str():
                count += 1
            case dict() as members:
                count += len(members)
                left.extend(members.values())
            case list() as items:
                left.extend(items)
    return count


def _what(mode: int) -> str:
    kinds = {
        stat.S_IFDIR: "a folder",
        stat.S_IFIFO: "a FIFO",
        stat.S_IFSOCK: "a socket",
        stat.S_IFBLK: "a block device",
        stat.S_IFCHR: "a character device",
    }
    return kinds.get(stat.S_IFMT(mode), "a special file")
