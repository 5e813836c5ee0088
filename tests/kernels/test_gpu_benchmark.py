"""The GPU benchmark prints its whole table whatever fails, hangs or crashes: a GPU is there for minutes, once."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

from benchmarks import gpu_kernels
from benchmarks.gpu_kernels import Run
from benchmarks.gpu_kernels_table import HEAD
from day0 import process
from day0.home import PROJECT
from day0.process import ProcessFailed, TimedOut

KERNELS = ("fused_add_rms_norm", "rotary", "gated_activation", "kv_cache_write")
ROWS: list[dict[str, Any]] = [
    {"kernel": name, "title": f"a size of {name}", "case": {}, "share": 0.9} for name in KERNELS
]
Listen = Callable[[str], None]


def measured(number: int, reason: str = "", **more: Any) -> str:
    found = {"backend": "triton", "seconds": 1e-3, "eager": 4e-3, "compiled": 2e-3, "moved": 3.9e9, "bandwidth": 4e12}
    return f"row: {json.dumps([number, [found | {'reason': reason, 'notes': []} | more]])}"


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> Run:
    """All kernels accepted in Triton."""
    backends = {name: [b for b in gpu_kernels._backends(name) if b.name == "triton"] for name in KERNELS}
    for (backend,) in backends.values():
        backend.reasons = dict.fromkeys(backend.definition.file.dtypes, "")
    return Run(ROWS, backends, time.monotonic() + 60, False, {"architecture": "sm_90"})


def processes(monkeypatch: pytest.MonkeyPatch, *turns: Callable[[Listen], None]) -> list[list[int]]:
    """What the processes that time rows do, one after another; returned is which rows each was asked for."""
    asked: list[list[int]] = []

    def run_within(
        seconds: float, command: Sequence[str], *, on_line: Listen, cwd: Path, env: Mapping[str, str]
    ) -> None:
        asked.append([number for number, _ in json.loads(Path(command[-1]).read_text())["rows"]])
        turns[len(asked) - 1](on_line)

    monkeypatch.setattr(process, "run_within", run_within)
    return asked


def shown(capsys: pytest.CaptureFixture[str]) -> list[str]:
    lines = capsys.readouterr().out.splitlines()
    table = lines[lines.index(HEAD) + 1 :]
    return [next(line for line in table if row["title"] in line) for row in ROWS]


def test_what_crashes_or_hangs_costs_its_own_row(
    run: Run, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def crash(say: Listen) -> None:
        say("begun: 0")
        say(measured(0))
        say("begun: 1")
        raise ProcessFailed(["python"], -6, ["begun: 1", "Aborted", ""])

    def hang(say: Listen) -> None:
        say("begun: 2")
        raise ProcessFailed(["python"], 1, ["Timeout (0:01:40)!", "Thread 0x1"])

    def end(say: Listen) -> None:
        say("begun: 3")
        say(measured(3, compiled=None, notes=["compiled failed: InductorError: no"]))

    asked = processes(monkeypatch, crash, hang, end)
    run.time()
    assert asked == [[0, 1, 2, 3], [2, 3], [3]]
    assert not run.conclude()
    first, second, third, fourth = shown(capsys)
    assert "97.5%     2.00  kept: share 90%, 1 x compiled" in first
    assert "not kept: not measured: the process ended with SIGABRT: Aborted" in second
    assert "not kept: not measured: it took too long, or hung" in third
    assert "97.5%        -  not kept: share 90%, 1 x compiled; compiled failed: InductorError: no" in fourth


def test_a_row_that_was_told_before_its_process_broke_stays(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(say: Listen) -> None:
        say("begun: 0")
        say(measured(0, reason="RuntimeError: CUDA error: an illegal memory access was encountered"))
        raise ProcessFailed(["python"], 3, [])

    asked = processes(monkeypatch, broken, lambda say: None)
    run.time()
    assert asked == [[0, 1, 2, 3], [1, 2, 3]]
    assert run.results()[0]["reason"].startswith("RuntimeError: CUDA error")
    assert not run.results()[0]["kept"]


def test_when_the_time_is_up_what_there_is_is_printed(
    run: Run, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def slow(say: Listen) -> None:
        say("begun: 0")
        say(measured(0))
        say("begun: 1")
        raise TimedOut("it did not end in 60 s")

    processes(monkeypatch, slow)
    run.time()
    assert not run.conclude()
    lines = shown(capsys)
    assert "kept: share 90%" in lines[0]
    assert ["not kept: not measured: the time was up" in line for line in lines] == [False, True, True, True]


def test_each_row_is_in_the_file_as_soon_as_it_is_measured(
    run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The machine may be taken away at any time."""
    run.file = tmp_path / "told.json"

    def end(say: Listen) -> None:
        for number in range(len(ROWS)):
            say(f"begun: {number}")
            say(measured(number))
            results = json.loads((tmp_path / "told.json").read_text())["results"]
            assert [result["kept"] for result in results] == [at <= number for at in range(len(ROWS))]
            assert sum("not measured" in result["reason"] for result in results) == len(ROWS) - number - 1

    processes(monkeypatch, end)
    run.time()
    assert run.conclude()


