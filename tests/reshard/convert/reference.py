"""An independent reference: number formats by their definitions in Python's own arithmetic; and running conversions.

Nothing here shares code or tricks with what it checks: values are made by powers of two, rounding is done on multiples
of the last place.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from day0.safetensors_header import DTYPE_BITS, TensorInfo
from tasks.reshard.convert.registry import Converter, make_converter, parameters
from tasks.reshard.writes import Conversion

FORMATS = {  # exponent bits, mantissa bits, bias
    "F8_E4M3": (4, 3, 7),
    "F8_E4M3FNUZ": (4, 3, 8),
    "F8_E5M2": (5, 2, 15),
    "F8_E5M2FNUZ": (5, 2, 16),
    "FP4": (2, 1, 1),
}


def value(code: int, name: str) -> float:
    """The number that a code stands for, by the format's definition; NaN and infinity where it says so."""
    exponent_bits, mantissa_bits, bias = FORMATS[name]
    mantissa = code % 2**mantissa_bits
    exponent = code // 2**mantissa_bits % 2**exponent_bits
    negative = code >= 2 ** (mantissa_bits + exponent_bits)
    if name == "F8_E4M3" and exponent == 15 and mantissa == 7:
        return math.nan
    if name == "F8_E5M2" and exponent == 31:
        return math.nan if mantissa else (-math.inf if negative else math.inf)
    if name.endswith("FNUZ") and code == 0x80:
        return math.nan
    if exponent == 0:
        magnitude = mantissa * 2.0 ** (1 - bias - mantissa_bits)
    else:
        magnitude = (2**mantissa_bits + mantissa) * 2.0 ** (exponent - bias - mantissa_bits)
    return -magnitude if negative else magnitude


VALUES = {name: np.array([value(code, name) for code in range(2 ** (1 + sum(FORMATS[name][:2])))]) for name in FORMATS}


def to_float(values: np.ndarray, dtype: str) -> np.ndarray:
    """float64 rounded to nearest, ties to even, onto F32, F16 or BF16; still float64."""
    digits, lowest, largest = {
        "F32": (24, -149, (2 - 2**-23) * 2.0**127),
        "F16": (11, -24, 65504.0),
        "BF16": (8, -133, (2 - 2**-7) * 2.0**127),
    }[dtype]
    with np.errstate(invalid="ignore", over="ignore"):
        _, exponent = np.frexp(values)
        place = np.maximum(exponent - digits, lowest)
        rounded = np.ldexp(np.rint(np.ldexp(values, -place)), place)
        return np.where(np.abs(rounded) > largest, np.copysign(np.inf, values), rounded)


def stored(values: np.ndarray, dtype: str) -> bytes:
    """Values that are numbers of `dtype` already, as its bytes."""
    if dtype == "BF16":
        return (values.astype(np.float32).view(np.uint32) // 65536).astype(np.uint16).tobytes()
    return values.astype({"F32": np.float32, "F16": np.float16, "I8": np.int8}[dtype]).tobytes()


def product(values: np.ndarray, scales: np.ndarray, dtype: str) -> bytes:
    """The product in single precision, then rounded: float64 holds the product of any two of these exactly."""
    return stored(to_float(to_float(values * scales, "F32"), dtype), dtype)


def loaded(data: bytes, dtype: str) -> np.ndarray:
    """float64 from bytes of F32, F16, BF16, I8 or an FP8."""
    if dtype in FORMATS:
        return VALUES[dtype][np.frombuffer(data, np.uint8)]
    with np.errstate(invalid="ignore"):  # signalling NaN
        if dtype == "BF16":
            return (np.frombuffer(data, np.uint16).astype(np.uint32) * 65536).view(np.float32).astype(np.float64)
        return np.frombuffer(data, {"F32": np.float32, "F16": np.float16, "I8": np.int8}[dtype]).astype(np.float64)


def tensor(name: str, dtype: str, shape: tuple[int, ...]) -> TensorInfo:
    return TensorInfo(name, dtype, shape, "model.safetensors", 100, 100 + math.prod(shape) * DTYPE_BITS[dtype] // 8)


class Case:
    """A conversion with its inputs' bytes: `run` cuts the first input into blocks and puts the outputs together."""

    def __init__(
        self,
        name: str,
        inputs: list[tuple[str, tuple[int, ...], bytes]],
        outputs: list[tuple[str, tuple[int, ...]]],
        **given: Any,
    ) -> None:
        names = ["layer.weight", *(f"layer.input_{number}" for number in range(1, len(inputs)))]
        names = given.pop("names", names)
        self.inputs = tuple(tensor(n, dtype, shape) for n, (dtype, shape, _) in zip(names, inputs, strict=True))
        self.data = [data for _, _, data in inputs]
        for info, data in zip(self.inputs, self.data, strict=True):
            assert info.nbytes == len(data), (info, len(data))
        self.conversion = Conversion(name, tuple(outputs), parameters(**given))
        self.converter: Converter = make_converter(self.conversion, self.inputs, self.read)

    def read(self, number: int, begin: int, end: int) -> memoryview:
        assert number >= 1
        assert 0 <= begin <= end <= len(self.data[number])
        return memoryview(self.data[number])[begin:end]

    def run(self, cuts: list[int] | None = None) -> list[bytes]:
        """The outputs' bytes; `cuts` are block sizes in units, taken in turn, and blocks are done last to first."""
        unit, data = self.converter.unit, self.data[0]
        blocks, begin, turn = [], 0, 0
        while begin < len(data):
            size = unit * cuts[turn % len(cuts)] if cuts else len(data)
            blocks.append((begin, min(len(data), begin + size)))
            begin, turn = begin + size, turn + 1
        outputs = [bytearray(math.prod(s) * DTYPE_BITS[d] // 8) for d, s in self.conversion.outputs]
        written = [0] * len(outputs)
        for begin, end in reversed(blocks):
            for number, offset, part in self.converter.convert(begin, memoryview(data)[begin:end]):
                assert offset + part.nbytes <= len(outputs[number])
                outputs[number][offset : offset + part.nbytes] = part
                written[number] += part.nbytes
        assert written == [len(output) for output in outputs]
        return [bytes(output) for output in outputs]
