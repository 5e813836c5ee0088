"""Single checks of the acceptance, on small kernels in Python: each rejects what only it can see."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch

from tasks.kernels.acceptance.errors import Judge
from tasks.kernels.acceptance.examine import Candidate, Examination
from tasks.kernels.acceptance.faults import Fault
from tasks.kernels.acceptance.huge import available_memory
from tasks.kernels.acceptance.repeat_checks import check_stream
from tasks.kernels.definition import KernelDefinition, Tolerance
from tests.kernels.conftest import INPUTS, KERNEL_YAML, MakeKernel

pytestmark = pytest.mark.reference

#: Rows times a scale of each, summed: an infinite scale may be applied before the sum or after it.
SUMS = {
    "kernel.yaml": KERNEL_YAML.replace("scale(Tensor x, float by)", "scale(Tensor x, Tensor by)")
    .replace("2 * size * element", "8 * rows * size")
    .replace("flops: size", "flops: rows * size")
    .replace("ratio: 2, atol: 0", "ratio: 3, atol: 1.0e-5"),
    "reference.py": "def reference(x, by):\n    return ((x * by[:, None]).sum(dim=1),)\n",
    "inputs.py": """
import torch

CASES = [{"rows": 7, "size": 65}, {"rows": 2, "size": 2, "bench": True}]


def make(case, dtype, generator, device):
    return (
        torch.randn(case["rows"], case["size"], generator=generator, device=device).to(dtype),
        1 + torch.rand(case["rows"], generator=generator, device=device),
    )
