"""The recipe's folder as a whole, and its page."""

from __future__ import annotations

import json
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import TypeVar

import pytest

from day0.artifacts.kernels import EnginePlugin
from day0.artifacts.recipe import Recipe
from day0.artifacts.service import LaunchSpec, OfService
from day0.engine_kernels import End, taken_out, without_kernels
from day0.errors import Day0Error
from day0.files import file_ref, sha256_file
from day0.verdict import FOLLOW_UP, Check, Verdict
from tasks.recipe.evidence import Evidence
from tasks.recipe.settings import RecipeSettings
from tasks.recipe.write import write_recipe
from tests.recipe.fixtures import HOSTILE, NORM, ROTARY, evidence, with_kernels

R = TypeVar("R", bound=OfService)


class Page(HTMLParser):
    """What a browser would fetch or run, and whether the elements nest."""

    VOID = frozenset({"meta", "br", "img", "link", "input", "hr", "path", "use", "rect"})

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.references: list[str] = []
        self.handlers: list[str] = []
        self.text = ""
        self.open: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        for name, value in attrs:
            if name in ("src", "href", "xlink:href", "data", "action", "srcset"):
                self.references.append(value or "")
            if name.startswith("on"):
                self.handlers.append(name)

    def handle_data(self, data: str) -> None:
        self.text += data


def write(case: Evidence, folder: Path, records: Path | None = None) -> tuple[str, Page]:
    recipe = write_recipe(case, folder, RecipeSettings(), benchmark_records=records)
    html = (folder / recipe.report).read_text(encoding="utf-8")
    return html, Page(html)


def records_of(folder: Path) -> Path:
    path = folder / "requests.jsonl"
    lines = [
        {"concurrency": c, "prefix_cache": "cold", "fault": fault, "arrivals": [0.5, 0.5, 0.6, 0.75]}
        for c in (1, 4)
        for fault in (None, "lost")
    ]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def test_a_good_run_makes_a_whole_recipe(tmp_path: Path) -> None:
    recipe = write_recipe(evidence(), tmp_path, RecipeSettings(), benchmark_records=None)
    assert recipe.verdict is Verdict.PASS, recipe.reason
    assert {ref.name for ref in recipe.files} == {path.name for path in tmp_path.iterdir()} == {
        "launch.sh", "compose.yaml", "kubernetes.yaml", "engine-args.yaml", "hashes.json", "evidence.json",
        "report.html", "README.md",
    }  # fmt: skip
    assert all(sha256_file(tmp_path / ref.name) == ref.sha256 for ref in recipe.files)
    assert recipe.rung == "runs"
    document = json.loads((tmp_path / "evidence.json").read_text())
    assert document["next_rung"] == "correct"
    assert document["lacking"] == ["precision has not run"]
    assert [stage["stage"] for stage in document["stages"]][-1] == "benchmark"
    assert "tokens/s" in json.dumps(document["stages"][-1]["numbers"])
    hashes = json.loads((tmp_path / "hashes.json").read_text())
    assert hashes["snapshot"][0]["sha256"] == hashes["shards"][0]["sha256"] == "0" * 64
    assert hashes["engine"]["environment_made_from"] == "cd" * 32


def test_the_page_needs_nothing_from_outside(tmp_path: Path) -> None:
    folder = tmp_path / "recipe"
    folder.mkdir()
    html, page = write(evidence(), folder, records_of(tmp_path))
    assert page.tags.count("svg") == 6
    assert not {"script", "link", "img", "iframe", "object"} & set(page.tags)
    assert all(reference.startswith("#") for reference in page.references)
    assert "http://" not in html
    assert "https://" not in html
    assert "@import" not in html
    assert "prefers-color-scheme: dark" in html


def test_every_reference_within_the_page_has_its_target_once(tmp_path: Path) -> None:
    import re

    html, page = write(evidence(), tmp_path)
    ids = re.findall(r'\bid="([^"]+)"', html)
    for target in {r[1:] for r in page.references} | set(re.findall(r"url\(#([^)]+)\)", html)):
        assert ids.count(target) == 1, target


