"""Whether a model folder is what it should be: structure, names, digests. Every fault is told, not only the first."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any, Literal

from day0.artifacts.base import Frozen
from day0.artifacts.snapshot import Fault, FaultKind
from day0.checkpoint import Examination, PathFault, examine_folder, locate, read_config
from day0.errors import InputError
from day0.files import FileRef, git_blob_sha1
from day0.hash_cache import FileChanged
from day0.verdict import Check, Verdict, worst
from tasks.download.hashes import hash_files
from tasks.download.listing import Listing, list_folder
from tasks.download.manifest import IN_FOLDER, Manifest
from tasks.download.scales import stated_block, unpaired
from tasks.download.signatures import NAME, Signature, find_signature

logger = logging.getLogger("day0.download")

_CONTENT: tuple[FaultKind, ...] = ("digest", "size")
_SAFETY: tuple[FaultKind, ...] = ("unsafe_path", "not_regular", "unsafe_file")
_PRESENCE: tuple[FaultKind, ...] = ("missing_shard", "incomplete_download")


#: How the files of a tokenizer end that do not begin with `tokenizer`.
_TOKENIZERS = (".tiktoken", "tiktoken.model", "tekken.json", "vocab.json", "vocab.txt", "spiece.model", "bpe.model")


class VerifyReport(Frozen):
    """What was found in a model folder. Deterministic: the same content gives the same report."""

    files: tuple[FileRef, ...]
    """The files that may be used, hashed; empty where nothing had to be hashed."""
    file_count: int
    bytes: int
    tensors: int
    faults: tuple[Fault, ...]
    warnings: tuple[Fault, ...]
    digests_from: Literal["hub", "manifest", "none"]
    checked_files: int
    """How many files' contents were compared with a digest."""
    signature: Check | None = None
    """None: the release is not signed, and need not be."""
    signature_faults: tuple[Fault, ...] = ()
    """Those of `faults` that are about the signature."""

    @property
    def checks(self) -> tuple[Check, ...]:
        """One check per concern."""
        others = {*_CONTENT, *_SAFETY, *_PRESENCE}
        structure = {fault.kind for fault in self.faults} - others
        tensors = {"tensors": self.tensors}
        return (
            self._check("files", set(_PRESENCE), f"{self.file_count} files are there", {"files": self.file_count}),
            self._digests(),
            self._check("structure", structure, f"{self.tensors} tensors agree with their index", tensors),
            self._check("safe files", set(_SAFETY), "nothing that would be loaded can run code or lies elsewhere", {}),
            *((self.signature,) if self.signature else ()),
        )

    @property
    def verdict(self) -> Verdict:
        return worst(check.verdict for check in self.checks)

    def _digests(self) -> Check:
        if self.digests_from == "none" and not any(fault.kind in _CONTENT for fault in self.faults):
            reason = "contents were not checked: there is no manifest and none was recorded at download"
            return Check(name="digests", verdict=Verdict.SKIPPED, reason=reason)
        good = f"{self.checked_files} files are what the {self.digests_from} says"
        return self._check("digests", set(_CONTENT), good, {"checked": self.checked_files})

    def _check(self, name: str, kinds: set[FaultKind], good: str, measured: dict[str, Any]) -> Check:
        faults = [f for f in self.faults if f.kind in kinds and f not in self.signature_faults]
        if not faults:
            return Check(name=name, verdict=Verdict.PASS, reason=good, measured=measured)
        first = ": ".join(filter(None, [faults[0].file, faults[0].tensor, faults[0].detail]))
        reason = first if len(faults) == 1 else f"{first} (and {len(faults) - 1} more)"
        return Check(name=name, verdict=Verdict.FAIL, reason=reason, measured={**measured, "faults": len(faults)})


def verify_folder(
    root: Path,
    manifest: Manifest | None,
    *,
    rehash: bool = False,
    hash_all: bool = False,
    signature: Signature | None = None,
) -> VerifyReport:
    """Check a model folder against its index, its headers and, where there are any, a manifest and a signature.

    Args:
        rehash: read every byte again, whatever was hashed before.
        hash_all: hash files too that no manifest lists.
        signature: by default the one that the release carries, with nobody named to trust.

    Raises:
        InputError: there is no such folder.
        StageTimeout, Cancelled: the stage's time was up.
    """
    found = examine_folder(root)
    listing = list_folder(root, set(found.files) | {f.file for f in found.faults if f.file})
    config, about_config = _config(root, listing)
    pairs = unpaired(found.tensors, stated_block(config), found.absent)
    faults = [*found.faults, *pairs, *about_config.faults, *listing.faults]
    warnings = [*_about_index(found, listing), *about_config.warnings, *listing.warnings]
    digests: dict[str, str] = {}
    checked = 0
    signature = signature or find_signature(root)
    if signature:
        manifest = manifest or signature.manifest()
    if manifest:
        digests, checked = _compare(root, manifest, listing, set(found.files), rehash, faults, warnings)
    if hash_all:
        digests |= _hash(root, sorted(listing.files.keys() - digests.keys()), rehash, faults)
    signed = _signed(root, signature, listing, set(found.files), rehash, digests, faults) if signature else None
    usable = sorted(digests.keys() & listing.files.keys() - listing.unsafe)
    if not manifest:
        detail = "contents were not checked: there is no manifest and none was recorded at download"
        warnings.append(Fault(kind="digest", detail=detail))
    return VerifyReport(
        files=tuple(FileRef(name=name, bytes=listing.files[name], sha256=digests[name]) for name in usable),
        file_count=len(listing.files),
        bytes=sum(listing.files.values()),
        tensors=len(found.tensors),
        faults=_unique([*faults, *(signature.faults if signature else ())]),
        warnings=_unique([*warnings, *(signature.warnings if signature else ())]),
        digests_from=manifest.origin if manifest else "none",
        checked_files=checked,
        signature=signed,
        signature_faults=tuple(signature.faults) if signature else (),
    )


