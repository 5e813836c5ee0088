"""Plans at random, with small checkpoints to carry them out on, and what must come out, by the slowest way."""

from __future__ import annotations

import hashlib
import json
import random
from dataclasses import dataclass
from pathlib import Path

from day0.architecture.slicing import Rank
from day0.checkpoint import Checkpoint
from day0.safetensors_header import Header, TensorInfo
from tasks.reshard.writes import Fill, Piece, Stream, TargetFile, WritePlan


@dataclass
class Case:
    """A checkpoint on the disk, a plan for it, and the bytes that each target must have."""

    checkpoint: Checkpoint
    plan: WritePlan
    oracle: dict[str, bytes]


def make_case(
    root: Path,
    seed: int,
    shards: int = 3,
    tensors: int = 6,
    targets: int = 4,
    largest: int = 2000,
    shuffle: bool = True,
) -> Case:
    """`tensors` in each of `shards` files below `root`, each sent whole, split, or not at all to some targets.

    Args:
        largest: bytes in the largest tensor, about.
        shuffle: whether targets have their parts in any order; else in the source's.
    """
    rng = random.Random(seed)
    root.mkdir(parents=True)
    files, infos, contents = {}, {}, {}
    for shard in range(shards):
        name = f"model-{shard + 1:05d}-of-{shards:05d}.safetensors"
        shapes = {f"s{shard}.t{n}": _shape(rng, largest) for n in range(rng.randint(1, tensors))}
        content, header = _shard(rng, name, shapes)
        (root / name).write_bytes(content)
        files[name], contents[name] = header, content
        infos.update(header.tensors)
    checkpoint = Checkpoint(root, {}, files, infos, None)
    parts: list[list[tuple[TensorInfo, Piece] | bytes]] = [[] for _ in range(targets)]
    for tensor in sorted(infos.values(), key=lambda t: (t.file, t.begin)):
        for piece in _split(rng, tensor, targets):
            parts[piece.target].append((tensor, piece))
    pieces: dict[str, list[Piece]] = {name: [] for name in infos}
    fills, targets_made, oracle = [], [], {}
    for number, found in enumerate(parts):
        found += [bytes(rng.randbytes(rng.randint(1, 3))) for _ in range(rng.randint(0, 2))]
        if shuffle:
            rng.shuffle(found)
        header = rng.randbytes(rng.randint(8, 300))
        content = bytearray(header)
        for part in found:
            if isinstance(part, bytes):
                fills.append(Fill(number, len(content), part, count := rng.randint(1, 400)))
                content += part * count
                continue
            tensor, piece = part
            pieces[tensor.name].append(piece._replace(target_offset=len(content)))
            for row in range(piece.rows):
                start = tensor.begin + piece.offset + row * piece.stride
                content += contents[tensor.file][start : start + piece.run]
        name = f"rank-{number:05d}/model.safetensors"
        targets_made.append(TargetFile(name, number, header, len(content), ()))
        oracle[name] = bytes(content)
    streams = {
        name: tuple(Stream((t,), tuple(pieces[t.name])) for t in header.tensors.values() if pieces[t.name])
        for name, header in files.items()
    }
    ranks = tuple(Rank(number, number, 0, 0) for number in range(targets))
    stages = ((0, 1),)
    plan = WritePlan("hf", "none", targets, 1, 1, ranks, stages, tuple(targets_made), streams, tuple(fills), ())
    return Case(checkpoint, plan, oracle)


def _shape(rng: random.Random, largest: int) -> tuple[int, int]:
    rows = rng.choice([0, 1, 1, 2, 3, 8, 16, 33])
    return rows, rng.choice([1, 2, 16, 24, 64, rng.randint(1, max(2, largest // max(1, rows)))])


def _shard(rng: random.Random, name: str, shapes: dict[str, tuple[int, int]]) -> tuple[bytes, Header]:
    entries, offset = {}, 0
    for tensor, (rows, columns) in shapes.items():
        entries[tensor] = {"dtype": "U8", "shape": [rows, columns], "data_offsets": [offset, offset + rows * columns]}
        offset += rows * columns
    text = json.dumps(entries).encode() + b" " * rng.randint(0, 9)
    start = 8 + len(text)
    content = len(text).to_bytes(8, "little") + text + rng.randbytes(offset)
    tensors = {
        tensor: TensorInfo(tensor, "U8", tuple(e["shape"]), name, *(start + o for o in e["data_offsets"]))
        for tensor, e in entries.items()
    }
    return content, Header(tensors, {}, start, len(content))


def _split(rng: random.Random, tensor: TensorInfo, targets: int) -> list[Piece]:
    """What of a tensor goes where; target offsets come later."""
    rows, columns = tensor.shape
    chosen = rng.sample(range(targets), rng.randint(1, targets))
    how = rng.choice(["whole", "whole", "rows", "columns", "columns", "runs", "dropped"])
    if how == "dropped":
        return []
    if how == "whole":
        return [Piece(target, 0, 0, 1, rows * columns, rows * columns) for target in chosen]
    if how == "rows":
        cuts = [rows * n // len(chosen) for n in range(len(chosen) + 1)]
        spans = zip(chosen, cuts, cuts[1:], strict=False)
        return [Piece(target, 0, a * columns, b - a, columns, columns) for target, a, b in spans]
    if how == "columns":
        cuts = [columns * n // len(chosen) for n in range(len(chosen) + 1)]
        spans = zip(chosen, cuts, cuts[1:], strict=False)
        return [Piece(target, 0, a, rows, b - a, columns) for target, a, b in spans]
    begin = rng.randint(0, rows * columns)
    return [Piece(target, 0, begin, 1, rng.randint(0, rows * columns - begin), 1) for target in chosen]


def digests(case: Case) -> dict[str, str]:
    root = case.checkpoint.root
    return {name: hashlib.sha256((root / name).read_bytes()).hexdigest() for name in case.checkpoint.files}


def written(root: Path) -> dict[str, bytes]:
    return {str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*") if path.is_file()}
