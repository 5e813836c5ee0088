"""A result's distance from float64, held against the framework's own."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from tasks.kernels.acceptance.faults import Fault
from tasks.kernels.acceptance.layouts import index_of
from tasks.kernels.definition import Tolerance

#: Fewer elements say nothing of a mean.
_ENOUGH = 256
#: Results of these are rounded so coarsely that leaning to one side shows.
_NARROW = (torch.bfloat16, torch.float16)
#: How far a result may lean to one side, in the framework's mean errors: rounding toward zero leans by two of them.
_LEAN = 0.35
_SIGMAS = 6.0
#: Elements compared at a time in a huge tensor.
_CHUNK = 1 << 26


@dataclass
class Sums:
    """Errors of one output of one dtype, over all that was compared."""

    count: int = 0
    candidate: float = 0.0
    framework: float = 0.0
    candidate_max: float = 0.0
    framework_max: float = 0.0
    lean: float = 0.0
    framework_lean: float = 0.0
    squares: float = 0.0
    worst: float = 0.0
    """The largest error of a case in those of the framework, as `max_ratio` limits it."""
    worst_mean: float = 0.0
    """The same of the mean error, as `ratio` limits it."""
    shares: dict[str, float] = field(default_factory=dict)
    """By check (`largest`, `mean`, `lean`), the most that was found of what is allowed: more than 1 is a fault."""

    def share(self, check: str, found: float, allowed: float) -> bool:
        """Note how much of what is allowed was found; whether it is more."""
        part = found / allowed if allowed else math.inf if found else 0.0
        self.shares[check] = max(self.shares.get(check, 0.0), part)
        return found > allowed

    def report(self) -> dict[str, Any]:
        count = max(1, self.count)
        return {
            "elements": self.count,
            "mean": self.candidate / count,
            "max": self.candidate_max,
            "framework_mean": self.framework / count,
            "framework_max": self.framework_max,
            "ratio": self.candidate / self.framework if self.framework else None,
            "worst_ratio": self.worst_mean,
            "worst_max_ratio": self.worst,
            "shares": self.shares,
        }


@dataclass
class Judge:
    """Judges the outputs of one dtype against its tolerance."""

    dtype: str
    tolerance: Tolerance
    scale_error: dict[int, float] = field(default_factory=dict)
    """The framework's largest error for each output, in units in the last place of the output's largest value."""
    sums: dict[int, Sums] = field(default_factory=dict)

    def calibrate(self, framework: Sequence[torch.Tensor], truth: Sequence[torch.Tensor]) -> None:
        """Learn the framework's own error from one more case."""
        for number, (ours, exact) in enumerate(zip(framework, truth, strict=True)):
            if not ours.is_floating_point() or not ours.numel():
                continue
            error, finite = _error(ours, exact), _finite(ours, exact)
            # Results that are zero, or less than their error, have no last place that it could be told in.
            if finite.any() and float(error[finite].max()) < float(exact[finite].abs().max()):
                found = float(error[finite].max()) / _unit(exact[finite], ours.dtype)
                self.scale_error[number] = max(self.scale_error.get(number, 0.0), found)

    def compare(
        self,
        outputs: Sequence[torch.Tensor],
        framework: Sequence[torch.Tensor],
        truth: Sequence[torch.Tensor],
        where: str,
        spread: bool = True,
        infinite: bool = False,
    ) -> None:
        """Hold outputs against float64.

        Args:
            spread: False where the rows are all one: its error is no mean of many.
            infinite: an argument holds an infinity, see `_special`.

        Raises:
            Fault: names the case, the output, and the first wrong index with both values.
        """
        for number, (got, ours, exact) in enumerate(zip(outputs, framework, truth, strict=True)):
            place = f"{self.dtype}, {where}: output {number}"
            if not got.is_floating_point():
                _equal(got, ours, place)
            elif got.numel():
                self._compare(number, got, ours, exact, place, spread, infinite)

    def _compare(
        self,
        number: int,
        got: torch.Tensor,
        ours: torch.Tensor,
        exact: torch.Tensor,
        place: str,
        spread: bool,
        infinite: bool,
    ) -> None:
        edge = _special(got, ours, exact, place, infinite)
        # Where the framework alone has no number (it overflowed on the way), the candidate is held against float64.
        finite = _finite(got, exact) & (_finite(ours, exact) | ~edge)
        if not finite.any():
            return
        error = _error(got, exact).where(finite, 0)
        own = _error(ours, exact).where(_finite(ours, exact) & finite, 0)
        largest = float(own.max())
        pooled = self.scale_error.get(number, 0.0) * _unit(exact[finite], got.dtype)
        base = max(largest, pooled)
        allowed = self.tolerance.atol + self.tolerance.most * base
        sums = self.sums.setdefault(number, Sums())
        if base:
            sums.worst = max(sums.worst, (float(error.max()) - self.tolerance.atol) / base)
        if sums.share("largest", float(error.max()), allowed):
            first = int((error > allowed).reshape(-1).nonzero()[0])
            wrong = int((error > allowed).sum())
            self.reject(
                "error",
                f"{place} at {index_of(first, got.shape)} is {_at(got, first):.9g} and float64 says "
                f"{_at(exact, first):.9g}: an error of {_at(error, first):.3g} where {allowed:.3g} is allowed; "
                f"{wrong} of {got.numel()} elements are wrong, the largest error is {float(error.max()):.3g}",
            )
        if not spread:
            return
        self._add(sums, got, ours, exact, finite, error, own)
        # A narrow result's error is mostly that of its last rounding, which is each element's own. In a wide one, all
        # of a row may err alike (by its sum), and one case has too few rows to tell.
        if got.dtype in _NARROW:
            self._mean(sums, float(error.sum()), float(own.sum()), int(finite.sum()), place)

    def _add(
        self,
        sums: Sums,
        got: torch.Tensor,
        ours: torch.Tensor,
        exact: torch.Tensor,
        finite: torch.Tensor,
        error: torch.Tensor,
        own: torch.Tensor,
    ) -> None:
        unit = _unit(exact[finite], got.dtype)
        signs = exact.sign().where(finite, 0)
        sums.count += int(finite.sum())
        sums.candidate += float(error.sum())
        sums.framework += float(own.sum())
        sums.candidate_max = max(sums.candidate_max, float(error.max()))
        sums.framework_max = max(sums.framework_max, float(own.max()))
        if got.dtype in _NARROW:
            # In units of the case, so that cases with large values do not speak for all.
            sums.lean += float(((got.double() - exact).where(finite, 0) * signs).sum()) / unit
            sums.framework_lean += float(((ours.double() - exact).where(finite, 0) * signs).sum()) / unit
            sums.squares += float((error.square()).sum()) / unit**2

    def _mean(self, sums: Sums, error: float, own: float, count: int, place: str) -> None:
        """The mean error of enough elements."""
        if count < _ENOUGH:
            return
        slack = 1 + 2 / math.sqrt(count)
        allowed = self.tolerance.atol + self.tolerance.ratio * slack * own / count
        if own:
            sums.worst_mean = max(sums.worst_mean, (error / count - self.tolerance.atol) / (slack * own / count))
        # Where the framework was exact by chance, or is by nature, the largest error has been judged already.
        if own and sums.share("mean", error / count, allowed):
            self.reject(
                "error",
                f"{place}: the mean error is {error / count:.3g}, {error / own:.2f} times the framework's "
                f"{own / count:.3g}, where {self.tolerance.ratio:g} times is allowed",
            )

    def finish(self) -> None:
        """Judge what only many cases show.

        Raises:
            Fault: the mean error over all cases is too large, or results lean to one side.
        """
        for number, sums in self.sums.items():
            place = f"{self.dtype}, all cases: output {number}"
            self._mean(sums, sums.candidate, sums.framework, sums.count, place)
            if sums.count < _ENOUGH or not sums.squares:
                continue
            lean = abs(sums.lean) / sums.count
            rms = math.sqrt(sums.squares / sums.count)
            # A rounding error is spread evenly, so its mean is sqrt(3)/2 of the root of its mean square.
            allowed = abs(sums.framework_lean) / sums.count + (_LEAN + _SIGMAS / math.sqrt(sums.count)) * rms
            if sums.share("lean", lean, allowed):
                side = "away from" if sums.lean > 0 else "toward"
                self.reject(
                    "bias",
                    f"{place}: results lean {side} zero by {lean / rms:.2f} of their error's root mean square, where "
                    f"{allowed / rms:.2f} is allowed: they are not rounded to nearest",
                )

    def reject(self, kind: str, detail: str) -> None:
        """Raises Fault. A measurement, which wants every case's numbers, replaces it."""
        raise Fault(kind, detail)

    def report(self) -> dict[str, Any]:
        return {f"output {number}": sums.report() for number, sums in sorted(self.sums.items())}