def test_what_is_missing_is_told_before_anything_else(tmp_path: Path) -> None:
    (tmp_path / "pydantic.py").write_text("import annotated_types_that_is_not_here\n")
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.gpu_kernels"],
        cwd=PROJECT,
        env=os.environ | {"PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    says = "missing here: pydantic (No module named 'annotated_types_that_is_not_here')"
    assert done.stdout.splitlines() == [says, f"{sys.executable} -m pip install pydantic"]


def test_only_what_is_accepted_keeps_a_limit(
    run: Run, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """And what ends processes is not timed, so that it cannot take others with it."""
    run.backends["rotary"][0].reasons["float16"] = "raised: RuntimeError: no"
    run.backends["gated_activation"][0].reasons["float16"] = "its process was ended by SIGSEGV"
    run.backends["gated_activation"][0].died = True
    del run.backends["kv_cache_write"][0].reasons["float16"]

    def end(say: Listen) -> None:
        for number in (0, 1, 3):
            say(measured(number))

    asked = processes(monkeypatch, end)
    run.time()
    assert asked == [[0, 1, 3]]
    assert not run.conclude()
    first, second, third, fourth = shown(capsys)
    assert "kept: share 90%" in first
    assert "not kept: share 90%, 1 x compiled; not accepted" in second
    assert "not measured: gated_activation for triton: float16: its process was ended by SIGSEGV" in third
    assert "; not accepted" in fourth
    assert run.told()["kv_cache_write for triton"] == "there was no time to accept it in float16"


def test_rows_begin_with_those_that_have_limits() -> None:
    rows = yaml.safe_load(Path(gpu_kernels.__file__).with_suffix(".yaml").read_text())
    limited = ["share" in row or "over_compiled" in row for row in rows]
    assert limited == sorted(limited, reverse=True)
    assert [row["kernel"] for row in rows[:5]] == [
        "router_topk", "router_topk", "paged_decode_attention", "paged_decode_attention", "grouped_matmul",
    ]  # fmt: skip


@pytest.mark.reference
@pytest.mark.triton
def test_a_rehearsal_goes_all_the_way(kernels_home: Path, tmp_path: Path) -> None:
    """Acceptance of each dtype, the rows' process and the table, by Triton's interpreter."""
    command = [sys.executable, "-m", "benchmarks.gpu_kernels", "--rehearse", "--minutes", "15", "--kernels", "rotary"]
    done = subprocess.run(
        [*command, "--json", str(tmp_path / "told.json")], cwd=PROJECT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    told = json.loads((tmp_path / "told.json").read_text())
    assert told["accepted"]["rotary for triton"] == "accepted"
    assert [(result["backend"], result["accepted"], result["reason"]) for result in told["results"]] == [
        ("triton", True, "")
    ] * 3
    assert "REHEARSAL: the flow ran to its end" in done.stdout
