"""Into quantised formats: the nearest code for every value, scales of whole rows and blocks, and the reported error."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from day0.errors import InputError
from tests.reshard.convert.reference import VALUES, Case, loaded, stored, to_float


def bf16(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    return to_float(rng.standard_normal(shape) * np.exp(rng.standard_normal((*shape[:-1], 1))), "BF16")


def single(values: np.ndarray) -> np.ndarray:
    return to_float(values, "F32")


def nearest_e4m3(values: np.ndarray) -> np.ndarray:
    """The code of each value, by comparing with all codes; of two that are as near, the even one."""
    grid = VALUES["F8_E4M3"][:0x7F]
    magnitude = np.abs(values)[..., None]
    distance = np.abs(magnitude - grid)
    best = distance.min(axis=-1, keepdims=True)
    tied = distance == best
    codes = np.where(tied & (np.arange(0x7F) % 2 == 0), np.arange(0x7F), 1000).min(axis=-1)
    codes = np.where(codes == 1000, np.argmax(tied, axis=-1), codes)
    return (codes | np.where(np.signbit(values), 0x80, 0)).astype(np.uint8)


@pytest.mark.parametrize("scale_dtype", ["F32", "BF16"])
@pytest.mark.parametrize("source", ["BF16", "F16", "F32"])
def test_int8_rows(source: str, scale_dtype: str) -> None:
    rng = np.random.default_rng(1)
    values = to_float(bf16(rng, (3, 17, 70)), source)
    values[0, 3] = 0
    values[1, 4] = to_float(np.full(70, 1e-30) if source != "F16" else np.full(70, 2.0**-24), source)
    shape = values.shape
    case = Case(
        "int8_quant", [(source, shape, stored(values, source))], [("I8", shape), (scale_dtype, (*shape[:-1], 1))]
    )
    codes, scales = case.run([5])
    peak = np.abs(values).max(axis=-1, keepdims=True)
    wanted = to_float(single(np.where(peak == 0, 1, peak / 127)), scale_dtype)
    assert scales == stored(wanted, scale_dtype)
    quotient = np.clip(np.rint(single(values / wanted)), -127, 127)
    assert codes == stored(quotient, "I8")
    check_errors(case, values, quotient * wanted)


def check_errors(case: Case, values: np.ndarray, dequantised: np.ndarray) -> None:
    error = dequantised - values
    assert case.converter.errors() == {
        "max_abs": pytest.approx(np.abs(error).max(), rel=1e-8),
        "rms": pytest.approx(math.sqrt((error**2).mean()), rel=1e-8),
        "rms_relative": pytest.approx(math.sqrt((error**2).sum() / (values**2).sum()), rel=1e-8),
    }


def test_int8_rounds_half_to_even_and_uses_every_code() -> None:
    values = np.concatenate([np.arange(-127, 128), np.arange(-126.5, 127)])
    [codes, scales] = Case(
        "int8_quant", [("F32", (1, 509), stored(values, "F32"))], [("I8", (1, 509)), ("F32", (1, 1))]
    ).run()
    assert loaded(scales, "F32").tolist() == [1.0]
    assert loaded(codes, "I8").tolist() == [round(v) for v in values]


def test_rows_too_small_for_a_scale_become_zeros() -> None:
    values = np.full((1, 8), 2.0**-149)
    [codes, scales] = Case(
        "int8_quant", [("F32", (1, 8), stored(values, "F32"))], [("I8", (1, 8)), ("F32", (1, 1))]
    ).run()
    assert loaded(scales, "F32").tolist() == [2.0**-126]
    assert not any(codes)


@pytest.mark.parametrize("scale", ["F32", "ue8m0", "F8_E8M0", "U8"])
@pytest.mark.parametrize(("shape", "block"), [((300, 200), (128, 128)), ((2, 20, 37), (16, 16)), ((5, 64), (1, 32))])
def test_fp8_blocks(shape: tuple[int, ...], block: tuple[int, int], scale: str) -> None:
    rng = np.random.default_rng(2)
    values = bf16(rng, shape)
    values[..., : block[0], : block[1]] = 0
    *lead, n, k = shape
    grid = (*lead, -(-n // block[0]), -(-k // block[1]))
    dtype = "F32" if scale == "ue8m0" else scale
    more = {"quant_scale": "ue8m0"} if scale == "ue8m0" else {}
    case = Case(
        "fp8_block_quant",
        [("BF16", shape, stored(values, "BF16"))],
        [("F8_E4M3", shape), (dtype, grid)],
        quant_block=block,
        **more,
    )
    codes, scales = case.run([1])
    wanted = np.ones(grid)
    for at in np.ndindex(grid):
        rows, columns = (slice(at[-2 + d] * block[d], (at[-2 + d] + 1) * block[d]) for d in (0, 1))
        peak = np.abs(values[(*at[:-2], rows, columns)]).max()
        if peak:
            wanted[at] = single(peak / 448)
            if scale != "F32":
                wanted[at] = 2.0 ** math.ceil(math.log2(wanted[at]))
    exponents = (np.log2(wanted) + 127).astype(np.uint8)
    assert scales == (stored(wanted, "F32") if dtype == "F32" else exponents.tobytes())
    wide = wanted.repeat(block[0], axis=-2).repeat(block[1], axis=-1)[..., :n, :k]
    expected = nearest_e4m3(single(values / wide))
    assert codes == expected.tobytes()
    check_errors(case, values, VALUES["F8_E4M3"][expected] * wide)
    assert case.run() == [codes, scales]


def test_every_e4m3_code_and_every_tie_between_two() -> None:
    positive = VALUES["F8_E4M3"][:0x7F]
    middles = (positive[1:] + positive[:-1]) / 2
    near = np.concatenate([positive, middles, middles * (1 - 2**-20), middles * (1 + 2**-20)])
    values = np.concatenate([near, -near])[None]
    shape = values.shape
    case = Case(
        "fp8_block_quant",
        [("F32", shape, stored(values, "F32"))],
        [("F8_E4M3", shape), ("F32", (1, 1))],
        quant_block=(1, shape[1]),
    )
    codes, scales = case.run()
    assert loaded(scales, "F32").tolist() == [1.0]
    assert codes == nearest_e4m3(values).tobytes()


@settings(max_examples=30, deadline=None)
@given(
    st.integers(1, 3), st.integers(1, 40), st.integers(1, 40), st.integers(1, 9), st.integers(1, 50), st.integers(0, 99)
)
def test_cuts_change_neither_codes_nor_errors(e: int, n: int, k: int, cut: int, block: int, seed: int) -> None:
    values = bf16(np.random.default_rng(seed), (e, n, k))
    inputs = [("BF16", values.shape, stored(values, "BF16"))]
    for name, scales, more in (
        ("int8_quant", (e, n, 1), {}),
        ("fp8_block_quant", (e, -(-n // block), -(-k // block)), {"quant_block": (block, block)}),
    ):
        outputs = [("I8" if name == "int8_quant" else "F8_E4M3", values.shape), ("F32", scales)]
        whole, pieces = Case(name, inputs, outputs, **more), Case(name, inputs, outputs, **more)
        assert whole.run() == pieces.run([cut])
        assert whole.converter.errors() == pieces.converter.errors()


def test_dequantised_and_quantised_again_as_if_in_two_steps_without_rounding() -> None:
    rng = np.random.default_rng(3)
    codes = rng.integers(0, 0x7F, (256, 256)).astype(np.uint8)
    scales = (rng.random((2, 2)) + 0.1).astype(np.float32)
    inputs = [("F8_E4M3", codes.shape, codes.tobytes()), ("F32", (2, 2), scales.tobytes())]
    [plain] = Case("fp8_block_dequant", inputs, [("F32", codes.shape)], block=(128, 128)).run()
    two_steps = Case("int8_quant", [("F32", codes.shape, plain)], [("I8", codes.shape), ("F32", (256, 1))]).run()
    chain = Case("fp8_block_dequant+int8_quant", inputs, [("I8", codes.shape), ("F32", (256, 1))], block=(128, 128))
    assert chain.run([9]) == two_steps
    packed = rng.integers(0, 256, (128, 64)).astype(np.uint8)
    groups = rng.integers(120, 130, (128, 4)).astype(np.uint8)
    inputs = [("U8", packed.shape, packed.tobytes()), ("U8", groups.shape, groups.tobytes())]
    outputs = [("F8_E4M3", (128, 128)), ("F32", (1, 1))]
    [plain] = Case("mxfp4_dequant", inputs, [("BF16", (128, 128))]).run()
    assert (
        Case("mxfp4_dequant+fp8_block_quant", inputs, outputs).run()
        == Case("fp8_block_quant", [("BF16", (128, 128), plain)], outputs).run()
    )


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("name", ["int8_quant", "fp8_block_quant"])
def test_what_cannot_be_quantised_is_named(name: str, bad: float) -> None:
    values = np.ones((2, 130, 140))
    values[1, 129, 133] = bad
    outputs = {
        "int8_quant": [("I8", values.shape), ("F32", (2, 130, 1))],
        "fp8_block_quant": [("F8_E4M3", values.shape), ("F32", (2, 2, 2))],
    }[name]
    case = Case(name, [("F32", values.shape, stored(values, "F32"))], outputs)
    with pytest.raises(InputError, match=r"'layer.weight'.*\[1, 129, 133\] is (nan|-?inf), which cannot be quantised"):
        case.run()
