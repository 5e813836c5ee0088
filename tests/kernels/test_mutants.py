"""Faults put into the kernels' own sources: each fits its source, and the acceptance finds those tried here."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from benchmarks import mutants
from benchmarks.mutants import Unfit, chosen, examine, load_mutants, main, mutated, scores
from day0.verdict import Verdict
from tasks.kernels.acceptance.run import verdict
from tasks.kernels.build import BuildFailed
from tasks.kernels.definition import KernelDefinition
from tests.kernels.cpu import BUILT

ALL = {mutant.label: mutant for mutant in load_mutants()}
ONE = ALL["fused_add_rms_norm.epsilon_dropped"]


@pytest.mark.parametrize("label", ALL)
def test_a_mutant_fits_its_source(label: str) -> None:
    mutant = ALL[label]
    source = (mutants.KERNELS / mutant.kernel / mutant.file).read_text()
    assert mutant.new in mutated(mutant)
    assert len(mutated(mutant)) - len(source) == len(mutant.new) - len(mutant.old)


def test_every_kernel_in_c_plus_plus_has_mutants() -> None:
    kernels = {path.parent.parent.name for path in mutants.KERNELS.glob("*/cpu/kernel.cpp")}
    counts = Counter(mutant.kernel for mutant in ALL.values())
    assert set(counts) == kernels
    assert min(counts.values()) >= 6


@pytest.mark.parametrize(("old", "count"), [("nowhere to be found", 0), ("int64_t", 7)])
def test_a_text_that_does_not_occur_once_is_an_error(old: str, count: int) -> None:
    with pytest.raises(
        Unfit, match=rf"epsilon_dropped: what it replaces occurs {count} times in cpu/loops\.h, not once"
    ):
        mutated(ONE.model_copy(update={"old": old}))


def test_a_text_that_stays_is_an_error() -> None:
    with pytest.raises(Unfit, match="it replaces a text by itself"):
        mutated(ONE.model_copy(update={"new": ONE.old}))


def test_an_unknown_name_is_an_error() -> None:
    with pytest.raises(Unfit, match=r"no mutant is called rotary\.nothing"):
        chosen(list(ALL.values()), ["rotary", "rotary.nothing"])
    assert {mutant.kernel for mutant in chosen(list(ALL.values()), ["rotary"])} == {"rotary"}


@pytest.mark.parametrize(
    ("found", "error", "huge", "became"),
    [
        (Verdict.FAIL, {"kind": "error"}, False, "rejected"),
        (Verdict.PASS, {"not_run": ["too little memory"]}, False, "survived"),
        (Verdict.PASS, {"not_run": ["too little memory"]}, True, "not run"),
        (Verdict.PASS, {"not_run": []}, True, "survived"),
        (Verdict.INCONCLUSIVE, {}, False, "survived"),
    ],
)
def test_only_what_was_rejected_counts(
    found: Verdict, error: dict[str, Any], huge: bool, became: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def accept(definition: KernelDefinition, backend: str, *, seed: int) -> Any:
        assert "+ of.eps" not in (definition.folder / "cpu" / "loops.h").read_text()
        return verdict(definition, backend, found, "a reason" if found is not Verdict.PASS else "", error)

    monkeypatch.setattr(mutants, "accept", accept)
    result = examine(ONE.model_copy(update={"huge": huge}), 1)
    assert result["became"] == became
    assert list(scores([result]))[2].startswith("| fused_add_rms_norm | 1 | ")


def changed(definition: KernelDefinition) -> bool:
    return (definition.folder / ONE.file).read_text() == mutated(ONE)


def test_a_survivor_is_a_failure(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    tried = []

    def accept(definition: KernelDefinition, backend: str, seed: int) -> Any:
        tried.append(changed(definition))
        return verdict(definition, backend, Verdict.PASS, "")

    monkeypatch.setattr("sys.argv", ["mutants", "--json", "--seed", "3", ONE.label])
    monkeypatch.setattr(mutants, "accept", accept)
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 1
    said = json.loads(capsys.readouterr().out)
    assert said["seed"] == 3
    assert [each["became"] for each in said["mutants"]] == ["survived"]
    assert tried == [False, True]


@pytest.mark.parametrize("faulty", [False, True])
def test_what_does_not_compile_is_unusable(
    faulty: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def accept(definition: KernelDefinition, backend: str, seed: int) -> Any:
        if changed(definition) is faulty:
            raise BuildFailed("loops.h:3: expected ';'")
        return verdict(definition, backend, Verdict.PASS, "")

    monkeypatch.setattr("sys.argv", ["mutants", ONE.label])
    monkeypatch.setattr(mutants, "accept", accept)
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2
    which = ONE.label if faulty else ONE.kernel
    assert f"{which} does not compile: loops.h:3" in capsys.readouterr().err


@pytest.mark.parametrize("found", [Verdict.FAIL, Verdict.INCONCLUSIVE])
def test_a_kernel_that_is_rejected_without_a_fault_proves_nothing(
    found: Verdict, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["mutants", ONE.label])
    monkeypatch.setattr(
        mutants, "accept", lambda definition, backend, seed: verdict(definition, backend, found, "a reason")
    )
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2
    said = capsys.readouterr()
    assert "fused_add_rms_norm without a fault is not accepted: a reason" in said.err
    assert "| rejected |" not in said.out


#: One of each kernel, among them those that the kernels' inputs once did not tell apart.
TRIED = {
    "fused_add_rms_norm.epsilon_dropped": "error",
    "gated_activation.up_clamped_on_one_side": "error",
    "fp8_block_dequantise.matrix_of_whole_blocks": "error",
    "fp8_block_quantise.kept_by_address": "aliased",
    "kv_cache_write.scale_of_the_first_head": "error",
    "rotary.interleaved_tail": "unwritten",
    "router_topk.softmax_without_the_maximum": "special",
    "paged_decode_attention.stale_page": "error",
    "grouped_matmul.rows_of_no_expert_left": "unwritten",
}


def test_one_of_each_kernel_is_tried() -> None:
    assert sorted(ALL[label].kernel for label in TRIED) == sorted({mutant.kernel for mutant in ALL.values()})


@pytest.mark.reference
@pytest.mark.compiler
@pytest.mark.parametrize("label", TRIED)
def test_a_mutant_is_rejected(label: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DAY0_HOME", str(BUILT))
    result = examine(ALL[label], 1)
    assert (result["became"], result["kind"]) == ("rejected", TRIED[label])


def test_a_mutant_is_compiled_with_its_own_kernel(tmp_path: Path) -> None:
    folder = mutants.make_folder(ONE.kernel, tmp_path, ONE)
    assert (folder / ONE.file).read_text() == mutated(ONE)
    assert KernelDefinition(folder).file.backends.cpu is not None
    assert (tmp_path / "common" / "cpu" / "vector.h").is_file()


def test_two_of_one_name_are_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    listed = [ONE.model_dump(exclude={"kernel"})] * 2
    (tmp_path / "mutants.yaml").write_text(json.dumps({ONE.kernel: listed}))
    monkeypatch.setattr(mutants, "DATA", tmp_path / "mutants.yaml")
    with pytest.raises(Unfit, match=r"two mutants of one name: fused_add_rms_norm\.epsilon_dropped"):
        load_mutants()
