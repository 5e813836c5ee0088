"""Accepted kernels in the place of torch's operators that a device lacks or computes wrongly.

Imports torch: only the process that runs the model uses it. Putting a kernel in an operator's place is the engine
plugin's (`engine_plugin/operators.py`): a kernel that raises does not end the run there or here.
"""

from __future__ import annotations

from pathlib import Path

import torch

from day0.artifacts.kernels import KernelBundle
from day0.artifacts.operators import OperatorReport
from day0.errors import InputError
from day0.kernel_uses import KernelUse
from day0.target_operators import device_of
from tasks.kernels.build import library_of
from tasks.kernels.definition import KernelDefinition
from tasks.kernels.engine_plugin.counts import Use
from tasks.kernels.engine_plugin.operators import replace
from tasks.kernels.find import find_kernel
from tasks.kernels.load import load, operator
from tasks.kernels.providers.choose import best


class Dispatch:
    """The kernels that stand in for operators under one dispatch key, such as PrivateUse1, until `close`."""

    def __init__(self, key: str) -> None:
        self.key = key
        self._libraries: list[torch.library.Library] = []
        self._uses: dict[str, Use] = {}

    @property
    def uses(self) -> tuple[KernelUse, ...]:
        """What has become of each kernel so far, by operator."""
        names = ("operator", "kernel", "calls", "declined", "fallbacks", "reason")
        return tuple(KernelUse(**{n: getattr(use, n) for n in names}) for _, use in sorted(self._uses.items()))

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
        load(definition, backend, library, key=self.key)
        dtypes = frozenset(getattr(torch, name) for name in definition.file.dtypes)
        entry = {"name": definition.name, "key": self.key, "dtypes": dtypes, "elements": elements}
        try:
            registered, use = replace(overload, entry, operator(definition), wrong=wrong)
        except ValueError as error:
            raise InputError(f"kernel {definition.name} cannot stand for {overload}: {error}") from error
        self._libraries.append(registered)
        self._uses[overload] = use

    def use_bundle(self, bundle: KernelBundle, operators: OperatorReport) -> None:
        """Have a bundle's accepted kernels answer for the gaps of the report that they were tried for.

        Raises:
            InputError: as `use`.
        """
        for kernel in best(bundle.kernels):
            definition = find_kernel(kernel.name)
            library = library_of(definition, kernel.backend, device_of(bundle.target))
            for gap in operators.gaps:
                if gap.name in definition.file.replaces and gap.name not in self._uses:
                    wrong = gap.measured == "wrong"
                    self.use(definition, kernel.backend, gap.name, library, wrong=wrong, elements=kernel.elements)

    def close(self) -> None:
        """Take all kernels out again: what was there before is there again."""
        for library in self._libraries:
            library._destroy()  # type: ignore[no-untyped-call]
        self._libraries.clear()
