"""Casts, transposition, e8m0 scales, and FP8 between its two dialects."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from day0.errors import InputError
from tests.reshard.convert.reference import VALUES, Case, loaded, stored, to_float

FLOATS = ("BF16", "F16", "F32")


@pytest.mark.parametrize("target", FLOATS)
@pytest.mark.parametrize("source", FLOATS)
def test_casts_round_to_nearest_even(source: str, target: str) -> None:
    bits = np.arange(65536, dtype=np.uint32)
    if source == "F32":  # each BF16, its neighbours in F32, and the middle between it and the next
        every = (bits[:, None] * 65536 + np.array([0, 1, 0x7FFF, 0x8000, 0x8001, 0xFFFF], np.uint32)).reshape(-1)
        data = every.astype(np.uint32).tobytes()
    else:
        data = bits.astype(np.uint16).tobytes()
    values = loaded(data, source)
    small = np.isfinite(values) & (np.abs(values) < (65504 if target == "F16" else 3e38))
    data = np.frombuffer(data, np.uint8).reshape(len(values), -1)[small].tobytes()
    count = int(small.sum())
    case = Case("cast", [(source, (count,), data)], [(target, (count,))])
    wanted = [stored(to_float(values[small], target), target)]
    assert case.run() == wanted
    assert case.run([7001]) == wanted
    assert case.converter.errors() is None


@pytest.mark.parametrize("source", FLOATS)
@pytest.mark.parametrize("target", FLOATS)
def test_infinity_and_nan_stay_what_they_are(source: str, target: str) -> None:
    values = np.array([np.inf, -np.inf, np.nan, 1.0])
    [out] = Case("cast", [(source, (4,), stored(values, source))], [(target, (4,))]).run()
    np.testing.assert_array_equal(loaded(out, target), values)


def test_a_nan_whose_payload_would_be_rounded_away_stays_nan() -> None:
    data = np.array([0x7F800001, 0xFFFFFFFF], np.uint32).tobytes()
    [out] = Case("cast", [("F32", (2,), data)], [("BF16", (2,))]).run()
    assert np.isnan(loaded(out, "BF16")).all()


@pytest.mark.parametrize(
    ("source", "target", "value"), [("BF16", "F16", 65536.0), ("F32", "F16", -65520.0), ("F32", "BF16", 3.4e38)]
)
def test_overflow_names_tensor_and_place(source: str, target: str, value: float) -> None:
    values = to_float(np.full((3, 4), 2.0), source)
    values[2, 1] = to_float(np.array(value), source)
    case = Case("cast", [(source, (3, 4), stored(values, source))], [(target, (3, 4))])
    with pytest.raises(InputError, match=rf"'layer.weight'.*\[2, 1\] is too large for {target}"):
        case.run([1])


def test_scalars_and_tensors_without_elements_are_cast() -> None:
    assert Case("cast", [("F32", (), np.float32(1.5).tobytes())], [("BF16", ())]).run() == [b"\xc0\x3f"]
    assert Case("cast", [("F32", (0, 4), b"")], [("BF16", (0, 4))]).run() == [b""]


@settings(max_examples=40, deadline=None)
@given(
    st.integers(1, 4),
    st.integers(1, 300),
    st.integers(1, 300),
    st.sampled_from(["U8", "BF16", "F32", "I64"]),
    st.integers(1, 3),
)
def test_transpose(e: int, a: int, b: int, dtype: str, cut: int) -> None:
    kind = {"U8": np.uint8, "BF16": np.uint16, "F32": np.uint32, "I64": np.uint64}[dtype]
    values = np.random.default_rng(a * b).integers(0, 255, (e, a, b)).astype(kind)
    case = Case("transpose", [(dtype, (e, a, b), values.tobytes())], [(dtype, (e, b, a))])
    assert case.converter.unit == a * b * kind().itemsize
    assert case.run([cut]) == case.run() == [values.transpose(0, 2, 1).tobytes()]


def test_cast_and_transpose_at_once() -> None:
    values = to_float(np.random.default_rng(0).standard_normal((2, 300, 500)), "F32")
    case = Case("cast+transpose", [("F32", values.shape, stored(values, "F32"))], [("BF16", (2, 500, 300))])
    assert case.run([1]) == [stored(to_float(values.transpose(0, 2, 1), "BF16"), "BF16")]


@pytest.mark.parametrize("dtype", ["F8_E8M0", "U8"])
@pytest.mark.parametrize("target", ["F32", "BF16"])
def test_e8m0_is_a_power_of_two(dtype: str, target: str) -> None:
    codes = np.array([120, 127, 113, 0, 1, 254], np.uint8)
    case = Case("e8m0_decode", [(dtype, (2, 3), codes.tobytes())], [(target, (2, 3))])
    [out] = case.run([4])
    assert loaded(out, target).tolist() == [2**-7, 1, 2**-14, 2**-127, 2**-126, 2**127]
    every = np.arange(255, dtype=np.uint8)
    [out] = Case("e8m0_decode", [(dtype, (255,), every.tobytes())], [(target, (255,))]).run()
    assert loaded(out, target).tolist() == [2.0 ** (code - 127) for code in range(255)]


def test_e8m0_nan_is_named() -> None:
    case = Case("e8m0_decode", [("F8_E8M0", (2, 2), bytes([1, 2, 3, 255]))], [("F32", (2, 2))])
    with pytest.raises(InputError, match=r"\[1, 1\] is nan"):
        case.run([1])


@pytest.mark.parametrize("source", FLOATS)
def test_the_negative_exponential_is_rounded_once(source: str) -> None:
    values = np.linspace(-20, 20, 801)
    data = stored(values, source)
    exact = -np.exp(to_float(loaded(data, source), "F32").astype(np.float64))
    case = Case("negative_exp", [(source, (801,), data)], [("F32", (801,))])
    assert case.run() == case.run([100]) == [stored(exact.astype(np.float32), "F32")]


def test_a_negative_exponential_that_overflows_is_named() -> None:
    case = Case("negative_exp", [("F32", (2, 2), stored(np.array([0.0, 1, 2, 1000]), "F32"))], [("F32", (2, 2))])
    with pytest.raises(InputError, match=r"-exp of the value at \[1, 1\] is no F32"):
        case.run()


def test_fp8_to_fnuz_and_its_scale_mean_the_same() -> None:
    codes = np.array([code for code in range(256) if code % 128 != 127], np.uint8)
    [out] = Case("fp8_fn_to_fnuz", [("F8_E4M3", (254,), codes.tobytes())], [("F8_E4M3FNUZ", (254,))]).run([100])
    scales = np.array([1.0, 0.3, 2.0**-149, 1e38], np.float32)
    [doubled] = Case("fp8_scale_fn_to_fnuz", [("F32", (4,), scales.tobytes())], [("F32", (4,))]).run([3])
    for scale, twice in zip(scales.astype(float), loaded(doubled, "F32"), strict=True):
        np.testing.assert_array_equal(VALUES["F8_E4M3"][codes] * scale, loaded(out, "F8_E4M3FNUZ") * twice)
    [back] = Case("fp8_fnuz_to_fn", [("F8_E4M3FNUZ", (254,), out)], [("F8_E4M3", (254,))]).run([9])
    np.testing.assert_array_equal(loaded(back, "F8_E4M3"), VALUES["F8_E4M3"][codes])
    [halved] = Case("fp8_scale_fnuz_to_fn", [("F32", (4,), doubled)], [("F32", (4,))]).run()
    assert halved == scales.tobytes()


@pytest.mark.parametrize(("name", "source", "code", "words"), [
    ("fp8_fn_to_fnuz", "F8_E4M3", 0x7F, "is NaN"),
    ("fp8_fn_to_fnuz", "F8_E4M3", 0xFF, "is NaN"),
    ("fp8_fnuz_to_fn", "F8_E4M3FNUZ", 0x80, "is NaN"),
    ("fp8_fnuz_to_fn", "F8_E4M3FNUZ", 0x7F, "240"),
    ("fp8_fnuz_to_fn", "F8_E4M3FNUZ", 0xFF, "240"),
])  # fmt: skip
def test_codes_without_a_counterpart_are_named(name: str, source: str, code: int, words: str) -> None:
    target = "F8_E4M3FNUZ" if source == "F8_E4M3" else "F8_E4M3"
    case = Case(name, [(source, (2, 3), bytes([1, 2, 3, 4, code, 6]))], [(target, (2, 3))])
    with pytest.raises(InputError, match=rf"'layer.weight'.*\[1, 1\] {words}|{words}"):
        case.run([2])


@pytest.mark.parametrize("dtype", ["F8_E8M0", "U8", "BF16", "F16"])
def test_scales_of_other_dtypes_double_and_halve(dtype: str) -> None:
    values = np.array([0.5, 1.0, 2.0**-14])
    data = (np.log2(values) + 127).astype(np.uint8).tobytes() if dtype in ("F8_E8M0", "U8") else stored(values, dtype)
    [out] = Case("fp8_scale_fn_to_fnuz", [(dtype, (3,), data)], [(dtype, (3,))]).run()
    found = 2.0 ** (np.frombuffer(out, np.uint8).astype(float) - 127) if len(out) == 3 else loaded(out, dtype)
    assert found.tolist() == (values * 2).tolist()
    assert Case("fp8_scale_fnuz_to_fn", [(dtype, (3,), out)], [(dtype, (3,))]).run() == [data]


@pytest.mark.parametrize(("name", "dtype", "data"), [
    ("fp8_scale_fn_to_fnuz", "F32", np.float32(3e38).tobytes()),
    ("fp8_scale_fn_to_fnuz", "U8", bytes([254])),
    ("fp8_scale_fnuz_to_fn", "U8", bytes([0])),
    ("fp8_scale_fnuz_to_fn", "F32", np.float32(2.0**-149).tobytes()),
    ("fp8_scale_fnuz_to_fn", "F16", np.float16(2.0**-24).tobytes()),
    ("fp8_scale_fnuz_to_fn", "BF16", b"\x01\x00"),
])  # fmt: skip
def test_scales_that_would_change_are_refused(name: str, dtype: str, data: bytes) -> None:
    with pytest.raises(InputError, match=rf"'layer.weight'.*is no {dtype}"):
        Case(name, [(dtype, (1,), data)], [(dtype, (1,))]).run()
