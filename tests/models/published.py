"""Published checkpoints as sparse files: the real names, shapes and dtypes in real headers, and no data.

    python -m tests.models.published NAME DIR [--shards N] [--experts N]

A checkpoint of 1.45 TB takes some seconds to make and some dozen MB on the disk. The tables and where they are from:
published/README.md.
"""

from __future__ import annotations

import argparse
import itertools
import json
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from tests.models.safetensors_file import in_writing_order, nbytes, write_holes

TABLES = Path(__file__).with_suffix("")
NAMES = sorted(path.stem for path in TABLES.glob("*.json"))

_EXPERT_COUNTS = ("n_routed_experts", "num_experts", "num_local_experts")
_CHOSEN_COUNTS = ("num_experts_per_tok", "num_experts_per_token", "top_k_experts")
_RANGES = re.compile(r"\d+(?:-\d+)?(?:,\d+(?:-\d+)?)*")

Tensor = tuple[str, str, tuple[int, ...]]


def table(name: str) -> dict[str, Any]:
    """A checkpoint's table as it was gathered: `stated` totals, and `tensors` by pattern."""
    value: dict[str, Any] = json.loads((TABLES / f"{name}.json").read_text())
    return value


def published_config(name: str) -> dict[str, Any] | None:
    """The checkpoint's config.json, as far as it is at hand."""
    pair = _pairs().get(name)
    if pair is None:
        return None
    config = json.loads((TABLES / "configs" / f"{pair['config']}.json").read_text())
    return {key: value for key, value in config.items() if key not in pair.get("drop", ())}


def published_tensors(name: str, experts: int | None = None) -> list[Tensor]:
    """Name, dtype and shape of every tensor, in the order of the model's modules.

    Of a layer's experts that are stored one by one, only the first `experts` are given, where that is not None; the
    routers choose among as many.
    """
    rows = table(name)["tensors"]
    tensors = [(t, row["dtype"], _shape(row, experts)) for row in rows for t in expand(row["name"], experts)]
    return sorted(tensors, key=lambda tensor: _natural(tensor[0]))


def with_experts(config: dict[str, Any], experts: int) -> dict[str, Any]:
    """The config of a model that has so many experts a layer, and chooses no more for a token."""
    made = dict(config)
    for key, value in config.items():
        if key == "text_config":
            made[key] = with_experts(value, experts)
        elif key in _EXPERT_COUNTS:
            made[key] = experts
        elif key in _CHOSEN_COUNTS and value:
            made[key] = min(value, experts)
    return made


def make_published(name: str, root: Path, shards: int | None = None, experts: int | None = None) -> Path:
    """Write the checkpoint `name` into the folder `root` as sparse files.

    Args:
        shards: how many files; by default as published.
        experts: keep only so many of each layer's experts that are stored one by one, for a quick test.
    """
    root.mkdir(parents=True, exist_ok=True)
    if config := published_config(name):
        config = config if experts is None else with_experts(config, experts)
        (root / "config.json").write_text(json.dumps(config, indent=2))
    pair = _pairs().get(name, {})
    apart = pair.get("apart", {})
    tensors = published_tensors(name, experts)
    count = (shards or table(name)["stated"]["files"]) - len(apart)
    cut = _cut([tensor for tensor in tensors if tensor[0] not in apart], count)
    files = dict(zip(_file_names(pair, len(cut)), cut, strict=True))
    files |= {file: [tensor for tensor in tensors if tensor[0] == only] for only, file in apart.items()}
    for file, held in files.items():
        write_holes(root / file, in_writing_order({name: (dtype, shape) for name, dtype, shape in held}))
    if len(files) > 1:
        index = {
            "metadata": {"total_size": sum(map(_nbytes, tensors))},
            "weight_map": {tensor: file for file, held in files.items() for tensor, _, _ in held},
        }
        (root / "model.safetensors.index.json").write_text(json.dumps(index, indent=2))
    return root


def expand(pattern: str, experts: int | None = None) -> Iterator[str]:
    """`layers.0-1,3.w` → `layers.0.w`, `layers.1.w`, `layers.3.w`; of `experts.0-255` the first `experts`."""
    parts = [_numbers(part) if _RANGES.fullmatch(part) else [part] for part in pattern.split(".")]
    for before, part in itertools.pairwise(parts):
        if before == ["experts"]:
            del part[len(part) if experts is None else experts :]
    return map(".".join, itertools.product(*parts))


def _nbytes(tensor: Tensor) -> int:
    return nbytes(*tensor[1:])


def _shape(row: dict[str, Any], experts: int | None) -> tuple[int, ...]:
    first, *rest = row["shape"]
    parts = row["name"].split(".")
    router = "gate" in parts or parts[-1] == "e_score_correction_bias"
    return (first if experts is None or not router or parts[-1] == "tid2eid" else experts, *rest)


def _numbers(ranges: str) -> list[str]:
    bounds = [part.split("-") for part in ranges.split(",")]
    return [str(number) for bound in bounds for number in range(int(bound[0]), int(bound[-1]) + 1)]


def _natural(name: str) -> list[tuple[int, str]]:
    return [(int(part), "") if part.isdigit() else (-1, part) for part in name.split(".")]


@cache
def _pairs() -> dict[str, Any]:
    pairs: dict[str, Any] = yaml.safe_load((TABLES / "pairs.yaml").read_text())
    return pairs


def _file_names(pair: dict[str, Any], count: int) -> list[str]:
    if count == 1 and "names" not in pair:
        return ["model.safetensors"]
    pattern = pair.get("names", "model-{:05d}-of-{:05d}.safetensors")
    first = pair.get("first", 1)
    return [pattern.format(number, count) for number in range(first, first + count)]


def _cut(tensors: list[Tensor], count: int) -> list[list[Tensor]]:
    """The tensors in order, in at most `count` parts of about as many bytes."""
    total = sum(map(_nbytes, tensors))
    parts: list[list[Tensor]] = [[] for _ in range(count)]
    reached = 0
    for tensor in tensors:
        parts[reached * count // total].append(tensor)
        reached += _nbytes(tensor)
    return [part for part in parts if part]


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.models.published", description=__doc__.splitlines()[0])
    parser.add_argument("name", choices=NAMES, metavar="NAME", help=", ".join(NAMES))
    parser.add_argument("folder", type=Path, metavar="DIR")
    parser.add_argument("--shards", type=int, help="how many files; by default as published")
    parser.add_argument("--experts", type=int, help="keep only so many experts of each layer")
    args = parser.parse_args()
    make_published(args.name, args.folder, args.shards, args.experts)


if __name__ == "__main__":
    main()
