"""What does not come out of a quantised format as a number, or does not fit: errors that say where."""

from __future__ import annotations

import numpy as np
import pytest

from day0.errors import InputError
from tests.reshard.convert.reference import VALUES, Case, loaded, stored, to_float


@pytest.mark.parametrize(
    ("dtype", "code"), [("F8_E4M3", 0x7F), ("F8_E4M3", 0xFF), ("F8_E4M3FNUZ", 0x80), ("F8_E5M2", 0x7D)]
)
def test_a_code_that_is_nan_is_named(dtype: str, code: int) -> None:
    weights = np.zeros((3, 5, 40), np.uint8)
    weights[2, 1, 37] = code
    inputs = [(dtype, weights.shape, weights.tobytes()), ("F32", (1,), np.float32(2).tobytes())]
    case = Case("fp8_block_dequant", inputs, [("BF16", weights.shape)])
    with pytest.raises(InputError, match=r"'layer.weight' in model.safetensors: the code at \[2, 1, 37\] is NaN"):
        case.run([4])
    [kept] = Case("fp8_block_dequant", inputs, [("BF16", weights.shape)], nan="keep").run()
    assert np.flatnonzero(np.isnan(loaded(kept, "BF16"))).tolist() == [2 * 200 + 40 + 37]


@pytest.mark.parametrize("bad", [np.nan, np.inf, 0.0, -1.0])
def test_a_scale_that_means_nothing_is_named(bad: float) -> None:
    scales = np.ones((2, 3), np.float32)
    scales[1, 2] = bad
    case = Case(
        "fp8_block_dequant",
        [("F8_E4M3", (8, 12), bytes(96)), ("F32", (2, 3), scales.tobytes())],
        [("BF16", (8, 12))],
        block=(4, 4),
    )
    case.converter.convert(0, memoryview(bytes(48)))  # the first four rows do not need it
    with pytest.raises(InputError, match=r"'layer.input_1'.*the scale at \[1, 2\] is"):
        case.run([1])


def test_an_e8m0_scale_of_nan_is_named() -> None:
    scales = np.full((4, 2), 127, np.uint8)
    scales[3, 0] = 255
    case = Case("mxfp4_dequant", [("U8", (4, 32), bytes(128)), ("U8", (4, 2), scales.tobytes())], [("BF16", (4, 64))])
    with pytest.raises(InputError, match=r"the scale at \[3, 0\] is nan"):
        case.run()


def test_a_value_too_large_for_the_target_is_named_or_kept() -> None:
    weights = np.full((2, 4), 0x38, np.uint8)  # 1.0
    weights[1, 3] = 0x7E  # 448
    inputs = [("F8_E4M3", (2, 4), weights.tobytes()), ("F32", (1,), np.float32(2.0**127).tobytes())]
    with pytest.raises(InputError, match=r"the value at \[1, 3\] is too large for BF16"):
        Case("fp8_block_dequant", inputs, [("BF16", (2, 4))]).run()
    [kept] = Case("fp8_block_dequant", inputs, [("BF16", (2, 4))], overflow="keep").run()
    assert loaded(kept, "BF16").tolist() == [2.0**127] * 7 + [np.inf]
    scales = np.array([[254, 253]], np.uint8)
    every = np.tile(np.arange(16, dtype=np.uint8), 4).reshape(1, 64)
    packed = (every[:, 0::2] + 16 * every[:, 1::2]).astype(np.uint8)
    inputs = [("U8", (1, 32), packed.tobytes()), ("U8", (1, 2), scales.tobytes())]
    [kept] = Case("mxfp4_dequant", inputs, [("BF16", (1, 64))], overflow="keep").run()
    exact = VALUES["FP4"][every] * (2.0 ** (scales.astype(float) - 127)).repeat(32, axis=1)
    assert kept == stored(to_float(exact, "BF16"), "BF16")


