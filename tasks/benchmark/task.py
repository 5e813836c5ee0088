"""The benchmark stage."""

from __future__ import annotations

from pathlib import Path

from day0.architecture.stored import converted, stored_from_headers
from day0.architecture.structure import structure_of
from day0.artifacts.benchmark import BenchmarkReport
from day0.artifacts.plan import ParallelPlan
from day0.artifacts.profile import Profile
from day0.artifacts.service import Service
from day0.artifacts.smoke import SmokeReport
from day0.artifacts.snapshot import Snapshot
from day0.checkpoint import open_checkpoint
from day0.endpoint import LiveEngine
from day0.engine_kernels import on_service
from day0.stage import MINUTES, stage, tree_of, workspace
from tasks.benchmark.prompts import usable_token_ids
from tasks.benchmark.roofline import DecodeBytes, decode_bytes
from tasks.benchmark.run import run_benchmark
from tasks.benchmark.settings import BenchmarkSettings


@stage("benchmark", version=3, retries=0, timeout=60 * MINUTES, packages=("aiohttp", "numpy"))
def benchmark(
    snapshot: Snapshot,
    profile: Profile,
    plan: ParallelPlan,
    service: Service,
    smoke: SmokeReport,
    settings: BenchmarkSettings,
    engine: LiveEngine,
) -> BenchmarkReport:
    """How fast the service is. It takes `smoke` because numbers of a service that answers wrongly mean nothing.

    It is the service that smoke was left with. Where the engine ends in an accepted kernel, all is measured again
    without it.
    """
    folder = tree_of(snapshot)

    def measure(its: Service) -> BenchmarkReport:
        return run_benchmark(
            engine.endpoint(its),
            usable_token_ids(folder, int(profile.architecture["vocab_size"])),
            settings,
            max_model_len=its.max_model_len,
            work=_least_bytes(folder, plan, settings.mean_context),
            records=workspace(),
        )

    return on_service(service, engine, measure, before=smoke)


def _least_bytes(folder: Path, plan: ParallelPlan, context: float) -> DecodeBytes:
    """Of the weights as the plan has them served."""
    checkpoint = open_checkpoint(folder)
    structure = structure_of(checkpoint.config, str(folder), checkpoint.tensors)
    stored = stored_from_headers(structure.family, checkpoint.tensors)
    if plan.convert_to:
        stored = converted(stored, structure, plan.convert_to)
    return decode_bytes(structure, stored, plan.kv_dtype, context)
