"""`day0 reshard`: what its options ask for is what is done."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from flows import orchestrator
from flows.commands.reshard import command
from tasks.reshard import runners
from tests.models.tiny import make_tiny_llama


def test_the_runner_that_is_asked_for_takes_the_shards(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    taken: list[str] = []

    def fan_out(function: Callable[[Any], Any], arguments: Sequence[Any], each: Callable[[Any], None]) -> None:
        for argument in arguments:
            taken.append(function.__name__)
            each(function(argument))

    asked: list[tuple[str, str | None]] = []

    def fan_out_by(runner: str, address: str | None) -> Any:
        asked.append((runner, address))
        return fan_out

    monkeypatch.setattr(runners, "fan_out_by", fan_out_by)
    monkeypatch.setattr(orchestrator, "use_server", lambda: None)
    source = make_tiny_llama(tmp_path / "m")
    words = [
        str(source),
        str(tmp_path / "out"),
        "--layout",
        "hf",
        "--tp",
        "2",
        "--runner",
        "dask",
        "--address",
        "tcp://x",
    ]
    done = CliRunner().invoke(command, words)
    assert done.exit_code == 0, done.output
    assert asked == [("dask", "tcp://x")]
    assert taken.count("run_shard") == 2
