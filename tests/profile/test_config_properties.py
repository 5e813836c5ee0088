"""What must hold of every config's profile: the order of keys says nothing, a longer context costs no less, and a key
that looks like a size is read or reported."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from day0.artifacts.profile import Profile
from tasks.profile.describe import describe_model
from tasks.profile.settings import ProfileSettings
from tests.architecture.published_configs import CONFIGS, read, write_model

BY_TYPE: dict[str, Path] = {}
for _path in CONFIGS:
    BY_TYPE.setdefault(read(_path)["model_type"], _path)

published = st.sampled_from(sorted(BY_TYPE.values()))
every_type = pytest.mark.parametrize("path", sorted(BY_TYPE.values()), ids=lambda path: path.stem)
quick = settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


def describe(path: Path, **asked: Any) -> Profile:
    return describe_model(path, ProfileSettings(**asked))


def shuffled(value: Any, order: random.Random) -> Any:
    """The same JSON with the keys of every object in another order."""
    if isinstance(value, dict):
        keys = sorted(value)
        order.shuffle(keys)
        return {key: shuffled(value[key], order) for key in keys}
    if isinstance(value, list):
        return [shuffled(item, order) for item in value]
    return value


@quick
@given(published, st.integers(0, 1 << 32))
def test_the_order_of_keys_changes_nothing(tmp_path: Path, path: Path, seed: int) -> None:
    model = write_model(path, tmp_path / "model")
    before = describe(model)
    config = shuffled(read(path), random.Random(seed))
    (model / "config.json").write_text(json.dumps(config))
    after = describe(model)
    assert after == before


lengths = st.integers(1, 1 << 21)


@quick
@given(published, lengths, lengths, st.integers(1, 64), st.sampled_from(("bfloat16", "fp8")))
def test_a_longer_context_costs_no_less(path: Path, one: int, other: int, concurrency: int, dtype: str) -> None:
    shorter, longer = (
        describe(path, context=context, concurrency=concurrency, kv_dtype=dtype).kv_cache
        for context in sorted((one, other))
    )
    assert 0 < shorter.bytes_at_context <= longer.bytes_at_context
    assert shorter.bytes_per_token == longer.bytes_per_token
    assert shorter.bytes_per_sequence == longer.bytes_per_sequence


@every_type
def test_the_slope_is_what_a_token_costs_once_windows_are_full(path: Path) -> None:
    """At lengths that every ratio of compression divides, to the byte."""
    near, far = (describe(path, context=tokens).kv_cache for tokens in (1 << 20, 1 << 21))
    assert far.bytes_at_context - near.bytes_at_context == near.bytes_per_token * (1 << 20)
    assert near.bytes_at_context == near.bytes_per_sequence + near.bytes_per_token * (1 << 20)


@every_type
def test_twice_the_sequences_cost_twice(path: Path) -> None:
    one, two = (describe(path, context=5000, concurrency=count).kv_cache.bytes_at_context for count in (1, 2))
    assert two == 2 * one


PARTS = ("text_config", "vision_config")
WORDS = ("memory", "bridge", "register", "latch")
FORMS = ("num_{}_layers", "num_{}_heads", "{}_dim", "{}_size", "{}_rank", "n_{}_blocks", "{}_per_token")


@st.composite
def unknown_keys(draw: st.DrawFn) -> tuple[str, int | list[int]]:
    name = draw(st.sampled_from(FORMS)).format(draw(st.sampled_from(WORDS)))
    return name, draw(st.integers(2, 1 << 20) | st.lists(st.integers(2, 99), min_size=1, max_size=4))


@quick
@given(published, unknown_keys(), st.data())
def test_an_unknown_key_that_looks_like_a_size_is_reported(
    tmp_path: Path, path: Path, unknown: tuple[str, int | list[int]], data: st.DataObject
) -> None:
    key, value = unknown
    config = read(path)
    objects = [config, *(held for name, held in config.items() if name in PARTS and isinstance(held, dict))]
    assert key not in json.dumps(config)
    data.draw(st.sampled_from(objects))[key] = value
    model = write_model(path, tmp_path / "model")
    (model / "config.json").write_text(json.dumps(config))
    assert any(key in warning for warning in describe(model).warnings)
