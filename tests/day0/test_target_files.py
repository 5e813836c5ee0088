"""The targets that are shipped: each figure has a source and is of the right size, and the README's table is theirs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from day0.home import configs
from day0.target import Target, load_target
from day0.target_figures import Rate

FOLDER = configs() / "targets"
NAMES = sorted(path.stem for path in FOLDER.glob("*.yaml"))
WANTED = {
    "cpu", "h100", "h200", "b200", "mi300x", "mi355x", "gaudi3", "ascend-910b", "ascend-910c", "mtt-s5000",
    "metax-c500", "hygon-dcu", "mlu590", "kunlun-p800", "enflame-s60", "iluvatar-bi-v150",
}  # fmt: skip


@pytest.fixture(params=NAMES)
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def target(name: str) -> Target:
    return load_target(name)


def test_all_that_are_promised_are_there() -> None:
    assert set(NAMES) == WANTED


def test_every_figure_has_a_source(target: Target) -> None:
    figures = list(_figures(target.to_json()))
    assert len(figures) >= 3
    for path, figure in figures:
        sources = [str(value).strip() for key, value in figure.items() if key == "source" or key.endswith("_source")]
        assert sources, path
        assert all(sources), path


def test_a_source_that_refers_to_another_figure_finds_it(target: Target) -> None:
    """`as bfloat16` is only worth what is written there."""
    for table in (target.flops, target.formats):
        for key, figure in table.items():
            if figure.source.startswith("as "):
                other = figure.source.removeprefix("as ").split(";")[0].split(":")[0].split("(")[0].strip()
                assert other in set(table) - {key}, (key, figure.source)


def test_bandwidths_are_of_the_right_size(target: Target) -> None:
    assert target.bandwidth is None or 1e11 < target.bandwidth.value < 1e13
    assert target.link_bandwidth is None or 1e10 < target.link_bandwidth.value < 2e12
    assert target.scale_out is None or 1e9 < target.scale_out.value < 2e11
    assert target.host_link is None or 1e10 < target.host_link.value < 2e11
    if target.link_bandwidth is not None:
        links = target.link_bandwidth.value
        assert target.bandwidth is not None
        assert links < target.bandwidth.value
        assert target.scale_out is None or target.scale_out.value < links
        if target.pair_bandwidth is not None:  # a full mesh: all pairs together are all links
            assert target.pair_bandwidth.value * (target.devices_per_node.value - 1) == pytest.approx(links)


def test_memory_is_of_the_right_size(target: Target, name: str) -> None:
    assert (target.memory.bytes == "auto") == (name == "cpu")
    if target.memory.bytes != "auto":
        assert 30e9 < target.memory.bytes < 320e9


def test_flops_are_of_the_right_size_and_fewer_bits_are_not_slower(target: Target) -> None:
    rates = {name: rate.value for name, rate in target.flops.items()}
    assert all(1e13 < value < 1.1e16 for value in rates.values())
    order = ("float32", "tf32", "bfloat16", "fp8", "mxfp4")
    known = [rates[name] for name in order if name in rates]
    assert known == sorted(known)
    assert rates.get("bfloat16", 0) == rates.get("float16", 0) or len({"bfloat16", "float16"} & set(rates)) == 1
    assert rates.get("int8", rates.get("bfloat16", 0)) >= rates.get("bfloat16", 0)


def test_the_balance_of_work_and_memory_is_that_of_an_accelerator(target: Target) -> None:
    rate = target.flops.get("bfloat16")
    if rate is not None and target.bandwidth is not None:
        assert 100 < rate.value / target.bandwidth.value < 600


def test_what_is_absent_is_listed_and_what_is_listed_is_absent(target: Target) -> None:
    unknown = set(target.unknown())
    for name in ("bandwidth", "link_bandwidth", "scale_out", "host_link", "hourly_price"):
        assert (getattr(target, name) is None) == (name in unknown)
    assert not {f"flops.{name}" for name in target.flops} & unknown
    assert not {f"formats.{name}" for name in target.formats} & unknown
    assert set(target.assumed()) <= unknown


def test_a_device_that_computes_in_fp8_says_which(target: Target, name: str) -> None:
    if target.computes("fp8"):
        assert target.fp8_format is not None or "fp8_format" in target.unknown()
    else:
        assert target.fp8_format is None


@pytest.mark.parametrize(
    ("name", "largest"),
    [("h100", 448), ("h200", 448), ("b200", 448), ("mi300x", 240), ("mi355x", 448), ("gaudi3", 448)],
)
def test_whose_fp8_is_ocp(name: str, largest: float) -> None:
    found = load_target(name).fp8_format
    assert found is not None
    assert found.largest == largest


@pytest.mark.parametrize("name", ["ascend-910b", "ascend-910c"])
@pytest.mark.parametrize("weights", ["fp8", "fp8_block", "mxfp4", "nvfp4"])
def test_an_ascend_before_the_950_must_convert_eight_and_four_bit_floats(name: str, weights: str) -> None:
    target = load_target(name)
    assert target.holds(weights) is False
    assert target.computes("int8")
    assert "bfloat16" in target.dtypes.weights


@pytest.mark.parametrize(
    ("name", "native", "held"),
    [
        ("h200", {"fp8", "fp8_block", "int8"}, {"mxfp4", "nvfp4", "int4"}),
        ("b200", {"fp8", "fp8_block", "mxfp4", "nvfp4"}, {"int4"}),
        ("mi300x", {"fp8", "fp8_block", "int8"}, {"mxfp4", "int4"}),
        ("mi355x", {"fp8", "fp8_block", "mxfp4"}, {"int4"}),
        ("gaudi3", {"fp8"}, {"int4"}),
    ],
)
def test_what_is_computed_and_what_is_only_held(name: str, native: set[str], held: set[str]) -> None:
    target = load_target(name)
    assert all(target.computes(weights) for weights in native)
    assert all(target.holds(weights) and not target.computes(weights) for weights in held)


def test_no_fp4_on_gaudi_3_and_no_int8_on_blackwell() -> None:
    assert load_target("gaudi3").holds("mxfp4") is load_target("gaudi3").holds("nvfp4") is False
    assert load_target("b200").holds("int8") is False


def test_the_reference_system_is_as_nvidias_own_planner_has_it() -> None:
    """ai-dynamo/aiconfigurator 095f58a, systems/h200_sxm.yaml: what our predictions are compared with."""
    target = load_target("h200")
    assert target.bandwidth == Rate(value=4.8e12, source=target.bandwidth.source if target.bandwidth else "")
    assert target.flops["bfloat16"].value == pytest.approx(989e12, rel=1e-3)
    assert target.flops["fp8"].value == pytest.approx(1978e12, rel=1e-3)
    assert target.group_bandwidth(8) == 450e9
    assert target.group_bandwidth(16) == 50e9


def test_a_work_pool_is_a_targets_own(target: Target, name: str) -> None:
    assert target.work_pool == name


def test_the_table_of_the_readme_is_that_of_the_files() -> None:
    lines = (FOLDER / "README.md").read_text().splitlines()
    assert [line for line in lines if line.split("|")[1:2] and line.split("|")[1].strip() in NAMES] == [
        _row(name) for name in NAMES
    ]


def _row(name: str) -> str:
    target = load_target(name)
    memory = "-" if target.memory.bytes == "auto" else f"{target.memory.bytes / 2**30:.1f}"
    cells = (
        name,
        str(target.devices_per_node.value),
        memory,
        _scaled(target.bandwidth, 1e12),
        _scaled(target.flops.get("bfloat16"), 1e15),
        _scaled(target.flops.get("fp8"), 1e15),
        _scaled(target.link_bandwidth, 1e9),
        _scaled(target.scale_out, 1e9),
        ", ".join(weights for weights in target.formats if target.computes(weights)) or "-",
    )
    return f"| {' | '.join(cells)} |"


def _scaled(rate: Rate | None, unit: float) -> str:
    return f"{rate.value / unit:.3g}" if rate else "-"


def _figures(value: Any, path: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    """Every table within a target's JSON that holds a number."""
    if isinstance(value, dict):
        if any(isinstance(inner, int | float) and not isinstance(inner, bool) for inner in value.values()):
            yield path, value
        for key, inner in value.items():
            yield from _figures(inner, f"{path}.{key}")
