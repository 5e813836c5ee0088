"""Reads a signature bundle of the OpenSSF model signing format: which digests it signs. By whom is not looked at here.

A Sigstore bundle in JSON around a DSSE envelope, whose payload is an in-toto statement with every file's digest:
https://github.com/sigstore/model-transparency/blob/main/docs/model_signing_format.md. Read strictly, since two readers
of what is signed may not see two things.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from day0.checkpoint import unsafe_name
from day0.strict_json import JsonFault, decode, read_capped

MAX_BUNDLE_BYTES = 256 << 20

Kind = Literal["key", "certificate", "sigstore"]
_KINDS: Mapping[str, Kind] = {"publicKey": "key", "x509CertificateChain": "certificate", "certificate": "sigstore"}
_ALGORITHMS = ("sha256", "blake2b", "blake3")
_MEDIA_TYPE = "application/vnd.dev.sigstore.bundle.v0.3+json"
_PAYLOAD_TYPE = "application/vnd.in-toto+json"
_STATEMENT = "https://in-toto.io/Statement/v1"
_PREDICATE = "https://model_signing/signature/v1.0"
_PREDICATE_V02 = "https://model_signing/Digests/v0.1"  # of release 0.2: each file is a subject
#: What a signer leaves out, whether the bundle says so or not.
_NEVER_SIGNED = (".git", ".gitattributes", ".github", ".gitignore")


@dataclass(frozen=True)
class Part:
    """A signed file, or the bytes from `begin` to `end` of one. `identifier` is how the bundle names it."""

    identifier: str
    file: str
    algorithm: str
    digest: str
    begin: int = 0
    end: int | None = None

    @property
    def whole(self) -> bool:
        return self.end is None


@dataclass(frozen=True)
class Bundle:
    """What a bundle says. Anybody may have written it."""

    data: bytes
    kind: Kind
    parts: tuple[Part, ...]
    ignored: tuple[str, ...]

    @property
    def files(self) -> set[str]:
        return {part.file for part in self.parts}

    def leaves_out(self, name: str, size: int) -> bool:
        """Whether the signer says that this file is no part of what was signed. An empty file has no parts to sign."""
        inside = any(name == path or name.startswith(f"{path}/") for path in (*self.ignored, *_NEVER_SIGNED))
        return inside or (size == 0 and not all(part.whole for part in self.parts))


def read_bundle(path: Path) -> Bundle:
    """The bundle in a file.

    Raises:
        JsonFault, NotRegular: it is none; the message is a clause such as `is not JSON: …`.
        OSError: it cannot be read.
    """
    data = read_capped(path, MAX_BUNDLE_BYTES)
    value = _object(decode(data), "it", "mediaType", "verificationMaterial", "dsseEnvelope")
    _known("the media type", value["mediaType"], _MEDIA_TYPE)
    material = value["verificationMaterial"]
    kinds = [kind for key, kind in _KINDS.items() if isinstance(material, dict) and material.get(key) is not None]
    if len(kinds) != 1:
        raise JsonFault(f"is no signature bundle: its verificationMaterial must have one of {', '.join(_KINDS)}")
    envelope = _object(value["dsseEnvelope"], "dsseEnvelope", "payload", "payloadType", "signatures")
    _known("the payload type", envelope["payloadType"], _PAYLOAD_TYPE)
    if not isinstance(envelope["signatures"], list) or len(envelope["signatures"]) != 1:
        raise JsonFault("must hold one signature")
    try:
        payload = base64.b64decode(envelope["payload"], validate=True)
    except (TypeError, ValueError) as error:
        raise JsonFault("has a payload that is not base64") from error
    try:
        parts, ignored = _statement(decode(payload))
    except (LookupError, TypeError, AttributeError) as error:
        raise JsonFault("has a statement that lacks a field of the format, or has another type there") from error
    if not parts:
        raise JsonFault("signs no files")
    if len({part.identifier for part in parts}) < len(parts):
        raise JsonFault("lists a file twice")
    return Bundle(data, kinds[0], tuple(parts), ignored)


def _statement(value: Any) -> tuple[list[Part], tuple[str, ...]]:
    """What an in-toto statement lists, and which paths it leaves out."""
    _known("the statement type", value["_type"], _STATEMENT)
    if value["predicateType"] == _PREDICATE_V02:
        return [_file(row["name"], "sha256", row["digest"]["sha256"]) for row in value["subject"]], ()
    _known("the predicate", value["predicateType"], _PREDICATE)
    how, rows = value["predicate"]["serialization"], value["predicate"]["resources"]
    make = {"files": _file, "shards": _shard}.get(how["method"])
    if make is None:
        raise JsonFault(f"was made by the method {str(how['method'])[:40]!r}; known are files and shards")
    parts = [make(row["name"], row["algorithm"], row["digest"]) for row in rows]
    together = hashlib.sha256(b"".join(bytes.fromhex(part.digest) for part in parts)).hexdigest()
    (subject,) = value["subject"] if len(value["subject"]) == 1 else [{}]
    if subject["digest"]["sha256"] != together:
        raise JsonFault("contradicts itself: the digest of its subject is not that of the digests that it lists")
    return parts, tuple(path.rstrip("/") for path in how.get("ignore_paths", []))


def _file(name: str, algorithm: str, digest: str) -> Part:
    if name == ".":
        raise JsonFault("signs a single file, not a folder")
    return _part(name, name, algorithm, digest)


def _shard(name: str, algorithm: str, digest: str) -> Part:
    """A part of a file, named `FILE:BEGIN:END`, hashed by, say, `sha256-sharded-1000000000`."""
    file, begin, end = (*name.split(":"), "", "")[:3]
    if name.count(":") != 2 or not all(text.isascii() and text.isdigit() for text in (begin, end)):
        raise JsonFault(f"lists {name[:80]!r}, which names no bytes of a file")
    return _part(name, file, algorithm.split("-sharded-")[0], digest, int(begin), int(end))


def _part(identifier: str, file: str, algorithm: str, digest: str, begin: int = 0, end: int | None = None) -> Part:
    if problem := unsafe_name(file):
        raise JsonFault(f"lists an unusable name: {problem}")
    if algorithm not in _ALGORITHMS:
        raise JsonFault(f"has digests by {str(algorithm)[:40]!r}; known are {', '.join(_ALGORITHMS)}")
    try:
        return Part(identifier, file, algorithm, bytes.fromhex(digest).hex(), begin, end)
    except ValueError as error:
        raise JsonFault(f"gives a digest for {file[:80]!r} that is not hexadecimal") from error


def _object(value: Any, what: str, *keys: str) -> dict[str, Any]:
    if not isinstance(value, dict) or value.keys() != set(keys):
        raise JsonFault(f"is no signature bundle: {what} must have just {', '.join(keys)}")
    return value


def _known(what: str, value: Any, expected: str) -> None:
    if value != expected:
        raise JsonFault(f"has {what} {str(value)[:80]!r}; known is {expected}")
