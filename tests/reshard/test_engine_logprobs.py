"""The engine answers from our files what it answers from the original, to the last bit."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from day0.architecture.family import find_family
from day0.checkpoint import open_checkpoint
from tasks.reshard.partial import plan_key, resumable_folder
from tasks.reshard.planner import plan_writes
from tasks.reshard.shards import write_shards
from tests.models.families import make_tiny_deepseek_v3, make_tiny_gpt_oss, make_tiny_qwen3_moe
from tests.models.tiny import make_tiny_llama
from tests.reshard.engines import EngineWorker, engine_home, engine_python, engine_worker

__all__ = ["engine_home", "engine_python", "engine_worker"]

pytestmark = [pytest.mark.engine, pytest.mark.timeout(1200)]

#: The engine's CPU build computes MXFP4 only on processors with AMX, so gpt-oss is in bf16. Expert parallelism is not
#: here, since in that build it gives the original another answer at every run, or ends it: its kernels for experts take
#: no expert map. test_engine_state.py has it.
RELEASES: dict[str, Callable[[Path], Path]] = {
    "llama": partial(make_tiny_llama, layers=4, hidden=256, heads=8, kv_heads=1),
    "qwen3_moe": make_tiny_qwen3_moe,
    "deepseek_v3": make_tiny_deepseek_v3,
    "gpt_oss": partial(make_tiny_gpt_oss, mxfp4=False),
}


@pytest.mark.parametrize("tp", [1, 2])
@pytest.mark.parametrize("release", RELEASES)
def test_the_engine_answers_the_same(
    release: str, tp: int, engine_python: Path, engine_worker: EngineWorker, tmp_path: Path
) -> None:
    original = RELEASES[release](tmp_path / "release")
    ours = resharded(original, tmp_path / "shards", tp)
    expected, found = (
        engine_worker.ask(engine_python, "engine_logprobs.py", {"model": str(model), "load_format": form, "tp": tp})
        for model, form in ((original, "auto"), (ours, "sharded_state"))
    )
    assert len(expected) == 3
    assert all(answer["prompt"] and answer["generated"] for answer in expected)
    assert "nan" not in json.dumps(expected)
    assert found == expected


def resharded(source: Path, target: Path, tp: int) -> Path:
    checkpoint = open_checkpoint(source)
    plan = plan_writes(checkpoint, find_family(checkpoint.config), "vllm", tp)
    with resumable_folder(target, plan_key(plan, checkpoint)) as partial_folder:
        write_shards(plan, checkpoint, partial_folder.root)
    return target