@pytest.mark.parametrize("runtime", ["process", "docker"])
def test_hostile_texts_stay_texts(tmp_path: Path, runtime: str) -> None:
    case = evidence("docker" if runtime == "docker" else "process", text=HOSTILE, path=f"/models/{HOSTILE}")
    recipe = write_recipe(case, tmp_path, RecipeSettings())
    assert recipe.verdict is Verdict.PASS, recipe.reason
    html = (tmp_path / "report.html").read_text(encoding="utf-8")
    page = Page(html)
    assert "script" not in page.tags
    assert page.handlers == []
    assert HOSTILE in page.text, "shown as it is, neither run nor evaluated"
    readme = (tmp_path / "README.md").read_text(encoding="utf-8")
    assert "<script>" not in readme
    assert not Path("/tmp/day0-pwned").exists()


@pytest.mark.parametrize("absent", ["smoke", "multimodal", "benchmark"])
def test_a_stage_that_did_not_run_is_an_open_point(tmp_path: Path, absent: str) -> None:
    case = replace(evidence(), **{absent: None})
    recipe = write_recipe(case, tmp_path, RecipeSettings())
    assert recipe.verdict is Verdict.INCONCLUSIVE
    assert f"{absent} has not run" in recipe.reason
    assert recipe.rung == ("none" if absent == "smoke" else "runs")
    assert "not run" in Page((tmp_path / "report.html").read_text()).text


def test_a_failed_benchmark_is_shown_with_its_reason(tmp_path: Path) -> None:
    case = evidence()
    assert case.benchmark is not None
    bad = Check(name="requests", verdict=Verdict.FAIL, reason="3 of 4 requests completed")
    failed = case.benchmark.model_copy(update={"checks": (bad,), "cells": (), "roofline": None})
    recipe = write_recipe(replace(case, benchmark=failed), tmp_path, RecipeSettings())
    assert recipe.verdict is Verdict.INCONCLUSIVE
    assert "benchmark fail" in recipe.reason
    assert "3 of 4 requests completed" in Page((tmp_path / "report.html").read_text()).text


def test_spoilt_records_are_named(tmp_path: Path) -> None:
    spoilt = tmp_path / "requests.jsonl"
    spoilt.write_text('{"fault": null}\n')
    folder = tmp_path / "recipe"
    folder.mkdir()
    with pytest.raises(Day0Error, match=r"requests\.jsonl cannot be read"):
        write_recipe(evidence(), folder, RecipeSettings(), benchmark_records=spoilt)


def test_the_same_evidence_makes_the_same_recipe(tmp_path: Path) -> None:
    digests = []
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        digests.append(write_recipe(evidence(), tmp_path / name, RecipeSettings()).digest)
    assert digests[0] == digests[1]


def given_kernels(tree: Path, case: Evidence) -> Evidence:
    """The evidence of a run whose engine was given two kernels, one of which failed calls."""
    for name in ("norm", "rotary"):
        (tree / "day0_kernels" / name).mkdir(parents=True)
        (tree / "day0_kernels" / name / f"{name}.so").write_bytes(b"library")
    (tree / "day0_kernels" / "plugin.py").write_text("")
    (tree / "day0_kernels" / "__pycache__").mkdir()
    (tree / "day0_kernels" / "__pycache__" / "x.pyc").write_bytes(b"made by the engine")
    names = ("norm/norm.so", "rotary/rotary.so", "plugin.py")
    check = Check(name="given", verdict=Verdict.PASS, reason="given", measured={FOLLOW_UP: [FAILED]})
    bundle = {
        "plugin": EnginePlugin(kernels=(NORM, ROTARY)),
        "files": tuple(file_ref(tree, f"day0_kernels/{name}") for name in names),
        "checks": (check,),
    }
    return replace(
        case,
        kernels=case.kernels.model_copy(update=bundle),
        service=case.service.model_copy(update={"launch": with_kernels(case.service.launch, str(tree))}),
    )


