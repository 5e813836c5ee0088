"""Configs from strangers, of every family at hand: one clear error that names the key, and nothing else.

No other exception, no answer made of nonsense, no hang (the time limit is there to end one), no traceback.
"""

from __future__ import annotations

import copy
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from day0.architecture.structure import structure_of
from day0.errors import InputError
from flows.commands.profile import command
from tasks.profile.describe import describe_model
from tasks.profile.settings import ProfileSettings
from tests.architecture.published_configs import CONFIGS, read

pytestmark = pytest.mark.timeout(60)

#: One published config of each model type.
FAMILIES: dict[str, dict[str, Any]] = {}
for _path in CONFIGS:
    _config = read(_path)
    FAMILIES.setdefault(_config["model_type"], _config)

every_family = pytest.mark.parametrize("family", sorted(FAMILIES))

#: Sizes that every family reads where its config has them. A list, where the config says it by a list (Nemotron-H).
SIZES = ("hidden_size", "num_hidden_layers", "num_attention_heads", "vocab_size", "max_position_embeddings")
EXPERTS = ("n_routed_experts", "num_experts", "num_local_experts", "num_experts_per_tok", "moe_intermediate_size")
LATENT = ("kv_lora_rank", "qk_rope_head_dim")

HOSTILE: tuple[Any, ...] = ("64", "", -1, 0, 1.5, 1e308, float("inf"), True, [], [64], {}, {"a": 1}, 10**30, 10**400)

Where = tuple[str, ...]


def holder(config: dict[str, Any]) -> Where:
    """Where the language model's own sizes stand."""
    return ("text_config",) if "text_config" in config else ()


def read_sizes(config: dict[str, Any]) -> list[Where]:
    inner = at(config, holder(config))
    return [(*holder(config), key) for key in (*SIZES, *EXPERTS, *LATENT) if inner.get(key)]


def at(config: Any, path: Where) -> Any:
    for key in path:
        config = config[key]
    return config


def changed(config: dict[str, Any], path: Where, value: Any) -> dict[str, Any]:
    """The config with another value at a path."""
    made = copy.deepcopy(config)
    at(made, path[:-1])[path[-1]] = value
    return made


def without(config: dict[str, Any], path: Where) -> dict[str, Any]:
    made = copy.deepcopy(config)
    del at(made, path[:-1])[path[-1]]
    return made


def paths(config: dict[str, Any], before: Where = ()) -> Iterator[Where]:
    """Every key, those of nested objects too."""
    for key, value in config.items():
        yield (*before, key)
        if isinstance(value, dict):
            yield from paths(value, (*before, key))


def refusal(config: dict[str, Any]) -> str | None:
    """What is said of a config that is refused; None where it is taken."""
    try:
        structure_of(config, "config.json")
    except InputError as error:
        return str(error)
    return None


def is_clear(text: str) -> bool:
    return 0 < len(text) < 500 and text.isprintable()


def names(told: str | None, key: str) -> bool:
    """Whether a config was refused, by the name of a key."""
    return told is not None and is_clear(told) and key in told


@every_family
def test_a_hostile_size_is_refused_by_name(family: str) -> None:
    config = FAMILIES[family]
    tried = read_sizes(config)
    assert len(tried) >= 4
    wrong = [
        (path, value, told)
        for path in tried
        for value in HOSTILE
        if not means_something(family, path[-1], value)
        and not names(told := refusal(changed(config, path, value)), path[-1])
    ]
    assert wrong == []


def means_something(family: str, key: str, value: Any) -> bool:
    """No experts is a model without them; and where the layers may be a list, a text is one, too."""
    lists_layers = family == "nemotron_h" and key == "num_hidden_layers" and isinstance(value, str | list)
    return lists_layers or (key == "num_experts" and not value)


