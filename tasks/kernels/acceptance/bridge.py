"""A kernel on a device whose own operators are not trusted, called with tensors of the CPU.

The examination makes inputs, computes what is right and compares by operators that such a device may lack or compute
wrongly. So all of that stays on the CPU, and the operator is given a kernel for the CPU that takes the arguments to
the device, as they lie in memory, runs the kernel there and brings the outputs back. What an examination on the CPU
cannot see of the device's memory is looked at here, by copies alone: that outputs are poisoned before, share memory
with nothing, and are not written to after the call.
"""

from __future__ import annotations

import itertools
import time
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from tasks.kernels.acceptance.faults import Fault
from tasks.kernels.acceptance.layouts import same_bits
from tasks.kernels.acceptance.poison import Poison
from tasks.kernels.acceptance.repeat_checks import Stream
from tasks.kernels.definition import KernelDefinition
from tasks.kernels.load import as_tuple, operator

#: Memory on the device that stands for memory of the CPU, so that other values come to the same addresses.
_BUFFERS = 64
#: Outputs of earlier calls that are kept on the device, and their bytes at most.
_HELD, _HELD_BYTES = 4, 1 << 30
#: Seconds in which work that was put off would show.
_LATER = 0.05
#: Copies on the device that take some 50 ms at 1 TB/s.
_BUSY_BYTES, _BUSY_COPIES = 1 << 28, 100


class Bridge:
    """What the dispatcher calls for tensors of the CPU; `poison` is for the examination."""

    def __init__(self, definition: KernelDefinition, device: str) -> None:
        self.device = torch.device(device)
        self.poison = DevicePoison(device)
        self.busy: Stream | None = None
        """Calls run on this one, behind its work."""
        self._compute = operator(definition)
        self._mutates = definition.schema.mutates
        self._buffers: OrderedDict[tuple[Any, ...], torch.Tensor] = OrderedDict()
        self._held: list[tuple[torch.Tensor, torch.Tensor]] = []
        self._marks = itertools.cycle(range(1, 127))
        self._library = torch.library.Library("day0", "IMPL")  # type: ignore[no-untyped-call]
        self._library.impl(definition.name, self, "CPU")  # type: ignore[no-untyped-call]

    def __call__(self, *args: Any) -> Any:
        memories = [_memory(value) if isinstance(value, torch.Tensor) else None for value in args]
        if self.busy is None:
            return self._run(args, memories, [None if m is None else self._there(m) for m in memories])
        new = [None if memory is None else memory.to(self.device) for memory in memories]
        buffers = [None if memory is None else self._buffer(memory) for memory in memories]
        with self.busy.behind_work():
            for buffer, values in zip(buffers, new, strict=True):
                if buffer is not None and values is not None:
                    self.busy.copy(buffer, values)
            return self._run(args, memories, buffers)

    def _run(self, args: Sequence[Any], memories: Sequence[Any], buffers: Sequence[Any]) -> Any:
        theirs = [
            value if buffer is None else buffer.as_strided(value.size(), value.stride(), value.storage_offset())
            for value, buffer in zip(args, buffers, strict=True)
        ]
        with self.poison.applied():
            returned = self._compute(*theirs)
        outputs = () if self._mutates else as_tuple(returned)
        self._check(outputs)
        results = tuple(output.cpu() for output in outputs)
        for memory, buffer in zip(memories, buffers, strict=True):
            if memory is not None:
                memory.copy_(buffer)
        self._mark(outputs, memories, buffers)
        if self._mutates:
            return None
        return results[0] if len(results) == 1 else results

    def finish(self) -> None:
        """Wait a moment, and look at the outputs of the last calls.

        Raises:
            Fault: one was written to since.
        """
        time.sleep(_LATER)
        self._unchanged("late", "an output was written to after the call had returned")

    def _there(self, memory: torch.Tensor) -> torch.Tensor:
        """The device's memory for this memory of the CPU, with its content."""
        return self._buffer(memory).copy_(memory)

    def _buffer(self, memory: torch.Tensor) -> torch.Tensor:
        key = (memory.data_ptr(), memory.numel(), memory.dtype)
        buffer = self._buffers.pop(key, None)
        self._buffers[key] = memory.to(self.device) if buffer is None else buffer
        if len(self._buffers) > _BUFFERS:
            self._buffers.popitem(last=False)
        return self._buffers[key]

    def _check(self, outputs: Sequence[torch.Tensor]) -> None:
        self._unchanged("stale", "the output of an earlier call was overwritten by a later one")
        for number, output in enumerate(outputs):
            if output.device.type != self.device.type:
                raise Fault("structure", f"output {number} is on {output.device}, and it must be on {self.device}")
            if not output.is_contiguous():
                raise Fault("structure", f"output {number} is not contiguous")

    def _unchanged(self, kind: str, says: str) -> None:
        if any(not same_bits(output.cpu(), mark) for output, mark in self._held):
            raise Fault(kind, says)

    def _mark(
        self, outputs: Sequence[torch.Tensor], memories: Sequence[torch.Tensor | None], buffers: Sequence[Any]
    ) -> None:
        """Overwrite the outputs, which shows in whatever shares memory with them, and hold them."""
        marks = [_filled(output.shape, output.dtype, next(self._marks)) for output in outputs]
        for output, mark in zip(outputs, marks, strict=True):
            output.copy_(mark)
        for number, (output, mark) in enumerate(zip(outputs, marks, strict=True)):
            if not same_bits(output.cpu(), mark):
                raise Fault("aliased", f"output {number} shares memory with another output")
        if outputs:
            for number, (memory, buffer) in enumerate(zip(memories, buffers, strict=True)):
                if memory is not None and not same_bits(memory, buffer.cpu()):
                    raise Fault("aliased", f"an output shares memory with argument {number}")
        self._unchanged("aliased", "an output shares memory with the output of an earlier call")
        self._held += [(output, mark) for output, mark in zip(outputs, marks, strict=True) if output.numel()]
        self._held = self._held[-_HELD:]
        while len(self._held) > 1 and sum(mark.nbytes for _, mark in self._held) > _HELD_BYTES:
            self._held.pop(0)


