"""Every published config gives a profile, and its numbers are the published ones (tests/data/published.yaml)."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest

from day0.artifacts.profile import Profile
from day0.verdict import Verdict
from tasks.profile.describe import describe_model
from tasks.profile.settings import ProfileSettings
from tests.architecture.published_configs import CONFIGS, DATA, published, read, stated

every_config = pytest.mark.parametrize("name", [path.stem for path in CONFIGS])


@cache
def profile(name: str) -> Profile:
    return describe_model(DATA / "configs" / f"{name}.json", ProfileSettings())


def having(*keys: str) -> pytest.MarkDecorator:
    """The configs about which something is published."""
    found = [name for name, facts in published().items() if any(key in facts for key in keys)]
    return pytest.mark.parametrize("name", found)


def kinds(found: Profile, names: Any) -> int:
    """Parameters of some kinds that the total counts."""
    return sum(found.parameters.by_kind.get(name, 0) for name in names if name != "mtp")


def test_what_is_published_is_told_of_every_config() -> None:
    assert set(published()) == {path.stem for path in CONFIGS}
    assert len(CONFIGS) == 68


@every_config
def test_every_config_gives_a_profile(name: str) -> None:
    found = profile(name)
    assert found.verdict is Verdict.PASS
    assert found.parameters.total == kinds(found, found.parameters.by_kind)
    assert found.context_length == published()[name]["context"]


@having("total")
def test_the_total_is_the_published_one_or_the_difference_is_explained(name: str) -> None:
    facts, found = published()[name], profile(name)
    total = stated(facts["total"])
    off = abs(found.parameters.total - kinds(found, facts.get("without", ())) - total.value)
    if off > max(total.rounding, 0.005 * total.value):
        assert "explained" in facts, off / total.value
        assert off < 0.06 * total.value


@having("exact")
def test_the_total_is_that_of_the_released_tensors(name: str) -> None:
    """To the element, but for what the config at hand does not tell."""
    facts, found = published()[name], profile(name)
    counted = found.parameters.total + found.parameters.by_kind.get("mtp", 0)
    more = sum(beyond(name, what) for what in facts.get("exact_with", ()))
    assert facts.get("exact_without", []) in ([], ["correction_bias"])
    less = correction_biases(name) if "exact_without" in facts else 0
    assert counted + more == facts["exact"] + less


def beyond(name: str, what: str) -> int:
    """Elements that the released tensors have beside what the config tells."""
    config = read(DATA / "configs" / f"{name}.json")
    text = config.get("text_config") or config
    match what:
        case "mtp_copies":
            return int(2 * text["vocab_size"] * text["hidden_size"])
        case "decay":
            linear = text["linear_attn_config"]
            return int(len(linear["kda_layers"]) * (linear["head_dim"] - linear["num_heads"]))
        case "tower":
            assert "vision_config" not in config
            return {"llama4": 871_932_416, "minimax_m3": 610_000_640}[config["model_type"]]
    raise AssertionError(what)


def correction_biases(name: str) -> int:
    """One for each expert of each layer that has some (here: where the pattern has an E)."""
    config = read(DATA / "configs" / f"{name}.json")
    return int(config["hybrid_override_pattern"].count("E") * config["n_routed_experts"])


@having("modules")
def test_the_total_is_that_of_the_librarys_modules(name: str) -> None:
    """Which have no correction biases: one for each expert in each layer."""
    facts, found = published()[name], profile(name)
    extra = found.parameters.total - facts["modules"]
    biases = {"deepseek_v3": 58 * 256, "deepseek_v32": 58 * 256, "kimi_k2": 60 * 384, "kimi_k25": 60 * 384}
    assert extra == biases.get(found.architecture["model_type"], 0)


@having("active", "active_modules")
def test_active_parameters_are_the_published_ones(name: str) -> None:
    facts, found = published()[name], profile(name)
    counts = found.parameters
    assert counts.active_without_embedding <= counts.active <= counts.total
    if "active_modules" in facts:
        modules = stated(facts["active_modules"])
        # Of two models of text and images, a part of what joins the two is in the modules' figure.
        assert abs(counts.active - modules.value) <= max(modules.rounding, 0.0025 * modules.value)
    if "active" in facts:
        without = facts.get("active_without", ())
        active = counts.active_without_embedding if "embedding" in without else counts.active
        active -= counts.by_kind["head"] if "head" in without else 0
        figure = stated(facts["active"])
        # Rounded, or cut: Qwen3-30B-A3B's 3.353 is published as 3.3.
        assert -figure.rounding <= active - figure.value < 2 * figure.rounding


@having("kv")
def test_the_cache_is_the_published_one_to_the_byte(name: str) -> None:
    facts, found = published()[name]["kv"], profile(name).kv_cache
    assert found.dtype == facts["dtype"]
    assert found.bytes_per_token == facts["per_token"]
    assert found.bytes_per_sequence == sum(facts.get(part, 0) for part in ("windows", "states", "convolutions"))