def _signed(
    root: Path,
    signature: Signature,
    listing: Listing,
    shards: set[str],
    rehash: bool,
    digests: dict[str, str],
    faults: list[Fault],
) -> Check:
    """Hold the files against their signature. What is hashed for that only comes to `digests`."""
    digests |= _hash(root, sorted((signature.hashed.keys() & listing.files.keys()) - digests.keys()), rehash, faults)
    told = {fault.file for fault in faults if fault.file and fault.kind in (*_CONTENT, *_PRESENCE)}
    return signature.check(root, listing.files, digests, shards, told)


def _compare(
    root: Path,
    manifest: Manifest,
    listing: Listing,
    shards: set[str],
    rehash: bool,
    faults: list[Fault],
    warnings: list[Fault],
) -> tuple[dict[str, str], int]:
    """Hold the files against the manifest. Returns SHA-256 by name, and how many contents were compared."""
    present = []
    for name, expected in sorted(manifest.files.items()):
        size = listing.files.get(name)
        if size is None and not manifest.complete:
            continue
        if name in IN_FOLDER and manifest.origin == "manifest":  # a listing cannot hold its own digest
            continue
        if size is None:
            faults.append(_absent(root, name, manifest))
        elif expected.size is not None and size != expected.size:
            detail = f"it has {size:,} bytes, {manifest.where} says {expected.size:,}"
            faults.append(Fault(kind="size", file=name, detail=detail))
        elif expected.sha256 or expected.git_sha1:
            present.append(name)
    digests = _hash(root, present, rehash, faults)
    for name in digests:
        expected = manifest.files[name]
        algorithm, wanted = ("sha256", expected.sha256) if expected.sha256 else ("git sha1", expected.git_sha1)
        actual = digests[name] if expected.sha256 else git_blob_sha1(locate(root, name))
        if actual != wanted:
            detail = f"its {algorithm} is {actual}, {manifest.where} says {wanted}"
            faults.append(Fault(kind="digest", file=name, detail=detail))
    listed = {name for name, expected in manifest.files.items() if expected.sha256 or expected.git_sha1}
    for name in sorted(listing.files.keys() - listed - {*IN_FOLDER, NAME}):
        detail = f"{manifest.where} gives no digest for it, so its contents were not checked"
        # Weights that nobody vouches for are missing evidence; a file beside them is not.
        (faults if name in shards else warnings).append(Fault(kind="digest", file=name, detail=detail))
    return digests, len(digests)


def _absent(root: Path, name: str, manifest: Manifest) -> Fault:
    try:
        locate(root, name)
    except PathFault as fault:
        return Fault(kind=fault.kind, file=name, detail=f"{manifest.where} lists it, but {fault.detail}")
    detail = f"{manifest.where} lists it, but it lies in a tool's folder"
    return Fault(kind="missing_shard", file=name, detail=detail)


def _hash(root: Path, names: list[str], rehash: bool, faults: list[Fault]) -> dict[str, str]:
    """SHA-256 by name; a file that cannot be read, or is being written, is a fault."""
    paths = {}
    for name in names:
        try:
            paths[name] = locate(root, name)
        except PathFault as fault:
            faults.append(Fault(kind=fault.kind, file=name, detail=fault.detail))
    results = hash_files(paths.values(), rehash=rehash)
    digests = {}
    for name, path in paths.items():
        result = results[path]
        if isinstance(result, str):
            digests[name] = result
        elif isinstance(result, FileChanged):
            detail = "it changed while it was read; is something still writing it?"
            faults.append(Fault(kind="incomplete_download", file=name, detail=detail))
        else:
            faults.append(Fault(kind="not_regular", file=name, detail=f"it cannot be read: {result.strerror}"))
    return digests


def _about_index(found: Examination, listing: Listing) -> list[Fault]:
    """`total_size` is advisory: publishers leave it out, or forget it when they change the weights."""
    warnings = [
        Fault(kind="index", file=name, detail=f"another index; {found.index or 'none'} is the one that is used")
        for name in sorted(listing.files)
        if name.endswith(".safetensors.index.json") and name != found.index
    ]
    if found.index is None or found.total_size is None or found.faults:
        return warnings
    size = sum(tensor.nbytes for tensor in found.tensors.values())
    if type(found.total_size) not in (int, float) or found.total_size != size:
        detail = f"its total_size is {str(found.total_size)[:40]}, the tensors have {size:,} bytes"
        warnings.append(Fault(kind="index", file=found.index, detail=detail))
    return warnings


def _config(root: Path, listing: Listing) -> tuple[dict[str, Any], Listing]:
    """The config (empty where there is none that can be read), and what is to be said about it."""
    about = Listing()
    if not any(name.startswith("tokenizer") or name.endswith(_TOKENIZERS) for name in listing.files):
        about.warning("index", "tokenizer.json", "there is no tokenizer: the model cannot be given text")
    if "config.json" not in listing.files:
        about.warning("index", "config.json", "it is missing: the model cannot be profiled")
        return {}, about
    try:
        config = read_config(root)
    except InputError as error:
        about.fault("index", "config.json", str(error))
        return {}, about
    if "auto_map" in config:
        detail = "its auto_map asks for code that came with the model; day0 does not run it"
        about.warning("unsafe_file", "config.json", detail)
    return config, about


def _unique(faults: list[Fault]) -> tuple[Fault, ...]:
    return tuple(dict.fromkeys(faults))