class BridgedStream:
    """For the examination: what is called behind this stream's work runs so on the device."""

    def __init__(self, bridge: Bridge, stream: Stream) -> None:
        self._bridge, self._stream = bridge, stream

    @contextmanager
    def behind_work(self) -> Iterator[None]:
        self._bridge.busy = self._stream
        try:
            yield
        finally:
            self._bridge.busy = None

    def copy(self, target: torch.Tensor, source: torch.Tensor) -> None:
        target.copy_(source)  # on the CPU; the bridge takes it to the device


class DeviceStream:
    """A stream by the names that backends have after torch.cuda's, kept busy by copies."""

    def __init__(self, device: str) -> None:
        self._device = torch.device(device)
        self._module: Any = torch.get_device_module(self._device)

    @property
    def exists(self) -> bool:
        """A backend without has one queue, which nothing can bypass."""
        return all(hasattr(self._module, name) for name in ("Stream", "stream", "synchronize"))

    @contextmanager
    def behind_work(self) -> Iterator[None]:
        source, target = (torch.zeros(_BUSY_BYTES, dtype=torch.uint8).to(self._device) for _ in range(2))
        self._module.synchronize()
        with self._module.stream(self._module.Stream()):
            for _ in range(_BUSY_COPIES):
                target.copy_(source, non_blocking=True)
            yield
        self._module.synchronize()

    def copy(self, target: torch.Tensor, source: torch.Tensor) -> None:
        target.copy_(source, non_blocking=True)


class DevicePoison(Poison):
    """Poisons what `torch.empty` returns on the device, while the kernel runs and not before: its arguments are
    brought there first, and would take the poisoned memory."""

    def __init__(self, device: str) -> None:
        self._asked: tuple[int, Sequence[int]] | None = None
        super().__init__(device, host=True)

    @contextmanager
    def __call__(self, pattern: int, sizes: Sequence[int] = ()) -> Iterator[None]:
        self._asked = (pattern, sizes)
        try:
            yield
        finally:
            self._asked = None

    @contextmanager
    def applied(self) -> Iterator[None]:
        """For the call itself."""
        if self._asked is None:
            yield
            return
        with super().__call__(*self._asked):
            yield

    def _fill_freed(self, pattern: int, sizes: Sequence[int]) -> None:
        blocks = [torch.empty(size, dtype=torch.uint8, device=self.device) for size in sizes for _ in range(2)]
        for block in blocks:
            block.copy_(torch.full((block.numel(),), pattern, dtype=torch.uint8))

    def _seen(self, pattern: int) -> bool:
        for size in (4096, 8 << 20):
            with self(pattern, [size]), self.applied():
                found = torch.empty(size, dtype=torch.uint8, device=self.device).cpu()
            if not bool((found == pattern).all()):
                return False
        return True


def _memory(tensor: torch.Tensor) -> torch.Tensor:
    """All of a tensor's storage, in its dtype."""
    storage = tensor.untyped_storage()
    count = storage.nbytes() // tensor.element_size()
    return torch.empty(0, dtype=tensor.dtype).set_(storage, 0, (count,), (1,))


def _filled(shape: Sequence[int], dtype: torch.dtype, mark: int) -> torch.Tensor:
    """A tensor whose every byte is `mark`; a boolean has no byte but 0 and 1."""
    if dtype is torch.bool:
        return torch.full(shape, bool(mark % 2))
    size = torch.empty(shape, dtype=dtype, device="meta").nbytes
    return torch.full((size,), mark, dtype=torch.uint8).view(dtype).reshape(shape)
