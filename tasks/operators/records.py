"""What the capture process is asked and what it answers, as JSON between two processes."""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

from pydantic import ConfigDict, Field

from day0.artifacts.base import Frozen

IMPLICIT = "CompositeImplicitAutograd"
EXPLICIT = "CompositeExplicitAutograd"
NON_FUNCTIONAL = "CompositeExplicitAutogradNonFunctional"

ATTENTION = "aten::scaled_dot_product_attention"


class TensorSpec(NamedTuple):
    """A tensor of a call; dtypes by torch's names, strides in elements."""

    dtype: str
    shape: tuple[int, ...]
    stride: tuple[int, ...]


class WrittenCall(Frozen):
    """One call, to be made again. Arguments are JSON: tensors and what only torch has are objects (written.py)."""

    overload: str
    args: tuple[Any, ...] = ()
    kwargs: dict[str, Any] = Field(default_factory=dict)


class Resembling(Frozen):
    """A type of the library that a model may be traced as, and why."""

    model_type: str
    because: str


class CaptureRequest(Frozen):
    """A model's config, the lengths, and the dispatch key to look operators up for."""

    # Configs have infinities (Nemotron-H's time_step_limit), which pydantic writes as null, another value.
    model_config = ConfigDict(ser_json_inf_nan="constants")

    config: dict[str, Any]
    prompt: int
    context: int
    dispatch_key: str | None
    modules: tuple[str, ...] = ()
    """Imported first: they register the target's kernels."""
    graph: bool = False
    """Export the model's graph too, and look for patterns in it."""
    registrations_of: tuple[str, ...] = ()
    """Not a model, but what torch has registered for these operators."""
    resembling: tuple[Resembling, ...] = ()
    """Where the library lacks the model's type: the first of these that it has."""
    calls_at: tuple[int, int] | None = None
    """Record calls to be run on the device too, at these lengths of prompt and context."""
    code: str | None = None
    """A folder with the model's own code, to run that instead of the library's. Only ever in a container."""


class CapturedCall(Frozen):
    """Calls of an overload with the same tensors. `dtype` is that of the arithmetic, None where it is none."""

    inputs: tuple[TensorSpec, ...] = ()
    outputs: tuple[TensorSpec, ...] = ()
    dtype: str | None = None
    calls: int
    flops: float | None
    bytes: float | None


class CapturedOperator(Frozen):
    """An operator overload in one phase, over all layers. `flops` and `bytes` are None where no formula is known."""

    name: str
    calls: int
    flops: float | None
    bytes: float | None
    by_signature: tuple[CapturedCall, ...] = ()
    """The same calls apart, as far as their tensors are known."""


class CapturedGraph(Frozen):
    """The exported graph: calls by overload, and matches by pattern; in `failed` why there is none."""

    operators: dict[str, int] = Field(default_factory=dict)
    patterns: dict[str, int] = Field(default_factory=dict)
    layers: int = 0
    """Layers in the graph: one of each kind."""
    failed: str | None = None


class Registration(Frozen):
    """What torch has registered for an operator. Not there at all: `exists` is False."""

    exists: bool
    keys: tuple[str, ...] = ()
    """Dispatch keys with a kernel of their own, among CPU, the asked one, and the composite keys."""
    delegate: str | None = None
    """The out= overload that a structured operator computes through."""


class Capture(Frozen):
    """What a model called, or in `unsupported` why it could not be built."""

    unsupported: str | None = None
    source: Literal["traced", "code", "formulas"] = "traced"
    """The library's model was traced, or the release's own code, or there are formulas alone."""
    why: str = ""
    """Why the model was not traced, where its operators are from formulas."""
    read_as: str | None = None
    """The library's model type that it was built by, where that is not the config's own."""
    resembles: Resembling | None = None
    """It was built by a type that it only resembles."""
    parameters: int = 0
    """Of what was built."""
    phases: dict[str, tuple[CapturedOperator, ...]] = Field(default_factory=dict)
    """After dispatch, in the order of first use."""
    before: dict[str, tuple[CapturedOperator, ...]] = Field(default_factory=dict)
    """Before dispatch: composite operators whole, with what they cost."""
    scopes: dict[str, dict[str, float]] = Field(default_factory=dict)
    """Phase → part of the model (`attention`, `experts`) → FLOPs of the products that the library made there."""
    notes: tuple[str, ...] = ()
    """What was taken to be so, or could not be traced."""
    graph: CapturedGraph | None = None
    calls: tuple[WrittenCall, ...] = ()
    """Some of each overload, where they were asked for; attention whole and in parts."""
    unwritten: dict[str, str] = Field(default_factory=dict)
    """Overloads of which no call could be written, and why."""
    registrations: dict[str, Registration] = Field(default_factory=dict)
    parts: dict[str, dict[str, tuple[str, ...]]] = Field(default_factory=dict)
    """Of operators captured whole: what they become on a device (`CPU`), and on any (`decomposed`)."""
    key_readable: bool = True
    """This build of torch has kernels for the asked dispatch key, so that one not found is one not there."""
    layers: int = 0
    traced_layers: int = 0
    dtype: str = ""
    packages: dict[str, str] = Field(default_factory=dict)


class Measured(Frozen):
    """What running an operator on the device showed, over the dtypes, shapes and strides that were tried."""

    overload: str
    works: bool
    """It ran, and its results are right: not `wrong`."""
    wrong: bool = False
    """It ran, and some result differs from float64 by more than is allowed."""
    slow: bool = False
    falls_back: bool = False
    """It ran on the CPU instead."""
    detail: str = ""
    """What was tried, and the first that failed."""
