"""The output folder: rank files, what the engine needs beside them, and `ranks.json`, which says where each is from."""

from __future__ import annotations

import fnmatch
import json
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from day0.artifacts.shards import RankShards
from day0.checkpoint import INDEX, Checkpoint
from day0.errors import CheckFailed, InputError
from day0.files import FileRef, atomic_write, digest_of, file_ref, sha256_file
from day0.safetensors_header import HeaderFault, read_header
from day0.verdict import Check, Verdict
from tasks.reshard.writer import Hashes, write_files
from tasks.reshard.writes import Copy, TargetFile, WritePlan

RANKS = "ranks.json"

#: What an engine reads beside the weights. Never the source's index (it names files that are not there), weights in
#: other formats, or code.
SUPPORT = (
    "config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json", "tokenizer.model",
    "special_tokens_map.json", "added_tokens.json", "vocab.json", "vocab.txt", "merges.txt", "*.tiktoken",
    "chat_template.jinja", "chat_template.json", "preprocessor_config.json", "processor_config.json", "LICENSE*",
)  # fmt: skip


def write_shards(
    plan: WritePlan, checkpoint: Checkpoint, root: Path, expected: Mapping[str, str] | None = None
) -> RankShards:
    """Carry the plan out below the folder `root`; `ranks.json` comes last.

    Args:
        expected: SHA-256 of the source's files by name, where they are known.

    Raises:
        CheckFailed: a source file is not what was expected, or what was written does not read back.
        InputError: no space, or a source file cannot be read.
    """
    hashes = write_files(plan, checkpoint, root, expected)
    support = [ref for folder in _folders(plan) for ref in _write_support(plan, checkpoint, root, folder, expected)]
    rank_files = [FileRef(name=file.name, bytes=file.nbytes, sha256=hashes.targets[file.name]) for file in plan.files]
    indexes = _write_indexes(plan, root)
    source = _source_digest(checkpoint, hashes.sources)
    with atomic_write(root / RANKS) as file:
        file.write(_ranks_json(plan, source))
    checks = (_sources_check(hashes, expected), _accounted_check(plan, checkpoint), _read_back_check(plan, root))
    files = tuple(sorted([*rank_files, *indexes, *support, file_ref(root, RANKS)], key=lambda ref: ref.name))
    return _artifact(plan, source, files, checks)


def describe(plan: WritePlan, checkpoint: Checkpoint) -> list[dict[str, Any]]:
    """The files that would be written, with their sizes; nothing is read but headers and the small files' sizes."""
    files = [(file.name, file.nbytes) for file in plan.files]
    for folder in _folders(plan):
        for name in _support_names(checkpoint.root):
            changed = _changed_config(plan, checkpoint) if name == "config.json" else None
            size = len(changed) if changed is not None else checkpoint.path(name).stat().st_size
            files.append((f"{folder}{name}", size))
    files += [(name, len(content)) for name, content in _indexes(plan)]
    files.append((RANKS, len(_ranks_json(plan, "0" * 64))))
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
        ep=1,
        ranks=plan.ranks,
        bytes_read=plan.bytes_read,
        bytes_written=sum(ref.bytes for ref in files),
        dropped=plan.dropped,
    )


def _folders(plan: WritePlan) -> list[str]:
    """Where configs and tokenizers go: beside the rank files of an engine, or into each rank's own folder."""
    return [f"rank-{rank:05d}/" for rank in range(plan.ranks)] if plan.layout == "hf" else [""]


def _support_names(root: Path) -> list[str]:
    names = sorted(path.name for path in root.iterdir() if path.is_file())
    return [name for name in names if any(fnmatch.fnmatchcase(name, pattern) for pattern in SUPPORT)]


def _write_support(
    plan: WritePlan, checkpoint: Checkpoint, root: Path, folder: str, expected: Mapping[str, str] | None
) -> Iterator[FileRef]:
    for name in _support_names(checkpoint.root):
        source, target = checkpoint.path(name), root / folder / name
        digest = sha256_file(source)
        if expected and expected.get(name, digest) != digest:
            raise CheckFailed(f"{name}: SHA-256 is {digest}, but {expected[name]} was recorded; fetch it again")
        changed = _changed_config(plan, checkpoint) if name == "config.json" else None
        if changed is None:
            shutil.copyfile(source, target)
        else:
            target.write_bytes(changed)
        yield file_ref(root, f"{folder}{name}")


def _changed_config(plan: WritePlan, checkpoint: Checkpoint) -> bytes | None:
    """The config with the plan's changes; None where there are none and the file is copied as it is."""
    if not plan.config_changes:
        return None
    return json.dumps({**checkpoint.config, **plan.config_changes}, indent=2, ensure_ascii=False).encode() + b"\n"