@every_family
def test_a_missing_size_is_refused_by_name(family: str) -> None:
    config = FAMILIES[family]
    inner = holder(config)
    tried = [(*inner, key) for key in SIZES if at(config, inner).get(key) is not None]
    for path in tried:
        told = refusal(without(config, path))
        assert names(told, path[-1]), (path, told)


@every_family
def test_a_billion_layers_are_refused_before_they_are_made(family: str) -> None:
    config = FAMILIES[family]
    inner = holder(config)
    counts = [key for key in at(config, inner) if key.endswith(("_layers", "_modules"))]
    for key in counts:
        told = refusal(changed(config, (*inner, key), 1 << 39))
        assert told is None or is_clear(told), (key, told)
    if "num_hidden_layers" in counts:
        assert names(refusal(changed(config, (*inner, "num_hidden_layers"), 10**9)), "num_hidden_layers")


@every_family
@pytest.mark.parametrize("value", ["x", 3, [], [1], True])
def test_something_else_where_an_object_belongs_is_refused_by_name(family: str, value: Any) -> None:
    config = FAMILIES[family]
    objects = ("text_config", "rope_scaling", "rope_parameters", "quantization_config", "linear_attn_config")
    own = [path for path in paths(config) if path[0] != "vision_config"]
    found = [path for path in own if path[-1] in objects and isinstance(at(config, path), dict)]
    for path in found:
        told = refusal(changed(config, path, value))
        assert names(told, path[-1]), (path, told)


@every_family
def test_more_experts_for_a_token_than_there_are_is_refused(family: str) -> None:
    config = FAMILIES[family]
    inner = holder(config)
    for key in ("num_experts_per_tok", "num_experts_per_token", "top_k_experts"):
        if at(config, inner).get(key):
            told = refusal(changed(config, (*inner, key), 100_000))
            assert names(told, key), told


@every_family
def test_a_list_of_layers_of_the_wrong_length_is_refused_by_name(family: str) -> None:
    config = FAMILIES[family]
    lists = ("layer_types", "compress_ratios", "moe_layer_freq", "hybrid_override_pattern", "layers_block_type")
    found = [path for path in paths(config) if path[-1] in lists and isinstance(at(config, path), list | str)]
    for path in found:
        value = at(config, path)
        for other in (value[:-10], value + value, value[:0]):
            told = refusal(changed(config, path, other))
            assert names(told, path[-1]), (path, len(other), told)


def test_layers_that_are_listed_by_number_are_those_that_there_are() -> None:
    config = FAMILIES["kimi_k3"]
    path = ("text_config", "linear_attn_config", "kda_layers")
    for other in ([0, 1, 2], [1, 2, 500], [1, "2"], [1, None], "12", 5, {"1": 2}, [1.0], [10**400]):
        told = refusal(changed(config, path, other))
        assert names(told, "kda_layers"), (str(other)[:40], told)


@every_family
def test_heads_that_do_not_divide_are_refused(family: str) -> None:
    """Where heads share keys and values by groups."""
    config = FAMILIES[family]
    inner = holder(config)
    own = at(config, inner)
    heads, kv_heads = own["num_attention_heads"], own.get("num_key_value_heads", 1)
    if kv_heads == 1 or own.get("kv_lora_rank"):
        return
    told = refusal(changed(config, (*inner, "num_key_value_heads"), heads - 1))
    assert names(told, "num_key_value_heads"), told


TEXTS = {
    "nothing": "",
    "not JSON": "{",
    "a list": "[1]",
    "a string": '"x"',
    "null": "null",
    "NaN": '{"model_type": "llama", "hidden_size": NaN}',
    "a key twice": '{"model_type": "llama", "hidden_size": 64, "hidden_size": 128}',
    "a nested key twice": '{"model_type": "llama", "rope_scaling": {"factor": 1, "factor": 2}}',
    "a deep list": "[" * 200_000,
    "deep objects": '{"a":' * 200_000 + "1" + "}" * 200_000,
    "a deep value": '{"model_type": "llama", "hidden_size": ' + "[" * 900 + "]" * 900 + "}",
    "many digits": '{"model_type": "llama", "hidden_size": ' + "9" * 100_000 + "}",
    "no type": "{}",
    "a type that is a list": '{"model_type": ["llama"]}',
    "a type that is long": '{"model_type": "' + "x" * 100_000 + '"}',
    "a lone surrogate": '{"model_type": "\\ud800"}',
    "an escape in a type": '{"model_type": "\\u001b[31mllama\\n"}',
}


