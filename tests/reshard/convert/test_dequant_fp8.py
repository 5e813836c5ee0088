"""Out of FP8: every code, many scales, edges."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.reshard.convert.reference import VALUES, Case, product, stored, to_float

FP8 = ("F8_E4M3", "F8_E4M3FNUZ", "F8_E5M2", "F8_E5M2FNUZ")
FLOATS = ("BF16", "F16", "F32")


def finite_codes(dtype: str) -> np.ndarray:
    return np.flatnonzero(np.isfinite(VALUES[dtype])).astype(np.uint8)


def spread(scales: np.ndarray, shape: tuple[int, ...], block: tuple[int, int]) -> np.ndarray:
    """Each scale over its block of the last two dimensions."""
    wide = scales.repeat(block[0], axis=-2).repeat(block[1], axis=-1)
    return wide[..., : shape[-2], : shape[-1]]


@pytest.mark.parametrize("target", FLOATS)
@pytest.mark.parametrize("dtype", FP8)
def test_all_fp8_codes_times_many_scales(dtype: str, target: str) -> None:
    codes = finite_codes(dtype)
    rng = np.random.default_rng(1)
    top = {"BF16": 100, "F32": 100, "F16": 0}[target]
    scales = np.ldexp(1 + rng.random(300), rng.integers(-149, top, 300)).astype(np.float32)
    scales = np.concatenate([scales, np.float32([2.0**-149, 2.0**-126, 1.0, 1 / 3, 0.5 + 2**-24])])
    if target == "F16":
        scales = scales[scales < 1]
    weights = np.tile(codes, (len(scales), 1))
    case = Case(
        "fp8_block_dequant",
        [(dtype, weights.shape, weights.tobytes()), ("F32", (len(scales), 1), scales.tobytes())],
        [(target, weights.shape)],
    )
    assert case.run() == [product(VALUES[dtype][weights], scales.astype(np.float64)[:, None], target)]


@pytest.mark.parametrize("scale_dtype", ["F32", "BF16", "F16", "F8_E8M0", "U8"])
@pytest.mark.parametrize(
    ("lead", "n", "k"), [((), 576, 256), ((), 300, 130), ((), 1, 1), ((3,), 129, 257), ((2, 2), 128, 128), ((), 5, 128)]
)
def test_fp8_blocks_with_edges_and_stacked_experts(lead: tuple[int, ...], n: int, k: int, scale_dtype: str) -> None:
    rng = np.random.default_rng(n * k)
    shape = (*lead, n, k)
    grid = (*lead, -(-n // 128), -(-k // 128))
    weights = rng.choice(finite_codes("F8_E4M3"), shape)
    if scale_dtype in ("F8_E8M0", "U8"):
        scale_codes = rng.integers(100, 140, grid).astype(np.uint8)
        scales, scale_bytes = 2.0 ** (scale_codes.astype(float) - 127), scale_codes.tobytes()
    else:
        scales = to_float(rng.random(grid) + 0.01, scale_dtype)
        scale_bytes = stored(scales, scale_dtype)
    case = Case(
        "fp8_block_dequant",
        [("F8_E4M3", shape, weights.tobytes()), (scale_dtype, grid, scale_bytes)],
        [("BF16", shape)],
        block=(128, 128),
    )
    wanted = [product(VALUES["F8_E4M3"][weights], spread(scales, shape, (128, 128)), "BF16")]
    assert case.run() == wanted
    assert case.run([1]) == wanted
    assert case.converter.errors() is None


@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_cutting_into_blocks_changes_nothing(data: st.DataObject) -> None:
    lead = data.draw(st.sampled_from([(), (2,), (3,)]))
    n, k = data.draw(st.integers(1, 60)), data.draw(st.integers(1, 60))
    block = (data.draw(st.sampled_from([1, 3, 16, 128])), data.draw(st.sampled_from([1, 7, 32, 128])))
    cuts = data.draw(st.lists(st.integers(1, 20), min_size=1, max_size=4))
    rng = np.random.default_rng(data.draw(st.integers(0, 1000)))
    shape = (*lead, n, k)
    block = (min(block[0], n), min(block[1], k))
    grid = (*lead, -(-n // block[0]), -(-k // block[1]))
    weights, scales = rng.choice(finite_codes("F8_E4M3"), shape), rng.random(grid).astype(np.float32) + 0.1
    inputs = [("F8_E4M3", shape, weights.tobytes()), ("F32", grid, scales.tobytes())]
    wanted = product(VALUES["F8_E4M3"][weights], spread(scales.astype(float), shape, block), "BF16")
    plain = Case("fp8_block_dequant", inputs, [("BF16", shape)], block=block)
    assert plain.run(cuts) == [wanted]
    turned = Case("fp8_block_dequant+transpose", inputs, [("BF16", (*lead, k, n))], block=block)
    matrices = np.frombuffer(wanted, np.uint16).reshape(shape)
    assert turned.run(cuts) == [np.swapaxes(matrices, -1, -2).tobytes()]
    for chain, quant in (("int8_quant", (*lead, n, 1)), ("fp8_block_quant", (*lead, -(-n // 16), -(-k // 8)))):
        code = "I8" if chain == "int8_quant" else "F8_E4M3"
        more = {} if chain == "int8_quant" else {"quant_block": (16, 8)}
        outputs = [(code, shape), ("F32", quant)]
        whole = Case(f"fp8_block_dequant+{chain}", inputs, outputs, block=block, **more)
        cut = Case(f"fp8_block_dequant+{chain}", inputs, outputs, block=block, **more)
        assert whole.run() == cut.run(cuts)
        assert whole.converter.errors() == cut.converter.errors()


@pytest.mark.parametrize(
    ("shape", "scale_shape", "block"),
    [
        ((6, 10), (6, 1), (1, 10)),
        ((6, 10), (6,), (1, 10)),
        ((6, 10), (), (6, 10)),
        ((6, 10), (1,), (6, 10)),
        ((2, 6, 10), (2,), (6, 10)),
        ((2, 6, 10), (2, 1, 1), (6, 10)),
        ((2, 6, 10), (2, 6), (1, 10)),
        ((2, 6, 10), (1,), (6, 10)),
    ],
)
def test_scales_per_row_per_matrix_and_for_all(
    shape: tuple[int, ...], scale_shape: tuple[int, ...], block: tuple[int, int]
) -> None:
    rng = np.random.default_rng(3)
    weights = rng.choice(finite_codes("F8_E4M3"), shape)
    scales = np.asarray(rng.random(scale_shape) + 0.1, np.float32)
    case = Case(
        "fp8_block_dequant",
        [("F8_E4M3", shape, weights.tobytes()), ("F32", scale_shape, scales.tobytes())],
        [("BF16", shape)],
    )
    grid = (*shape[:-2], shape[-2] // block[0], shape[-1] // block[1])
    wide = np.broadcast_to(scales.astype(float).reshape(-1), grid) if scales.size == 1 else scales.reshape(grid)
    wanted = [product(VALUES["F8_E4M3"][weights], spread(wide.astype(float), shape, block), "BF16")]
    assert case.run([1]) == case.run() == wanted


@pytest.mark.parametrize(("block", "grid"), [((0, 4), (1, 3)), ((3, 0), (2, 1)), ((0, 0), (1, 1)), ((1, 0), (6, 1))])
def test_a_block_of_zero_is_the_whole_dimension(block: tuple[int, int], grid: tuple[int, int]) -> None:
    rng = np.random.default_rng(12)
    weights = rng.choice(finite_codes("F8_E4M3"), (6, 10))
    scales = rng.random(grid).astype(np.float32) + 0.1
    inputs = [("F8_E4M3", (6, 10), weights.tobytes()), ("F32", grid, scales.tobytes())]
    wide = spread(scales.astype(float), (6, 10), (block[0] or 6, block[1] or 10))
    wanted = product(VALUES["F8_E4M3"][weights], wide, "BF16")
    assert Case("fp8_block_dequant", inputs, [("BF16", (6, 10))], block=block).run([1]) == [wanted]


def test_fused_parts_that_were_quantised_by_themselves() -> None:
    rng = np.random.default_rng(4)
    parts, k = (300, 130, 128), 64
    weights = rng.choice(finite_codes("F8_E4M3"), (sum(parts), k))
    scales = rng.random((3 + 2 + 1, 1)).astype(np.float32) + 0.1
    case = Case(
        "fp8_block_dequant",
        [("F8_E4M3", weights.shape, weights.tobytes()), ("F32", scales.shape, scales.tobytes())],
        [("BF16", weights.shape)],
        block=(128, 128),
        segments=parts,
    )
    per_row = np.repeat(scales.reshape(-1), [128, 128, 44, 128, 2, 128]).astype(float)[:, None]
    wanted = [product(VALUES["F8_E4M3"][weights], per_row, "BF16")]
    assert case.run() == case.run([7]) == wanted