def _indexes(plan: WritePlan) -> Iterator[tuple[str, bytes]]:
    """Layout `hf`: an index in each rank's folder, of what was written there."""
    if plan.layout != "hf":
        return
    for rank in range(plan.ranks):
        files = [file for file in plan.files if file.rank == rank]
        weight_map = {t.name: Path(file.name).name for file in files for t in file.tensors}
        total = sum(t.end - t.begin for file in files for t in file.tensors)
        index = {"metadata": {"total_size": total}, "weight_map": dict(sorted(weight_map.items()))}
        yield f"rank-{rank:05d}/{INDEX}", json.dumps(index, indent=2, ensure_ascii=False).encode() + b"\n"


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


def _ranks_json(plan: WritePlan, source: str) -> bytes:
    """`ranks.json`, one line a tensor."""
    ranks = [
        {
            "rank": rank,
            "tp": rank % plan.tp,
            "pp": rank // plan.tp,
            "ep": 0,
            "files": [file.name for file in plan.files if file.rank == rank],
        }
        for rank in range(plan.ranks)
    ]
    head = {
        "layout": plan.layout,
        "engine": plan.engine,
        "source": source,
        "sizes": {"tp": plan.tp, "pp": plan.pp, "ep": 1},
        "dropped": [dropped.to_json() for dropped in plan.dropped],
    }
    fields = [f" {json.dumps(key)}: {json.dumps(value, ensure_ascii=False)}" for key, value in head.items()]
    fields.append(' "ranks": [\n  ' + ",\n  ".join(json.dumps(rank) for rank in ranks) + "\n ]")
    lines = [json.dumps(entry, ensure_ascii=False) for file in plan.files for entry in _tensor_entries(file)]
    fields.append(' "tensors": [\n  ' + ",\n  ".join(lines) + "\n ]")
    return ("{\n" + ",\n".join(fields) + "\n}\n").encode()


def _tensor_entries(file: TargetFile) -> Iterator[dict[str, Any]]:
    for tensor in file.tensors:
        sources = [
            {"tensor": o.tensor, "slice": [list(r) for r in o.slice], "conversion": o.conversion}
            for o in tensor.origins
        ]
        yield {
            "rank": file.rank,
            "tensor": tensor.name,
            "file": file.name,
            "dtype": tensor.dtype,
            "shape": list(tensor.shape),
            "sources": sources,
        }


def _sources_check(hashes: Hashes, expected: Mapping[str, str] | None) -> Check:
    """Whether every shard that was read is the one that was recorded (a different one has been refused before)."""
    unknown = [name for name in hashes.sources if name not in (expected or {})]
    measured = {"files": len(hashes.sources), "compared": len(hashes.sources) - len(unknown)}
    if unknown:
        reason = f"no recorded digest to compare {unknown[0]} with"
        return Check(name="source digests", verdict=Verdict.INCONCLUSIVE, reason=reason, measured=measured)
    reason = f"all {len(hashes.sources)} shards have the recorded SHA-256"
    return Check(name="source digests", verdict=Verdict.PASS, reason=reason, measured=measured)


def _accounted_check(plan: WritePlan, checkpoint: Checkpoint) -> Check:
    """Whether every source tensor was read exactly once, or is listed as dropped."""
    read = [step.source.name for step in plan.steps if isinstance(step, Copy)]
    listed = sorted([*read, *(dropped.tensor for dropped in plan.dropped)])
    whole = listed == sorted(checkpoint.tensors)
    measured = {"tensors": len(checkpoint.tensors), "read": len(read), "dropped": len(plan.dropped)}
    reason = "every source tensor was read once or is listed as dropped"
    if not whole:
        odd = sorted(set(listed) ^ set(checkpoint.tensors)) or [n for n in listed if listed.count(n) > 1]
        reason = f"source tensor {odd[0]!r} was not read exactly once, nor dropped with a reason"
    verdict = Verdict.PASS if whole and read else Verdict.FAIL
    return Check(name="tensors accounted for", verdict=verdict, reason=reason, measured=measured)


def _read_back_check(plan: WritePlan, root: Path) -> Check:
    """Whether the files as they lie there hold the tensors of the plan, by the strict reader."""
    tensors = 0
    for file in plan.files:
        try:
            header = read_header(root / file.name, file.name)
        except (HeaderFault, InputError, OSError) as error:
            reason = f"{file.name} does not read back: {error}"
            return Check(name="read back", verdict=Verdict.FAIL, reason=reason)
        found = {t.name: (t.dtype, t.shape, t.begin, t.end) for t in header.tensors.values()}
        planned = {t.name: (t.dtype, t.shape, t.begin, t.end) for t in file.tensors}
        if found != planned:
            odd = min(name for name in found | planned if found.get(name) != planned.get(name))
            reason = f"{file.name}: tensor {odd!r} is not as planned"
            return Check(name="read back", verdict=Verdict.FAIL, reason=reason)
        tensors += len(found)
    measured = {"files": len(plan.files), "tensors": tensors, "bytes": plan.bytes_written}
    verdict = Verdict.PASS if tensors else Verdict.FAIL
    reason = f"{tensors} tensors in {len(plan.files)} files read back as planned"
    return Check(name="read back", verdict=verdict, reason=reason, measured=measured)
