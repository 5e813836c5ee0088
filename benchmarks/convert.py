"""Conversions: gigabytes of input per second of one core, beside memcpy and torch's own way, in one interleaved run.

    python -m benchmarks.convert [--runs 7] [--megabytes 64] [--without-torch]

Each conversion works on a weight of random codes, in blocks of 8 MiB as the resharder reads them, on one thread. The
processor time of that thread is counted (so that other programs on the machine do not count), the median of runs that
take turns. Compilation is not counted: it is paid once per machine. Torch's way is the usual one with whole
tensors, on one thread too: codes to float32, times the scales (spread over their blocks), to bfloat16. Prints a table;
the exit code is 1 where a limit is missed.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from day0.safetensors_header import DTYPE_BITS, TensorInfo
from tasks.reshard.convert.registry import make_converter, parameters
from tasks.reshard.writes import Conversion

BLOCK = 8 << 20
COLUMNS = 7168
FP4 = [0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6]


@dataclass
class Entry:
    """One line of the table. `limit` is in GB/s of input, None where the time is only reported."""

    name: str
    nbytes: int
    work: Callable[[], object]
    limit: float | None = None
    torch: Callable[[], object] | None = None
    seconds: list[float] = field(default_factory=list)
    torch_seconds: list[float] = field(default_factory=list)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=7)
    parser.add_argument("--megabytes", type=float, default=64, help="of each conversion's input")
    parser.add_argument("--without-torch", action="store_true")
    args = parser.parse_args()
    entries = make_entries(args.megabytes * 1e6, not args.without_torch)
    for entry in entries:
        entry.work()  # compiles, and touches the memory
        if entry.torch:
            entry.torch()
    for _ in range(args.runs):
        for entry in entries:
            entry.seconds.append(timed(entry.work))
            if entry.torch:
                entry.torch_seconds.append(timed(entry.torch))
    print(f"one thread, processor time, median of {args.runs} interleaved runs; load {os.getloadavg()[0]:.1f}")
    print(f"{'conversion':44} {'GB/s':>6} {'limit':>6} {'':6} {'torch':>6} {'times':>6}")
    missed = False
    for entry in entries:
        speed = entry.nbytes / statistics.median(entry.seconds) / 1e9
        verdict = "" if entry.limit is None else "met" if speed >= entry.limit else "MISSED"
        missed |= verdict == "MISSED"
        line = f"{entry.name:44} {speed:6.2f} {'' if entry.limit is None else entry.limit:>6} {verdict:6}"
        if entry.torch:
            other = entry.nbytes / statistics.median(entry.torch_seconds) / 1e9
            line += f" {other:6.2f} {speed / other:6.1f}"
        print(line.rstrip())
    sys.exit(int(missed))


def timed(work: Callable[[], object]) -> float:
    start = time.thread_time()
    work()
    return time.thread_time() - start


def make_entries(nbytes: float, with_torch: bool) -> list[Entry]:
    rng = np.random.default_rng(0)
    rows = max(128, int(nbytes / COLUMNS) // 128 * 128)
    half = rows // 2
    codes = rng.integers(0, 0x7F, (rows, COLUMNS), dtype=np.uint8)
    packed = rng.integers(0, 256, (rows, COLUMNS), dtype=np.uint8)  # two values a byte: rows of 2 x COLUMNS
    shape = (rows, 2 * COLUMNS)
    scales = rng.random((rows // 128, COLUMNS // 128), dtype=np.float32) + np.float32(0.1)
    groups = rng.integers(110, 130, (rows, 2 * COLUMNS // 32), dtype=np.uint8)
    groups16 = rng.integers(1, 0x7F, (rows, 2 * COLUMNS // 16), dtype=np.uint8)
    group_scales = (rng.random((rows, 2 * COLUMNS // 32), dtype=np.float32) + 1).view(np.uint32) >> 16
    weights = (rng.standard_normal((half, COLUMNS), dtype=np.float32).view(np.uint32) >> 16).astype(np.uint16)
    scale_bf16 = group_scales.astype(np.uint16)
    copy = np.empty_like(codes)
    torch_ways = torch_way(codes, scales, packed, groups, scale_bf16, weights) if with_torch else {}
    fp8, bf16 = ("F8_E4M3", codes), ("BF16", weights)
    f32_scales, mx = ("F32", scales), ("U8", packed)
    block_grid = (-(-half // 128), COLUMNS // 128)
    entries = [
        Entry("memcpy", codes.nbytes, lambda: np.copyto(copy, codes)),
        make("fp8_block_dequant", [fp8, f32_scales], [("BF16", codes.shape)], 1.0, block=(128, 128)),
        make("mxfp4_dequant", [mx, ("U8", groups)], [("BF16", shape)], 0.4),
        make("nvfp4_dequant", [mx, ("F8_E4M3", groups16), ("F32", np.float32([0.01]))], [("BF16", shape)]),
        make(
            "int4_dequant", [("I32", packed.view(np.int32)), ("BF16", scale_bf16)], [("BF16", shape)], 0.4,
            group_size=32,
        ),
        make("int8_quant", [bf16], [("I8", weights.shape), ("F32", (half, 1))]),
        make("fp8_block_quant", [bf16], [("F8_E4M3", weights.shape), ("F32", block_grid)]),
        make(
            "fp8_block_dequant+int8_quant", [fp8, f32_scales], [("I8", codes.shape), ("F32", (rows, 1))],
            block=(128, 128),
        ),
        make(
            "mxfp4_dequant+fp8_block_quant", [mx, ("U8", groups)],
            [("F8_E4M3", shape), ("F32", (rows // 128, 2 * COLUMNS // 128))],
        ),
        make("fp8_block_dequant+transpose", [fp8, f32_scales], [("BF16", codes.shape[::-1])], block=(128, 128)),
        make("transpose", [bf16], [("BF16", weights.shape[::-1])]),
        make("cast", [bf16], [("F32", weights.shape)]),
        make("fp8_fn_to_fnuz", [fp8], [("F8_E4M3FNUZ", codes.shape)]),
    ]  # fmt: skip
    for entry in entries:
        entry.torch = torch_ways.get(entry.name)
    return entries


def make(
    name: str,
    inputs: list[tuple[str, np.ndarray]],
    outputs: list[tuple[str, tuple[int, ...]]],
    limit: float | None = None,
    **given: Any,
) -> Entry:
    data = [memoryview(array.reshape(-1).view(np.uint8)) for _, array in inputs]
    infos = tuple(
        TensorInfo(f"input {i}", dtype, array.shape, "-", 0, array.size * DTYPE_BITS[dtype] // 8)
        for i, (dtype, array) in enumerate(inputs)
    )
    conversion = Conversion(name, tuple(outputs), parameters(**given))

    def work() -> None:
        converter = make_converter(conversion, infos, lambda i, begin, end: data[i][begin:end])
        size = max(converter.unit, BLOCK // converter.unit * converter.unit)
        for begin in range(0, len(data[0]), size):
            converter.convert(begin, data[0][begin : begin + size])

    return Entry(name, len(data[0]), work, limit)


def torch_way(
    codes: np.ndarray,
    scales: np.ndarray,
    packed: np.ndarray,
    groups: np.ndarray,
    group_scales: np.ndarray,
    weights: np.ndarray,
) -> dict[str, Callable[[], object]]:
    """The usual ways in torch, by conversion."""
    import torch

    torch.set_num_threads(1)
    fp8 = torch.from_numpy(codes).view(torch.float8_e4m3fn)
    block_scales = torch.from_numpy(scales)
    pairs = torch.from_numpy(packed)
    exponents = torch.from_numpy(groups)
    int4_scales = torch.from_numpy(group_scales).view(torch.bfloat16)
    bf16 = torch.from_numpy(weights).view(torch.bfloat16)
    table = torch.tensor(FP4, dtype=torch.bfloat16)
    rows, columns = codes.shape

    def dequantise() -> torch.Tensor:
        wide = block_scales.repeat_interleave(128, 0).repeat_interleave(128, 1)
        return (fp8.float() * wide).bfloat16()

    def mxfp4() -> torch.Tensor:
        values = torch.stack([table[(pairs & 15).int()], table[(pairs >> 4).int()]], -1).view(rows, -1, 32)
        return torch.ldexp(values, exponents.int().unsqueeze(-1) - 127).bfloat16().view(rows, 2 * columns)

    def int4() -> torch.Tensor:
        values = torch.stack([pairs & 15, pairs >> 4], -1).view(rows, -1, 32).bfloat16() - 8
        return (values * int4_scales.unsqueeze(-1)).view(rows, 2 * columns)

    def int8() -> tuple[torch.Tensor, torch.Tensor]:
        values = bf16.float()
        scale = values.abs().amax(1, keepdim=True) / 127
        return (values / scale).round().to(torch.int8), scale

    def fp8_blocks() -> tuple[torch.Tensor, torch.Tensor]:
        n = len(bf16) // 128 * 128
        values = bf16[:n].float().view(n // 128, 128, columns // 128, 128)
        scale = values.abs().amax((1, 3)) / 448
        return (values / scale[:, None, :, None]).to(torch.float8_e4m3fn).view(n, columns), scale

    return {
        "fp8_block_dequant": dequantise,
        "fp8_block_dequant+transpose": lambda: dequantise().T.contiguous(),
        "mxfp4_dequant": mxfp4,
        "int4_dequant": int4,
        "int8_quant": int8,
        "fp8_block_quant": fp8_blocks,
        "transpose": lambda: bf16.T.contiguous(),
        "cast": lambda: bf16.float(),
    }


if __name__ == "__main__":
    main()