def compare_chunks(
    got: torch.Tensor, ours: torch.Tensor, judge: Judge, number: int, where: str, chunk: int = _CHUNK
) -> None:
    """Hold a huge output against the framework's own result, piece by piece, without float64 of the whole.

    Raises:
        Fault: they differ by more than both may err.
    """
    flat, own = got.reshape(-1), ours.reshape(-1)
    place = f"{judge.dtype}, {where}: output {number}"
    for start in range(0, flat.numel(), chunk):
        left, right = flat[start : start + chunk], own[start : start + chunk]
        if not left.is_floating_point():
            wrong = left != right
        else:
            unit = _unit(right.double(), right.dtype)
            allowed = (
                judge.tolerance.atol + (1 + judge.tolerance.most) * max(judge.scale_error.get(number, 0), 1) * unit
            )
            wrong = ~((left.double() - right.double()).abs() <= allowed) & ~(left.isnan() & right.isnan())
        if wrong.any():
            first = start + int(wrong.nonzero()[0])
            raise Fault(
                "error",
                f"{place} at {index_of(first, got.shape)} is {_at(flat, first):.9g} and the framework says "
                f"{_at(own, first):.9g}",
            )


def _equal(got: torch.Tensor, ours: torch.Tensor, place: str) -> None:
    if not torch.equal(got, ours):
        first = int((got != ours).reshape(-1).nonzero()[0])
        raise Fault(
            "error", f"{place} at {index_of(first, got.shape)} is {_at(got, first)} and must be {_at(ours, first)}"
        )


