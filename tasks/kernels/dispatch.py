"""Accepted kernels in the place of torch's operators that a device lacks or computes wrongly.

Imports torch: only the process that runs the model uses it. A kernel that raises does not end the run: the call is
answered by what was there before, or on the CPU, and the failure is logged and counted as work to follow up.
"""

from __future__ import annotations

import logging
import warnings
from pathlib import Path
from typing import Any

import torch
from torch.utils._pytree import tree_map

from day0.artifacts.kernels import KernelBundle
from day0.artifacts.operators import OperatorReport
from day0.errors import InputError
from day0.kernel_uses import KernelUse
from tasks.kernels.build import build
from tasks.kernels.definition import CompiledBackend, KernelDefinition
from tasks.kernels.find import find_kernel
from tasks.kernels.load import load, operator
from tasks.kernels.providers.choose import best

logger = logging.getLogger("day0.kernels")


class Dispatch:
    """The kernels that stand in for operators under one dispatch key, such as PrivateUse1, until `close`."""

    def __init__(self, key: str) -> None:
        self.key = key
        self._libraries: list[torch.library.Library] = []
        self._uses: dict[str, _Use] = {}

    @property
    def uses(self) -> tuple[KernelUse, ...]:
        """What has become of each kernel so far, by operator."""
        return tuple(use.record() for _, use in sorted(self._uses.items()))

    def use(
        self,
        definition: KernelDefinition,
        backend: str,
        overload: str,
        library: Path | None = None,
        *,
        wrong: bool = False,
        elements: int | None = None,
    ) -> None:
        """Have a kernel answer the calls of `overload` (`aten::silu`, `aten::mul.Tensor`) for this key.

        Args:
            library: the built library of a compiled backend.
            wrong: what the device has there gives wrong results: where the kernel fails, the CPU answers.
            elements: the most that a tensor had when the kernel was accepted; larger ones are not given to it.

        Raises:
            InputError: the kernel does not stand for this operator, takes other arguments, cannot be loaded, or
                another one stands there already.
        """
        if overload not in definition.file.replaces:
            raise InputError(
                f"kernel {definition.name} does not replace {overload}; it replaces "
                f"{', '.join(definition.file.replaces)}"
            )
        if overload in self._uses:
            raise InputError(f"{overload} is computed by {self._uses[overload].kernel} already")
        target = _overload(overload)
        _check_arguments(definition, target)
        load(definition, backend, library, key=self.key)
        use = _Use(definition, target, self.key, wrong, elements)
        registered = torch.library.Library(overload.partition("::")[0], "IMPL")  # type: ignore[no-untyped-call]
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="Warning only once for all operators")  # it is meant to override
            registered.impl(overload.partition("::")[2], use, self.key, with_keyset=True)  # type: ignore[no-untyped-call]
        self._libraries.append(registered)
        self._uses[overload] = use

    def use_bundle(self, bundle: KernelBundle, operators: OperatorReport) -> None:
        """Have a bundle's accepted kernels answer for the gaps of the report that they were tried for.

        Raises:
            InputError: as `use`.
        """
        for kernel in best(bundle.kernels):
            definition = find_kernel(kernel.name)
            compiled = isinstance(definition.backend(kernel.backend), CompiledBackend)
            library = build(definition, kernel.backend).path if compiled else None
            for gap in operators.gaps:
                if gap.name in definition.file.replaces and gap.name not in self._uses:
                    wrong = gap.measured == "wrong"
                    self.use(definition, kernel.backend, gap.name, library, wrong=wrong, elements=kernel.elements)

    def close(self) -> None:
        """Take all kernels out again: what was there before is there again."""
        for library in self._libraries:
            library._destroy()  # type: ignore[no-untyped-call]
        self._libraries.clear()