@pytest.mark.parametrize(
    ("name", "inputs", "output", "given", "words"),
    [
        ("fp8_block_dequant", [("F8_E4M3", (576, 8)), ("F32", (4, 1))], (576, 8), {"block": (128, 128)}, "should be"),
        ("fp8_block_dequant", [("F8_E4M3", (576, 8)), ("F32", (5, 1))], (576, 8), {}, "does not say which"),
        ("fp8_block_dequant", [("F8_E4M3", (8, 8)), ("I32", (1,))], (8, 8), {}, "scales cannot be I32"),
        ("fp8_block_dequant", [("F8_E4M3", (8, 8)), ("F32", (1,))], (8, 8), {"scale_format": "e8m0"}, "stored as F32"),
        ("fp8_block_dequant", [("I8", (8, 8)), ("F32", (1,))], (8, 8), {}, "I8 where F8_E4M3"),
        ("fp8_block_dequant", [("F8_E4M3", (8,)), ("F32", (1,))], (8,), {}, "not that of matrices"),
        ("fp8_block_dequant", [("F8_E4M3", (8, 8))], (8, 8), {}, "needs its scale"),
        ("mxfp4_dequant", [("U8", (4, 24)), ("U8", (4, 2))], (4, 48), {}, "whole groups of 32"),
        ("int4_dequant", [("I32", (4, 8)), ("F32", (4, 3))], (4, 64), {}, "do not divide"),
        ("int4_dequant", [("I32", (4, 8)), ("F32", (4, 2))], (4, 72), {}, "cannot be a weight"),
        ("int4_dequant", [("I32", (4, 6)), ("F32", (4, 2))], (4, 64), {"bits": 3}, "packed in 3 bits"),
        ("nvfp4_dequant", [("U8", (4, 8)), ("U8", (4, 1)), ("F32", ())], (4, 16), {}, "F8_E4M3 is expected"),
        ("gptq_dequant", [("I32", (4, 8)), ("F16", (2, 8)), ("I32", (3, 1))], (8, 32), {}, "zero_point of I32"),
        ("gptq_dequant", [("I32", (4, 4)), ("F16", (2, 4)), ("I32", (2, 0))], (4, 32), {}, "zero_point of I32"),
        ("gptq_dequant", [("I32", (1, 8)), ("F16", (64, 8)), ("I32", (64, 1))], (8, 8), {}, "scale of F16"),
        ("gptq_dequant", [("I32", (2, 8)), ("F16", (1, 8))], (8, 8), {}, "with 4 bits"),
        (
            "int4_dequant",
            [("I32", (4, 8)), ("F32", (4, 2)), ("I32", (64,))],
            (4, 64),
            {"roles": ("scale", "g_idx")},
            "desc_act",
        ),
        ("awq_dequant", [("I32", (4, 1)), ("I32", (1, 8)), ("I32", (1, 1))], (8, 4), {}, "scale of I32"),
        ("mxfp4_dequant", [("U8", (4, 12)), ("U8", (4, 1))], (4, 24), {"group_size": 24}, "groups of 24 codes"),
    ],
)
def test_tensors_that_do_not_fit_are_named(
    name: str, inputs: list[tuple[str, tuple[int, ...]]], output: tuple[int, ...], given: dict[str, object], words: str
) -> None:
    sizes = {"F32": 4, "I32": 4, "F16": 2}
    filled = [(d, s, bytes(int(np.prod(s)) * sizes.get(d, 1))) for d, s in inputs]
    with pytest.raises(InputError, match=words) as error:
        Case(name, filled, [("BF16", output)], **given)
    assert "'layer." in str(error.value)


def test_a_stored_shape_that_contradicts_is_refused() -> None:
    inputs = [
        ("I32", (4, 8), bytes(128)),
        ("F32", (4, 2), np.ones((4, 2), np.float32).tobytes()),
        ("I64", (2,), np.array([4, 63]).tobytes()),
    ]
    with pytest.raises(InputError, match=r"'layer.input_2'.*\[4, 63\]"):
        Case("int4_dequant", inputs, [("BF16", (4, 64))], roles=("scale", "shape"))
