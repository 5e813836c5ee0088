"""The output folder: rank files, what the engine needs beside them, and `ranks.json`, which says where each is from."""

from __future__ import annotations

import fnmatch
import json
import shutil
from collections.abc import Iterator, Mapping
from json.encoder import encode_basestring as quoted
from pathlib import Path
from typing import Any

from day0 import collector
from day0.artifacts.shards import RankShards
from day0.checkpoint import INDEX, Checkpoint
from day0.errors import CheckFailed
from day0.files import FileRef, atomic_write, digest_of, file_ref, sha256_file
from day0.landing import Landing
from day0.verdict import Check, Verdict
from tasks.reshard.checks import accounted_check, read_back_check, sources_check
from tasks.reshard.ranks_file import RANKS, ranks_json
from tasks.reshard.writer import FanOut, Hashes, write_files
from tasks.reshard.writes import TargetFile, WritePlan, with_changes

#: What an engine reads beside the weights. Never the source's index (it names files that are not there), weights in
#: other formats, or code.
SUPPORT = (
    "config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json", "tokenizer.model",
    "special_tokens_map.json", "added_tokens.json", "vocab.json", "vocab.txt", "merges.txt", "*.tiktoken",
    "chat_template.jinja", "chat_template.json", "preprocessor_config.json", "processor_config.json", "LICENSE*",
)  # fmt: skip


def write_shards(
    plan: WritePlan,
    checkpoint: Checkpoint,
    root: Path,
    expected: Mapping[str, str] | None = None,
    *,
    hashes: bool = True,
    journal: Path | None = None,
    fan_out: FanOut | None = None,
    landing: Landing | None = None,
) -> RankShards:
    """Carry the plan out below the folder `root`; `ranks.json` comes last.

    Args:
        expected: SHA-256 of the source's files by name, where they are known.
        hashes: whether to take the SHA-256 of all weights that are read and written.
        journal: where the writer keeps what is done, so that an interrupted run goes on from there.
        fan_out: who takes the source's shards, where it is not threads of this process.
        landing: where shards are waited for, if they are still arriving.

    Raises:
        CheckFailed: a source file is not what was expected, or what was written does not read back.
        InputError: no space, or a source file cannot be read.
    """
    taken = write_files(
        plan, checkpoint, root, expected, hashes=hashes, journal=journal, fan_out=fan_out, landing=landing
    )
    support = list(_write_support(plan, checkpoint, root, expected))
    rank_files = [
        FileRef(name=file.name, bytes=file.nbytes, sha256=taken.targets.get(file.name, "")) for file in plan.files
    ]
    indexes = _write_indexes(plan, root)
    source = _source_digest(checkpoint, taken.sources)
    with atomic_write(root / RANKS) as file:
        for piece in ranks_json(plan, source, taken.errors):
            file.write(piece)
    checks = (
        sources_check(taken, expected),
        accounted_check(plan, checkpoint),
        read_back_check(plan, root),
        *_error_check(taken),
    )
    files = tuple(sorted([*rank_files, *indexes, *support, file_ref(root, RANKS)], key=lambda ref: ref.name))
    return _artifact(plan, source, files, checks)


@collector.paused()
def describe(plan: WritePlan, checkpoint: Checkpoint) -> list[dict[str, Any]]:
    """The files that would be written, with their sizes; nothing is read but headers and the small files' sizes."""
    files = [(file.name, file.nbytes) for file in plan.files]
    for name in _support_names(checkpoint.root):
        changed = _changed_config(plan, checkpoint) if name == "config.json" else None
        size = len(changed) if changed is not None else checkpoint.path(name).stat().st_size
        files += [(f"{folder}{name}", size) for folder in _folders(plan)]
    files += [(name, len(content)) for name, content in _indexes(plan)]
    files.append((RANKS, sum(map(len, ranks_json(plan, "0" * 64, {})))))
    return [{"name": name, "bytes": size, "sha256": None} for name, size in sorted(files)]


def _artifact(plan: WritePlan, source: str, files: tuple[FileRef, ...], checks: tuple[Check, ...]) -> RankShards:
    return RankShards(
        checks=checks,
        files=files,
        layout=plan.layout,
        engine=plan.engine,
        source=source,
        tp=plan.tp,
        pp=plan.pp,
        ep=plan.ep,
        ranks=len(plan.ranks),
        bytes_read=plan.bytes_read,
        bytes_written=sum(ref.bytes for ref in files),
        dropped=plan.dropped,
    )


