"""The evidence of a run: each stage's verdict with the numbers that a person asks for first."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from day0.artifacts.base import Artifact, Frozen
from day0.artifacts.benchmark import BenchmarkReport
from day0.artifacts.kernels import KernelBundle
from day0.artifacts.multimodal import MultimodalReport
from day0.artifacts.operators import OperatorReport
from day0.artifacts.plan import ParallelPlan
from day0.artifacts.profile import Profile
from day0.artifacts.service import LaunchSpec, Service
from day0.artifacts.shards import RankShards
from day0.artifacts.smoke import SmokeReport
from day0.artifacts.snapshot import Snapshot
from day0.engine_kernels import left_by
from day0.verdict import Check, Rung, Verdict, follow_up, missing_evidence, rung


@dataclass(frozen=True)
class Evidence:
    """Everything that a recipe is made of. None: the stage made no artifact."""

    snapshot: Snapshot
    profile: Profile
    plan: ParallelPlan
    shards: RankShards
    operators: OperatorReport
    kernels: KernelBundle
    service: Service
    smoke: SmokeReport | None
    multimodal: MultimodalReport | None
    benchmark: BenchmarkReport | None

    def stages(self) -> dict[str, Artifact | None]:
        """By stage name, in the order in which they ran."""
        return {
            "download": self.snapshot, "profile": self.profile, "plan": self.plan, "reshard": self.shards,
            "operators": self.operators, "kernels": self.kernels, "service": self.service, "smoke": self.smoke,
            "multimodal": self.multimodal, "benchmark": self.benchmark,
        }  # fmt: skip

    def verdicts(self) -> dict[str, Verdict]:
        """Of the stages that made an artifact."""
        return {name: artifact.verdict for name, artifact in self.stages().items() if artifact is not None}

    def follow_up(self) -> list[str]:
        """What did not go as it should and yet failed nothing."""
        return follow_up(check for artifact in self.stages().values() if artifact for check in artifact.checks)

    @property
    def launch(self) -> LaunchSpec:
        """What is handed over: the engine without the kernels that it ended in while it was asked or measured."""
        return left_by(self.service, self.smoke, self.benchmark).launch

    @property
    def rung(self) -> Rung:
        return rung(self.verdicts())

    def next_rung(self) -> tuple[Rung | None, list[str]]:
        """The rung above, and what it lacks."""
        return missing_evidence(self.verdicts())


class Row(Frozen):
    """One stage in the evidence table."""

    stage: str
    verdict: Verdict | None
    """None: it made no artifact."""
    reason: str
    artifact: str | None
    """Its digest."""
    numbers: dict[str, str]
    checks: tuple[Check, ...]


def rows(evidence: Evidence) -> list[Row]:
    """The evidence table."""
    return [_row(name, artifact) for name, artifact in evidence.stages().items()]


def _row(name: str, artifact: Artifact | None) -> Row:
    if artifact is None:
        return Row(stage=name, verdict=None, reason="has not run", artifact=None, numbers={}, checks=())
    return Row(
        stage=name,
        verdict=artifact.verdict,
        reason=artifact.reason,
        artifact=artifact.digest,
        numbers=dict(_numbers(artifact)),
        checks=artifact.checks,
    )


def completeness(evidence: Evidence) -> Check:
    """Whether every stage ran and is good. A recipe is handed over either way, but never as if it were proven."""
    open_points = [
        f"{r.stage} {r.verdict or r.reason}" for r in rows(evidence) if r.verdict is None or not r.verdict.good
    ]
    for name, report in (("smoke", evidence.smoke), ("benchmark", evidence.benchmark)):
        had = left_by(evidence.service, report).launch.given if report else ()
        if more := [kernel.name for kernel in had if kernel not in evidence.launch.given]:
            open_points.append(f"{name} is of an engine with {', '.join(more)}, which is not handed over")
    if open_points:
        reason = f"handed over with open points: {', '.join(open_points)}"
        return Check(name="evidence", verdict=Verdict.INCONCLUSIVE, reason=reason)
    reason = f"every stage is good; rung {evidence.rung}"
    return Check(name="evidence", verdict=Verdict.PASS, reason=reason, measured=_verdict_names(evidence.verdicts()))


def _verdict_names(verdicts: Mapping[str, Verdict]) -> dict[str, str]:
    return {name: verdict.value for name, verdict in verdicts.items()}


def size(count: float) -> str:
    """Bytes in the unit that people read, of powers of 1024."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(count) < 1024:
            return f"{count:.0f} B" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} TiB"


def milliseconds(seconds: float) -> str:
    return f"{seconds * 1e3:,.0f} ms" if seconds >= 0.01 else f"{seconds * 1e3:.2f} ms"


def _numbers(artifact: Artifact) -> Iterator[tuple[str, str]]:
    """The numbers of one artifact, as (what, value)."""
    match artifact:
        case Snapshot():
            yield "files", f"{len(artifact.files)}"
            yield "size", size(artifact.bytes)
            yield "tensors", f"{artifact.tensors:,}"
            yield "digests compared with", artifact.digests_from
        case Profile():
            yield "parameters", f"{artifact.parameters.total:,}"
            yield "active", f"{artifact.parameters.active:,}"
            yield "KV cache per token", size(artifact.kv_cache.bytes_per_token)
        case ParallelPlan(chosen=chosen):
            if chosen:
                yield "layout", f"TP {chosen.tp} · PP {chosen.pp} · EP {chosen.ep} · DP {chosen.dp}"
                yield "per device", f"{size(chosen.per_device.total)} of {size(chosen.per_device.capacity)}"
            yield "context", f"{artifact.context:,}"
        case RankShards():
            yield "layout", artifact.layout
            yield "ranks", f"{artifact.ranks}"
            yield "written", size(artifact.bytes_written)
        case OperatorReport():
            called = {operator.name for phase in artifact.phases.values() for operator in phase.operators}
            yield "operators", f"{len(called)}"
            yield "gaps", f"{len(artifact.gaps)}"
        case KernelBundle():
            yield "built", f"{len(artifact.kernels)}"
            yield "given to the engine", f"{len(artifact.plugin.kernels) if artifact.plugin else 0}"
        case Service():
            yield "ready after", f"{artifact.ready_seconds:.1f} s"
            yield "engine", f"{artifact.launch.engine} {artifact.launch.engine_version}"
            yield "longest context", f"{artifact.max_model_len:,}"
        case SmokeReport():
            yield from _smoke_numbers(artifact)
        case BenchmarkReport():
            yield from _benchmark_numbers(artifact)


def _smoke_numbers(report: SmokeReport) -> Iterator[tuple[str, str]]:
    if report.error:
        yield "mean error", f"{report.error.mean:.4f} nats"
    if report.ratio is not None:
        yield "ratio to rounding", f"{report.ratio:.2f}"
    if report.top1_agreement is not None:
        yield "top-1 agreement", f"{report.top1_agreement:.1%}"
    if report.exact:
        yield "mean error at float32", f"{report.exact.error.mean:.1e} nats"


def _benchmark_numbers(report: BenchmarkReport) -> Iterator[tuple[str, str]]:
    for cell in report.cells:
        where = f"c={cell.concurrency} {cell.prefix_cache}"
        if cell.ttft and cell.tpot and cell.output_tokens_per_second is not None:
            yield f"TTFT {where}", milliseconds(cell.ttft.p50)
            yield f"TPOT {where}", milliseconds(cell.tpot.p50)
            yield f"output {where}", f"{cell.output_tokens_per_second:.1f} tokens/s"
    if report.roofline:
        yield "roofline share", f"{report.roofline.share:.0%}"