""",
}


def _examined(make_kernel: MakeKernel, run: Callable[..., Any]) -> None:
    Examination(KernelDefinition(make_kernel(**SUMS)), Candidate(run), seed=5).run()


@pytest.mark.parametrize(
    "run",
    [
        lambda x, by: (x * by[:, None]).sum(dim=1),
        lambda x, by: x.sum(dim=1) * by,
        lambda x, by: x @ torch.ones(x.shape[1]) * by,
    ],
    ids=["before the sum", "after it", "as a product"],
)
def test_an_infinite_scale_may_be_applied_in_any_order(make_kernel: MakeKernel, run: Any) -> None:
    _examined(make_kernel, run)


@pytest.mark.parametrize(
    ("run", "says"),
    [
        (lambda x, by: (x.nan_to_num() * by[:, None]).sum(dim=1), "nan in x"),
        (lambda x, by: x.sum(dim=1) * by.nan_to_num(nan=1.0, posinf=math.inf, neginf=-math.inf), "nan in by"),
        (lambda x, by: x.sum(dim=1) * by.nan_to_num(nan=math.nan, posinf=3.0, neginf=-3.0), "inf in by"),
        (lambda x, by: x.sum(dim=1) * by.clamp(-1e30, 1e30), "inf in by"),
        (lambda x, by: (x.clamp(max=1e30) * by[:, None]).sum(dim=1), "inf in x"),
        (lambda x, by: (x * by[:, None]).sum(dim=1) + 0 * x.sum() * by, "nan in x"),
        (lambda x, by: torch.where(by.isnan(), math.inf, x.sum(dim=1) * by), "nan in by"),
        (lambda x, by: torch.where(by.isinf(), math.inf, x.sum(dim=1) * by).where(~x.isinf().any(1), 0), "inf in x"),
    ],
)
def test_a_nan_or_infinity_that_is_lost_or_spread_is_a_fault(make_kernel: MakeKernel, run: Any, says: str) -> None:
    with pytest.raises(Fault) as raised:
        _examined(make_kernel, run)
    assert raised.value.kind == "special"
    assert says in str(raised.value)


def _judged(got: float, ours: float, exact: float, infinite: bool = False) -> None:
    judge = Judge("float16", Tolerance(ratio=2, atol=0, reason="of the test"))
    outputs = [torch.tensor([value], dtype=torch.float16) for value in (got, ours)]
    judge.compare(outputs[:1], outputs[1:], [torch.tensor([exact], dtype=torch.float64)], "here", infinite=infinite)


@pytest.mark.parametrize(
    ("got", "ours", "exact", "infinite"),
    [
        (math.inf, math.inf, 70000.0, False),
        (65504.0, math.inf, 65510.0, False),
        (math.inf, 65504.0, 65519.0, False),
        (2.0, math.nan, 2.0, False),
        (math.nan, math.inf, math.nan, False),
        (-math.inf, math.nan, math.nan, True),
    ],
)
def test_where_a_number_or_none_is_right(got: float, ours: float, exact: float, infinite: bool) -> None:
    _judged(got, ours, exact, infinite)


@pytest.mark.parametrize(
    ("got", "ours", "exact", "infinite", "kind"),
    [
        (-math.inf, math.inf, 70000.0, False, "special"),
        (math.nan, math.inf, 70000.0, False, "special"),
        (math.inf, 2.0, 2.0, False, "special"),
        (math.inf, math.nan, math.nan, False, "special"),
        (0.0, math.nan, math.nan, True, "special"),
        (math.nan, math.inf, math.inf, True, "special"),
        (3.0, math.nan, 2.0, False, "error"),
        (3.0, math.inf, 2.0, False, "error"),
    ],
)
def test_where_it_is_a_fault(got: float, ours: float, exact: float, infinite: bool, kind: str) -> None:
    with pytest.raises(Fault) as raised:
        _judged(got, ours, exact, infinite)
    assert raised.value.kind == kind


class SimulatedStream:
    """A stream whose copies are made when it is waited for."""

    def __init__(self) -> None:
        self._waiting: list[tuple[torch.Tensor, torch.Tensor]] = []

    @contextmanager
    def behind_work(self) -> Iterator[None]:
        yield
        self.wait()

    def copy(self, target: torch.Tensor, source: torch.Tensor) -> None:
        self._waiting.append((target, source))

    def wait(self) -> None:
        for target, source in self._waiting:
            target.copy_(source)
        self._waiting.clear()


@pytest.mark.parametrize("waits", [True, False])
def test_a_kernel_that_does_not_wait_for_the_stream_is_rejected(make_kernel: MakeKernel, waits: bool) -> None:
    definition = KernelDefinition(make_kernel())
    stream = SimulatedStream()

    def run(x: torch.Tensor, by: float) -> torch.Tensor:
        if waits:
            stream.wait()
        return x * by

    examination = Examination(definition, Candidate(run), seed=3)
    judge = Judge("float32", definition.file.tolerance["float32"])
    check = (examination.subject, judge, definition.cases[0], torch.float32, stream)
    if waits:
        check_stream(*check)
        return
    with pytest.raises(Fault, match="the kernel does not wait for the current stream") as raised:
        check_stream(*check)
    assert raised.value.kind == "stream"


#: Rows are taken out of a table by their numbers; the table may have more than 2^31 elements.
TAKEN = {
    "kernel.yaml": KERNEL_YAML.replace("scale(Tensor x, float by)", "scale(Tensor x, Tensor by)")
    .replace("2 * size * element", "8 * rows * 64")
    .replace("flops: size", "flops: rows"),
    "reference.py": "def reference(x, by):\n    return (x[by],)\n",
    "inputs.py": """
import torch

CASES = [{"rows": 9}, {"rows": 2**25 + 8, "huge": True}, {"rows": 2, "bench": True}]


def make(case, dtype, generator, device):
    x = torch.randn(case["rows"], 64, generator=generator, device=device).to(dtype)
    return x, torch.arange(case["rows"], device=device).flip(0)


def huge(case, dtype, generator, placed):
    small = make({"rows": 3}, dtype, generator, "cpu")
    at = torch.tensor([0, 2**24, case["rows"] - 1])
    return (placed(small[0], case["rows"], at), at[small[1]]), small, lambda outputs: outputs
