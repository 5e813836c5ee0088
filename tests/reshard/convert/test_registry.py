"""Names, descriptions, what is imported when, threads, and where compiled code is kept."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from tasks.reshard.convert import kernels
from tasks.reshard.convert.registry import CONVERSIONS, describe, make_converter, parameters
from tasks.reshard.writes import Conversion
from tests.reshard.convert.reference import VALUES, Case, tensor

ROOT = Path(__file__).parents[3]


def test_descriptions() -> None:
    conversion = Conversion("fp8_block_dequant", (("BF16", (2, 2)),), parameters(block=(128, 128), scale_format=None))
    assert describe(conversion) == "fp8_block_dequant 128x128 -> BF16"
    both = Conversion("int4_dequant+int8_quant", (("I8", (2, 2)), ("F32", (2, 1))), parameters(group_size=32, bits=4))
    assert describe(both) == "int4_dequant+int8_quant groups of 32, bits 4 -> I8, F32"
    assert describe(Conversion("cast", (("F16", (2,)),))) == "cast -> F16"


def test_an_unknown_name_and_a_plan_that_expects_something_else() -> None:
    info = tensor("w", "F32", (2, 2))
    with pytest.raises(ValueError, match="no conversion 'fp9'"):
        make_converter(Conversion("fp9", (("BF16", (2, 2)),)), (info,), memoryview)
    with pytest.raises(ValueError, match="but the plan says"):
        make_converter(Conversion("cast", (("BF16", (2, 3)),)), (info,), memoryview)
    with pytest.raises(ValueError, match="further inputs cannot be"):
        make_converter(Conversion("cast", (("BF16", (2, 2)),)), (info, info), memoryview)


def test_blocks_must_be_whole_units() -> None:
    case = Case("int8_quant", [("F32", (4, 4), bytes(64))], [("I8", (4, 4)), ("F32", (4, 1))])
    assert case.converter.unit == 16
    with pytest.raises(ValueError, match="whole units of 16 bytes"):
        case.converter.convert(8, memoryview(bytes(16)))
    with pytest.raises(ValueError, match="whole units of 16 bytes"):
        case.converter.convert(0, memoryview(bytes(24)))


def test_unaligned_blocks() -> None:
    values = np.arange(24, dtype=np.float32)
    shifted = memoryview(b"x" + values.tobytes())[1:]
    case = Case("cast", [("F32", (24,), values.tobytes())], [("F16", (24,))])
    [(_, _, out)] = case.converter.convert(0, shifted)
    assert bytes(out) == values.astype(np.float16).tobytes()
    half = (values.view(np.uint32) >> 16).astype(np.uint16).tobytes()
    case = Case("cast", [("BF16", (24,), half)], [("F32", (24,))])
    [(_, _, out)] = case.converter.convert(0, memoryview(b"x" + half)[1:])
    assert bytes(out) == values.tobytes()


def test_many_threads_on_one_converter() -> None:
    rng = np.random.default_rng(0)
    codes = rng.integers(0, 0x7F, (600, 300)).astype(np.uint8)
    scales = rng.random((5, 3)).astype(np.float32) + 0.1
    inputs = [("F8_E4M3", codes.shape, codes.tobytes()), ("F32", (5, 3), scales.tobytes())]
    outputs = [("I8", codes.shape), ("F32", (600, 1))]
    alone, shared = (Case("fp8_block_dequant+int8_quant", inputs, outputs, block=(128, 128)) for _ in range(2))
    wanted = alone.run()
    found = [bytearray(len(part)) for part in wanted]

    def work(row: int) -> None:
        end = min(600, row + 7)
        for number, offset, data in shared.converter.convert(row * 300, memoryview(codes[row:end].tobytes())):
            found[number][offset : offset + data.nbytes] = data

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(work, range(0, 600, 7)))
    assert [bytes(part) for part in found] == wanted
    assert shared.converter.errors() == alone.converter.errors()


def test_the_tables_are_those_of_the_reference() -> None:
    from tasks.reshard.convert import codes

    for name, values in codes.BYTE_VALUES.items():
        if name != "I8":
            np.testing.assert_array_equal(values, VALUES[name].astype(np.float32))


def python(code: str, folder: Path, **environment: str) -> str:
    run = subprocess.run(
        [sys.executable, "-c", code],
        cwd=folder,
        env=os.environ | environment,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert run.returncode == 0, run.stderr
    return run.stdout.strip()


def test_the_registry_alone_imports_nothing_heavy() -> None:
    code = """
import sys
from tasks.reshard.convert import registry
print([module for module in ("numba", "torch", "numpy") if module in sys.modules])
"""
    assert python(code, ROOT) == "[]"


CAST = """
import numpy as np
from tasks.reshard.convert.kernels import widen
out = np.empty(2, np.uint32); widen(np.array([1, 2], np.uint16), out); print(out.tolist())
from pathlib import Path
print(type(widen._cache).__name__)
"""


def test_where_nothing_can_be_kept_it_is_compiled_anew(tmp_path: Path) -> None:
    copy = tmp_path / "site"
    shutil.copytree(ROOT / "tasks/reshard/convert", copy / "tasks/reshard/convert", ignore=lambda *_: ["__pycache__"])
    nowhere = str(tmp_path / "file" / "cache")
    (tmp_path / "file").write_text("not a folder")
    (copy / "tasks/reshard/convert/__pycache__").write_text("not a folder, so nothing can be kept beside the source")
    lines = python(CAST, copy, XDG_CACHE_HOME=nowhere, HOME=nowhere, NUMBA_CACHE_DIR="", PYTHONDONTWRITEBYTECODE="1")
    assert lines.splitlines() == ["[65536, 131072]", "NullCache"]
    assert sorted(p.name for p in copy.rglob("*.nbi")) == []
    kept = tmp_path / "kept"
    lines = python(CAST, copy, XDG_CACHE_HOME=str(kept), NUMBA_CACHE_DIR="", PYTHONDONTWRITEBYTECODE="1")
    assert lines.splitlines() == ["[65536, 131072]", "FunctionCache"]
    assert list(kept.rglob("*.nbi"))


def test_every_name_can_be_looked_up() -> None:
    assert {"fp8_block_dequant", "mxfp4_dequant+fp8_block_quant", "cast", "transpose"} <= set(CONVERSIONS)
    assert kernels.kernel(lambda x: x + 1)(1) == 2
