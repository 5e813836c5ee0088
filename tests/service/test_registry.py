"""What is left of engines when their owner is killed: nothing, and only day0's own are touched."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from day0.artifacts.service import LaunchSpec
from day0.errors import Unavailable
from tasks.service import registry
from tasks.service.engine import EngineConfig
from tasks.service.process import start_process
from tests.service.stub import STUBBORN
from tests.service.test_session import wait_for

Scripted = Callable[[str], LaunchSpec]

OWNER = """
import sys, time
from day0.artifacts.service import LaunchSpec
from tasks.service.engine import load_engine
from tasks.service.process import start_process
engine = load_engine("vllm-cpu").model_copy(update={"stop_grace": 0.5})
start_process(LaunchSpec.model_validate_json(sys.argv[1]), engine, "orphan", "run", False)
print("started", flush=True)
time.sleep(600)
"""


def processes(pids: Path) -> list[registry.ProcessId]:
    wait_for(pids.exists)
    found = [registry.ProcessId.of(int(pid)) for pid in pids.read_text().split()]
    return [process for process in found if process is not None]


@pytest.fixture
def stubborn(tmp_path: Path, scripted: Scripted) -> tuple[LaunchSpec, Path]:
    pids = tmp_path / "engine.pids"
    return scripted(STUBBORN % ((str(pids),) * 3)), pids


def test_a_killed_owner_leaves_no_process_of_the_engine(home: Path, stubborn: tuple[LaunchSpec, Path]) -> None:
    spec, pids = stubborn
    spec_json = spec.model_dump_json()
    owner = subprocess.Popen([sys.executable, "-c", OWNER, spec_json], stdout=subprocess.PIPE, stdin=subprocess.DEVNULL)
    assert owner.stdout is not None
    with owner.stdout:
        assert owner.stdout.readline() == b"started\n"
    engine, child = processes(pids)
    supervisor = registry.find("orphan").supervisor
    owner.send_signal(signal.SIGKILL)
    owner.wait()
    assert supervisor is not None
    wait_for(lambda: not engine.alive)
    # Its child ignores SIGTERM and is killed after the grace time, or at once by whoever reaps.
    assert registry.reap() == ["orphan"]
    wait_for(lambda: not child.alive and not supervisor.alive)
    assert registry.reap() == []


def test_a_killed_supervisor_takes_the_engine_with_it(
    home: Path, stubborn: tuple[LaunchSpec, Path], engine: EngineConfig
) -> None:
    spec, pids = stubborn
    handle = start_process(spec, engine, "name", "run", keep=False)
    first, child = processes(pids)
    supervisor = registry.find("name").supervisor
    assert supervisor is not None
    os.kill(supervisor.pid, signal.SIGKILL)
    wait_for(lambda: not first.alive)
    assert handle.ended() == "its supervisor was killed"
    handle.stop()
    wait_for(lambda: not child.alive)


def test_a_reused_process_id_is_not_mistaken_for_the_engine(home: Path, scripted: Scripted, tmp_path: Path) -> None:
    bystander = subprocess.Popen(["sleep", "600"], start_new_session=True)
    try:
        real = registry.ProcessId.of(bystander.pid)
        assert real is not None
        other = real.model_copy(update={"started": real.started - 1})
        registry.save(
            registry.EngineRecord(
                name="old",
                run="run",
                owner=other,
                keep=False,
                url="",
                launch=scripted(""),
                supervisor=other,
                engine=other,
            )
        )
        assert registry.reap() == ["old"]
        assert bystander.poll() is None
    finally:
        bystander.kill()
        bystander.wait()


def test_owners_that_live_and_owners_elsewhere_keep_their_engines(home: Path, scripted: Scripted) -> None:
    me = registry.myself()
    for name, owner in (("mine", me), ("far", me.model_copy(update={"host": "elsewhere", "started": 1}))):
        record = registry.EngineRecord(name=name, run="r", owner=owner, keep=False, url="", launch=scripted(""))
        registry.save(record)
    assert registry.reap() == []
    assert {r.name for r in registry.records()} == {"mine", "far"}
    with pytest.raises(Unavailable, match="runs on elsewhere: stop it there"):
        registry.stop(
            registry.find("far").model_copy(update={"supervisor": me.model_copy(update={"host": "elsewhere"})})
        )
    registry.forget("mine")
    registry.forget("far")


def test_a_file_that_is_no_record_is_left_alone(home: Path) -> None:
    file = registry.folder() / "strange.json"
    file.parent.mkdir(parents=True)
    file.write_text("{}")
    assert registry.records() == []
    assert registry.reap() == []
    assert file.exists()
