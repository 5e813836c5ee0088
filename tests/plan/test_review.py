"""The file that people keep in review: readable, loaded again, checked."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from day0.artifacts.plan import ParallelPlan
from day0.errors import InputError
from day0.verdict import Verdict
from tasks.plan.review import compare, load_review, save_review, settings_of
from tests.architecture.data import DATA, LLAMA_8B, LLAMA_405B
from tests.plan.asking import plan

QWEN_MOE = DATA / "configs/Qwen__Qwen3-30B-A3B.json"


def saved(folder: Path, source: Path = LLAMA_8B, **asked: Any) -> tuple[Path, ParallelPlan]:
    found = plan(source, **{"context": 4096, "concurrency": 4, **asked})
    save_review(found, folder / "plan.yaml")
    return folder / "plan.yaml", found


@pytest.mark.parametrize(
    "asked",
    [
        {},
        {"tp": 2, "pp": 2, "dp": 1},
        {"source": QWEN_MOE, "target": "h200", "tp": 2, "ep": 8, "dp": 4},
        {"source": QWEN_MOE, "target": "h200", "weight_dtype": "fp8", "kv_dtype": "fp8", "objective": "cost"},
    ],
)
def test_the_same_plan_comes_of_it(tmp_path: Path, asked: dict[str, Any]) -> None:
    source = asked.get("source", LLAMA_8B)
    file, found = saved(tmp_path, **asked)
    review = load_review(file)
    again = plan(source, **settings_of(review, {}).to_json())
    assert again.chosen == found.chosen
    assert compare(review, again).verdict is Verdict.PASS


def test_what_differs_is_said(tmp_path: Path) -> None:
    file, found = saved(tmp_path)
    review = load_review(file)
    other = plan(QWEN_MOE, **settings_of(review, {}).to_json())
    check = compare(review, other)
    assert check.verdict is Verdict.FAIL
    assert "weights were" in check.reason
    assert "kv_cache_bytes was" in check.reason
    gone = plan(LLAMA_405B, **settings_of(review, {}).to_json())
    assert "no longer possible" in compare(review, gone).reason
    assert found.chosen is not None


def test_the_file_reads_well(tmp_path: Path) -> None:
    file, _ = saved(tmp_path)
    text = file.read_text()
    assert text.startswith("# A plan of day0")
    kept = yaml.safe_load(text)
    assert list(kept)[:3] == ["plan", "request", "layout"]
    assert kept["request"]["target"] == "h100"
    assert "--tensor-parallel-size" in kept["engines"]["vllm"]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"layuot": {"tp": 2}}, "did you mean 'layout'"),
        ({"layout": {"tp": -2, "pp": 1, "ep": 1, "dp": 1}}, "layout.tp"),
        ({"plan": 2}, "plan"),
        ({"weights_bytes": float("nan")}, "weights_bytes"),
        ({"request": {"target": "h10", "context": 1, "concurrency": 1}}, "did you mean 'h100'"),
    ],
)
def test_a_malformed_file_is_refused_in_one_sentence(tmp_path: Path, change: dict[str, Any], said: str) -> None:
    file, _ = saved(tmp_path)
    file.write_text(yaml.safe_dump({**yaml.safe_load(file.read_text()), **change}))
    with pytest.raises(InputError, match=said):
        settings_of(load_review(file), {})


def test_what_the_file_says_is_not_given_beside_it(tmp_path: Path) -> None:
    file, _ = saved(tmp_path)
    with pytest.raises(InputError, match="--context is what the file says"):
        settings_of(load_review(file), {"context": 8192})
    assert settings_of(load_review(file), {"device_memory": 1 << 40, "tp": None}).device_memory == 1 << 40


def test_nothing_is_saved_of_a_plan_without_a_layout(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="nothing to save"):
        save_review(plan(LLAMA_405B, devices=1), tmp_path / "plan.yaml")
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_cannot_be_written_to_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="cannot be written"):
        save_review(plan(LLAMA_8B, context=4096), tmp_path / "file" / "plan.yaml")
