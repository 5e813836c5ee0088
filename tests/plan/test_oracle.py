"""AIConfigurator as a program beside us: what it is asked, what becomes of its answers, and of none."""

from __future__ import annotations

import json
import os
import stat
import sys
from pathlib import Path

import pytest

from day0.architecture.parallel import Sizes
from day0.errors import InputError
from day0.process import ProcessFailed
from flows.cli import main
from tasks.plan import oracle
from tests.architecture.data import LLAMA_8B, read, write_config
from tests.plan.asking import plan

STAND_IN = """
class Summary:
    def get_context_latency_dict(self):
        return {"context_attention": 1.25}

    def get_generation_latency_dict(self):
        return {}


class Found:
    ttft, tpot, tokens_per_second_per_gpu, summary = 120.0, 25.0, 300.0, Summary()
    raw = {"kvcache": "fp8"}

    def __init__(self, warning):
        self.kv_cache_warning = warning


def cli_estimate(**request):
    print("what it prints is not an answer")
    if request["tp_size"] == 3:
        raise ValueError("3 does not divide the heads")
    return Found("no room" if request["batch_size"] > 100 else None)
"""


@pytest.fixture
def python(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An interpreter that finds a stand-in for AIConfigurator."""
    package = tmp_path / "packages/aiconfigurator/cli"
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    (package.parent / "__init__.py").touch()
    (package / "api.py").write_text(STAND_IN)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "packages"))
    return Path(sys.executable)


EIGHT = Sizes(8, 1, 8)


def asked(sizes: Sizes = EIGHT, mode: str = "static_gen", sequences: int = 4) -> dict[str, object]:
    return oracle.request(
        "deepseek-ai/DeepSeek-V3", "h200", sizes, mode=mode, prompt=4000, output=1000, sequences=sequences, experts=True
    )


def test_a_request_has_the_sizes_as_it_counts_them() -> None:
    found = asked(Sizes(4, 2, 8, 2))
    assert (found["tp_size"], found["pp_size"], found["attention_dp_size"]) == (4, 2, 2)
    assert (found["moe_tp_size"], found["moe_ep_size"]) == (1, 8)
    shared = asked(Sizes(8, 1, 2))
    assert (shared["moe_tp_size"], shared["moe_ep_size"]) == (4, 2)
    dense = oracle.request("a/b", "h100", Sizes(8, 1, dp=4), mode="agg", prompt=10, output=5, sequences=2)
    assert dense["moe_ep_size"] is dense["moe_tp_size"] is None
    assert (dense["system_name"], dense["attention_dp_size"]) == ("h100_sxm", 1)  # a replica is estimated by itself
    given = oracle.request("a/b", "h100", Sizes(8, 1), mode="agg", prompt=10, output=5, sequences=2, kv_dtype="fp8")
    assert given["kvcache_quant_mode"] == "fp8"


def test_it_knows_no_other_systems() -> None:
    with pytest.raises(InputError, match="does not know ascend-910b; it knows h100"):
        oracle.request("a/b", "ascend-910b", Sizes(1, 1), mode="agg", prompt=1, output=1, sequences=1)


def test_answers_in_our_units(python: Path) -> None:
    token, first, refused, full = oracle.figures(
        python, [asked(), asked(mode="static_ctx"), asked(Sizes(3, 1, 3)), asked(sequences=200)]
    )
    assert (token.seconds, token.tokens_per_second_per_device, token.kv_dtype, token.fits) == (0.025, 300, "fp8", True)
    assert first.seconds == 0.12
    assert refused.seconds is None
    assert refused.error == "ValueError: 3 does not divide the heads"
    assert not full.fits


def test_parts_of_a_pass_are_given(python: Path) -> None:
    once, served = oracle.estimates(python, [asked(), asked(mode="agg")])
    assert once["parts"] == {"context_attention": 1.25}
    assert served["parts"] == {}


def test_a_python_without_it_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PYTHONPATH", raising=False)
    with pytest.raises(ProcessFailed, match="No module named 'aiconfigurator"):
        oracle.figures(Path(sys.executable), [asked()])


@pytest.mark.parametrize("written", ["", "{}", "[]", "[1]", "not json"])
def test_answers_that_are_none(tmp_path: Path, written: str) -> None:
    program = tmp_path / "program"
    program.write_text(f"#!/bin/sh\nprintf '%s' '{written}' > \"$5\"\n")
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    with pytest.raises(InputError, match="AIConfigurator's"):
        oracle.figures(program, [asked()])


def test_a_time_that_is_none_is_no_figure(python: Path, tmp_path: Path) -> None:
    api = tmp_path / "packages/aiconfigurator/cli/api.py"
    api.write_text(STAND_IN.replace("120.0, 25.0", "120.0, 0.0"))
    (figure,) = oracle.figures(python, [asked()])
    assert figure.seconds is None
    assert figure.error == "it gave no time"


def test_the_environment_names_the_interpreter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(oracle.VARIABLE, raising=False)
    assert oracle.interpreter() is None
    monkeypatch.setenv(oracle.VARIABLE, sys.executable)
    assert oracle.interpreter() == Path(sys.executable)
    for wrong in (tmp_path, tmp_path / "none"):
        monkeypatch.setenv(oracle.VARIABLE, os.fspath(wrong))
        with pytest.raises(InputError, match="which is no program"):
            oracle.interpreter()


@pytest.mark.parametrize("folder", [True, False])
def test_beside_a_plan(python: Path, tmp_path: Path, folder: bool) -> None:
    found = plan(LLAMA_8B, target="h200", context=1000)
    source = write_config(tmp_path / "model", read(LLAMA_8B))
    figure = oracle.beside(python, source.parent if folder else LLAMA_8B, found, experts=False)
    assert figure.seconds == 0.025


def test_what_keeps_it_from_an_answer_is_said(python: Path) -> None:
    elsewhere = plan(LLAMA_8B, target="mi300x", context=1000)
    figure = oracle.beside(python, LLAMA_8B, elsewhere, experts=False)
    assert figure.error == "AIConfigurator does not know mi300x; it knows h100, h200, b200"
    nothing = plan(LLAMA_8B, target="h200", context=1000, device_memory=1 << 30)
    assert oracle.beside(python, LLAMA_8B, nothing, experts=False).error == "there is no layout to ask for"


def test_the_command_shows_it_where_the_environment_names_it(
    python: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["plan", str(LLAMA_8B), "--target", "h200", "--context", "1000"]
    monkeypatch.delenv(oracle.VARIABLE, raising=False)
    code, without = call(command, capsys)
    assert code == 0
    assert "AIConfigurator" not in without
    monkeypatch.setenv(oracle.VARIABLE, str(python))
    code, shown = call(command, capsys)
    assert code == 0
    assert "AIConfigurator predicts 25.0 ms a token for the chosen layout; ours is" in " ".join(shown.split())
    code, answer = call([*command, "--json"], capsys)
    assert json.loads(answer)["aiconfigurator"] == {"seconds_per_token": 0.025, "error": None}
    code, answer = call([*command, "--target", "mi300x", "--json"], capsys)
    assert code == 0
    assert "does not know mi300x" in json.loads(answer)["aiconfigurator"]["error"]


def call(command: list[str], capsys: pytest.CaptureFixture[str]) -> tuple[int, str]:
    with pytest.raises(SystemExit) as ended:
        main(command)
    return int(ended.value.code or 0), capsys.readouterr().out
