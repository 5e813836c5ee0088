"""What a kernel computes, and where its sources lie: the folder `kernels/NAME/` (see kernels/README.md).

Reading a definition imports no torch; `reference` and `inputs` are loaded only when they are asked for.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Mapping
from functools import cached_property
from pathlib import Path
from types import ModuleType
from typing import Annotated, Any

from pydantic import Field, field_validator, model_validator

from day0.artifacts.base import Frozen
from day0.config import load_config
from day0.errors import InputError
from tasks.kernels.formula import evaluate
from tasks.kernels.modules import function_of, load_module
from tasks.kernels.schema import Argument, out_schema, parse

Case = Mapping[str, Any]

DTYPES = ("float64", "float32", "bfloat16", "float16", "float8_e4m3fn", "float8_e5m2")
BACKENDS = ("cpu", "triton", "cuda", "flaggems", "hub")
_NAME = r"^[a-z][a-z0-9_]*$"
_REPLACED = re.compile(r"^([a-z_][a-z0-9_]*::[\w.]+|pattern:[a-z0-9_]+)$")
#: Keys of a case that are no size: how the case is used.
MARKS = frozenset({"huge", "bench", "note"})


class Tolerance(Frozen):
    """How far from float64 a result of a dtype may be."""

    ratio: Annotated[float, Field(ge=1)]
    """The candidate's mean error over the framework's own."""
    max_ratio: Annotated[float, Field(ge=1)] | None = None
    """The same for the largest error; by default twice `ratio`."""
    atol: Annotated[float, Field(ge=0)]
    """An absolute error that is never a fault by itself."""
    reason: Annotated[str, Field(min_length=10)]

    @property
    def most(self) -> float:
        """The largest error that is allowed, in largest errors of the framework."""
        return 2 * self.ratio if self.max_ratio is None else self.max_ratio


class CompiledBackend(Frozen):
    """Sources that a compiler makes a library of."""

    sources: Annotated[tuple[str, ...], Field(min_length=1)]
    """Relative to the kernel's folder; the other files of a source's folder are taken to be its headers."""
    flags: tuple[str, ...] = ()
    headers: tuple[str, ...] = ()
    """Folders of headers that kernels share, relative to the folder of kernels: `common/cpu`."""


class TritonBackend(Frozen):
    """A module with `run(*args)` and `AHEAD`, what to compile ahead of time."""

    module: str


class PackageBackend(Frozen):
    """A module with `run(*args)` that calls what another project's package computes."""

    module: str
    package: Annotated[str, Field(min_length=1)]
    """What must be installed, or the hub's repository of kernels."""
    requires: str | None = None
    """Its versions that the module is written for, as pip spells them: `>=4.0,<5`; of the hub a version or revision."""
    calls: tuple[str, ...] = ()
    """What the module calls, by the package's own names: vendors' black lists of FlagGems name them."""
    devices: tuple[str, ...] = ()
    """Devices that the package has it for, by torch's names; none given: every one that it runs on."""


class Backends(Frozen):
    cpu: CompiledBackend | None = None
    cuda: CompiledBackend | None = None
    triton: TritonBackend | None = None
    flaggems: PackageBackend | None = None
    hub: PackageBackend | None = None


