"""Kernels as operators of torch: `day0::NAME`, defined from the schema, with the implementation of one backend.

Imports torch: only processes of their own (acceptance, timing, the engine's) load kernels.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

from day0.errors import InputError
from tasks.kernels.definition import CompiledBackend, KernelDefinition, PackageBackend
from tasks.kernels.modules import function_of, load_module
from tasks.kernels.providers.adapter import Adapter, Calls, adapted

#: Libraries of operators live as long as the process; dropping one removes its operators.
_LIBRARIES: dict[str, torch.library.Library] = {}
#: Adapters of packages, by operator and backend.
_ADAPTERS: dict[tuple[str, str], Adapter] = {}
#: Dispatch keys of backends.
KEYS: Mapping[str, str] = {"cpu": "CPU", "cuda": "CUDA", "triton": "CUDA", "flaggems": "CUDA", "hub": "CUDA"}


def define(definition: KernelDefinition) -> None:
    """Define `day0::NAME`, and `day0::NAME.out` for a functional operator, with their meta functions.

    A meta function is the reference on meta tensors, whose outputs are made contiguous, as a kernel's are.
    """
    if definition.name in _LIBRARIES:
        return
    library = torch.library.Library("day0", "FRAGMENT")  # type: ignore[no-untyped-call]
    library.define(definition.file.operator)  # type: ignore[no-untyped-call]
    torch.library.register_fake(definition.qualified, _meta(definition), lib=library)
    if definition.out_schema:
        library.define(definition.out_schema)  # type: ignore[no-untyped-call]
        torch.library.register_fake(f"{definition.qualified}.out", lambda *args, **kwargs: None, lib=library)
    _LIBRARIES[definition.name] = library


def load(definition: KernelDefinition, backend: str, library: Path | None = None, key: str | None = None) -> None:
    """Define the operator and give it the implementation of `backend`, from the built `library` where it is compiled.

    `key` is the dispatch key for a Python kernel (Triton, a package) on another accelerator, such as PrivateUse1.

    Raises:
        InputError: the library or module cannot be loaded, or does not implement the operator.
    """
    define(definition)
    key = key or KEYS[backend]
    spec = definition.backend(backend)
    if not isinstance(spec, CompiledBackend):
        run = python_function(definition, backend)
        _LIBRARIES[definition.name].impl(definition.name, run, key)  # type: ignore[no-untyped-call]
    else:
        if library is None:
            raise InputError(f"kernel {definition.name} for {backend} has not been built")
        try:
            torch.ops.load_library(str(library))  # type: ignore[no-untyped-call]
        except OSError as error:
            raise InputError(f"{library} cannot be loaded: {error.__cause__ or error}") from error
    if not torch._C._dispatch_has_kernel_for_dispatch_key(definition.qualified, key):
        raise InputError(f"the {backend} backend of {definition.name} registers no {definition.qualified} for {key}")


def python_function(definition: KernelDefinition, backend: str) -> Callable[..., Any]:
    """What a Python backend computes, with the operator's arguments.

    Raises:
        InputError: its module cannot be imported, or lacks a function.
    """
    spec = definition.backend(backend)
    if isinstance(spec, PackageBackend):
        adapter = _ADAPTERS[definition.name, backend] = adapted(definition, backend)
        return adapter
    if isinstance(spec, CompiledBackend):
        raise InputError(f"the {backend} backend of {definition.name} is no Python module")
    return function_of(load_module(definition.folder / spec.module), "run")


def calls(definition: KernelDefinition, backend: str) -> Calls | None:
    """What the adapter of a package has answered so far; None for our own kernels."""
    adapter = _ADAPTERS.get((definition.name, backend))
    return adapter.calls if adapter else None


def beside(
    definition: KernelDefinition, backend: str, key: str | None = None
) -> tuple[Callable[..., Any], Adapter | None]:
    """A Python backend as the operator `day0::NAME__BACKEND`, so that several can be called in one process. Of a
    package it calls `run` at once: its adapter, which is returned beside it, is to be asked before.

    Raises:
        InputError: its module cannot be imported, or lacks a function.
    """
    run = python_function(definition, backend)
    name = f"{definition.name}__{backend}"
    library = _LIBRARIES[name] = torch.library.Library("day0", "FRAGMENT")  # type: ignore[no-untyped-call]
    library.define(definition.file.operator.replace(definition.name, name, 1))  # type: ignore[no-untyped-call]
    adapter = run if isinstance(run, Adapter) else None
    library.impl(name, adapter.run if adapter else run, key or KEYS[backend])  # type: ignore[no-untyped-call]
    found: Callable[..., Any] = getattr(torch.ops.day0, name).default
    return found, adapter


def operator(definition: KernelDefinition) -> Callable[..., Any]:
    """The operator, which returns its outputs as torch does: a tensor, or a tuple of them."""
    found: Callable[..., Any] = getattr(torch.ops.day0, definition.name).default
    return found


def out_operator(definition: KernelDefinition, backend: str) -> Callable[..., Any] | None:
    """The overload that writes to `out0`, `out1`, …, where the backend implements it."""
    if definition.out_schema is None:
        return None
    if not torch._C._dispatch_has_kernel_for_dispatch_key(f"{definition.qualified}.out", KEYS[backend]):
        return None
    found: Callable[..., Any] = getattr(torch.ops.day0, definition.name).out
    return found


def _meta(definition: KernelDefinition) -> Callable[..., Any]:
    def meta(*args: Any) -> Any:
        outputs = as_tuple(definition.reference(*args))
        if definition.schema.mutates:
            return None
        fresh = tuple(output.new_empty(output.shape) for output in outputs)
        return fresh[0] if len(fresh) == 1 else fresh

    return meta


def as_tuple(outputs: Any) -> tuple[torch.Tensor, ...]:
    """What a reference or an operator returned, always as a tuple."""
    if outputs is None:
        return ()
    return (outputs,) if isinstance(outputs, torch.Tensor) else tuple(outputs)
