"""The recipe's folder as a whole, and its page."""

from __future__ import annotations

import json
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest

from day0.artifacts.kernels import EnginePlugin, GivenKernel
from day0.errors import Day0Error
from day0.files import file_ref, sha256_file
from day0.verdict import FOLLOW_UP, Check, Verdict
from tasks.recipe.evidence import Evidence
from tasks.recipe.settings import RecipeSettings
from tasks.recipe.write import write_recipe
from tests.recipe.fixtures import HOSTILE, evidence, with_kernels


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


def test_the_kernels_that_were_tested_are_handed_over_and_what_they_failed_is_named(tmp_path: Path) -> None:
    tree, folder = tmp_path / "tree", tmp_path / "recipe"
    (tree / "day0_kernels" / "norm").mkdir(parents=True)
    (tree / "day0_kernels" / "norm" / "norm.so").write_bytes(b"library")
    (tree / "day0_kernels" / "__pycache__").mkdir()
    (tree / "day0_kernels" / "__pycache__" / "x.pyc").write_bytes(b"made by the engine")
    case = evidence()
    given = GivenKernel(name="norm", backend="cpu", places=("vllm_ir::rms_norm",))
    plugin = EnginePlugin(arguments=(), env={}, kernels=(given,))
    sentence = "kernel norm failed 3 calls <b>"
    check = Check(name="given", verdict=Verdict.PASS, reason="given", measured={FOLLOW_UP: [sentence]})
    files = (file_ref(tree, "day0_kernels/norm/norm.so"),)
    case = replace(
        case,
        kernels=case.kernels.model_copy(update={"plugin": plugin, "files": files, "checks": (check,)}),
        service=case.service.model_copy(update={"launch": with_kernels(case.service.launch, str(tree))}),
    )
    folder.mkdir()
    recipe = write_recipe(case, folder, RecipeSettings(), kernels=tree)
    assert recipe.verdict is Verdict.PASS, recipe.reason
    there = {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}
    assert {ref.name for ref in recipe.files} == there
    assert {name for name in there if name.startswith("kernels/")} == {"kernels/day0_kernels/norm/norm.so"}
    readme = (folder / "README.md").read_text()
    assert "- kernel norm failed 3 calls ‹b›" in readme
    assert "accepted kernels in `kernels/`: norm" in readme
    page = Page((folder / recipe.report).read_text())
    assert sentence in page.text
    assert str(tree) not in (folder / "launch.sh").read_text()
