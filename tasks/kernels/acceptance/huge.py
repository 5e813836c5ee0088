"""Tensors of more than 2^31 elements, where an index or an offset of 32 bits overflows.

On the CPU their memory is taken only where it is written to, so that arguments cost nothing: they are zero but for some
slices, among them the first and the last, and what comes of those slices is compared. Outputs are written whole and
need their memory.
"""

from __future__ import annotations

import contextlib
import math
import mmap
from collections.abc import Sequence
from pathlib import Path

import torch

from day0.artifacts.kernels import MOST_ELEMENTS
from tasks.kernels.acceptance.errors import Judge
from tasks.kernels.acceptance.faults import Fault
from tasks.kernels.acceptance.subject import Subject
from tasks.kernels.definition import Case, label
from tasks.kernels.load import as_tuple

#: Memory beside that of outputs, on a device also arguments: what the kernel and the comparison take, as a share and at
#: least.
_BESIDE, _AT_LEAST = 0.1, 1 << 28
#: The share of free memory that may be taken.
_SHARE = 0.8


def check_far(subject: Subject, judge: Judge, case: Case, dtype: torch.dtype, available: int) -> str | None:
    """Small arguments whose slices lie so far apart that the last one's offset is beyond 2^31 elements.

    Returns:
        Why it could not be run, or None.

    Raises:
        Fault: results are wrong.
    """
    definition = subject.definition
    where = f"{label(case)}, slices far apart"
    args = subject.make(case, dtype)
    ours = subject.reference(args)
    movable = [
        isinstance(value, torch.Tensor) and argument.name not in definition.file.contiguous
        for value, argument in zip(args, definition.arguments, strict=True)
    ]
    needed = sum(_stretch(value)[1] * value.element_size() for value, moves in zip(args, movable, strict=True) if moves)
    if (why := _lacking(subject, 0, needed, available)) is not None:
        return f"{where}: {why}"
    far = tuple(_far(value) if moves else value for value, moves in zip(args, movable, strict=True))
    outputs = subject.call_on(far, f"{judge.dtype}, {where}")
    judge.compare(*subject.compared(args, outputs, ours), where)
    return None


def check_huge(subject: Subject, judge: Judge, case: Case, dtype: torch.dtype, available: int) -> str | None:
    """A huge case, as `huge` of inputs.py makes it.

    Returns:
        Why it could not be run, or None.

    Raises:
        Fault: results are wrong.
    """
    definition = subject.definition
    where = label(case)
    args, small, pick = definition.huge(case, dtype, subject.generator, _sketch)
    outline = tuple(value.to("meta") if isinstance(value, torch.Tensor) else value for value in args)
    wanted = () if definition.schema.mutates else as_tuple(definition.reference(*outline))
    sizes = [tensor.nbytes for tensor in outline if isinstance(tensor, torch.Tensor)]
    if (why := _lacking(subject, sum(output.nbytes for output in wanted), sum(sizes), available)) is not None:
        return f"{where}: {why}"
    args, small, pick = definition.huge(case, dtype, subject.generator, _placed)
    if max(tensor.numel() for tensor in (*args, *wanted) if isinstance(tensor, torch.Tensor)) <= MOST_ELEMENTS:
        raise ValueError(f"{definition.name}: the huge case {where} has no tensor of more than 2^31 elements")
    ours = subject.reference(small)
    outputs = subject.call_on(args, f"{judge.dtype}, {where}")
    for number, (got, own) in enumerate(zip(outputs, wanted, strict=bool(wanted))):
        if (got.shape, got.dtype) != (own.shape, own.dtype):
            raise Fault("structure", f"{judge.dtype}, {where}: output {number} has another shape or dtype")
    judge.compare(*subject.compared(small, as_tuple(pick(outputs)), ours), f"{where} (indices are those of samples)")
    return None


def available_memory(device: str, root: Path = Path("/")) -> int:
    """Bytes that may be taken for these: most of what is free on the device, of the CPU also within a control group,
    whose limit would end the process without a word. `root` is where proc and sys lie.
    """
    kind = torch.device(device).type
    if kind == "cuda":
        return int(torch.cuda.mem_get_info()[0] * _SHARE)
    if kind != "cpu":
        return 0  # not asked of other backends
    try:
        lines = (root / "proc/meminfo").read_text().splitlines()
        free = next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:"))
    except (OSError, StopIteration, ValueError):
        return 0
    group = root / "sys/fs/cgroup"
    with contextlib.suppress(OSError, ValueError):  # no such control group, or "max": no limit
        free = min(free, int((group / "memory.max").read_text()) - int((group / "memory.current").read_text()))
    return max(0, int(free * _SHARE))


def zeros(shape: Sequence[int], dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """Zeros; on the CPU in memory that is taken where it is written to."""
    count = math.prod(shape)
    if device.type != "cpu" or not count:
        return torch.zeros(*shape, dtype=dtype, device=device)
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | getattr(mmap, "MAP_NORESERVE", 0)
    memory = mmap.mmap(-1, count * dtype.itemsize, flags=flags)
    return torch.frombuffer(memory, dtype=torch.uint8).view(dtype).view(*shape)


def _placed(slices: torch.Tensor, count: int, at: torch.Tensor) -> torch.Tensor:
    """`count` slices along the first dimension, zero but for those given, at the indices `at`."""
    whole = zeros((count, *slices.shape[1:]), slices.dtype, slices.device)
    for index, part in zip(at.tolist(), slices, strict=True):
        whole[index] = part
    return whole


def _sketch(slices: torch.Tensor, count: int, at: torch.Tensor) -> torch.Tensor:
    """The shape of what `_placed` gives."""
    return torch.empty((count, *slices.shape[1:]), dtype=slices.dtype, device="meta")


def _far(value: torch.Tensor) -> torch.Tensor:
    strides, count = _stretch(value)
    return zeros((count,), value.dtype, value.device).as_strided(value.shape, strides).copy_(value)


def _stretch(value: torch.Tensor) -> tuple[tuple[int, ...], int]:
    """Strides of the same shape whose largest offset is beyond 2^31 elements, and the elements that they span."""
    strides = list(torch.empty(value.shape, device="meta").stride())
    longest = next((dim for dim, size in enumerate(value.shape) if size > 1), None)
    if longest is None or not value.numel():
        return tuple(strides), value.numel()
    steps = value.shape[longest] - 1
    strides[longest] = max(strides[longest], -(-(MOST_ELEMENTS + 1) // steps))
    return tuple(strides), 1 + sum((size - 1) * stride for size, stride in zip(value.shape, strides, strict=True))


def _lacking(subject: Subject, outputs: int, arguments: int, available: int) -> str | None:
    """What memory is lacking, in words."""
    needed = outputs if subject.device == "cpu" else outputs + arguments
    needed += max(int(needed * _BESIDE), _AT_LEAST)
    if needed <= available:
        return None
    return f"needs some {needed / 2**30:.1f} GiB, and {available / 2**30:.1f} GiB may be taken"
