"""Triton's interpreter with the arithmetic of devices: its own cuts digits off, and takes bfloat16 for integers."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import torch


def interpreting() -> bool:
    """Whether Triton's kernels are interpreted in this process, as Triton itself reads its environment."""
    return os.environ.get("TRITON_INTERPRET", "0").lower() in ("1", "true", "on", "yes")


def compute_as_devices_do() -> None:
    """Let the interpreter convert floats to nearest, ties to even; a NaN stays one, and FP8 saturates.

    Triton 3.9 cuts bfloat16 and FP8 off (a NaN may become infinity), and multiplies matrices of bfloat16 as the
    integers that their bits are, so that right kernels would look wrong.
    """
    from triton.runtime import interpreter

    own = interpreter._convert_float
    if getattr(own, "__module__", None) == __name__:
        return
    torch_types = {
        "fp64": torch.float64,
        "fp32": torch.float32,
        "fp16": torch.float16,
        "bf16": torch.bfloat16,
        "fp8e4nv": torch.float8_e4m3fn,
        "fp8e5": torch.float8_e5m2,
    }

    def convert(data: Any, source: Any, target: Any, rounding: Any) -> Any:
        """As `_convert_float`: the bits of what `data` is in `target`, as unsigned integers."""
        toward_zero = interpreter._ir.ROUNDING_MODE.RTZ
        if rounding == toward_zero or source.name not in torch_types or target.name not in torch_types:
            return own(data, source, target, rounding)
        bits = torch.from_numpy(np.ascontiguousarray(data).view(np.uint8))
        values = bits.view(torch_types[source.name])
        if target.primitive_bitwidth == 8:
            largest = torch.finfo(torch_types[target.name]).max
            values = values.clamp(-largest, largest)
        values = values.to(torch_types[target.name])
        unsigned = np.dtype(f"uint{target.primitive_bitwidth}")
        return values.reshape(-1).view(torch.uint8).numpy().view(unsigned).reshape(np.shape(data))

    own_dot = interpreter.InterpreterBuilder.create_dot

    def dot(builder: Any, left: Any, right: Any, total: Any, *options: Any) -> Any:
        bf16 = interpreter.tl.bfloat16
        left, right = (
            builder.cast_impl(x, interpreter.tl.float32) if x.dtype.scalar == bf16 else x for x in (left, right)
        )
        return own_dot(builder, left, right, total, *options)

    interpreter._convert_float = convert
    interpreter.InterpreterBuilder.create_dot = dot
