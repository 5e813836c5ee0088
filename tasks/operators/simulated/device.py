"""A device "simulated" for torch: its tensors lie in the CPU's memory, and what it lacks raises as on real hardware.

Each operator that the CPU has a kernel for is registered for PrivateUse1, torch's key for backends from outside, so
that the dispatcher answers for it as for any other backend: composite operators are taken apart, structured ones go
through their out= overload, and a kernel that is registered later takes a missing one's place.

    DAY0_SIMULATED=faults.json python -c "import tasks.operators.simulated.device"
"""

from __future__ import annotations

import os
import time
import warnings
from pathlib import Path
from typing import Any

import torch
from torch.utils._pytree import tree_leaves, tree_map
from torch.utils.backend_registration import _DummyBackendModule, _setup_privateuseone_for_python_backend

from tasks.operators.simulated.faults import Faults, meant

NAME = "simulated"
KEY = "PrivateUse1"
FAULTS = "DAY0_SIMULATED"

#: How a tensor comes to the device and leaves it, and what any backend begins with: these cannot be missing.
NEEDED = ("aten::empty.memory_format", "aten::empty_strided", "aten::as_strided")

#: What torch makes of a tensor's memory itself, and cannot where it is another tensor.
ALIASES = ("aten::alias", "aten::detach", "aten::_unsafe_view")

_KEYS = torch._C.DispatchKeySet(torch._C.DispatchKey.PrivateUse1)


class SimulatedTensor(torch.Tensor):
    """A tensor on the device; `raw` is its memory, a tensor on the CPU with the same shape and strides."""

    raw: torch.Tensor

    @staticmethod
    def __new__(cls, raw: torch.Tensor) -> SimulatedTensor:
        self = torch.Tensor._make_wrapper_subclass(
            cls, raw.size(), raw.stride(), raw.storage_offset(), dtype=raw.dtype, device=torch.device(NAME, 0)
        )
        self.raw = raw
        return self

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        return func.redispatch(_KEYS, *_with_tensors(func, args), **(kwargs or {}))

    def __repr__(self, *, tensor_contents: Any = None) -> str:  # type: ignore[override]
        return f"{self.raw!r} on {NAME}"


class Module(_DummyBackendModule):
    """`torch.simulated`: what torch asks of a backend's module. Its random numbers are the CPU's."""

    def get_device_name(self, device: Any = None) -> str:
        return "simulated accelerator"

    def get_rng_state(self, device: Any = None) -> torch.Tensor:
        return torch.get_rng_state()

    def set_rng_state(self, state: torch.Tensor, device: Any = None) -> None:
        torch.set_rng_state(state)


class Device:
    """The device as this process has it: what is amiss, and how often each operator was called."""

    def __init__(self, faults: Faults) -> None:
        self.faults = faults
        self.calls: dict[str, int] = {}
        self._library = torch.library.Library("aten", "IMPL")  # type: ignore[no-untyped-call]
        _setup_privateuseone_for_python_backend(NAME, backend_module=Module())
        for name in sorted(_names()):
            if not meant(name, faults.missing) or name in NEEDED:
                self._library.impl(name, self._kernel(name), KEY)  # type: ignore[no-untyped-call]
        self._library.impl("aten::_copy_from", _copy_from, KEY)  # type: ignore[no-untyped-call]

    def _kernel(self, name: str) -> Any:
        operator = overload(name)
        wrong = self.faults.wrong.get(meant(name, self.faults.wrong) or "")
        seconds = self.faults.slow.get(meant(name, self.faults.slow) or "", 0.0)
        falls_back, crashes = meant(name, self.faults.fallback), meant(name, self.faults.crashes)

        def kernel(*args: Any, **kwargs: Any) -> Any:
            self.calls[name] = self.calls.get(name, 0) + 1
            if crashes:
                os.abort()
            if falls_back:
                warnings.warn(
                    f"The operator '{name}' is not currently supported on the {NAME} backend and will fall back to "
                    "run on the CPU.",
                    stacklevel=2,
                )
            if seconds:
                time.sleep(seconds)
            unwrap = _as_contiguous if wrong == "strides" else _raw
            raw_args, raw_kwargs = tree_map(unwrap, (args, kwargs))
            result = operator(*raw_args, **raw_kwargs)
            if wrong and wrong != "strides":
                result = tree_map(_scaled if wrong == "scaled" else _without_tail, result)
            return _wrapped(result, (args, kwargs))

        return kernel


