"""What Triton makes of our kernels for a GPU that is not here: the functions that a call would launch, compiled for it.

Calls get tensors without memory, so sizes are those of the benchmark; each function is compiled as Triton's launcher
would, with the same specialisation on values that are 1 and that 16 divides, and its machine code is counted.
"""

from __future__ import annotations

import re
import subprocess
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
import triton
from torch._subclasses.fake_tensor import FakeTensorMode
from triton import knobs
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from triton.runtime.jit import JITFunction

from tasks.kernels.definition import KernelDefinition
from tasks.kernels.modules import load_module

#: An H200: multiprocessors, and of each registers, threads, blocks, and shared memory: a block's takes 1 KiB more.
PROCESSORS, REGISTERS, THREADS, BLOCKS, SHARED, RESERVED = 132, 65536, 2048, 32, 233472, 1024
MOST_SHARED = SHARED - RESERVED
_TARGET = GPUTarget("cuda", 90, 32)
_DEVICE = {"has_native_fp8": True, "shared_memory": MOST_SHARED, "_processors": PROCESSORS}
_TYPES = {
    torch.bfloat16: "*bf16",
    torch.float32: "*fp32",
    torch.float8_e4m3fn: "*fp8e4nv",
    torch.int32: "*i32",
    torch.int64: "*i64",
}
_ACCESS = re.compile(r"\s(LDGSTS|LDG|STG|LDL|STL)((?:\.[A-Z0-9_]+)*)\s")


@dataclass(frozen=True)
class Function:
    """A compiled function, and how it is launched. `accesses`: instructions by name and bits, `LDG128` for one."""

    name: str
    grid: tuple[int, ...]
    threads: int
    registers: int
    stack: int
    shared: int
    accesses: Counter[str]
    ptx: str

    @property
    def resident(self) -> int:
        """Blocks that a multiprocessor holds at once."""
        registers = -(-self.registers // 8) * 8 * self.threads
        return min(BLOCKS, THREADS // self.threads, REGISTERS // registers, SHARED // (self.shared + RESERVED))

    def count(self, *names: str) -> int:
        return sum(number for name, number in self.accesses.items() if name in names)

    @property
    def narrow(self) -> int:
        """Accesses of global memory by less than 16 bytes a thread."""
        return sum(n for name, n in self.accesses.items() if name[:3] in ("LDG", "STG") and not name.endswith("128"))


def functions_of(
    definition: KernelDefinition,
    case: dict[str, Any],
    patch: pytest.MonkeyPatch,
    folder: Path,
    dtype: torch.dtype = torch.bfloat16,
) -> list[Function]:
    """What a call with this case's arguments launches, in order."""
    launched: list[tuple[JITFunction[Any], tuple[Any, ...], dict[str, Any]]] = []
    module = load_module(definition.folder / "triton" / "kernel.py")
    for name, value in _DEVICE.items():
        if hasattr(module, name):
            patch.setattr(module, name, lambda device, value=value: value)

    def note(function: JITFunction[Any], *args: Any, **keywords: Any) -> None:
        launched.append((function, args, keywords))

    patch.setattr(JITFunction, "run", note)
    with FakeTensorMode(allow_non_fake_inputs=True):
        module.run(*definition.make(case, dtype, torch.Generator().manual_seed(0), "cpu"))
    return [_compiled(function, args, dict(keywords), folder) for function, args, keywords in launched]


def _compiled(function: JITFunction[Any], args: tuple[Any, ...], keywords: dict[str, Any], folder: Path) -> Function:
    grid = keywords.pop("grid")
    keywords.pop("warmup", None)
    backend = triton.compiler.make_backend(_TARGET)
    constants = {name: value for name, value in keywords.items() if name in function.arg_names}
    options = {name: value for name, value in keywords.items() if name not in constants}
    signature, attributes = {}, {}
    for place, (parameter, value) in enumerate(zip(function.params, args, strict=False)):
        fixed, divisible = parameter.do_not_specialize, isinstance(value, torch.Tensor)
        if isinstance(value, torch.Tensor):
            signature[parameter.name] = _TYPES[value.dtype]
        elif value is None or (value == 1 and isinstance(value, int) and not fixed):
            constants[parameter.name] = value
        else:
            signature[parameter.name] = "fp32" if isinstance(value, float) else "i32" if value < 2**31 else "i64"
            divisible = isinstance(value, int) and value % 16 == 0 and not fixed
        if divisible:
            attributes[(place,)] = backend.parse_attr("D")
    signature = {name: signature.get(name, "constexpr") for name in function.arg_names}
    source = ASTSource(function, signature, constants, attributes)
    made = triton.compile(source, target=_TARGET, options=options)
    cubin = folder / "function.cubin"
    cubin.write_bytes(made.asm["cubin"])
    code = _run(knobs.nvidia.nvdisasm.path, "-c", str(cubin))
    used = _run(knobs.nvidia.cuobjdump.path, "-res-usage", str(cubin))
    numbers = {name: int(re.findall(rf"{name}:(\d+)", used)[-1]) for name in ("REG", "STACK")}
    return Function(
        name=function.__name__,
        grid=tuple(grid),
        threads=32 * made.metadata.num_warps,
        registers=numbers["REG"],
        stack=numbers["STACK"],
        shared=made.metadata.shared,
        accesses=Counter(f"{name}{_bits(suffixes)}" for name, suffixes in _ACCESS.findall(code)),
        ptx=made.asm["ptx"],
    )


def _bits(suffixes: str) -> int:
    widths = {"U8": 8, "S8": 8, "U16": 16, "S16": 16, "64": 64, "128": 128}
    return next((widths[one] for one in suffixes.split(".") if one in widths), 32)


def _run(*command: str) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout
