"""The whole path on a real model: SmolLM2-135M-Instruct, served by vLLM from the files that reshard wrote."""

from __future__ import annotations

import json
import os
import shutil
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from day0.safetensors_header import read_header
from flows.pipeline import ORDER
from tests.flows.chain import Home, engines_of, reason, shared, verdicts
from tests.models.smollm2 import make_smollm2

pytestmark = [pytest.mark.engine, pytest.mark.reference, pytest.mark.timeout(1800)]

GOOD = dict.fromkeys(ORDER[1:], "pass") | {"kernels": "skipped", "multimodal": "skipped"}  # a folder is not surveyed


@pytest.fixture(scope="module")
def release() -> Path:
    return make_smollm2(shared() / "SmolLM2-135M-Instruct")


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Home]:
    home = Home.make(tmp_path_factory.mktemp("chain") / "home")
    yield home
    assert engines_of(home) == []
    home.close()


@pytest.fixture(scope="module")
def adapted(home: Home, release: Path) -> dict[str, Any]:
    """The result of the first run."""
    exit_code, result = home.day0("adapt", f"dir:{release}")
    assert exit_code == 0, result
    return result


@pytest.fixture
def broken(release: Path, tmp_path: Path) -> Path:
    """A copy of the release, to be broken."""
    return shutil.copytree(release, tmp_path / "broken")


def test_every_stage_passes_and_the_rung_is_what_the_evidence_bears(adapted: dict[str, Any]) -> None:
    assert verdicts(adapted) == GOOD
    assert adapted["rung"] == "runs"  # `correct` needs the precision stage, which is not there yet
    assert adapted["release"]["files"] > 5
    assert reason(adapted, "multimodal") == "no vision tower"


def test_the_engine_serves_what_reshard_wrote(home: Home, adapted: dict[str, Any]) -> None:
    launch = home.report("service", adapted["run"])["content"]["launch"]
    command = launch["command"]
    assert command[command.index("--load-format") + 1] == "sharded_state"
    shards = home.report("reshard", adapted["run"])
    assert launch["model_path"] == shards["tree"]
    assert {f["name"] for f in shards["content"]["files"]} >= {"ranks.json", "model-rank-0-part-0.safetensors"}


def test_smoke_and_benchmark_hold_the_numbers_and_their_conditions(home: Home, adapted: dict[str, Any]) -> None:
    smoke = home.report("smoke", adapted["run"])["content"]
    assert smoke["top1_agreement"] > 0.97
    assert smoke["exact"]["error"]["mean"] < 1e-4
    bench = home.report("benchmark", adapted["run"])["content"]
    assert {(c["concurrency"], c["prefix_cache"]) for c in bench["cells"]} == {
        (1, "cold"),
        (1, "warm"),
        (4, "cold"),
        (4, "warm"),
    }
    assert 0 < bench["roofline"]["share"] < 1.2
    assert bench["formulas"]["tpot"]


def test_the_recipe_can_be_read_and_used(adapted: dict[str, Any]) -> None:
    recipe = Path(adapted["recipe"])
    assert os.access(recipe / "launch.sh", os.X_OK)
    assert yaml.safe_load((recipe / "compose.yaml").read_text())["services"]
    assert len(list(yaml.safe_load_all((recipe / "kubernetes.yaml").read_text()))) >= 2
    assert "<svg" in (recipe / "report.html").read_text()
    assert json.loads((recipe / "hashes.json").read_text())


def test_a_second_run_takes_all_of_it_from_the_store(home: Home, release: Path, adapted: dict[str, Any]) -> None:
    exit_code, again = home.day0("adapt", f"dir:{release}")
    assert exit_code == 0
    assert again["run"] != adapted["run"]
    assert all(stage["cached"] for stage in again["stages"])
    _, status = home.day0("status")
    assert [a["run"] for a in status["adaptations"]] == [again["run"]]
    assert status["adaptations"][0]["stages"] == GOOD


def test_exchanged_rows_in_the_resharded_file_fail_smoke_and_stop_the_run(
    home: Home, release: Path, adapted: dict[str, Any]
) -> None:
    """Silent corruption: the file's size and times are as they were, so only what the engine says can tell."""
    run = home.day0("adapt", f"dir:{release}", "--until", "reshard")[1]["run"]
    shard = Path(home.report("reshard", run)["tree"]) / "model-rank-0-part-0.safetensors"
    original, stat = shard.read_bytes(), shard.stat()
    tensor = read_header(shard).tensors["model.layers.5.self_attn.qkv_proj.weight"]
    row = tensor.nbytes // tensor.shape[0]
    a, b = (slice(tensor.begin + i * row, tensor.begin + (i + 1) * row) for i in (3, 40))
    data = bytearray(original)
    data[a], data[b] = data[b], data[a]
    try:
        overwrite(shard, bytes(data), stat)
        exit_code, result = home.day0("rerun", adapted["run"], "--from", "service")
        assert exit_code == 1
        assert verdicts(result) == GOOD | {"smoke": "fail", "benchmark": "skipped", "recipe": "skipped"}
        assert result["rung"] == "none"
        assert "float32" in reason(result, "smoke")
        assert reason(result, "benchmark") == "not run (smoke: fail)"
        cached = {stage["name"]: stage["cached"] for stage in result["stages"]}
        assert all(cached[name] for name in ("download", "profile", "plan", "reshard", "operators", "kernels"))
    finally:
        overwrite(shard, original, stat)
    exit_code, result = home.day0("rerun", adapted["run"], "--from", "smoke")
    assert exit_code == 0
    assert {s["name"] for s in result["stages"] if not s["cached"]} == {"smoke", "multimodal", "benchmark", "recipe"}


def overwrite(path: Path, data: bytes, stat: os.stat_result) -> None:
    with path.open("r+b") as file:
        file.write(data)
    os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))


def test_a_flipped_byte_is_found_before_anything_else_runs(home: Home, broken: Path) -> None:
    shard = broken / "model-00002-of-00003.safetensors"
    with shard.open("r+b") as file:
        file.seek(-1000, os.SEEK_END)
        byte = file.read(1)
        file.seek(-1, os.SEEK_CUR)
        file.write(bytes([byte[0] ^ 1]))
    exit_code, result = home.day0("adapt", f"dir:{broken}")
    assert exit_code == 1
    assert verdicts(result)["download"] == "fail"
    assert shard.name in reason(result, "download")
    assert set(verdicts(result).values()) == {"fail", "skipped"}


def test_a_missing_shard_is_named(home: Home, broken: Path) -> None:
    (broken / "model-00003-of-00003.safetensors").unlink()
    exit_code, result = home.day0("adapt", f"dir:{broken}")
    assert exit_code == 1
    assert "model-00003-of-00003.safetensors" in reason(result, "download")


def test_a_missing_chat_template_fails_before_the_launch(home: Home, broken: Path) -> None:
    (broken / "chat_template.jinja").unlink()
    (broken / "SHA256SUMS").unlink()  # a release without hashes, and whose file list is not known to lack one
    exit_code, result = home.day0("adapt", f"dir:{broken}")
    assert exit_code == 1
    assert "chat template" in reason(result, "service")
    assert next(s["seconds"] for s in result["stages"] if s["name"] == "service") < 60


def test_an_engine_killed_during_the_benchmark_is_reported_and_nothing_is_left(
    home: Home, adapted: dict[str, Any]
) -> None:
    process = home.start("rerun", adapted["run"], "--from", "benchmark", "--json")
    log = home.root / "logs" / adapted["run"] / "benchmark.log"
    wait_for_engine(home, process, log)
    for line in engines_of(home):
        os.kill(int(line.split()[0]), signal.SIGKILL)
    out, _ = process.communicate(timeout=600)
    result = json.loads(out)
    assert process.returncode == 1
    assert verdicts(result)["benchmark"] == "fail"
    assert "engine" in reason(result, "benchmark")
    assert engines_of(home) == []


def test_an_interrupted_run_stops_its_engine_and_is_continued(home: Home, adapted: dict[str, Any]) -> None:
    process = home.start("rerun", adapted["run"], "--from", "smoke")
    wait_for_engine(home, process, home.root / "logs" / adapted["run"] / "smoke.log")
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=120)
    assert process.returncode == 130
    assert engines_of(home) == []
    exit_code, result = home.day0("rerun", adapted["run"])
    assert exit_code == 0
    assert verdicts(result) == GOOD


def wait_for_engine(home: Home, process: Any, log: Path) -> None:
    """Until the engine of this run is up and the stage that writes `log` has begun."""
    began, ends = time.time(), time.monotonic() + 600
    while not (engines_of(home) and log.exists() and log.stat().st_mtime >= began - 1):
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < ends
        time.sleep(0.5)
    time.sleep(5)


@pytest.mark.docker
def test_the_same_through_docker_with_its_fences(home: Home, release: Path, adapted: dict[str, Any]) -> None:
    exit_code, result = home.day0("adapt", f"dir:{release}", "--runtime", "docker")
    assert exit_code == 0, result
    assert verdicts(result) == GOOD
    security = home.report("service", result["run"])["content"]["security"]
    assert security["read_only_root"] is True
    assert security["cap_drop"] == ["ALL"]


@pytest.mark.docker
def test_an_absent_docker_daemon_is_a_service_that_is_not_there(home: Home, release: Path) -> None:
    nowhere = "tcp://127.0.0.1:1"
    exit_code, result = home.day0("adapt", f"dir:{release}", "--runtime", "docker", "--fresh", DOCKER_HOST=nowhere)
    assert exit_code == 4
    assert "Docker" in reason(result, "service")