class KernelFile(Frozen):
    """kernel.yaml."""

    name: Annotated[str, Field(pattern=_NAME)]
    what: Annotated[str, Field(min_length=10)]
    operator: str
    """The schema in torch.library's spelling, without namespace: operators are made in `day0`."""
    replaces: tuple[str, ...] = ()
    dtypes: Annotated[tuple[str, ...], Field(min_length=1)]
    tolerance: dict[str, Tolerance]
    contiguous: tuple[str, ...] = ()
    """Arguments that the operator takes only contiguous; with any other strides it must raise an error."""
    bytes: str
    """What must move once for a case, of the case's keys and `element`, the bytes of one element of its dtype."""
    flops: str
    backends: Backends

    @field_validator("replaces")
    @classmethod
    def _replaced(cls, names: tuple[str, ...]) -> tuple[str, ...]:
        if wrong := next((name for name in names if not _REPLACED.match(name)), None):
            raise ValueError(f"{wrong!r} is neither an operator such as aten::rms_norm nor pattern:NAME")
        return names

    @field_validator("dtypes")
    @classmethod
    def _dtypes(cls, names: tuple[str, ...]) -> tuple[str, ...]:
        if wrong := next((name for name in names if name not in DTYPES), None):
            raise ValueError(f"{wrong!r} is none of {', '.join(DTYPES)}")
        return names

    @model_validator(mode="after")
    def _complete(self) -> KernelFile:
        schema = parse(self.operator)
        if schema.name != self.name:
            raise ValueError(f"the operator is {schema.name!r} and the kernel {self.name!r}: one name for both")
        tensors = {argument.name for argument in schema.arguments if argument.tensor}
        if unknown := next((name for name in self.contiguous if name not in tensors), None):
            raise ValueError(f"contiguous names {unknown!r}, which is no tensor argument")
        if missing := next((dtype for dtype in self.dtypes if dtype not in self.tolerance), None):
            raise ValueError(f"there is no tolerance for {missing}")
        if extra := next((dtype for dtype in self.tolerance if dtype not in self.dtypes), None):
            raise ValueError(f"tolerance names {extra}, which is none of the kernel's dtypes")
        if not any(getattr(self.backends, name) for name in BACKENDS):
            raise ValueError(f"there is no backend: one of {', '.join(BACKENDS)}")
        return self


