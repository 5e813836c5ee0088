"""What the benchmark's rows will run on an H200, as machine code: it can be read without one.

Memory is read and written sixteen bytes a thread, nothing spills, and as much is on its way as the memory's latency
wants (Little's law: 4.8 TB/s for 700 ns are 26 KB for each of 132 multiprocessors). It is no measurement: what is
lost here is lost there.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from benchmarks import gpu_kernels
from tasks.kernels.find import find_kernel
from tests.kernels.assembly import MOST_SHARED, PROCESSORS, Function, functions_of

pytestmark = [pytest.mark.reference, pytest.mark.triton]

ROWS: list[dict[str, Any]] = yaml.safe_load(Path(gpu_kernels.__file__).with_suffix(".yaml").read_text())
LIMITED = [row for row in ROWS if "share" in row]
IN_FLIGHT = 26_000
#: Of the function that moves a kernel's bytes: how often the code reads them (once for the query or keys, once for the
#: key or values), and how many accesses may be narrow: positions, slots, scales, and the block table's copies.
MOVES = {
    "fused_add_rms_norm": (1, 0),
    "gated_activation": (1, 0),
    "rotary": (2, 1),
    "fp8_block_quantise": (1, 1),
    "fp8_block_dequantise": (1, 4),
    "kv_cache_write": (2, 3),
    "paged_decode_attention": (1, 44),
    "grouped_matmul": (1, 2),
}


def in_flight(function: Function, ways: int) -> int:
    """Bytes that a multiprocessor's blocks ask for at once: their loads, or the pieces that fit shared memory."""
    loads = function.count("LDG128") * 16 * function.threads // ways
    return function.resident * (function.shared if function.count("LDGSTS128") else loads)


def name_of(row: dict[str, Any]) -> str:
    return f"{row['kernel']}, {row['title']}"


@pytest.mark.parametrize("row", LIMITED, ids=name_of)
def test_bytes_move_sixteen_at_a_time_and_enough_are_on_their_way(
    row: dict[str, Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    functions = functions_of(find_kernel(row["kernel"]), row["case"], monkeypatch, tmp_path)
    main, (ways, narrow) = functions[0], MOVES[row["kernel"]]
    said = f"{main.registers} registers, {main.shared} bytes shared, {main.resident} resident, {dict(main.accesses)}"
    assert main.count("LDG128", "LDGSTS128") >= 2 * ways, said
    assert main.count("STG128") >= 2 or row["kernel"] == "fp8_block_quantise", said
    assert main.narrow <= narrow, said
    assert in_flight(main, ways) >= IN_FLIGHT, said
    assert main.grid[0] >= 1.9 * PROCESSORS * main.resident, f"{main.grid} blocks, {said}"
    for function in functions:
        assert (function.stack, function.count("LDL32", "LDL64", "LDL128", "STL32", "STL64", "STL128")) == (0, 0)
        assert function.shared <= MOST_SHARED
        assert len(function.grid) == 1, "only the first dimension of a grid may be longer than 65535"


@pytest.mark.parametrize("row", [row for row in ROWS if "share" not in row], ids=name_of)
def test_the_other_rows_keep_what_they_hold_in_registers(
    row: dict[str, Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for function in functions_of(find_kernel(row["kernel"]), row["case"], monkeypatch, tmp_path):
        assert function.stack == 0
        assert function.shared <= MOST_SHARED
        assert len(function.grid) == 1


def test_rows_that_no_sixteen_bytes_divide_are_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """That what is counted shows a loss."""
    case = {"rows": 4096, "hidden": 7167}
    (function,) = functions_of(find_kernel("fused_add_rms_norm"), case, monkeypatch, tmp_path)
    assert function.count("LDG128") == function.count("STG128") == 0
    assert function.narrow > 0


@pytest.mark.parametrize(
    ("kernel", "index"), [("grouped_matmul", 4), ("paged_decode_attention", 4)], ids=lambda value: str(value)
)
def test_products_of_float32_are_float32s(
    kernel: str, index: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """TF32 is what Triton makes of them unless it is told not to; the interpreter shows no difference."""
    definition = find_kernel(kernel)
    functions = functions_of(definition, definition.cases[index], monkeypatch, tmp_path, torch.float32)
    assert not any("tf32" in function.ptx for function in functions)
    assert any("fma.rn.f32" in function.ptx for function in functions)
