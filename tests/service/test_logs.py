from __future__ import annotations

from tasks.service.engine import EngineConfig
from tasks.service.logs import last_error
from tests.service.stub import FAILING


def said(engine: EngineConfig, *lines: str) -> str:
    return last_error(lines, engine.log_prefix, engine.generic_errors)


def test_the_cause_is_told_from_what_repeats_it(engine: EngineConfig) -> None:
    lines = [line.split('"')[1] for line in FAILING.splitlines() if line.startswith("print")]
    assert said(engine, *lines) == "ValueError: Could not find the shard of rank 0"


def test_an_error_spread_over_lines_is_joined(engine: EngineConfig) -> None:
    line = said(
        engine,
        "(APIServer pid=1) pydantic_core._pydantic_core.ValidationError: 1 validation error for ModelConfig",
        "(APIServer pid=1)   Value error, The checkpoint has model type `new` that is not known",
        "(APIServer pid=1)     For further information visit https://example.org",
    )
    assert "model type `new`" in line


def test_an_unknown_option_is_the_error(engine: EngineConfig) -> None:
    assert "unrecognized arguments: --what" in said(
        engine, "usage: api_server.py [-h]", "api_server.py: error: unrecognized arguments: --what"
    )


def test_without_an_error_line_the_last_line_is_told(engine: EngineConfig) -> None:
    assert said(engine, "one", "two", "") == "two"
    assert said(engine) == "it printed nothing"
