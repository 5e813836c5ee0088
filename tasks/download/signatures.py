"""The signature of a release: are the files what was signed, and did somebody sign whom the user trusts?

Whom to trust is the user's to say. Without that, the digests in a bundle are still a list that files are held
against, but anybody may have written it.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from day0 import deadline
from day0.artifacts.snapshot import Fault, FaultKind
from day0.checkpoint import locate, shown
from day0.errors import InputError
from day0.strict_json import JsonFault, NotRegular
from day0.verdict import Check, Verdict
from tasks.download.authenticity import ASKED_BY, REMEDY, Trust, authenticate
from tasks.download.bundle import Bundle, Part, read_bundle
from tasks.download.listing import is_unsafe
from tasks.download.manifest import Expected, Manifest

NAME = "model.sig"
"""How the bundle of a release is named."""
_BLOCK = 1 << 20


@dataclass
class Signature:
    """The signature of a release; `problem` says why there is no usable bundle at `path`."""

    path: Path
    bundle: Bundle | None = None
    problem: str = ""
    authentic: tuple[Verdict, str] | None = None
    """Whether it is by whom the user trusts, and why; None: the user named nobody."""
    faults: list[Fault] = field(default_factory=list)
    """What `check` found wrong."""
    warnings: list[Fault] = field(default_factory=list)

    @property
    def hashed(self) -> dict[str, str]:
        """The files that were signed whole by SHA-256, and that."""
        parts = self.bundle.parts if self.bundle else ()
        return {part.file: part.digest for part in parts if part.whole and part.algorithm == "sha256"}

    def manifest(self) -> Manifest | None:
        """The signed digests as a manifest, for a release that has no other."""
        files = {name: Expected(sha256=digest) for name, digest in self.hashed.items()}
        return Manifest(files, "manifest", str(self.path), complete=False) if files else None

    def check(
        self, root: Path, files: Mapping[str, int], digests: Mapping[str, str], shards: set[str], told: set[str]
    ) -> Check:
        """Hold the files against what was signed. What is wrong is in `faults` and `warnings` then.

        Args:
            files: name → size of the release's regular files.
            digests: SHA-256 by name where it is known. What else was signed is hashed.
            shards: the files that the checkpoint consists of: a signer cannot leave these out.
            told: files about whose content a fault was told already.

        Raises:
            StageTimeout, Cancelled: the stage's time was up.
        """
        if self.bundle is None:
            self._fault(self.path.name, self.problem)
            return self._result(Verdict.FAIL, f"{self.path.name} {self.problem}")
        if find_spec("blake3") is None and any(part.algorithm == "blake3" for part in self.bundle.parts):
            return self._result(Verdict.INCONCLUSIVE, f"its digests are by BLAKE3, which a package computes: {REMEDY}")
        wrong = _differing(self.bundle, root, files, digests)
        for name in sorted(wrong.keys() - told):
            self._fault(name, wrong[name], "digest" if name in files else "missing_shard")
        unsigned = self._unsigned(self.bundle, root, files, shards)
        for name in sorted(unsigned - told) if self.authentic else ():
            self._fault(name, f"nobody vouches for it: {self.path.name} does not cover it")
        verdict, reason = self.authentic or (Verdict.SKIPPED, "")
        if verdict is Verdict.FAIL:
            self._fault(self.path.name, reason)
        elif wrong:
            verdict, reason = Verdict.FAIL, _some(sorted(wrong), "is not what was signed")
        elif self.authentic is None:
            besides = f"; besides, {_some(sorted(unsigned), 'is not covered by it')}" if unsigned else ""
            reason = f"signed, but there is nothing to check by whom: give {ASKED_BY[self.bundle.kind]}{besides}"
            self.warnings.append(Fault(kind="digest", file=self.path.name, detail=reason))
        elif unsigned:
            verdict, reason = Verdict.FAIL, _some(sorted(unsigned), "is not covered by the signature")
        return self._result(verdict, reason)

    def _unsigned(self, bundle: Bundle, root: Path, files: Mapping[str, int], shards: set[str]) -> set[str]:
        """The files that nobody vouches for."""
        path, folder = self.path.absolute(), root.absolute()
        own = path.relative_to(folder).as_posix() if path.is_relative_to(folder) else NAME
        others = files.keys() - bundle.files - {own, NAME}
        return {name for name in others if name in shards or not bundle.leaves_out(name, files[name])}

    def _fault(self, name: str, detail: str, kind: FaultKind = "digest") -> None:
        self.faults.append(Fault(kind=kind, file=shown(name), detail=detail))

    def _result(self, verdict: Verdict, reason: str) -> Check:
        measured = {"kind": self.bundle.kind, "files": len(self.bundle.files)} if self.bundle else {}
        return Check(name="signature", verdict=verdict, reason=reason, measured=measured)


def find_signature(root: Path, path: Path | None = None, trust: Trust | None = None) -> Signature | None:
    """The signature of the release in `root`: the bundle at `path`, by default its `model.sig`.

    None: there is none, and the user named nobody whose signature it should bear. Who signed is established here;
    whether the files are what was signed is for `check` to say.

    Raises:
        InputError: the bundle, or what the user trusts, cannot be read.
        StageTimeout, Cancelled: the stage's time was up.
    """
    signature, trust = Signature(path or root / NAME), trust or Trust()
    if path is None and trust.kind is None and not os.path.lexists(signature.path):
        return None
    try:
        signature.bundle = read_bundle(signature.path)
    except (JsonFault, NotRegular) as error:
        signature.problem = str(error)
    except FileNotFoundError as error:
        if path:
            raise InputError(f"the signature {path} is not there") from error
        signature.problem = "is not there: the release is not signed"
    except OSError as error:
        raise InputError(f"the signature {signature.path} cannot be read: {error.strerror}") from error
    if signature.bundle and trust.kind:
        signature.authentic = authenticate(signature.bundle, trust)
    return signature


def _differing(bundle: Bundle, root: Path, files: Mapping[str, int], digests: Mapping[str, str]) -> dict[str, str]:
    """The files that are not what was signed: name → what differs."""
    wrong = {}
    for part, actual in _measure(bundle, root, files, digests).items():
        if part.file not in files:
            if not is_unsafe(part.file):  # day0 fetches no code: its absence is no damage
                wrong[part.file] = "it is not there, and was signed"
        elif actual is None:
            wrong[part.file] = "it cannot be read, and was signed"
        elif actual != part.digest:
            where = "" if part.whole else f" from byte {part.begin:,} to {part.end:,}"
            wrong.setdefault(part.file, f"its {part.algorithm}{where} is {actual}, {part.digest} was signed")
    for name, size in _reached(bundle).items():
        if name in files and files[name] != size:
            wrong.setdefault(name, f"it has {files[name]:,} bytes, the first {size:,} were signed")
    return wrong


def _measure(
    bundle: Bundle, root: Path, files: Mapping[str, int], digests: Mapping[str, str]
) -> dict[Part, str | None]:
    """The digest that each signed part really has; None where the file is not there or cannot be read."""
    limit = deadline.current()

    def one(part: Part) -> str | None:
        if part.file not in files:
            return None
        if part.whole and part.algorithm == "sha256" and part.file in digests:
            return digests[part.file]
        hasher = _hasher(part.algorithm)
        left = files[part.file] if part.end is None else part.end - part.begin
        try:
            with locate(root, part.file).open("rb", buffering=0) as file:
                file.seek(part.begin)
                while left > 0 and (block := file.read(min(left, _BLOCK))):
                    limit.check()
                    hasher.update(block)
                    left -= len(block)
        except OSError:
            return None
        return str(hasher.hexdigest())

    with ThreadPoolExecutor(min(os.cpu_count() or 1, 16)) as pool:
        return dict(zip(bundle.parts, pool.map(one, bundle.parts), strict=True))


def _hasher(algorithm: str) -> Any:
    if algorithm == "blake3":
        from blake3 import blake3

        return blake3()
    return hashlib.new(algorithm)


def _reached(bundle: Bundle) -> dict[str, int]:
    """How far the parts of a file that was signed in parts reach from its start without a gap."""
    reached: dict[str, int] = {}
    for part in sorted((part for part in bundle.parts if not part.whole), key=lambda part: (part.file, part.begin)):
        if part.begin == reached.setdefault(part.file, 0) and part.end is not None:
            reached[part.file] = part.end
    return reached


def _some(names: list[str], what: str) -> str:
    more = f" (and {len(names) - 1} more)" if names[1:] else ""
    return f"{shown(names[0])} {what}{more}"