class KernelDefinition:
    """A kernel's folder, its file read and checked."""

    def __init__(self, folder: Path) -> None:
        """Raises InputError: kernel.yaml is missing or malformed, or a file that it names is not in the folder."""
        self.folder = folder
        self.file = load_config(folder / "kernel.yaml", KernelFile)
        self.schema = parse(self.file.operator)
        if self.file.name != folder.name:
            raise InputError(f"{folder / 'kernel.yaml'}: the name is {self.file.name!r} and the folder {folder.name!r}")
        for name in ("reference.py", "inputs.py", *self._named_files()):
            if not (folder / name).is_file():
                raise InputError(f"{folder / 'kernel.yaml'}: there is no file {name} in {folder}")
            if not (folder / name).resolve().is_relative_to(folder.resolve()):
                raise InputError(f"{folder / 'kernel.yaml'}: the file {name} leads out of {folder}")
        compiled = [spec for spec in (self.file.backends.cpu, self.file.backends.cuda) if spec]
        for name in (name for spec in compiled for name in spec.headers):
            shared = (folder.parent / name).resolve()
            if not shared.is_dir() or not shared.is_relative_to(folder.parent.resolve()):
                raise InputError(f"{folder / 'kernel.yaml'}: there is no folder of headers {name} in {folder.parent}")

    @property
    def name(self) -> str:
        return self.file.name

    @property
    def qualified(self) -> str:
        """The operator's full name, `day0::NAME`."""
        return f"day0::{self.name}"

    @property
    def arguments(self) -> tuple[Argument, ...]:
        return self.schema.arguments

    @property
    def out_schema(self) -> str | None:
        """The schema of the overload that writes to given tensors; None for an operator that works in place."""
        return out_schema(self.schema)

    @property
    def backends(self) -> tuple[str, ...]:
        return tuple(name for name in BACKENDS if getattr(self.file.backends, name) is not None)

    def backend(self, name: str) -> CompiledBackend | TritonBackend | PackageBackend:
        """Raises InputError: the kernel has no such backend."""
        found: CompiledBackend | TritonBackend | PackageBackend | None = getattr(self.file.backends, name, None)
        if found is None:
            raise InputError(f"kernel {self.name} has no backend {name!r}; it has {', '.join(self.backends)}")
        return found

    def sources(self, backend: str) -> tuple[Path, ...]:
        """The files that a backend is made of, with those beside them, in a fixed order.

        A module that calls another project's package stands alone: those beside it call other projects'.

        Raises:
            InputError: a link among them leads out of the kernel's folder and those beside it.
        """
        spec = self.backend(backend)
        if isinstance(spec, PackageBackend):
            return (self.folder / spec.module,)
        named = spec.sources if isinstance(spec, CompiledBackend) else (spec.module,)
        folders = {(self.folder / name).parent for name in named}
        if isinstance(spec, CompiledBackend):
            folders |= {self.folder.parent / name for name in spec.headers}
        found = {self.folder / name for name in named}
        for folder in folders:
            found |= {p for p in folder.iterdir() if p.is_file() and not p.name.startswith(".") and p.suffix != ".pyc"}
        inside = (self.folder.resolve(), self.folder.parent.resolve())
        if out := next((p for p in sorted(found) if not any(p.resolve().is_relative_to(at) for at in inside)), None):
            raise InputError(f"{out} is a link that leads out of {self.folder.parent}")
        return tuple(sorted(found))

    def digest(self, backend: str) -> str:
        """SHA-256 of all that a verdict on this backend rests on: definition, reference, inputs, sources."""
        files = [self.folder / name for name in ("kernel.yaml", "reference.py", "inputs.py")]
        digest = hashlib.sha256()
        for path in (*files, *self.sources(backend)):
            content = path.read_bytes()
            digest.update(f"{path.relative_to(self.folder.parent)}\0{len(content)}\0".encode() + content)
        return digest.hexdigest()

    @cached_property
    def _reference(self) -> ModuleType:
        return load_module(self.folder / "reference.py")

    @cached_property
    def _inputs(self) -> ModuleType:
        return load_module(self.folder / "inputs.py")

    @property
    def reference(self) -> Callable[..., Any]:
        """Plain torch, pure: the outputs of the operator as a tuple; in float64 where it is given float64."""
        return function_of(self._reference, "reference")

    @property
    def comparable(self) -> Callable[..., Any] | None:
        """`comparable(args, outputs)`, where outputs are not to be compared as they are (see kernels/README.md)."""
        return function_of(self._reference, "comparable") if hasattr(self._reference, "comparable") else None

    @property
    def baseline(self) -> Callable[..., Any]:
        """What the framework does, to be timed: `baseline`, which may work in place, else `reference`."""
        return function_of(self._reference, "baseline") if hasattr(self._reference, "baseline") else self.reference

    @property
    def make(self) -> Callable[..., Any]:
        """`make(case, dtype, generator, device)`: the operator's arguments."""
        return function_of(self._inputs, "make")

    @property
    def huge(self) -> Callable[..., Any]:
        """`huge(case, dtype, generator, placed)`: the arguments of a huge case, see kernels/README.md."""
        return function_of(self._inputs, "huge")

    @cached_property
    def cases(self) -> tuple[dict[str, Any], ...]:
        """CASES of inputs.py, each checked against the formulas of bytes and FLOPs.

        Raises:
            InputError: there are none to accept or to time, one is no dict of plain values, or a formula cannot be
                computed of it.
        """
        path = self.folder / "inputs.py"
        cases = getattr(self._inputs, "CASES", None)
        if not isinstance(cases, list) or not cases:
            raise InputError(f"{path}: CASES is no list of cases")
        for case in cases:
            if not isinstance(case, dict) or not all(
                isinstance(key, str) and isinstance(value, bool | int | float | str) for key, value in case.items()
            ):
                raise InputError(f"{path}: the case {case!r} is no dict of plain values")
            self.bytes(case, 2)
            self.flops(case, 2)
        if not any(case.get("bench") for case in cases):
            raise InputError(f'{path}: no case is marked "bench": True, so there is nothing to time')
        if all(case.get("bench") or case.get("huge") for case in cases):
            raise InputError(f'{path}: every case is marked "bench" or "huge", so there is nothing to accept')
        return tuple(cases)

    def bytes(self, case: Case, element: int) -> float:
        """What must move for a case, in bytes, each input read once and each output written once."""
        return self._formula("bytes", self.file.bytes, case, element)

    def flops(self, case: Case, element: int) -> float:
        """What must be computed for a case."""
        return self._formula("flops", self.file.flops, case, element)

    def _formula(self, what: str, text: str, case: Case, element: int) -> float:
        try:
            return evaluate(text, {**case, "element": element})
        except ValueError as error:
            raise InputError(f"{self.folder / 'kernel.yaml'}: {what} of the case {label(case)}: {error}") from error

    def _named_files(self) -> list[str]:
        named: list[str] = []
        for name in self.backends:
            spec = self.backend(name)
            named += spec.sources if isinstance(spec, CompiledBackend) else [spec.module]
        return named


def label(case: Case) -> str:
    """A case in words, without its marks: `rows=3 hidden=7`."""
    return " ".join(f"{key}={value}" for key, value in case.items() if key not in MARKS)