""",
}


def _by_offset(x: torch.Tensor, by: torch.Tensor, kind: torch.dtype) -> torch.Tensor:
    """Rows by their elements' offsets in memory, computed in a dtype, which may overflow."""
    rows = by.to(kind) * torch.tensor(x.stride(0)).to(kind)
    offsets = rows[:, None] + (torch.arange(64) * x.stride(1)).to(kind)
    memory = x.as_strided((x.untyped_storage().nbytes() // x.element_size() - x.storage_offset(),), (1,))
    return memory[offsets.long() % memory.numel()]


@pytest.mark.parametrize("contiguous", [False, True], ids=["as they lie", "made contiguous"])
def test_offsets_beyond_32_bits(make_kernel: MakeKernel, contiguous: bool) -> None:
    definition = KernelDefinition(make_kernel(**TAKEN))

    def run(kind: torch.dtype) -> Examination:
        def call(x: torch.Tensor, by: torch.Tensor) -> torch.Tensor:
            return _by_offset(x.contiguous() if contiguous else x, by, kind)

        examination = Examination(definition, Candidate(call), seed=5)
        examination.run()
        examination.huge(1 << 30)
        return examination

    right = run(torch.int64)
    assert right.error["not_run"] == []
    assert right.error["elements"] is None
    with pytest.raises(Fault, match="rows=33554440" if contiguous else "rows=9, slices far apart") as raised:
        run(torch.int32)
    assert raised.value.kind == "error"


def test_what_is_too_large_for_the_memory_limits_the_verdict(make_kernel: MakeKernel) -> None:
    definition = KernelDefinition(make_kernel(**TAKEN))
    examination = Examination(definition, Candidate(lambda x, by: x[by]), seed=5)
    examination.huge(1000)
    assert examination.error["elements"] == 2**31 - 1
    assert [why.partition(":")[0] for why in examination.error["not_run"]] == [
        "rows=9, slices far apart",
        "rows=33554440",
    ]
    assert "needs some 0.3 GiB, and 0.0 GiB may be taken" in examination.error["not_run"][1]


def test_a_kernel_without_huge_cases_has_the_limit_too(make_kernel: MakeKernel) -> None:
    examination = Examination(KernelDefinition(make_kernel()), Candidate(lambda x, by: x * by), seed=5)
    examination.huge(1 << 30)
    assert (examination.error["elements"], examination.error["not_run"]) == (2**31 - 1, ["no case is huge"])


def test_memory_is_what_a_control_group_leaves(tmp_path: Path) -> None:
    assert available_memory("cpu", tmp_path) == 0
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/meminfo").write_text("MemTotal: 4000 kB\nMemAvailable: 2000 kB\n")
    assert available_memory("cpu", tmp_path) == 2000 * 1024 * 8 // 10
    group = tmp_path / "sys/fs/cgroup"
    group.mkdir(parents=True)
    (group / "memory.current").write_text("1000\n")
    (group / "memory.max").write_text("max\n")
    assert available_memory("cpu", tmp_path) == 2000 * 1024 * 8 // 10
    (group / "memory.max").write_text("11000\n")
    assert available_memory("cpu", tmp_path) == 8000


class Sometimes:
    """Right, but for every `nth` call."""

    def __init__(self, nth: int, wrong: Callable[[torch.Tensor], torch.Tensor]) -> None:
        self.calls, self.nth, self.wrong = 0, nth, wrong

    def __call__(self, x: torch.Tensor, by: float) -> torch.Tensor:
        self.calls += 1
        result = x.contiguous() * by
        return self.wrong(result) if self.calls % self.nth == 0 else result


class Rewrites:
    """Returns what is right, and writes to what it returned before."""

    def __init__(self) -> None:
        self.before: torch.Tensor | None = None

    def __call__(self, x: torch.Tensor, by: float) -> torch.Tensor:
        if self.before is not None:
            self.before.zero_()
        self.before = x.contiguous() * by
        return self.before


def _later(x: torch.Tensor, by: float) -> torch.Tensor:
    result = x.contiguous() * by
    if torch.get_num_threads() == 4:  # in the last check
        threading.Timer(0.03, result.zero_).start()  # within the 0.05 s that are waited, after the call's comparison
    return result


def _by_threads(x: torch.Tensor, by: float) -> torch.Tensor:
    return x.contiguous() * (by if torch.get_num_threads() != 4 else 2 * by)


def _unwritten(x: torch.Tensor, by: float) -> torch.Tensor:
    result = torch.empty(x.shape)
    result[:-1] = x[:-1] * by
    return result


@pytest.mark.parametrize(
    ("run", "kind", "says"),
    [
        (Sometimes(61, lambda right: right.add(1e-6)), "undetermined", "equal call"),
        (Rewrites(), "stale", "was overwritten by a later call"),
        (_later, "late", "changed after the call"),
        (_by_threads, "error", "4 threads"),
        (_unwritten, "unwritten", "depends on what memory held before"),
    ],
)
def test_what_only_repetition_shows(make_kernel: MakeKernel, run: Any, kind: str, says: str) -> None:
    inputs = INPUTS.replace('{"size": 7}, {"size": 0}, ', "")
    with pytest.raises(Fault) as raised:
        Examination(KernelDefinition(make_kernel(**{"inputs.py": inputs})), Candidate(run), seed=3).run()
    assert (raised.value.kind, says in str(raised.value)) == (kind, True), str(raised.value)


def _writes(factor: float, rows: int | None = None) -> Callable[..., None]:
    def out(x: torch.Tensor, by: float, *, out0: torch.Tensor) -> None:
        out0[:rows] = x[:rows] * by * factor

    return out


@pytest.mark.parametrize(
    ("out", "kind"),
    [
        (_writes(1.01), "error"),
        (_writes(1.0, -1), "unwritten"),
        (lambda x, by, out0: out0.set_(x * by), "structure"),
        (lambda x, by, out0: 1 / 0, "raised"),
    ],
)
def test_given_outputs_are_examined_too(make_kernel: MakeKernel, out: Any, kind: str) -> None:
    candidate = Candidate(lambda x, by: x.contiguous() * by, out)
    with pytest.raises(Fault, match="given outputs") as raised:
        Examination(KernelDefinition(make_kernel()), candidate, seed=3).run()
    assert raised.value.kind == kind


def test_an_argument_that_must_be_refused(make_kernel: MakeKernel) -> None:
    strict = KernelDefinition(make_kernel(**{"kernel.yaml": KERNEL_YAML + "contiguous: [x]\n"}))

    def refuses(x: torch.Tensor, by: float) -> torch.Tensor:
        if not x.is_contiguous():
            raise ValueError("x must be contiguous")
        return x * by

    Examination(strict, Candidate(refuses), seed=3).run()
    with pytest.raises(Fault, match="x is not contiguous, and it was taken") as raised:
        Examination(strict, Candidate(lambda x, by: x.contiguous() * by), seed=3).run()
    assert raised.value.kind == "accepted"


def test_results_that_lean_to_one_side() -> None:
    """Half of them cut toward zero: the mean error is within the tolerance."""
    exact = torch.randn(20000, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    nearest = exact.to(torch.bfloat16)
    beyond = nearest.double().abs() > exact.abs()
    cut = torch.where(beyond, torch.nextafter(nearest, torch.zeros_like(nearest)), nearest)
    judge = Judge("bfloat16", Tolerance(ratio=1.6, atol=0, reason="of the test"))
    half = torch.where(torch.arange(20000) % 2 == 0, cut, nearest)
    for outputs, leans in ((nearest, False), (half, True)):
        judge.sums.clear()
        judge.compare([outputs], [nearest], [exact], "here")
        if not leans:
            judge.finish()
            continue
        with pytest.raises(Fault, match="results lean toward zero") as raised:
            judge.finish()
        assert raised.value.kind == "bias"
