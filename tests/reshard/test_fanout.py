"""Shards taken by Prefect's task runners: the same bytes and digests as by threads of one process."""

from __future__ import annotations

import builtins
import hashlib
from pathlib import Path
from typing import Any

import pytest

from day0.errors import CheckFailed, InputError
from tasks.reshard.writer import write_files
from tests.reshard.random_plans import digests, make_case, written

RAY = {"num_cpus": 2, "include_dashboard": False, "object_store_memory": 100 << 20}
DASK = {"n_workers": 2, "threads_per_worker": 1, "dashboard_address": None}
RUNNERS = [
    pytest.param("threads", {"max_workers": 2}, id="threads"),
    pytest.param("dask", {"cluster_kwargs": DASK}, id="dask", marks=pytest.mark.dask),
    pytest.param("ray", {"init_kwargs": RAY}, id="ray", marks=pytest.mark.ray),
]


@pytest.fixture(autouse=True)
def quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")


@pytest.mark.orchestrator
@pytest.mark.parametrize(("runner", "options"), RUNNERS)
def test_the_bytes_are_the_same_whoever_takes_the_shards(
    home: Path, tmp_path: Path, runner: Any, options: dict[str, Any]
) -> None:
    from tasks.reshard.fanout import fan_out_over

    case = make_case(tmp_path / "m", 41, shards=4, largest=50_000)
    (tmp_path / "out").mkdir()
    fan_out = fan_out_over(runner, **options)
    taken = write_files(case.plan, case.checkpoint, tmp_path / "out", digests(case), fan_out=fan_out)
    assert written(tmp_path / "out") == case.oracle
    assert taken.sources == digests(case)
    assert taken.targets == {name: hashlib.sha256(content).hexdigest() for name, content in case.oracle.items()}
    (tmp_path / "bad").mkdir()
    name = list(case.checkpoint.files)[2]
    with pytest.raises(CheckFailed, match=f"{name}: SHA-256 is"):
        write_files(case.plan, case.checkpoint, tmp_path / "bad", {name: "0" * 64}, fan_out=fan_out)


def test_a_runner_that_is_not_installed_is_named_with_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    from tasks.reshard.fanout import fan_out_over

    real = builtins.__import__

    def absent(name: str, *args: Any) -> Any:
        if name.startswith("prefect_ray"):
            raise ImportError(f"No module named {name!r}")
        return real(name, *args)

    monkeypatch.setattr(builtins, "__import__", absent)
    with pytest.raises(InputError, match=r"pip install 'day0\[ray\]'"):
        fan_out_over("ray")