FAILED = "kernel norm failed 3 calls <b>"


def handed_over(case: Evidence, folder: Path, tree: Path) -> tuple[Recipe, set[str], str]:
    """The recipe, its files of kernels, and its README."""
    folder.mkdir()
    recipe = write_recipe(case, folder, RecipeSettings(), kernels=tree)
    there = {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}
    assert {ref.name for ref in recipe.files} == there
    assert str(tree) not in (folder / "launch.sh").read_text()
    return recipe, {name for name in there if name.startswith("kernels/")}, (folder / "README.md").read_text()


def test_the_kernels_that_were_tested_are_handed_over_and_what_they_failed_is_named(tmp_path: Path) -> None:
    tree, folder = tmp_path / "tree", tmp_path / "recipe"
    recipe, there, readme = handed_over(given_kernels(tree, evidence()), folder, tree)
    assert recipe.verdict is Verdict.PASS, recipe.reason
    assert there == {f"kernels/day0_kernels/{name}" for name in ("norm/norm.so", "rotary/rotary.so", "plugin.py")}
    assert "- kernel norm failed 3 calls ‹b›" in readme
    assert "accepted kernels in `kernels/`: norm, rotary" in readme
    assert FAILED in Page((folder / recipe.report).read_text()).text


def ended_in(report: R, launch: LaunchSpec, *names: str) -> R:
    """The report, of an engine that ended in these kernels and went on without."""
    ends = [End(f"the engine ended in kernel {name}: killed by SIGSEGV") for name in names]
    left = without_kernels(launch, names)
    return report.model_copy(update={"launch": left, "checks": (*report.checks, *taken_out(left, ends))})


def test_a_kernel_that_the_engine_ended_in_is_not_handed_over(tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    case = given_kernels(tree, evidence())
    assert case.smoke is not None
    assert case.benchmark is not None
    launch = case.service.launch
    smoke, benchmark = ended_in(case.smoke, launch, "norm"), case.benchmark
    recipe, there, readme = handed_over(replace(case, smoke=smoke), tmp_path / "without one", tree)
    assert recipe.verdict is Verdict.INCONCLUSIVE
    assert "benchmark is of an engine with norm, which is not handed over" in recipe.reason
    measured = benchmark.model_copy(update={"launch": smoke.launch})
    recipe, there, readme = handed_over(replace(case, smoke=smoke, benchmark=measured), tmp_path / "of the same", tree)
    assert recipe.verdict is Verdict.PASS, recipe.reason
    assert there == {"kernels/day0_kernels/rotary/rotary.so", "kernels/day0_kernels/plugin.py"}
    assert "- the engine ended in kernel norm: killed by SIGSEGV" in readme
    assert "accepted kernels in `kernels/`: rotary." in readme
    assert "ir-op-priority" not in (tmp_path / "of the same" / "launch.sh").read_text()

    none = ended_in(case.smoke, launch, "norm", "rotary")
    both = replace(case, smoke=none, benchmark=benchmark.model_copy(update={"launch": none.launch}))
    recipe, there, readme = handed_over(both, tmp_path / "without any", tree)
    assert recipe.verdict is Verdict.PASS, recipe.reason
    assert there == set()
    assert "- the engine ended in kernel rotary" in readme
    assert "KERNELS_DIR" not in (tmp_path / "without any" / "launch.sh").read_text()


def test_a_kernel_that_ended_the_benchmark_leaves_smoke_to_be_asked_again(tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    case = given_kernels(tree, evidence())
    assert case.benchmark is not None
    benchmark = ended_in(case.benchmark, case.service.launch, "rotary")
    recipe, there, _ = handed_over(replace(case, benchmark=benchmark), tmp_path / "recipe", tree)
    assert recipe.verdict is Verdict.INCONCLUSIVE
    assert "smoke is of an engine with rotary, which is not handed over" in recipe.reason
    assert "kernels/day0_kernels/rotary/rotary.so" not in there