def told_by_command(path: Path) -> str:
    """What `day0 profile` says of what it refuses: one line, exit code 2, and the same in its JSON."""
    done = CliRunner().invoke(command, [str(path), "--json"])
    assert done.exit_code == 2, done.output
    told: str = json.loads(done.stdout)["error"]
    assert is_clear(told), told[:1000]
    assert done.stderr == f"day0: {told}\n"
    return told


@pytest.mark.parametrize("what", TEXTS)
def test_a_text_that_is_no_config_is_refused_by_the_command(tmp_path: Path, what: str) -> None:
    (tmp_path / "config.json").write_text(TEXTS[what])
    assert str(tmp_path) in told_by_command(tmp_path)


def test_a_key_that_is_there_twice_is_named(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(TEXTS["a key twice"])
    assert "'hidden_size' twice" in told_by_command(tmp_path)


def test_bytes_that_are_no_text_are_refused(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_bytes(b'{"model_type": "\xff\xfe"}')
    assert "not UTF-8" in told_by_command(tmp_path)


def test_a_hundred_megabytes_are_refused_unread(tmp_path: Path) -> None:
    with (tmp_path / "config.json").open("wb") as file:
        file.write(b'{"model_type": "llama", "padding": "')
        file.truncate(100 << 20)
    assert "is larger than" in told_by_command(tmp_path)


def test_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "config.json")
    assert "config.json" in told_by_command(tmp_path)


@every_family
def test_the_command_refuses_a_hostile_config_of_every_family(tmp_path: Path, family: str) -> None:
    path = read_sizes(FAMILIES[family])[0]
    (tmp_path / "config.json").write_text(json.dumps(changed(FAMILIES[family], path, -(10**30))))
    assert path[-1] in told_by_command(tmp_path)


def test_a_great_many_keys_are_read(tmp_path: Path) -> None:
    """Half a megabyte of keys that nobody knows does not keep the command from answering."""
    config = FAMILIES["llama"] | {f"unknown_{number}": number for number in range(20_000)}
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert describe_model(tmp_path, ProfileSettings()).parameters.total > 0


values = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 300) | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)


@st.composite
def mutated(draw: st.DrawFn) -> dict[str, Any]:
    """A published config with up to three keys changed, taken away, or moved."""
    config = FAMILIES[draw(st.sampled_from(sorted(FAMILIES)))]
    for _ in range(draw(st.integers(1, 3))):
        path = draw(st.sampled_from(sorted(paths(config))))
        match draw(st.sampled_from(("change", "remove", "exchange"))):
            case "change":
                config = changed(config, path, draw(values))
            case "remove":
                config = without(config, path)
            case "exchange":
                config = changed(config, path, at(config, draw(st.sampled_from(sorted(paths(config))))))
    return config


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(mutated())
def test_any_config_gives_a_profile_or_one_clear_error(tmp_path: Path, config: dict[str, Any]) -> None:
    (tmp_path / "config.json").write_text(json.dumps(config))
    told, profile = "", None
    try:
        profile = describe_model(tmp_path, ProfileSettings())
    except InputError as error:
        told = str(error)
    if profile is None:
        assert is_clear(told), told[:1000]
        return
    assert 0 < profile.parameters.active <= profile.parameters.total
    assert profile.kv_cache.bytes_per_token >= 0
    assert profile.kv_cache.bytes_per_sequence >= 0
    json.dumps(profile.to_json(), allow_nan=False)
