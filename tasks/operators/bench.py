"""A device of this machine on which operators are run, compared with float64 on the CPU, and timed."""

from __future__ import annotations

import re
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch

from tasks.operators.calls import LAYOUTS, Call, Inputs, make_inputs, map_leaves, specs, with_dtype
from tasks.operators.comparison import difference, tensors
from tasks.operators.costs import cost
from tasks.operators.cutting import MOST_SPANNED, TooLarge, cut
from tasks.operators.measure import Timed
from tasks.operators.recorder import operands
from tasks.operators.records import TensorSpec

#: Repetitions of a timed call.
TIMES = 3

#: What torch and vendors' backends print when an operator runs on the CPU.
FALLBACK = re.compile(r"fall(s|ing)? ?back.{0,60}cpu|not.{0,60}supported.{0,60}cpu", re.IGNORECASE)


@dataclass
class Tried:
    """What was seen of one overload."""

    errors: list[str] = field(default_factory=list)
    """As the model calls it."""
    wrong: list[str] = field(default_factory=list)
    other_errors: list[str] = field(default_factory=list)
    """With other strides or in another dtype."""
    warned: bool = False
    runs: int = 0
    cut: bool = False
    """Operands were made smaller than the model's."""
    times: list[Timed] = field(default_factory=list)


class DeviceLost(Exception):
    """After this operator the device does nothing any more: only a new process can go on."""


class Unmeasurable(Exception):
    """The CPU itself does not run the call with inputs that were made up."""


class Bench:
    """The device."""

    def __init__(self, device: str, seed: int) -> None:
        self.device = torch.device(device)
        self.generator = torch.Generator().manual_seed(seed)
        self.key = torch._C._dispatch_key_for_device(self.device.type)

    def try_all(self, calls: list[Call], dtype: str) -> Tried:
        """Each call as the model makes it, then with its operands in other orders, then in float32.

        Raises:
            Unmeasurable: none of the calls runs on the CPU.
        """
        tried, why = Tried(), "it was not called"
        for call in calls:
            try:
                smaller = cut(call)
                check_results(smaller)
                tried.cut |= smaller != call
                call = smaller
                self._try(call, "as called", tried, tried.errors)
                self._time(call, tried)
            except (Unmeasurable, TooLarge) as error:
                why = str(error)
                continue
            for variant, its in self._variants(call, dtype):
                try:
                    self._try(its, variant, tried, tried.other_errors)
                except Unmeasurable:
                    continue  # this call is not made like that anywhere
        if not tried.runs and not tried.errors:
            raise Unmeasurable(why)
        return tried

    def _variants(self, call: Call, dtype: str) -> list[tuple[str, Call]]:
        found = []
        for name, layout in LAYOUTS.items():
            other = call.with_layout(layout)
            if other != call:
                found.append((name, other))
        single = with_dtype(call, dtype, "float32")
        return found if single == call else [*found, ("float32", single)]

    def _try(self, call: Call, variant: str, tried: Tried, errors: list[str]) -> None:
        inputs = make_inputs(call, self.generator)
        words = describe_call(call, variant)
        try:
            own, exact = _on_cpu(call, inputs)
        except Unmeasurable:
            if why := self._lacks(call, inputs):
                errors.append(f"{words}: {why}")
                return
            raise
        try:
            found, warned = self._run(call, inputs)
        except (RuntimeError, NotImplementedError, TypeError, ValueError, IndexError) as error:
            errors.append(f"{words}: {type(error).__name__}: {_first_sentence(error)}")
            self._check_alive(words, error)
            return
        tried.runs += 1
        tried.warned |= warned
        if torch.Tag.nondeterministic_seeded in call.operator.tags:
            return
        args, kwargs = inputs.on("cpu")
        if why := difference(call.name, args, kwargs, found, own, exact):
            tried.wrong.append(f"{words}: {why}")

    def _check_alive(self, words: str, error: Exception) -> None:
        """An illegal access on a GPU makes everything after it fail, which would be laid to others.

        Raises:
            DeviceLost: the device gives nothing back any more.
        """
        try:
            torch.ones(1).to(self.device).cpu()
        except (RuntimeError, NotImplementedError) as after:
            raise DeviceLost(f"{words}: {_first_sentence(error)}") from after

    def _lacks(self, call: Call, inputs: Inputs) -> str | None:
        """What a device says that has no kernel, of a call that the CPU cannot answer for: no other error tells."""
        if self.device.type == "cpu":
            return None
        try:
            self._run(call, inputs)
        except NotImplementedError as error:
            return f"NotImplementedError: {_first_sentence(error)}"
        except (RuntimeError, TypeError, ValueError, IndexError):
            pass
        return None

    def _run(self, call: Call, inputs: Inputs) -> tuple[Any, bool]:
        args, kwargs = inputs.on(self.device)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            result = call.operator(*args, **kwargs)
            self._wait(result)
        return [result, _written(call, args, kwargs)], any(FALLBACK.search(str(w.message)) for w in caught)

    def _time(self, call: Call, tried: Tried) -> None:
        if tried.errors:
            return
        inputs, seconds, result = make_inputs(call, self.generator), [], None
        with one_thread():
            for _ in range(TIMES):
                args, kwargs = inputs.on(self.device)
                self._wait(args)
                began = time.perf_counter()
                result = call.operator(*args, **kwargs)
                self._wait(result)
                seconds.append(time.perf_counter() - began)
        view = any(r.alias_info is not None and not r.alias_info.is_write for r in call.operator._schema.returns)
        its = cost(call.name, operands((args, kwargs)), operands(result), is_view=view)
        if its.flops is not None and its.bytes is not None:
            tried.times.append(Timed(min(seconds), its.bytes, its.flops, describe_call(call, "as called")))

    def rates(self, dtype: str) -> tuple[float, float]:
        """Seconds for a byte, by copying, and for a FLOP, by multiplying matrices; 0 where the device cannot."""

        def seconds(compute: Callable[[], Any]) -> float:
            taken = []
            for _ in range(TIMES):
                began = time.perf_counter()
                self._wait(compute())
                taken.append(time.perf_counter() - began)
            return min(taken)

        try:
            x = torch.ones(1 << 22, dtype=torch.float32).to(self.device)
            m = torch.ones(512, 512, dtype=getattr(torch, dtype)).to(self.device)
            with one_thread():
                return seconds(x.clone) / (8 << 22), seconds(lambda: torch.mm(m, m)) / (2 * 512**3)
        except (RuntimeError, NotImplementedError):
            return 0.0, 0.0

    def _wait(self, result: Any) -> None:
        """Until the device has computed it: by its own module, or where that cannot wait by reading a value."""
        module = torch.get_device_module(self.device)
        if hasattr(module, "synchronize"):
            module.synchronize()
        elif found := [t for t in tensors(result) if t.numel()]:
            found[-1].cpu()