def _special(got: torch.Tensor, ours: torch.Tensor, exact: torch.Tensor, place: str, infinite: bool) -> torch.Tensor:
    """NaN and infinity must be where the framework or float64 has them; where is returned what lies at the edge.

    Two allowances. A finite number at the very edge of the dtype may become an infinity of its sign. And where an
    argument is infinite and float64 says NaN (0 * inf, inf - inf), an infinity is right, too: it depends on the order
    of products and sums, of which kernels have several. With a block's scale of infinity, each product times the scale
    gives infinities of both signs, hence NaN, and the sum of the products times the scale gives one infinity. A number
    is never right there, and a NaN among the arguments must give NaN in whatever order.
    """
    largest = torch.finfo(got.dtype).max * (1 - 4 * torch.finfo(got.dtype).eps)
    edge = torch.isfinite(exact) & (exact.abs() > largest)
    wide = got.double()
    right = _alike(wide, ours.double()) | _alike(wide, exact) | (edge & (wide * exact.sign() > largest))
    if infinite:
        right |= exact.isnan() & ~torch.isfinite(wide)
    if not right.all():
        first = int((~right).reshape(-1).nonzero()[0])
        raise Fault(
            "special",
            f"{place} at {index_of(first, got.shape)} is {_at(got, first):.6g} where the framework has "
            f"{_at(ours, first):.6g} and float64 {_at(exact, first):.6g}",
        )
    return edge


def _alike(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    """Where both are numbers, both NaN, or the same infinity."""
    return (left.isnan() & right.isnan()) | (torch.isfinite(left) & torch.isfinite(right)) | (left == right)


def _error(tensor: torch.Tensor, exact: torch.Tensor) -> torch.Tensor:
    return (tensor.double() - exact).abs()


def _finite(tensor: torch.Tensor, exact: torch.Tensor) -> torch.Tensor:
    return torch.isfinite(tensor.double()) & torch.isfinite(exact)


def _unit(exact: torch.Tensor, dtype: torch.dtype) -> float:
    """The unit in the last place, in `dtype`, of the largest value."""
    info = torch.finfo(dtype)
    largest = float(exact.abs().max()) if exact.numel() else 0.0
    if not largest or not math.isfinite(largest):
        return float(info.smallest_normal * info.eps)
    return max(float(info.eps * 2.0 ** math.floor(math.log2(largest))), float(info.smallest_normal * info.eps))


def _at(tensor: torch.Tensor, flat: int) -> float:
    return float(tensor.reshape(-1)[flat])