def _folders(plan: WritePlan) -> list[str]:
    """Where configs and tokenizers go: beside the rank files of an engine, or into each rank's own folder."""
    return [f"rank-{rank.rank:05d}/" for rank in plan.ranks] if plan.layout == "hf" else [""]


def _support_names(root: Path) -> list[str]:
    names = sorted(path.name for path in root.iterdir() if path.is_file())
    return [name for name in names if any(fnmatch.fnmatchcase(name, pattern) for pattern in SUPPORT)]


def _write_support(
    plan: WritePlan, checkpoint: Checkpoint, root: Path, expected: Mapping[str, str] | None
) -> Iterator[FileRef]:
    """What an engine reads beside the weights, into every folder that has some."""
    for name in _support_names(checkpoint.root):
        source = checkpoint.path(name)
        digest = sha256_file(source)
        if expected and expected.get(name, digest) != digest:
            raise CheckFailed(f"{name}: SHA-256 is {digest}, but {expected[name]} was recorded; fetch it again")
        changed = _changed_config(plan, checkpoint) if name == "config.json" else None
        for folder in _folders(plan):
            if changed is None:
                shutil.copyfile(source, root / folder / name)
            else:
                (root / folder / name).write_bytes(changed)
            yield file_ref(root, f"{folder}{name}")


def _changed_config(plan: WritePlan, checkpoint: Checkpoint) -> bytes | None:
    """The config with the plan's changes; None where there are none and the file is copied as it is."""
    if not plan.config_changes:
        return None
    config = with_changes(checkpoint.config, plan.config_changes)
    return json.dumps(config, indent=2, ensure_ascii=False).encode() + b"\n"


def _indexes(plan: WritePlan) -> Iterator[tuple[str, bytes]]:
    """Layout `hf`: an index in each rank's folder, of what was written there."""
    if plan.layout != "hf":
        return
    by_rank: dict[int, list[TargetFile]] = {rank.rank: [] for rank in plan.ranks}
    for file in plan.files:
        by_rank[file.rank].append(file)
    described: tuple[int, dict[str, str]] | None = None
    content = b""
    for rank, files in by_rank.items():
        weight_map = {t.name: name for file in files for name in (Path(file.name).name,) for t in file.tensors}
        total = sum(t.end - t.begin for file in files for t in file.tensors)
        if (total, weight_map) != described:  # as a rule all ranks' are the same
            described, content = (total, weight_map), _index_json(total, weight_map)
        yield f"rank-{rank:05d}/{INDEX}", content


def _index_json(total: int, weight_map: Mapping[str, str]) -> bytes:
    """As `json.dumps` with an indent has it, which is slow: it is written in Python, and no index is small."""
    entries = ",\n".join(f"    {quoted(tensor)}: {quoted(name)}" for tensor, name in sorted(weight_map.items()))
    place = f"{{\n{entries}\n  }}" if entries else "{}"
    return f'{{\n  "metadata": {{\n    "total_size": {total}\n  }},\n  "weight_map": {place}\n}}\n'.encode()


def _write_indexes(plan: WritePlan, root: Path) -> list[FileRef]:
    written = []
    for name, content in _indexes(plan):
        with atomic_write(root / name) as file:
            file.write(content)
        written.append(file_ref(root, name))
    return written


def _source_digest(checkpoint: Checkpoint, sources: Mapping[str, str]) -> str:
    index = sha256_file(checkpoint.path(checkpoint.index)) if checkpoint.index else None
    return digest_of({"index": index, "files": dict(sources)})


def _error_check(taken: Hashes) -> Iterator[Check]:
    """What a quantising conversion lost, where there was one; every tensor's figures are in ranks.json."""
    if not taken.errors:
        return
    worst = max(taken.errors, key=lambda name: taken.errors[name].get("rms_relative", 0.0))
    measured = {"tensors": len(taken.errors), "worst": worst, **taken.errors[worst]}
    figures = ", ".join(f"{key} {value:.3g}" for key, value in taken.errors[worst].items())
    reason = f"{len(taken.errors)} tensors were quantised; the one that loses most is {worst} ({figures})"
    yield Check(name="quantisation error", verdict=Verdict.PASS, reason=reason, measured=measured)