@contextmanager
def one_thread() -> Iterator[None]:
    """For timing: on a busy machine threads that wait for each other take a hundred times as long as the work."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def check_results(call: Call) -> None:
    """Raises TooLarge: a result would have more elements than are made, as of a tensor that is filled with one value.

    Where the size hangs on data the operands bound it.
    """

    def meta(x: Any) -> Any:
        if isinstance(x, TensorSpec):
            return torch.empty_strided(x.shape, x.stride, dtype=getattr(torch, x.dtype), device="meta")
        return torch.device("meta") if isinstance(x, torch.device) else x

    args, kwargs = map_leaves(meta, (call.args, call.kwargs))
    if any(str(a.type) == "Optional[Device]" for a in call.operator._schema.arguments):
        kwargs = {**kwargs, "device": torch.device("meta")}
    try:
        result = call.operator(*args, **kwargs)
    except (RuntimeError, NotImplementedError):
        return  # of no meta function, or of values that it would read
    if any(t.numel() > MOST_SPANNED for t in tensors(result)):
        raise TooLarge(f"a result of more than {MOST_SPANNED:,} elements")


def _on_cpu(call: Call, inputs: Inputs) -> tuple[Any, Any]:
    """The CPU's result at the call's own dtypes, and in float64 (float32, where the CPU has no float64 of it)."""

    def run(dtype: torch.dtype | None) -> Any:
        args, kwargs = inputs.on("cpu", dtype)
        result = call.operator(*args, **kwargs)
        return [result, _written(call, args, kwargs)]

    try:
        own = run(None)
    except (RuntimeError, TypeError, ValueError, IndexError) as error:
        raise Unmeasurable(f"the CPU does not run it: {_first_sentence(error)}") from error
    for dtype in (torch.float64, torch.float32):
        try:
            return own, run(dtype)
        except (RuntimeError, TypeError, ValueError, IndexError):
            continue
    return own, own


def _written(call: Call, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any]:
    """The operands that the operator writes to."""
    written = []
    for place, argument in enumerate(call.operator._schema.arguments):
        if argument.alias_info is not None and argument.alias_info.is_write:
            written.append(args[place] if place < len(args) else kwargs.get(argument.name))
    return written


def _first_sentence(error: Exception) -> str:
    return (str(error).splitlines() or [""])[0].partition(". ")[0][:200]


def describe_call(call: Call, variant: str) -> str:
    tensors = ", ".join(f"{s.dtype}{list(s.shape)}" for s in specs(call))
    return f"{call.name}({tensors}){'' if variant == 'as called' else f' {variant}'}"
