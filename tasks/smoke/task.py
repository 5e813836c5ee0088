"""The smoke stage."""

from __future__ import annotations

from pathlib import Path

from day0.architecture.quantization import quantization_of
from day0.artifacts.benchmark import BenchmarkReport
from day0.artifacts.service import Service
from day0.artifacts.smoke import SmokeReport
from day0.artifacts.snapshot import Snapshot
from day0.checkpoint import read_config, read_quantisation
from day0.endpoint import Endpoint, LiveEngine
from day0.engine_kernels import on_service
from day0.stage import MINUTES, stage
from tasks.smoke.exact import float32_service, option
from tasks.smoke.run import run_smoke
from tasks.smoke.settings import SmokeSettings


@stage("smoke", version=5, timeout=60 * MINUTES, packages=("torch", "transformers"))
def smoke(
    snapshot: Snapshot,
    service: Service,
    benchmark: BenchmarkReport | None,
    settings: SmokeSettings,
    engine: LiveEngine,
) -> SmokeReport:
    """Hold the served model against the original files through transformers.

    The engine is started anew at float32 for a part of it, and is left so: who needs the service asks for it again.
    Where the engine ends in an accepted kernel, all is asked again without it. `benchmark` is given where it took one
    out after smoke had passed: what is left is asked again.
    """
    snapshot.require_weights()  # the reference reads them
    return on_service(service, engine, lambda its: _smoke(snapshot, its, settings, engine), before=benchmark)


def _smoke(snapshot: Snapshot, service: Service, settings: SmokeSettings, engine: LiveEngine) -> SmokeReport:
    served = engine.endpoint(service)

    def relaunch(tokens: int) -> Endpoint:
        exact = float32_service(service, tokens)
        engine.endpoint(service)  # says so if the engine has ended meanwhile, which a new one would hide
        return engine.endpoint(exact)

    return run_smoke(
        served,
        Path(snapshot.location),
        settings,
        model_digest=snapshot.digest,
        engine_dtype=option(service.launch.command, "--dtype") or "unknown",
        max_model_len=service.max_model_len,
        computed_out=computed_out(Path(snapshot.location), service),
        relaunch=relaunch,
    )


def computed_out(original: Path, service: Service) -> str | None:
    """The dtype that resharding computed quantised weights out to; None where they are served as they are stored."""
    if not _quantised(original) or _quantised(Path(service.launch.model_path)):
        return None
    return option(service.launch.command, "--dtype")


def _quantised(folder: Path) -> bool:
    return quantization_of(read_config(folder), read_quantisation(folder), str(folder)) is not None
