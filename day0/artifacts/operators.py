"""OperatorReport: what the model calls, and whether the target has it."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field

from day0.artifacts.base import Artifact, Frozen

Status = Literal["native", "composite", "fallback", "missing", "unknown"]

GraphSeverity = Literal["captured", "breaks", "fails", "unknown"]
"""In graph capture: `breaks` is a read on the host that ends the graph, `fails` a call that no graph can hold."""


Outcome = Literal["works", "wrong", "slow", "falls back", "does not run"]
"""What running an operator on the device showed. `slow` is right, and takes many times what it should."""


class Tensor(Frozen):
    """A tensor of a call; dtypes by torch's names, strides in elements."""

    dtype: str
    shape: tuple[int, ...]
    stride: tuple[int, ...]


class Signature(Frozen):
    """Calls with the same operands and results."""

    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]
    calls: int


class Operator(Frozen):
    """One operator overload in one phase. `flops` and `bytes` are None where no formula is known, never 0."""

    name: str
    calls: int
    flops: float | None
    bytes: float | None
    share: float | None
    """Of the phase's least possible time on the target, 0 to 1; where it is `apart`, the time of one kernel for it."""
    status: Status
    via: str | None = None
    """For `composite` what it becomes, for `fallback` where it runs."""
    lacking: tuple[str, ...] = ()
    """Dtypes of its arithmetic that the target lacks it in, where it has it in the others: the status is of these."""
    lacking_share: float | None = None
    """The share of the calls with these; None where there are none such."""
    apart: bool = False
    """A composite that runs as several kernels, or as one many times, and so takes longer than its share says."""
    seconds: float | None = None
    """Its least time on the target's roofline; None where its cost or the target's rates are not known."""
    graph: GraphSeverity = "unknown"
    evidence: str | None = None
    """What the status rests on, with its source: measured, registered, listed."""
    measured: Outcome | None = None
    """None: it was not run on the target's device."""
    conflicts: tuple[str, ...] = ()
    """Where weaker evidence says something else."""
    notes: tuple[str, ...] = ()
    dtypes: tuple[str, ...] = ()
    """Of all its operands and results; none where they are not known."""
    signatures: tuple[Signature, ...] = ()
    """Most costly first, at most `MOST_SIGNATURES`; calls with further ones are in `calls` only."""

    @property
    def kernel_share(self) -> float | None:
        """The share of those calls that a kernel would be for which the target lacks: of some dtypes, or of all."""
        return self.share if self.lacking_share is None else self.lacking_share


class Correction(Frozen):
    """Work that the library does in another way than engines do; not in the phase's operators and sums."""

    what: str
    """`attention` or `experts`."""
    flops: float
    """To be added to the phase's: negative where engines need less."""
    reason: str


class Phase(Frozen):
    operators: tuple[Operator, ...]
    """After dispatch: what a backend is asked for. Attention is whole."""
    flops: float
    bytes: float
    seconds: float | None = None
    """The least time of the operators whose cost is known."""
    native: float | None = None
    """Share of that time in operators that are one kernel of the target, composites of one among them; 0 to 1."""
    composite: float | None = None
    """Share of that time in operators that are `apart`. What is neither is in gaps."""
    composites: tuple[Operator, ...] = ()
    """Before dispatch: the composite operators that the others stand in, each whole. A target may have them whole."""
    corrections: tuple[Correction, ...] = ()


class Gap(Frozen):
    """An operator that the target lacks, with what it costs."""

    name: str
    status: Status
    phases: tuple[str, ...]
    share: float | None
    """The largest in a phase, of the calls that the target lacks it for."""
    advice: str
    work: str = "other"
    """What kind of kernel it needs: view, create, copy, elementwise, reduction, gather, scatter, product, attention,
    host, other."""
    graph: GraphSeverity = "unknown"
    measured: Outcome | None = None
    """`wrong`: the device computes it, and wrongly."""


class Reach(Frozen):
    """The fewest operators that, once each is one kernel of the target, bring those to `share` of a phase's time."""

    phase: str
    share: float
    operators: tuple[str, ...]


class Need(Frozen):
    """An operator of the first token, in the order of first use."""

    name: str
    status: Status


class FusedPattern(Frozen):
    """A pattern of operators in the exported graph."""

    name: str
    count: int
    """Matches in the graph, which has one layer of each kind."""
    fused: str | None
    """How the target has it fused; None: it is not known to."""


class Graph(Frozen):
    """The model as torch.export has it: one layer of each kind, prefill without cache."""

    operators: dict[str, int]
    patterns: tuple[FusedPattern, ...]
    layers: int
    failed: str | None = None
    """Why it could not be exported."""


class News(Frozen):
    """What a model calls that the one of a checklist did not."""

    against: str
    """The checklist's model."""
    operators: tuple[Gap, ...]
    """New operators that the target lacks, with the kind of work."""
    there: tuple[str, ...]
    """New operators that it has."""
    dtypes: dict[str, tuple[str, ...]]
    """Operators of before, with dtypes that they were not called with."""
    gone: tuple[str, ...]
    work: dict[str, int]
    """New kernels to write, by kind of work."""


class Measurement(Frozen):
    """What was run on the target's device, or in `why_not` why nothing was."""

    device: str | None = None
    """torch's name of it."""
    hardware: str | None = None
    """What it calls itself."""
    outcomes: dict[str, Outcome] = Field(default_factory=dict)
    details: dict[str, str] = Field(default_factory=dict)
    """What was tried, and the first that failed."""
    unmeasured: dict[str, str] = Field(default_factory=dict)
    """Operators of the model that could not be tried, and why: nothing is known of them by measurement."""
    why_not: str = ""


class OperatorReport(Artifact):
    kind: ClassVar[str] = "operators"

    target: str
    prompt: int
    context: int
    phases: dict[str, Phase]
    gaps: tuple[Gap, ...]
    source: Literal["traced", "code", "formulas"] = "traced"
    """`code`: by the code that the release ships. `formulas`: the library does not know the model, and its operators
    are those that its family's work needs."""
    model: str = ""
    """The model type."""
    measurement: Measurement = Measurement()
    slow: tuple[Gap, ...] = ()
    """Operators that are there and were measured to be slow: no gaps, but a kernel may pay."""
    apart: tuple[Gap, ...] = ()
    """Operators that are only there taken apart, with what they cost as one kernel: no gaps, but a kernel may pay."""
    reach: tuple[Reach, ...] = ()
    first_token: tuple[Need, ...] = ()
    """What is needed for a first token at all."""
    graph: Graph | None = None
    news: News | None = None