class _Use:
    """What the dispatcher calls in the operator's place."""

    def __init__(self, definition: KernelDefinition, target: Any, key: str, wrong: bool, elements: int | None) -> None:
        self.kernel = definition.name
        self.arguments = len(definition.arguments)
        self.dtypes = frozenset(getattr(torch, name) for name in definition.file.dtypes)
        self.elements = elements
        self.compute = operator(definition)
        self.target = target
        name = target.name()
        # A structured operator has a computed kernel everywhere; where its out= overload is missing it raises.
        there = torch._C._dispatch_has_computed_kernel_for_dispatch_key(name, key)
        self.before = torch.library.get_kernel(name, key) if there and not wrong else None
        self.calls, self.fallbacks, self.reason = 0, 0, ""

    def record(self) -> KernelUse:
        return KernelUse(
            operator=self.target.name(),
            kernel=self.kernel,
            calls=self.calls,
            fallbacks=self.fallbacks,
            reason=self.reason,
        )

    def __call__(self, keyset: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            result = self.compute(*self._bound(args, kwargs))
        except Exception as error:  # whatever a kernel raises, the run goes on and the failure is on record
            self._log(error)
        else:
            self.calls += 1
            return result
        if self.before is not None:
            try:
                return self.before.call_boxed(keyset, *args, **kwargs)
            except NotImplementedError:
                self.before = None
        return on_cpu(self.target, args, kwargs)

    def _bound(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any]:
        """The kernel's arguments: the operator's first ones. Others must be as they are by default."""
        declared = self.target._schema.arguments
        bound = []
        for place, argument in enumerate(declared):
            value = args[place] if place < len(args) else kwargs.get(argument.name, argument.default_value)
            if place < self.arguments:
                bound.append(value)
            elif value != argument.default_value:
                raise ValueError(f"the kernel takes no {argument.name}, which is {value!r}")
        # A number beside a tensor comes as a tensor without dimensions.
        dtypes = {x.dtype for x in bound if isinstance(x, torch.Tensor) and x.dim()}
        if dtypes and not (dtypes & self.dtypes and all(d in self.dtypes for d in dtypes if d.is_floating_point)):
            given = ", ".join(sorted(str(d).removeprefix("torch.") for d in dtypes))
            raise TypeError(f"the kernel was not accepted for {given}")
        largest = max((x.numel() for x in bound if isinstance(x, torch.Tensor)), default=0)
        if self.elements is not None and largest > self.elements:
            raise ValueError(f"the kernel was accepted for at most {self.elements} elements, and there are {largest}")
        return bound

    def _log(self, error: Exception) -> None:
        self.fallbacks += 1
        if not self.reason:
            self.reason = f"{type(error).__name__}: {(str(error).splitlines() or [''])[0][:200]}"
            logger.warning(
                "follow-up: kernel %s failed for %s and is fallen back from: %s",
                self.kernel, self.target.name(), self.reason,
            )  # fmt: skip


def on_cpu(target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """A call computed on the CPU: operands are copied there, results and what was written to are copied back."""
    pairs: list[tuple[torch.Tensor, torch.Tensor]] = []

    def there(value: Any) -> Any:
        if isinstance(value, torch.device):
            return torch.device("cpu")
        if not isinstance(value, torch.Tensor):
            return value
        pairs.append((value, value.cpu()))
        return pairs[-1][1]

    cpu_args, cpu_kwargs = tree_map(there, (args, kwargs))
    result = target(*cpu_args, **cpu_kwargs)
    device = next((own.device for own, _ in pairs if own.device.type != "cpu"), kwargs.get("device"))
    if any(a.alias_info is not None and a.alias_info.is_write for a in target._schema.arguments):
        for own, copied in pairs:
            if own.device.type != "cpu":
                own.copy_(copied)

    def back(value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return value
        return next((own for own, copied in pairs if copied is value), value.to(device))

    return tree_map(back, result)


def _overload(name: str) -> Any:
    """torch's object for an overload by its name.

    Raises:
        InputError: the torch here has no such operator.
    """
    namespace, _, rest = name.partition("::")
    packet, _, which = rest.partition(".")
    try:
        return getattr(getattr(getattr(torch.ops, namespace), packet), which or "default")
    except AttributeError as error:
        raise InputError(f"torch {torch.__version__} has no operator {name}") from error


def _check_arguments(definition: KernelDefinition, target: Any) -> None:
    declared = target._schema.arguments
    name = target.name()
    if any(a.alias_info is not None and a.alias_info.is_write for a in declared) != definition.schema.mutates:
        raise InputError(
            f"kernel {definition.name} cannot stand for {name}: only one of the two writes to its arguments"
        )
    if len(definition.arguments) > len(declared):
        raise InputError(f"kernel {definition.name} takes more arguments than {name}")
    for place, (own, its) in enumerate(zip(definition.arguments, declared, strict=False)):
        if own.tensor != ("Tensor" in str(its.type)):
            raise InputError(f"kernel {definition.name} cannot stand for {name}: argument {place} is {its.type} there")
    for its in declared[len(definition.arguments) :]:
        if not its.has_default_value():
            raise InputError(f"kernel {definition.name} takes no {its.name}, which {name} always has")
