"""The schema of targets: what it refuses, what it says is missing, and what it works out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from day0.errors import InputError
from day0.target import Target, load_target
from day0.target_figures import ASSUMED, FORMATS, EngineMemory, Fp8Format

SMALL: dict[str, Any] = {
    "description": "an accelerator of which little is known",
    "devices_per_node": {"value": 8, "source": "s"},
    "memory": {"bytes": 1 << 36, "source": "s"},
    "dtypes": {"weights": ["bfloat16"], "kv_cache": ["bfloat16"], "source": "s"},
    "engines": ["vllm"],
    "image": "vllm",
    "runtimes": ["docker"],
    "operators": "cuda",
    "work_pool": "small",
}


def rate(value: float) -> dict[str, Any]:
    return {"value": value, "source": "s"}


def target(**more: Any) -> Target:
    return Target.model_validate({**SMALL, **more})


def test_what_no_source_gives_is_unknown() -> None:
    unknown = target().unknown()
    assert {"bandwidth", "link_bandwidth", "scale_out", "hourly_price", "flops.bfloat16"} <= set(unknown)
    assert {f"formats.{name}" for name in FORMATS} <= set(unknown)
    assert "efficiency.compute" in unknown
    assert "engine_memory.per_device" in unknown


def test_what_a_source_gives_is_not() -> None:
    more = target(
        bandwidth=rate(1e12),
        flops={"bfloat16": rate(1e14)},
        efficiency={"compute": {"value": 0.7, "source": "s"}},
        engine_memory={"per_device": {"value": 1, "source": "measured"}},
    )
    known = {"bandwidth", "flops.bfloat16", "efficiency.compute", "engine_memory.per_device"}
    assert known <= set(target().unknown()) - set(more.unknown())


def test_a_format_that_is_computed_in_needs_its_flops_and_which_fp8() -> None:
    native = target(formats={"fp8_block": {"compute": "native", "source": "s"}})
    assert {"flops.fp8_block", "fp8_format"} <= set(native.unknown())
    widened = target(formats={"fp8_block": {"compute": "weight_only", "source": "s"}})
    assert not {"flops.fp8_block", "fp8_format"} & set(widened.unknown())
    assert "flops.fp8_block" not in target(formats=native.formats, flops={"fp8": rate(1e15)}).unknown()


def test_all_that_is_assumed_says_so_and_is_reported() -> None:
    default = EngineMemory()
    assert set(default.assumed()) == {
        "per_device",
        "per_device_parallel",
        "per_node",
        "unused_share",
        "kv_block_tokens",
        "batched_tokens",
    }
    assert default.per_device.source.startswith(ASSUMED)
    assert {f"engine_memory.{name}" for name in default.assumed()} == set(target().assumed()) <= set(target().unknown())


@pytest.mark.parametrize(
    ("compute", "holds", "computes"), [("native", True, True), ("weight_only", True, False), ("none", False, False)]
)
def test_a_format_is_held_computed_or_neither(compute: str, holds: bool, computes: bool) -> None:
    where = target(formats={"mxfp4": {"compute": compute, "source": "s"}})
    assert (where.holds("mxfp4"), where.computes("mxfp4")) == (holds, computes)
    assert (where.holds("nvfp4"), where.computes("nvfp4")) == (None, None)


def test_without_a_switch_a_small_group_has_only_its_own_links() -> None:
    mesh = target(link_bandwidth=rate(448e9), pair_bandwidth=rate(64e9), scale_out=rate(50e9))
    assert [mesh.group_bandwidth(n) for n in (1, 2, 4, 8, 16)] == [64e9, 64e9, 192e9, 448e9, 50e9]
    switched = target(link_bandwidth=rate(450e9))
    assert [switched.group_bandwidth(n) for n in (2, 8, 16)] == [450e9, 450e9, None]
    assert target(scale_out=rate(50e9)).group_bandwidth(2) is None


def test_a_domain_may_be_larger_than_a_node() -> None:
    large = target(link_bandwidth=rate(2e11), scale_up_devices={"value": 768, "source": "s"}, scale_out=rate(2e10))
    assert (large.scale_up, target().scale_up) == (768, 8)
    assert [large.group_bandwidth(n) for n in (32, 768, 769)] == [2e11, 2e11, 2e10]


def test_fnuz_and_gaudi_2_reach_less_than_what_checkpoints_hold() -> None:
    assert Fp8Format(name="float8_e4m3fn", source="s").largest == 448
    assert Fp8Format(name="float8_e4m3fnuz", source="s").largest == Fp8Format(name="gaudi2", source="s").largest == 240


def test_a_target_is_the_same_after_json() -> None:
    for name in ("h200", "ascend-910b", "mlu590"):
        where = load_target(name)
        assert Target.model_validate(where.to_json()) == where


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"bandwith": rate(1e12)}, "unknown key 'bandwith'; did you mean 'bandwidth'"),
        ({"bandwidth": 1e12}, "bandwidth: "),
        ({"bandwidth": {"value": 1e12}}, "bandwidth.source: Field required"),
        ({"bandwidth": {"value": 1e12, "source": ""}}, "bandwidth.source: "),
        ({"bandwidth": rate(-1)}, "bandwidth.value: "),
        ({"bandwidth": rate(0)}, "bandwidth.value: "),
        ({"bandwidth": rate(float("nan"))}, "bandwidth.value: "),
        ({"bandwidth": rate(float("inf"))}, "bandwidth.value: "),
        ({"memory": {"bytes": "much", "source": "s"}}, "memory.bytes"),
        ({"memory": {"bytes": 0, "source": "s"}}, "memory.bytes"),
        ({"devices_per_node": {"value": -1, "source": "s"}}, "devices_per_node.value: "),
        ({"flops": {"bf16": rate(1e14)}}, "flops: 'bf16' is none of bfloat16, "),
        ({"formats": {"fp4": {"compute": "native", "source": "s"}}}, "formats: 'fp4' is none of fp8, "),
        ({"formats": {"fp8": {"compute": "yes", "source": "s"}}}, "formats.fp8.compute: "),
        ({"fp8_format": {"name": "e4m3", "source": "s"}}, "fp8_format.name: "),
        ({"efficiency": {"compute": {"value": 1.2, "source": "s"}}}, "efficiency.compute.value: "),
        ({"hourly_price": {"value": 2, "currency": "dollars", "source": "s"}}, "hourly_price.currency: "),
        ({"engines": []}, "engines: "),
        ({"dtypes": {"weights": [], "kv_cache": ["bfloat16"], "source": "s"}}, "dtypes.weights: "),
        ({"engine_memory": {"unused_share": 1.0}}, "engine_memory.unused_share: "),
        ({"description": None}, "description: "),
    ],
)
def test_a_wrong_figure_is_one_clear_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: dict[str, Any], message: str
) -> None:
    error = _refused(tmp_path, monkeypatch, yaml.safe_dump({**SMALL, **change}))
    assert message in error


@pytest.mark.parametrize(
    "text",
    [
        "",
        "42",
        "- a\n- b",
        "description: [",
        "description: !!python/object/apply:os.system [ls]",
        "{a: &a [1], b: *c}",
        "memory: {bytes: " + "9" * 5000 + "}",
        "[" * 100_000,
        "\x00",
    ],
    ids=["empty", "number", "list", "cut", "object", "alias", "digits", "nested", "nul"],
)
def test_what_is_no_target_is_one_clear_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    _refused(tmp_path, monkeypatch, text)


def test_bytes_that_are_no_text_are_one_clear_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _refused(tmp_path, monkeypatch, b"\xff\xfe\x00d")


def test_a_name_that_is_no_target_names_the_nearest() -> None:
    with pytest.raises(InputError, match="did you mean 'h200'"):
        load_target("H200")
    with pytest.raises(InputError, match="no targets config named"):
        load_target("../engines/vllm-cpu")


def _refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str | bytes) -> str:
    """What `load_target` says of a file, as one line that names it."""
    path = tmp_path / "targets" / "hostile.yaml"
    path.parent.mkdir()
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    monkeypatch.setenv("DAY0_CONFIGS", str(tmp_path))
    with pytest.raises(InputError) as caught:
        load_target("hostile")
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)
    return str(caught.value)
