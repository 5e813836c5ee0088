"""The benchmark stage."""

from __future__ import annotations

from day0.artifacts.benchmark import BenchmarkReport
from day0.artifacts.plan import ParallelPlan
from day0.artifacts.profile import Profile
from day0.artifacts.service import Service
from day0.artifacts.smoke import SmokeReport
from day0.artifacts.snapshot import Snapshot
from day0.endpoint import LiveEngine
from day0.stage import MINUTES, stage, tree_of, workspace
from tasks.benchmark.prompts import usable_token_ids
from tasks.benchmark.roofline import decode_bytes
from tasks.benchmark.run import run_benchmark
from tasks.benchmark.settings import BenchmarkSettings


@stage("benchmark", version=1, retries=0, timeout=60 * MINUTES, packages=("aiohttp", "numpy"))
def benchmark(
    snapshot: Snapshot,
    profile: Profile,
    plan: ParallelPlan,
    service: Service,
    smoke: SmokeReport,
    settings: BenchmarkSettings,
    engine: LiveEngine,
) -> BenchmarkReport:
    """How fast the service is. It takes `smoke` because numbers of a service that answers wrongly mean nothing."""
    return run_benchmark(
        engine.endpoint(service),
        usable_token_ids(tree_of(snapshot), int(profile.architecture["vocab_size"])),
        settings,
        max_model_len=service.max_model_len,
        work=decode_bytes(profile, plan.weight_dtype, settings.mean_context),
        records=workspace(),
    )