def _with_tensors(func: Any, args: tuple[Any, ...]) -> list[Any]:
    """Numbers in tensors' places, which the dispatcher refuses here, as tensors that promote as numbers do."""
    first = next((x for x in args if isinstance(x, torch.Tensor)), None)

    def tensor(x: Any) -> torch.Tensor:
        # Beside a tensor with dimensions a number keeps its precision; torch.result_type says its type elsewhere.
        if first is None or (first.dim() and first.is_floating_point() and not isinstance(x, complex)):
            return torch.scalar_tensor(x, dtype=torch.float64)
        return torch.scalar_tensor(x, dtype=torch.result_type(first, x))

    return [
        tensor(x) if isinstance(x, int | float | complex) and str(a.type) == "Tensor" else x
        for x, a in zip(args, func._schema.arguments, strict=False)
    ]


def overload(name: str) -> Any:
    """torch's object for an overload such as `aten::mm.out`."""
    packet, _, which = name.removeprefix("aten::").partition(".")
    return getattr(getattr(torch.ops.aten, packet), which or "default")


def _names() -> set[str]:
    """The operators with a kernel on the CPU, and those on memory."""
    has = torch._C._dispatch_has_kernel_for_dispatch_key
    return {n for n in torch._C._dispatch_get_all_op_names() if n.startswith("aten::") and has(n, "CPU")}.union(ALIASES)


def _raw(value: Any) -> Any:
    if isinstance(value, SimulatedTensor):
        return value.raw
    return torch.device("cpu") if isinstance(value, torch.device) else value


def _as_contiguous(value: Any) -> Any:
    """What is read where strides are ignored: the right memory, in the wrong order."""
    raw = _raw(value)
    if not isinstance(raw, torch.Tensor) or raw.is_contiguous():
        return raw
    strides = torch.empty(raw.shape, device="meta").stride()
    fits = raw.untyped_storage().nbytes() >= (raw.storage_offset() + raw.numel()) * raw.element_size()
    return raw.as_strided(raw.shape, strides) if fits else raw


def _scaled(result: Any) -> Any:
    return result.mul_(1.01) if isinstance(result, torch.Tensor) and result.is_floating_point() else result


def _without_tail(result: Any) -> Any:
    return (
        result.index_fill_(-1, torch.tensor([-1]), 0) if isinstance(result, torch.Tensor) and result.dim() else result
    )


def _wrapped(result: Any, arguments: Any) -> Any:
    """The result on the device: an operand that was written is itself again, with the shape that it has now."""
    operands = {id(x.raw): x for x in tree_leaves(arguments) if isinstance(x, SimulatedTensor)}
    for x in operands.values():
        if (x.shape, x.stride()) != (x.raw.shape, x.raw.stride()):
            x.data = SimulatedTensor(x.raw)

    def wrap(value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return value
        return operands[id(value)] if id(value) in operands else SimulatedTensor(value)

    return tree_map(wrap, result)


def _copy_from(source: torch.Tensor, target: torch.Tensor, non_blocking: bool = False) -> torch.Tensor:
    """Between the CPU and the device, and on it."""
    _raw(target).copy_(_raw(source))
    return target


def open_device() -> Device:
    """The device of this process, with the faults of the file that DAY0_SIMULATED names; none without it."""
    file = os.environ.get(FAULTS)
    return Device(Faults.model_validate_json(Path(file).read_bytes()) if file else Faults())
