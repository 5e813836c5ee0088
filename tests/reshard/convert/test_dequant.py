"""Out of quantised formats: every code, many scales, edges, and errors that say where."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from day0.errors import InputError
from tests.reshard.convert.reference import VALUES, Case, loaded, stored, to_float

FP8 = ("F8_E4M3", "F8_E4M3FNUZ", "F8_E5M2", "F8_E5M2FNUZ")
FLOATS = ("BF16", "F16", "F32")


def finite_codes(dtype: str) -> np.ndarray:
    return np.flatnonzero(np.isfinite(VALUES[dtype])).astype(np.uint8)


def spread(scales: np.ndarray, shape: tuple[int, ...], block: tuple[int, int]) -> np.ndarray:
    """Each scale over its block of the last two dimensions."""
    wide = scales.repeat(block[0], axis=-2).repeat(block[1], axis=-1)
    return wide[..., : shape[-2], : shape[-1]]


def expected(values: np.ndarray, scales: np.ndarray, dtype: str) -> bytes:
    """The product in single precision, then rounded: float64 holds the product of any two of these exactly."""
    return stored(to_float(to_float(values * scales, "F32"), dtype), dtype)


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
    assert case.run() == [expected(VALUES[dtype][weights], scales.astype(np.float64)[:, None], target)]


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
    wanted = [expected(VALUES["F8_E4M3"][weights], spread(scales, shape, (128, 128)), "BF16")]
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
    wanted = expected(VALUES["F8_E4M3"][weights], spread(scales.astype(float), shape, block), "BF16")
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
    wanted = [expected(VALUES["F8_E4M3"][weights], spread(wide.astype(float), shape, block), "BF16")]
    assert case.run([1]) == case.run() == wanted


@pytest.mark.parametrize(("block", "grid"), [((0, 4), (1, 3)), ((3, 0), (2, 1)), ((0, 0), (1, 1)), ((1, 0), (6, 1))])
def test_a_block_of_zero_is_the_whole_dimension(block: tuple[int, int], grid: tuple[int, int]) -> None:
    rng = np.random.default_rng(12)
    weights = rng.choice(finite_codes("F8_E4M3"), (6, 10))
    scales = rng.random(grid).astype(np.float32) + 0.1
    inputs = [("F8_E4M3", (6, 10), weights.tobytes()), ("F32", grid, scales.tobytes())]
    wide = spread(scales.astype(float), (6, 10), (block[0] or 6, block[1] or 10))
    wanted = expected(VALUES["F8_E4M3"][weights], wide, "BF16")
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
    wanted = [expected(VALUES["F8_E4M3"][weights], per_row, "BF16")]
    assert case.run() == case.run([7]) == wanted


def nibbles(rng: np.random.Generator, shape: tuple[int, ...]) -> tuple[np.ndarray, bytes]:
    """Codes of four bits, and two of them to a byte, the first in the low half."""
    codes = rng.integers(0, 16, shape).astype(np.uint8)
    return codes, (codes[..., 0::2] + 16 * codes[..., 1::2]).astype(np.uint8).tobytes()


@pytest.mark.parametrize("target", ["BF16", "F32"])
def test_mxfp4_all_pairs_times_all_scales(target: str) -> None:
    scale_codes = np.arange(0, 253, dtype=np.uint8)  # 6 x 2^(253 - 127) is too large
    codes = np.arange(16, dtype=np.uint8)
    every = np.stack([codes.repeat(16), np.tile(codes, 16)], axis=-1).reshape(1, 512).repeat(253, axis=0)
    packed = (every[:, 0::2] + 16 * every[:, 1::2]).astype(np.uint8)
    scales = scale_codes[:, None].repeat(16, axis=1)
    case = Case(
        "mxfp4_dequant", [("U8", packed.shape, packed.tobytes()), ("U8", scales.shape, scales.tobytes())],
        [(target, every.shape)],
    )  # fmt: skip
    exact = VALUES["FP4"][every] * (2.0 ** (scale_codes.astype(float) - 127))[:, None]
    assert case.run([3]) == [stored(to_float(exact, target), target)]


@pytest.mark.parametrize(
    ("dtype", "shape", "packed", "scale_shape"),
    [
        ("U8", (6, 96), (6, 48), (6, 3)),
        ("I8", (6, 96), (6, 48), (6, 3)),
        ("U8", (3, 6, 96), (3, 6, 48), (3, 6, 3)),
        ("U8", (3, 6, 96), (3, 6, 3, 16), (3, 6, 3)),
    ],
)
def test_mxfp4_storages(
    dtype: str, shape: tuple[int, ...], packed: tuple[int, ...], scale_shape: tuple[int, ...]
) -> None:
    rng = np.random.default_rng(5)
    codes, data = nibbles(rng, shape)
    scale_codes = rng.integers(110, 140, scale_shape).astype(np.uint8)
    inputs = [(dtype, packed, data), ("F8_E8M0", scale_shape, scale_codes.tobytes())]
    exact = VALUES["FP4"][codes] * (2.0 ** (scale_codes.astype(float) - 127)).repeat(32, axis=-1)
    wanted = stored(to_float(exact, "BF16"), "BF16")
    assert Case("mxfp4_dequant", inputs, [("BF16", shape)]).run([1, 5]) == [wanted]
    turned = Case("mxfp4_dequant+transpose", inputs, [("BF16", (*shape[:-2], shape[-1], shape[-2]))])
    assert turned.run([1]) == [np.swapaxes(np.frombuffer(wanted, np.uint16).reshape(shape), -1, -2).tobytes()]


@pytest.mark.parametrize("how", ["multiply", "divide"])
@pytest.mark.parametrize(("lead", "seconds"), [((), ()), ((3,), (3,)), ((3,), (1,))])
def test_nvfp4(how: str, lead: tuple[int, ...], seconds: tuple[int, ...]) -> None:
    rng = np.random.default_rng(6)
    shape = (*lead, 7, 64)
    codes, data = nibbles(rng, shape)
    group_codes = rng.integers(0, 0x7F, (*lead, 7, 4)).astype(np.uint8)  # zero is a scale that underflowed
    second = np.asarray(rng.random(seconds) + 0.01, np.float32)
    case = Case(
        "nvfp4_dequant",
        [
            ("U8", (*lead, 7, 32), data),
            ("F8_E4M3", group_codes.shape, group_codes.tobytes()),
            ("F32", seconds, second.tobytes()),
        ],
        [("BF16", shape)],
        global_scale=how,
    )
    groups = VALUES["F8_E4M3"][group_codes].astype(np.float32)
    wide = second.reshape(-1, 1, 1) if lead else second
    scales = groups / wide if how == "divide" else groups * wide  # single precision: the first rounding
    wanted = expected(VALUES["FP4"][codes], scales.astype(float).repeat(16, axis=-1), "BF16")
    assert case.run() == case.run([2]) == [wanted]


def test_nvfp4_tells_the_two_second_scales_apart_by_name() -> None:
    inputs = [
        ("U8", (1, 8), b"\x22" * 8),
        ("F8_E4M3", (1, 1), b"\x38"),
        ("F32", (1,), np.float32(4).tobytes()),
    ]  # 1 x 1
    for ending, wanted in (("weight_scale_2", 4.0), ("weight_global_scale", 0.25)):
        names = ["w.weight", "w.weight_scale", f"w.{ending}"]
        [out] = Case("nvfp4_dequant", inputs, [("BF16", (1, 16))], names=names).run()
        assert loaded(out, "BF16").tolist() == [wanted] * 16


@pytest.mark.parametrize("scale_dtype", ["BF16", "F16", "F32"])
@pytest.mark.parametrize(
    ("shape", "group"), [((9, 64), 32), ((9, 61), 61), ((9, 64), 64), ((2, 5, 128), 32), ((9, 36), 12)]
)
def test_int4_packed_along_the_rows(shape: tuple[int, ...], group: int, scale_dtype: str) -> None:
    rng = np.random.default_rng(7)
    *lead, n, k = shape
    codes = rng.integers(0, 16, shape).astype(np.uint32)
    words = -(-k // 8)
    padded = np.zeros((*lead, n, words * 8), np.uint32)
    padded[..., :k] = codes
    packed = sum(padded[..., place::8] << np.uint32(4 * place) for place in range(8))
    scales = to_float(rng.random((*lead, n, k // group)) - 0.5, scale_dtype)  # some quantisers write negative ones
    case = Case(
        "int4_dequant",
        [
            ("I32", (*lead, n, words), packed.tobytes()),
            (scale_dtype, scales.shape, stored(scales, scale_dtype)),
            ("I32", (len(shape),), np.array(shape, np.int32).tobytes()),
        ],
        [("BF16", shape)],
        roles=("scale", "shape"),
        group_size=group,
    )
    wanted = expected(codes.astype(float) - 8, scales.repeat(group, axis=-1), "BF16")
    assert case.run() == case.run([1]) == [wanted]


@pytest.mark.parametrize("bits", [4, 8])
def test_packed_with_zero_points(bits: int) -> None:
    rng = np.random.default_rng(8)
    n, k, group, per_word = 21, 64, 16, 32 // bits
    codes, points = rng.integers(0, 2**bits, (n, k)), rng.integers(0, 2**bits, (24, k // group))
    places = [(place, np.uint32(bits * place)) for place in range(per_word)]
    packed = sum(codes[:, place::per_word].astype(np.uint32) << shift for place, shift in places)
    packed_points = sum(points[place::per_word].astype(np.uint32) << shift for place, shift in places)
    scales = to_float(rng.random((n, k // group)), "BF16")
    case = Case(
        "int4_dequant",
        [
            ("I32", packed.shape, packed.tobytes()),
            ("BF16", scales.shape, stored(scales, "BF16")),
            ("I32", packed_points.shape, packed_points.tobytes()),
        ],
        [("BF16", (n, k))],
        bits=bits,
    )
    wanted = expected((codes - points[:n].repeat(group, axis=1)).astype(float), scales.repeat(group, axis=1), "BF16")
    assert case.run() == case.run([5]) == [wanted]


def test_packed_and_plain_int8() -> None:
    rng = np.random.default_rng(9)
    codes = rng.integers(0, 256, (5, 30))
    scales = rng.random((5, 1)).astype(np.float32)
    padded = np.zeros((5, 32), np.uint8)
    padded[:, :30] = codes
    scale = ("F32", (5, 1), scales.tobytes())
    packed = Case("int4_dequant", [("I32", (5, 8), padded.tobytes()), scale], [("BF16", (5, 30))], bits=8)
    assert packed.run([2]) == [expected(codes - 128.0, scales.astype(float), "BF16")]
    signed = (codes - 128).astype(np.int8)
    plain = Case("int8_dequant", [("I8", (5, 30), signed.tobytes()), scale], [("BF16", (5, 30))])
    assert plain.run([2]) == [expected(codes - 128.0, scales.astype(float), "BF16")]


@pytest.mark.parametrize(("zero_offset", "with_order"), [(1, False), (0, True)])
def test_gptq(zero_offset: int, with_order: bool) -> None:
    rng = np.random.default_rng(10)
    k, n, group = 64, 24, 16
    codes, points = rng.integers(0, 16, (k, n)), rng.integers(0, 15, (k // group, n))
    qweight = sum(codes[place::8].astype(np.uint32) << np.uint32(4 * place) for place in range(8))
    qzeros = sum(points[:, place::8].astype(np.uint32) << np.uint32(4 * place) for place in range(8))
    scales = to_float(rng.random((k // group, n)), "F16")
    inputs = [
        ("I32", qweight.shape, qweight.tobytes()),
        ("F16", scales.shape, stored(scales, "F16")),
        ("I32", qzeros.shape, qzeros.tobytes()),
    ]
    if with_order:
        inputs.append(("I32", (k,), (np.arange(k, dtype=np.int32) // group).tobytes()))
    case = Case("gptq_dequant", inputs, [("BF16", (n, k))], zero_offset=zero_offset)
    zeros = (points + zero_offset).repeat(group, axis=0)
    assert case.run() == [expected((codes - zeros).astype(float).T, scales.repeat(group, axis=0).T, "BF16")]
    if with_order:
        inputs[3] = ("I32", (k,), np.flip(np.arange(k, dtype=np.int32) // group).tobytes())
        with pytest.raises(InputError, match=r"'layer.input_3'.*desc_act"):
            Case("gptq_dequant", inputs, [("BF16", (n, k))])
    symmetric = Case("gptq_dequant", inputs[:2], [("BF16", (n, k))])
    assert symmetric.run() == [expected(codes.T - 8.0, scales.repeat(group, axis=0).T, "BF16")]


def test_awq() -> None:
    rng = np.random.default_rng(11)
    k, n, group = 32, 24, 16
    order = (0, 2, 4, 6, 1, 3, 5, 7)
    codes, points = rng.integers(0, 16, (k, n)), rng.integers(0, 16, (k // group, n))

    def pack(values: np.ndarray) -> np.ndarray:
        return sum(values[:, order[place] :: 8].astype(np.uint32) << np.uint32(4 * place) for place in range(8))

    scales = to_float(rng.random((k // group, n)), "F16")
    case = Case(
        "awq_dequant",
        [
            ("I32", (k, n // 8), pack(codes).tobytes()),
            ("F16", scales.shape, stored(scales, "F16")),
            ("I32", (k // group, n // 8), pack(points).tobytes()),
        ],
        [("BF16", (n, k))],
    )
    wanted = expected((codes - points.repeat(group, axis=0)).astype(float).T, scales.repeat(group, axis=0).T, "BF16")
    assert case.run() == [wanted]


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
