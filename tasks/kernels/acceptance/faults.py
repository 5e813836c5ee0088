"""The faults that acceptance names."""

from __future__ import annotations

#: Kinds of faults, with what each means.
KINDS = {
    "raised": "it raised an error on arguments that it must take",
    "accepted": "it took arguments that it must refuse",
    "structure": "outputs of another number, shape, dtype, device or stride",
    "aliased": "an output shares memory with an input, another output or an earlier output",
    "input": "an input was changed",
    "unwritten": "results depend on what memory held before: an element is not written, or read before it is",
    "undetermined": "the same call gives other results",
    "late": "results change after the call has returned",
    "stale": "results are those of earlier inputs at the same address, or an earlier result was overwritten",
    "error": "results are further from float64 than the framework's by more than the tolerance",
    "bias": "results lean to one side: they are not rounded to nearest",
    "special": "NaN or infinity is not where the reference has it",
    "opcheck": "torch.library.opcheck rejects the operator",
    "threads": "threads go on working after the call",
    "tampered": "functions of torch or Python's clocks were replaced",
    "stream": "work is not on the current stream",
}


class Fault(Exception):
    """A kernel was caught; `kind` is one of `KINDS`."""

    def __init__(self, kind: str, detail: str) -> None:
        assert kind in KINDS
        super().__init__(detail)
        self.kind = kind


def brief(error: BaseException) -> str:
    """An exception as one line of at most 300 characters."""
    text = f"{type(error).__name__}: {' '.join(str(error).split())}"
    return text if len(text) <= 300 else text[:299] + "…"
