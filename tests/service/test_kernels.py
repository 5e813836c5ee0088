"""The engine with accepted kernels: what it is started with, what is read of it, and without them where it ends."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from day0.artifacts.kernels import EnginePlugin, GivenKernel, KernelBundle
from day0.artifacts.service import FirstCompletion, LaunchSpec
from day0.endpoint import Endpoint, EngineDied, LastWords
from day0.engine_kernels import bearing_kernels, with_kernels, without_kernels
from day0.kernel_uses import read_marks
from day0.verdict import Check, Verdict, follow_up
from tasks.service import registry, task
from tasks.service import session as session_module
from tasks.service.engine import EngineConfig
from tasks.service.session import EngineSession, Started
from tests.service import stub

NORM = GivenKernel(name="norm", backend="cpu", places=("vllm_ir::rms_norm",))
ROTARY = GivenKernel(name="rotary", backend="cpu", places=("vllm::rotary_embedding",))
PLUGIN = EnginePlugin(kernels=(NORM, ROTARY))
FIRST = ("--ir-op-priority", '{"rms_norm": ["day0", "native"]}')
BUNDLE = KernelBundle(
    checks=(Check(name="given", verdict=Verdict.PASS, reason="given"),), target="cpu", plugin=PLUGIN
)  # fmt: skip
Scripted = Callable[[str], LaunchSpec]


def test_the_launch_has_the_folder_as_the_engine_sees_it(scripted: Scripted) -> None:
    plain = scripted(stub.READY)
    spec = with_kernels(plain, PLUGIN.kernels, Path("/store/kernels"))
    assert spec.command == (*plain.command, *FIRST)
    assert (spec.env, spec.kernels) == ({"PYTHONPATH": "/store/kernels"}, "/store/kernels")
    own = plain.model_copy(update={"env": {"PYTHONPATH": "/own", "X": "1"}})
    assert with_kernels(own, PLUGIN.kernels, Path("/k")).env == {"PYTHONPATH": "/own:/k", "X": "1"}
    docker = with_kernels(plain.model_copy(update={"runtime": "docker"}), PLUGIN.kernels, Path("/store/kernels"))
    assert (docker.env, docker.kernels) == ({"PYTHONPATH": "/kernels"}, "/store/kernels")


@pytest.mark.parametrize("runtime", ["process", "docker"])
@pytest.mark.parametrize("path", [None, "/own"])
def test_without_all_its_kernels_a_launch_is_the_engine_s_own(
    scripted: Scripted, runtime: str, path: str | None
) -> None:
    env = {"X": "1"} | ({"PYTHONPATH": path} if path else {})
    plain = scripted(stub.READY).model_copy(update={"runtime": runtime, "env": env})
    spec = with_kernels(plain, PLUGIN.kernels, Path("/k"))
    at_float32 = spec.model_copy(update={"command": (*spec.command, "--dtype", "float32")})
    assert without_kernels(at_float32, ["norm"]).command == (*plain.command, "--dtype", "float32")
    left = without_kernels(spec, ["norm"])
    assert (left.given, left.kernels, left.env) == ((ROTARY,), "/k", spec.env)
    assert without_kernels(left, ["rotary"]) == without_kernels(spec, ["rotary", "norm"]) == plain
    assert without_kernels(spec, ["rotary"]).command == spec.command


WRITES = """
import os, pathlib
folder = pathlib.Path(os.environ["DAY0_KERNEL_USES"])
folder.mkdir()
(folder / "1.json").write_text(os.environ["PYTHONPATH"] + os.environ["DAY0_KERNELS_GIVEN"])
(folder / "1.tmp").write_text("half")
"""


def test_what_processes_write_is_read_while_the_engine_is_up(home: Path, scripted: Scripted, tmp_path: Path) -> None:
    spec = with_kernels(scripted(WRITES + stub.READY), PLUGIN.kernels, tmp_path)
    with EngineSession("run") as session:
        started = session.start(spec)
        assert started.endpoint.kernel_uses is not None
        assert started.endpoint.kernel_uses() == [f"{tmp_path}norm,rotary".encode()]
        folder = registry.uses_folder(started.name)
        assert folder.is_dir()
    assert not folder.exists()


def test_without_kernels_there_is_nothing_to_read(home: Path, scripted: Scripted) -> None:
    silent = "import os; assert 'DAY0_KERNEL_USES' not in os.environ\n"
    with EngineSession("run") as session:
        assert session.start(scripted(silent + stub.READY)).endpoint.kernel_uses is None


#: Two kernels in a process's counts; a mark says which of them it is in, and since when.
USES = json.dumps([{"operator": k.places[0], "kernel": k.name} for k in PLUGIN.kernels])
DYING = f"""
import os, pathlib, struct, sys, time
folder = pathlib.Path(os.environ["DAY0_KERNEL_USES"])
folder.mkdir()
(folder / "1.json").write_text({USES!r})
(folder / "2.json").write_text({USES!r})
(folder / "2.now").write_bytes(struct.pack("=QQ", 0, 0))
def call(place, ago=0):
    (folder / "1.now").write_bytes(struct.pack("=QQ", place, time.monotonic_ns() - ago * 10**9))
