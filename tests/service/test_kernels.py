"""The engine with accepted kernels: what it is started with, what is read of it, and without them where it ends."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from day0.artifacts.kernels import EnginePlugin, GivenKernel, KernelBundle
from day0.artifacts.service import FirstCompletion, LaunchSpec
from day0.endpoint import Endpoint, EngineDied
from day0.verdict import Check, Verdict, follow_up
from tasks.service import registry, task
from tasks.service.engine import EngineConfig
from tasks.service.kernels import with_kernels
from tasks.service.session import EngineSession, Started
from tests.service import stub
from tests.service.test_session import wait_for

PLUGIN = EnginePlugin(
    arguments=("--ir-op-priority", "{}"),
    env={"PYTHONPATH": "{folder}"},
    kernels=(GivenKernel(name="norm", backend="cpu", places=("vllm_ir::rms_norm",)),),
)
BUNDLE = KernelBundle(
    checks=(Check(name="given", verdict=Verdict.PASS, reason="given"),), target="cpu", plugin=PLUGIN
)  # fmt: skip
Scripted = Callable[[str], LaunchSpec]


def test_the_launch_has_the_folder_as_the_engine_sees_it(scripted: Scripted) -> None:
    plain = scripted(stub.READY)
    spec = with_kernels(plain, PLUGIN, Path("/store/kernels"))
    assert spec.command == (*plain.command, "--ir-op-priority", "{}")
    assert (spec.env, spec.kernels) == ({"PYTHONPATH": "/store/kernels"}, "/store/kernels")
    own = plain.model_copy(update={"env": {"PYTHONPATH": "/own", "X": "1"}})
    assert with_kernels(own, PLUGIN, Path("/k")).env == {"PYTHONPATH": "/own:/k", "X": "1"}
    docker = with_kernels(plain.model_copy(update={"runtime": "docker"}), PLUGIN, Path("/store/kernels"))
    assert (docker.env, docker.kernels) == ({"PYTHONPATH": "/kernels"}, "/store/kernels")


WRITES = """
import os, pathlib
folder = pathlib.Path(os.environ["DAY0_KERNEL_USES"])
folder.mkdir()
(folder / "1.json").write_text(os.environ["PYTHONPATH"])
(folder / "1.tmp").write_text("half")
"""


def test_what_processes_write_is_read_while_the_engine_is_up(home: Path, scripted: Scripted, tmp_path: Path) -> None:
    spec = with_kernels(scripted(WRITES + stub.READY), PLUGIN, tmp_path)
    with EngineSession("run") as session:
        started = session.start(spec)
        assert started.endpoint.kernel_uses is not None
        assert started.endpoint.kernel_uses() == [str(tmp_path).encode()]
        folder = registry.uses_folder(started.name)
        assert folder.is_dir()
        engine = registry.find(started.name).engine
        assert engine is not None
        os.kill(engine.pid, signal.SIGKILL)
        wait_for(lambda: started.endpoint.diagnose() is not None)
        assert "of which one may be the cause" in (started.endpoint.diagnose() or "")
    assert not folder.exists()


def test_without_kernels_there_is_nothing_to_read(home: Path, scripted: Scripted) -> None:
    silent = "import os; assert 'DAY0_KERNEL_USES' not in os.environ\n"
    with EngineSession("run") as session:
        assert session.start(scripted(silent + stub.READY)).endpoint.kernel_uses is None


class Fragile:
    """A session whose engine ends when it is given kernels."""

    def __init__(self) -> None:
        self.asked: list[LaunchSpec] = []

    def start(self, spec: LaunchSpec) -> Started:
        self.asked.append(spec)
        if spec.kernels:
            raise EngineDied("the engine did not start: killed by SIGSEGV")
        first = FirstCompletion(prompt="p", text="t", tokens=1, seconds=1)
        return Started("x", Endpoint("http://127.0.0.1:1", "tiny"), 1.0, first, {})


@pytest.fixture
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(task, "tree_of", lambda bundle: tmp_path)
    return tmp_path


def test_an_engine_that_ends_with_kernels_is_started_without(
    scripted: Scripted, engine: EngineConfig, tree: Path
) -> None:
    plain, session = scripted(stub.READY), Fragile()
    launched, _, (check,) = task._start(session, plain, BUNDLE, engine)  # type: ignore[arg-type]
    assert [spec.kernels for spec in session.asked] == [str(tree), None]
    assert launched == plain
    assert check.verdict is Verdict.PASS
    (sentence,) = follow_up([check])
    assert "ends with the kernels norm, and not without: the engine did not start: killed by SIGSEGV" in sentence


def test_an_engine_without_plugins_is_given_none_and_it_is_said(
    scripted: Scripted, engine: EngineConfig, tree: Path
) -> None:
    other: Any = engine.model_copy(update={"kernel_plugin": False})
    launched, _, (check,) = task._start(Fragile(), scripted(stub.READY), BUNDLE, other)  # type: ignore[arg-type]
    assert launched.kernels is None
    assert "takes no plugins" in follow_up([check])[0]
