"""Out of what is packed: FP4 with block scales, int4 and int8 in words, GPTQ and AWQ."""

from __future__ import annotations

import numpy as np
import pytest

from day0.errors import InputError
from tests.reshard.convert.reference import VALUES, Case, loaded, product, stored, to_float


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
    wanted = product(VALUES["FP4"][codes], scales.astype(float).repeat(16, axis=-1), "BF16")
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
    wanted = product(codes.astype(float) - 8, scales.repeat(group, axis=-1), "BF16")
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
    wanted = product((codes - points[:n].repeat(group, axis=1)).astype(float), scales.repeat(group, axis=1), "BF16")
    assert case.run() == case.run([5]) == [wanted]


def test_packed_and_plain_int8() -> None:
    rng = np.random.default_rng(9)
    codes = rng.integers(0, 256, (5, 30))
    scales = rng.random((5, 1)).astype(np.float32)
    padded = np.zeros((5, 32), np.uint8)
    padded[:, :30] = codes
    scale = ("F32", (5, 1), scales.tobytes())
    packed = Case("int4_dequant", [("I32", (5, 8), padded.tobytes()), scale], [("BF16", (5, 30))], bits=8)
    assert packed.run([2]) == [product(codes - 128.0, scales.astype(float), "BF16")]
    signed = (codes - 128).astype(np.int8)
    plain = Case("int8_dequant", [("I8", (5, 30), signed.tobytes()), scale], [("BF16", (5, 30))])
    assert plain.run([2]) == [product(codes - 128.0, scales.astype(float), "BF16")]


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
    assert case.run() == [product((codes - zeros).astype(float).T, scales.repeat(group, axis=0).T, "BF16")]
    if with_order:
        inputs[3] = ("I32", (k,), np.flip(np.arange(k, dtype=np.int32) // group).tobytes())
        with pytest.raises(InputError, match=r"'layer.input_3'.*desc_act"):
            Case("gptq_dequant", inputs, [("BF16", (n, k))])
    symmetric = Case("gptq_dequant", inputs[:2], [("BF16", (n, k))])
    assert symmetric.run() == [product(codes.T - 8.0, scales.repeat(group, axis=0).T, "BF16")]


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
    wanted = product((codes - points.repeat(group, axis=0)).astype(float).T, scales.repeat(group, axis=0).T, "BF16")
    assert case.run() == [wanted]
