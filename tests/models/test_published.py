"""The tables of published checkpoints say what their sources state, and make files that the format's library reads."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from safetensors import safe_open

from tests.models.published import NAMES, expand, make_published, published_tensors, table
from tests.models.safetensors_file import nbytes


def test_all_are_there() -> None:
    assert len(NAMES) == 28


@pytest.mark.parametrize("name", NAMES)
def test_sums_are_the_stated_ones(name: str) -> None:
    stated, rows = table(name)["stated"], table(name)["tensors"]
    names = [tensor for row in rows for tensor in expand(row["name"])]
    assert len(names) == len(set(names)) == stated["tensors"]
    assert [row["count"] for row in rows] == [sum(1 for _ in expand(row["name"])) for row in rows]
    assert sum(row["count"] * math.prod(row["shape"]) for row in rows) == stated["elements"]
    if "tensor_size" in stated:  # in units of 2^30
        size = sum(row["count"] * nbytes(row["dtype"], row["shape"]) for row in rows)
        assert f"{size / 2**30:.2f} GB" == stated["tensor_size"]


def test_files_are_read_by_the_formats_library(tmp_path: Path) -> None:
    root = make_published("qwen3.5_4b", tmp_path, shards=3)
    found = {}
    for path in sorted(root.glob("*.safetensors")):
        with safe_open(path, "np") as file:
            for name in file.keys():  # noqa: SIM118 - it is no mapping
                part = file.get_slice(name)
                found[name] = (part.get_dtype(), tuple(part.get_shape()))
    assert found == {name: (dtype, shape) for name, dtype, shape in published_tensors("qwen3.5_4b")}


def test_files_are_named_as_published(tmp_path: Path) -> None:
    root = make_published("minimax_m2.7", tmp_path)
    names = sorted(path.name for path in root.glob("*.safetensors"))
    assert (len(names), names[0], names[-1]) == (
        125, "model-00000-of-00130.safetensors", "model-00124-of-00130.safetensors",
    )  # fmt: skip
