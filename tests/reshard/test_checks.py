"""What a finished reshard is held against."""

from __future__ import annotations

import json
import struct
from pathlib import Path

import pytest

from day0.architecture.slicing import Rank
from day0.verdict import Verdict
from tasks.reshard.checks import read_back_check
from tasks.reshard.writes import TargetFile, WritePlan, Written

RANKS = 3


def _header(names: list[str], dtype: str = "BF16") -> bytes:
    entries = {n: {"dtype": dtype, "shape": [4], "data_offsets": [8 * i, 8 * i + 8]} for i, n in enumerate(names)}
    text = json.dumps(entries).encode()
    return struct.pack("<Q", len(text)) + text


@pytest.fixture
def plan(tmp_path: Path) -> WritePlan:
    """A file a rank, all alike, as they lie below `tmp_path`."""
    header, files = _header(["a", "b"]), []
    for rank in range(RANKS):
        at = len(header)
        tensors = tuple(Written(n, "BF16", (4,), at + 8 * i, at + 8 * i + 8, ()) for i, n in enumerate("ab"))
        files.append(TargetFile(f"rank-{rank}.safetensors", rank, header, at + 16, tensors))
        (tmp_path / files[-1].name).write_bytes(header + bytes(16))
    ranks = tuple(Rank(rank, rank, 0, 0) for rank in range(RANKS))
    return WritePlan("hf", "none", RANKS, 1, 1, ranks, ((0, 1),), tuple(files), {}, (), ())


def test_files_that_are_as_planned(plan: WritePlan, tmp_path: Path) -> None:
    check = read_back_check(plan, tmp_path)
    assert check.verdict is Verdict.PASS
    assert check.measured["tensors"] == 2 * RANKS


@pytest.mark.parametrize("rank", range(RANKS))
def test_each_of_files_that_should_be_alike_is_read(plan: WritePlan, tmp_path: Path, rank: int) -> None:
    name = f"rank-{rank}.safetensors"
    (tmp_path / name).write_bytes(_header(["a", "c"]) + bytes(16))
    check = read_back_check(plan, tmp_path)
    assert check.verdict is Verdict.FAIL
    assert check.reason == f"{name}: tensor 'b' is not as planned"
    (tmp_path / name).write_bytes(_header(["a", "b"], "F16") + bytes(17))
    check = read_back_check(plan, tmp_path)
    assert check.verdict is Verdict.FAIL
    assert check.reason.startswith(f"{name} does not read back: ")
    (tmp_path / name).unlink()
    assert read_back_check(plan, tmp_path).verdict is Verdict.FAIL


def test_a_header_that_is_as_planned_and_wrong(plan: WritePlan, tmp_path: Path) -> None:
    header = plan.files[0].header.replace(b"[8, 16]", b"[8, 17]")
    for file in plan.files:
        (tmp_path / file.name).write_bytes(header + bytes(16))
    check = read_back_check(plan, tmp_path)
    assert check.verdict is Verdict.FAIL
    assert "tensor 'b'" in check.reason


def test_nothing_to_read_back_is_a_failure(tmp_path: Path) -> None:
    empty = WritePlan("hf", "none", 1, 1, 1, (Rank(0, 0, 0, 0),), ((0, 1),), (), {}, (), ())
    assert read_back_check(empty, tmp_path).verdict is Verdict.FAIL