"""


def ended(session: EngineSession, spec: LaunchSpec) -> tuple[str, str | None]:
    """How an engine that ends by itself did, and the kernel."""
    started = session.start(spec)
    with pytest.raises(httpx.TransportError):
        while True:
            httpx.post(f"{started.endpoint.url}/v1/completions", json={"prompt": "end"}, trust_env=False)
    return started.endpoint.diagnose() or "", session.last_words().kernel


KILLED = (
    stub.SERVER
    % f"""
        if body["prompt"] == "end":
            call(2)
            os.kill(os.getpid(), 9)
        self.answer(200, {stub.COMPLETION!r})
"""
)
ABORTED = (
    stub.SERVER
    % f"""
        if body["prompt"] == "end":
            import faulthandler, types
            faulthandler.enable(file=2)
            code = (lambda: os.abort()).__code__.replace(co_name="day0_kernel_norm")
            types.FunctionType(code, globals())()
        self.answer(200, {stub.COMPLETION!r})
"""
)


def test_the_kernel_that_an_engine_ended_in_is_known_from_its_mark_or_its_stack(
    home: Path, scripted: Scripted, tmp_path: Path
) -> None:
    with EngineSession("run") as session:
        how, kernel = ended(session, with_kernels(scripted(DYING + KILLED), PLUGIN.kernels, tmp_path))
        assert ("killed by SIGKILL" in how, kernel) == (True, "rotary")
        session.stop()
        assert session.last_words().kernel == "rotary"
        how, kernel = ended(session, with_kernels(scripted(DYING + ABORTED), PLUGIN.kernels, tmp_path))
        assert "killed by SIGABRT" in how
        assert "Fatal Python error: Aborted" in how
        assert kernel == "norm"
        log = session.last_words().log
        assert log[0] == "Fatal Python error: Aborted"
        assert any(line.endswith(" in day0_kernel_norm") for line in log)


def test_an_engine_that_hangs_in_a_kernel_is_diagnosed_though_it_runs(
    home: Path, scripted: Scripted, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session_module, "DYING_SECONDS", 0.3)
    spec = with_kernels(scripted(DYING + "call(2, ago=61)\n" + stub.READY), PLUGIN.kernels, tmp_path)
    with EngineSession("run") as session:
        said = session.start(spec).endpoint.diagnose() or ""
        assert re.search(r"hangs: kernel rotary has not answered a call of vllm::rotary_embedding for \d\d s", said)
        assert session.last_words().kernel == "rotary"
        quick = with_kernels(scripted(DYING + "call(2, ago=30)\n" + stub.READY), PLUGIN.kernels, tmp_path)
        assert session.start(quick).endpoint.diagnose() is None
        silent = quick.model_copy(update={"ready_timeout": 1.5})
        hangs = silent.model_copy(update={"command": scripted(DYING + "call(1, ago=90)\ntime.sleep(60)").command})
        with pytest.raises(EngineDied, match="hangs: kernel norm"):
            session.start(hangs)
        assert session.last_words().kernel == "norm"


@pytest.mark.parametrize("text", [b"", b"1", b"x y []", b"9 1 [{}]", b"1 1 nothing", b"-1 1 []", b"0 1 []"])
def test_a_mark_that_is_none_names_no_kernel(text: bytes) -> None:
    assert read_marks([text]) == []


class Fragile:
    """A session whose engine ends where it has certain kernels, and which may know in which."""

    def __init__(self, deadly: dict[str, str | None]) -> None:
        self.deadly, self.asked = deadly, list[LaunchSpec]()
        self.last: str | None = None

    def start(self, spec: LaunchSpec) -> Started:
        self.asked.append(spec)
        for kernel in spec.given:
            if kernel.name in self.deadly:
                self.last = self.deadly[kernel.name]
                raise EngineDied("the engine did not start: killed by SIGSEGV")
        first = FirstCompletion(prompt="p", text="t", tokens=1, seconds=1)
        return Started("x", Endpoint("http://127.0.0.1:1", "tiny"), 1.0, first, {})

    def last_words(self) -> LastWords:
        return LastWords(self.last)


@pytest.fixture
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(task, "tree_of", lambda bundle: tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    ("deadly", "asked", "said"),
    [
        ({"norm": "norm"}, [["norm", "rotary"], ["rotary"]], ["in kernel norm for vllm_ir::rms_norm: "]),
        ({"norm": None}, [["norm", "rotary"], []], ["with the kernels norm, rotary, and it is not known in which: "]),
        ({"norm": "other"}, [["norm", "rotary"], []], ["with the kernels norm, rotary, and it is not known in which"]),
        (
            {"norm": "norm", "rotary": "rotary"},
            [["norm", "rotary"], ["rotary"], []],
            ["in kernel norm for vllm_ir::rms_norm: ", "in kernel rotary for vllm::rotary_embedding: "],
        ),
    ],
)
def test_an_engine_that_ends_in_kernels_is_started_without_them(
    scripted: Scripted, engine: EngineConfig, tree: Path, deadly: dict[str, str | None], asked: list[list[str]],
    said: list[str]
) -> None:  # fmt: skip
    plain, session = scripted(stub.READY), Fragile(deadly)
    launched, _, (check,) = task._start(session, plain, BUNDLE, engine)  # type: ignore[arg-type]
    assert [[kernel.name for kernel in spec.given] for spec in session.asked] == asked
    assert launched == session.asked[-1]
    assert launched.given or launched == plain
    assert check.verdict is Verdict.PASS
    found = follow_up([check])
    assert len(found) == len(said)
    for sentence, part in zip(found, said, strict=True):
        assert f"the engine ended {part}" in sentence
        assert "killed by SIGSEGV" in sentence


def test_an_engine_that_ends_without_kernels_too_has_died(scripted: Scripted) -> None:
    def work(launch: LaunchSpec) -> None:
        raise EngineDied("killed by SIGSEGV" if launch.given else "exit code 1")

    spec = with_kernels(scripted(stub.READY), PLUGIN.kernels, Path("/k"))
    with pytest.raises(EngineDied, match="exit code 1"):
        bearing_kernels(spec, LastWords, work)


def test_an_engine_without_plugins_is_given_none_and_it_is_said(
    scripted: Scripted, engine: EngineConfig, tree: Path
) -> None:
    other: Any = engine.model_copy(update={"kernel_plugin": False})
    launched, _, (check,) = task._start(Fragile({}), scripted(stub.READY), BUNDLE, other)  # type: ignore[arg-type]
    assert launched.kernels is None
    assert "takes no plugins" in follow_up([check])[0]
