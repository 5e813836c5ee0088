"""Which kernels the engine is given: accepted ones that it has a place for, and no word of any other."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from day0.artifacts.kernels import Kernel, KernelBundle, KernelUsage
from day0.artifacts.operators import OperatorReport
from day0.files import sha256_file
from day0.target_operators import Device
from day0.verdict import Verdict, follow_up
from tasks.kernels import gaps, give
from tasks.kernels.acceptance.run import verdict
from tasks.kernels.definition import KernelDefinition
from tasks.kernels.find import find_kernel, sources_digest
from tasks.operators.scan import judge
from tests.kernels.composed import write_kernels
from tests.operators.captures import captured, dispatcher, listed, make_capture, settings

Verdicts = dict[str, tuple[Verdict, str]]


@pytest.fixture
def kernels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Of three kernels one is for a layer of the engine, one for an operator of torch, one for a pattern."""
    folder = write_kernels(tmp_path / "kernels", ("silu", "rsqrt", "neg"))
    for name, replaced in (("silu", "vllm::silu_and_mul"), ("neg", "pattern:neg")):
        file = folder / name / "kernel.yaml"
        file.write_text(file.read_text().replace(f'replaces: ["aten::{name}"]', f'replaces: ["{replaced}"]'))
    monkeypatch.setenv("DAY0_KERNELS", str(folder))
    return folder


@pytest.fixture
def given(
    kernels: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[[OperatorReport, KernelUsage, Verdicts], KernelBundle]:
    """The stage, with verdicts that were not found by trying."""

    def run(operators: OperatorReport, use: KernelUsage, verdicts: Verdicts) -> KernelBundle:
        def tried(definition: KernelDefinition, backend: str, device: Device | None) -> Kernel:
            assert definition.name in verdicts, "only what the engine has a place for is tried"
            found, reason = verdicts[definition.name]
            return verdict(definition, backend, found, reason)

        offers = tuple((find_kernel(path.name), "triton") for path in sorted(kernels.iterdir()))
        for module in (gaps, give):
            monkeypatch.setattr(module, "offered", lambda target: offers)
            monkeypatch.setattr(module, "tried", tried)
        return give.give(gaps.fill_gaps(operators), operators, use, lambda: tmp_path / "tree")

    return run


Given = Callable[[OperatorReport, KernelUsage, Verdicts], KernelBundle]
SOUND = judge({}, settings(dispatcher(), "cpu"), make_capture())


def lacking_rsqrt() -> OperatorReport:
    capture = make_capture(captured("aten::mm"), captured("aten::rsqrt"))
    return judge({}, settings(listed("aten::mm"), "cpu"), capture)


def test_where_nothing_is_lacking_nothing_is_given_unless_it_is_asked_for(given: Given, tmp_path: Path) -> None:
    bundle = given(SOUND, "gaps", {})
    assert (bundle.plugin, bundle.files, bundle.verdict) == (None, (), Verdict.SKIPPED)
    assert not (tmp_path / "tree").exists()


def test_accepted_kernels_are_given_and_those_without_a_place_are_named(given: Given, tmp_path: Path) -> None:
    bundle = given(SOUND, "accepted", {"silu": (Verdict.PASS, "")})
    assert bundle.verdict is Verdict.PASS
    assert bundle.reason == (
        "the engine is given 1 accepted kernel: silu (triton) for vllm::silu_and_mul; "
        "the engine has no place for neg, rsqrt"
    )
    assert bundle.unused["neg"] == "the engine's plugin has no adapter for pattern:neg"
    assert follow_up(bundle.checks) == []
    assert bundle.plugin is not None
    assert [kernel.places for kernel in bundle.plugin.kernels] == [("vllm::silu_and_mul",)]
    assert [(kernel.name, kernel.chosen) for kernel in bundle.kernels] == [("silu", "the only accepted one")]
    tree = tmp_path / "tree"
    assert {file.name for file in bundle.files} == {
        str(path.relative_to(tree)) for path in tree.rglob("*") if path.is_file()
    }
    assert all(sha256_file(tree / file.name) == file.sha256 for file in bundle.files)
    described = json.loads((tree / "day0_kernels" / "silu" / "kernel.json").read_text())
    assert (described["device"], described["key"], described["places"]) == ("cpu", "CPU", ["vllm::silu_and_mul"])
    assert str(tree) not in json.dumps(bundle.to_json())


@pytest.mark.parametrize("found", [Verdict.FAIL, Verdict.INCONCLUSIVE])
def test_a_rejected_kernel_is_work_to_follow_up_and_is_not_given(given: Given, found: Verdict) -> None:
    bundle = given(SOUND, "accepted", {"silu": (found, "it writes past the end")})
    assert bundle.plugin is None
    assert bundle.verdict is Verdict.SKIPPED  # the engine has code of its own
    assert follow_up(bundle.checks) == ["kernel silu for triton is not accepted: it writes past the end"]
    assert "it writes past the end" in bundle.reason


def test_what_meets_a_gap_is_given_for_it_by_itself(given: Given) -> None:
    bundle = given(lacking_rsqrt(), "gaps", {"rsqrt": (Verdict.PASS, "")})
    assert bundle.verdict is Verdict.PASS
    assert bundle.plugin is not None
    assert [(k.name, k.places) for k in bundle.plugin.kernels] == [("rsqrt", ("aten::rsqrt",))]


def test_a_gap_whose_kernel_the_engine_cannot_be_given_is_not_met(given: Given, kernels: Path) -> None:
    file = kernels / "rsqrt" / "kernel.yaml"
    file.write_text(file.read_text().replace("Tensor x) -> Tensor", "Tensor(a!) x) -> ()"))
    bundle = given(lacking_rsqrt(), "gaps", {"rsqrt": (Verdict.PASS, "")})
    assert bundle.verdict is Verdict.INCONCLUSIVE
    assert "rsqrt: it writes to its arguments" in bundle.reason


def test_changed_sources_are_other_kernels(kernels: Path) -> None:
    before = sources_digest()
    assert sources_digest() == before
    (kernels / "silu" / "triton" / "kernel.py").write_text("AHEAD = []\n")
    assert sources_digest() != before
