"""The recipe stage."""

from __future__ import annotations

from day0.artifacts.benchmark import BenchmarkReport
from day0.artifacts.kernels import KernelBundle
from day0.artifacts.multimodal import MultimodalReport
from day0.artifacts.operators import OperatorReport
from day0.artifacts.plan import ParallelPlan
from day0.artifacts.profile import Profile
from day0.artifacts.recipe import Recipe
from day0.artifacts.service import Service
from day0.artifacts.shards import RankShards
from day0.artifacts.smoke import SmokeReport
from day0.artifacts.snapshot import Snapshot
from day0.stage import MINUTES, stage, tree_of, workspace
from tasks.recipe.evidence import Evidence
from tasks.recipe.settings import RecipeSettings
from tasks.recipe.write import write_recipe


@stage("recipe", version=2, retries=0, timeout=10 * MINUTES, packages=("matplotlib", "jinja2"))
def recipe(
    snapshot: Snapshot,
    profile: Profile,
    plan: ParallelPlan,
    shards: RankShards,
    operators: OperatorReport,
    kernels: KernelBundle,
    service: Service,
    smoke: SmokeReport,
    multimodal: MultimodalReport | None,
    benchmark: BenchmarkReport | None,
    settings: RecipeSettings,
) -> Recipe:
    """Hand over how to run the model, with the evidence; also when later stages failed, which it then says."""
    evidence = Evidence(
        snapshot, profile, plan, shards, operators, kernels, service, smoke, multimodal, benchmark
    )  # fmt: skip
    records = tree_of(benchmark) / benchmark.files[0].name if benchmark and benchmark.files else None
    given = tree_of(kernels) if service.launch.kernels else None
    return write_recipe(evidence, workspace(), settings, benchmark_records=records, kernels=given)
