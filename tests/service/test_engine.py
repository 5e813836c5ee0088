"""The real engine on the process runtime."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import httpx
import pytest

from day0.architecture.family import find_family
from day0.artifacts.service import LaunchSpec
from day0.checkpoint import open_checkpoint
from day0.endpoint import EngineDied
from tasks.reshard.partial import plan_key, resumable_folder
from tasks.reshard.planner import plan_writes
from tasks.reshard.shards import write_shards
from tasks.service import registry, supervisor
from tasks.service.engine import EngineConfig
from tasks.service.environment import prepare
from tasks.service.launch import launch_spec
from tasks.service.session import EngineSession
from tests.models.tiny import make_tiny_llama
from tests.service.test_session import wait_for

pytestmark = pytest.mark.engine

ARGS = {
    "tensor_parallel_size": 1,
    "pipeline_parallel_size": 1,
    "max_model_len": 256,
    "max_num_seqs": 2,
    "dtype": "bfloat16",
    "kv_cache_dtype": "bfloat16",
    "kv_cache_bytes": 1 << 27,
}


def resharded(source: Path, target: Path) -> Path:
    """`source` as the reshard stage writes it for one rank."""
    checkpoint = open_checkpoint(source)
    plan = plan_writes(checkpoint, find_family(checkpoint.config), "vllm", 1, 1, 1, None)
    with resumable_folder(target, plan_key(plan, checkpoint)) as partial:
        write_shards(plan, checkpoint, partial.root)
    return target


@pytest.fixture
def shards(tmp_path: Path) -> Path:
    """Heads of 64: the engine's attention on a CPU takes no smaller ones than 32."""
    return resharded(make_tiny_llama(tmp_path / "release", hidden=256), tmp_path / "shards")


@pytest.fixture
def spec(engine_home: Path, shards: Path, engine: EngineConfig) -> LaunchSpec:
    prepared = prepare("vllm-cpu", "process")
    return launch_spec(
        shards,
        ARGS,
        "vllm-cpu",
        engine,
        "process",
        prepared,
        served_name="tiny",
        attention=frozenset(),
        memory_bytes=4 << 30,
        ready_timeout=600,
    )


def test_a_real_engine_answers_and_its_death_is_diagnosed(spec: LaunchSpec) -> None:
    assert "sharded_state" in spec.command
    with EngineSession("test") as session:
        started = session.start(spec)
        assert started.first_completion.tokens == 8
        url = started.endpoint.url
        chat = {"model": "tiny", "messages": [{"role": "user", "content": "hello"}], "max_tokens": 4}
        answer = httpx.post(f"{url}/v1/chat/completions", json=chat, timeout=120, trust_env=False)
        assert answer.status_code == 200
        assert answer.json()["choices"][0]["finish_reason"]
        first = registry.find(started.name).engine
        assert first is not None
        os.kill(first.pid, signal.SIGKILL)
        wait_for(lambda: started.endpoint.diagnose() is not None)
        assert "killed by SIGKILL" in (started.endpoint.diagnose() or "")


def test_however_it_ends_nothing_of_it_is_left(spec: LaunchSpec) -> None:
    with EngineSession("test") as session:
        folder, shared, _ = belongings(session.start(spec).name)
        assert any(path.is_socket() for path in folder.iterdir())
        session.stop()
        assert not folder.exists()
        assert not shared & names()

        folder, shared, engine = belongings(session.start(spec).name)
        os.killpg(engine, signal.SIGKILL)  # its resource tracker too, which else would remove them
        wait_for(lambda: not folder.exists())
        assert not shared & names()


def belongings(name: str) -> tuple[Path, set[str], int]:
    """An engine's temporary folder, the names of its shared memory, and its process group."""
    record = registry.find(name)
    wait_for(lambda: bool(registry.status(name)["shared"]))
    shared = set(registry.status(name)["shared"]) & names()  # it has removed some itself by now
    assert shared
    assert record.temporary is not None
    assert record.engine is not None
    return Path(record.temporary), shared, record.engine.pid


def names() -> set[str]:
    return {path.name for path in supervisor.SHARED.iterdir()}


def test_a_start_that_fails_tells_the_engines_own_error(spec: LaunchSpec, shards: Path) -> None:
    for file in shards.glob("*.safetensors"):
        file.write_bytes(file.read_bytes()[:-64])
    with EngineSession("test") as session, pytest.raises(EngineDied) as caught:
        session.start(spec)
    assert "SafetensorError" in str(caught.value)
