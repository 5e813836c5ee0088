"""Prompts, counters, settings, bandwidth, roofline and the description of the machine."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from day0.architecture.stored import converted, stored_from_headers
from day0.architecture.structure import structure_of
from day0.checkpoint import open_checkpoint
from day0.errors import InputError
from tasks.benchmark import bandwidth, counters, machine
from tasks.benchmark.prompts import Prompts, usable_token_ids
from tasks.benchmark.roofline import DecodeBytes, decode_bytes, roofline
from tasks.benchmark.settings import load_settings
from tests.models.families import make_tiny_gpt_oss, make_tiny_qwen3_moe
from tests.models.tiny import make_tiny_llama


def least(release: Path, context: float = 0, weight_dtype: str | None = None) -> DecodeBytes:
    checkpoint = open_checkpoint(release)
    structure = structure_of(checkpoint.config, str(release), checkpoint.tensors)
    stored = stored_from_headers(structure.family, checkpoint.tensors)
    if weight_dtype:
        stored = converted(stored, structure, weight_dtype)
    return decode_bytes(structure, stored, "bfloat16", context)


def stored_bytes(release: Path, chosen: Callable[[str], float]) -> float:
    """Of all tensors, each times what is read of it."""
    return sum(tensor.nbytes * chosen(name) for name, tensor in open_checkpoint(release).tensors.items())


def test_a_tied_matrix_is_read_whole_as_the_head_and_its_row_as_the_embedding(tmp_path: Path) -> None:
    release = make_tiny_llama(tmp_path / "m", tied=True)
    assert least(release).weights == stored_bytes(release, lambda _: 1) + 64 * 2


def test_an_untied_embedding_is_read_by_one_row(tmp_path: Path) -> None:
    release = make_tiny_llama(tmp_path / "m")
    assert least(release).weights == stored_bytes(release, lambda name: "embed" not in name) + 64 * 2
    assert least(release, weight_dtype="float32").weights == 2 * least(release).weights


def test_of_experts_the_chosen_ones_are_read(tmp_path: Path) -> None:
    release = make_tiny_qwen3_moe(tmp_path / "m")
    read = stored_bytes(release, lambda name: 2 / 8 if ".experts." in name else "embed" not in name)
    assert least(release).weights == read + 256 * 2


def test_quantised_weights_are_read_with_their_scales_unless_they_are_computed_out(tmp_path: Path) -> None:
    fp8 = make_tiny_qwen3_moe(tmp_path / "fp8", kv_heads=4, fp8=True)
    plain = make_tiny_qwen3_moe(tmp_path / "plain", kv_heads=4)
    read = stored_bytes(fp8, lambda name: 2 / 8 if ".experts." in name else "embed" not in name)
    assert least(fp8).weights == read + 256 * 2
    assert least(fp8, weight_dtype="bfloat16").weights == least(plain).weights


def test_of_a_cache_no_more_than_the_window_is_read(tmp_path: Path) -> None:
    """Two layers of 2 x 64 keys and values in bf16; one has a window of 128 tokens."""
    a_token = 2 * 2 * 64 * 2
    release = make_tiny_gpt_oss(tmp_path / "m", mxfp4=False)
    assert least(release, 512).kv_cache == pytest.approx((512 + 128) * a_token, rel=0.01)
    assert least(release, 1000).kv_cache == pytest.approx((1000 + 128) * a_token, rel=0.01)


def test_roofline_arithmetic() -> None:
    found = roofline(DecodeBytes(weights=2400, kv_cache=100), bandwidth=1e4, tpot=0.5)
    assert found.bytes_per_step == 2500
    assert found.least_seconds_per_token == 0.25
    assert found.share == 0.5


def test_bandwidth_is_that_of_a_memory() -> None:
    """Between 10 MB/s and 100 TB/s: wide enough for any machine, narrow enough for a wrong unit or an unread buffer."""
    assert 1e7 < bandwidth.measure(threads=2, total_bytes=32 << 20) < 1e14


@settings(deadline=None, max_examples=30)
@given(st.integers(0, 1 << 32), st.integers(1, 40))
def test_prompts_are_unlike_each_other_and_as_long_as_asked(seed: int, length: int) -> None:
    source = Prompts(range(1000, 3000), seed)
    prompts = [source.fresh(length) for _ in range(20)]
    assert len(set(prompts)) == 20
    assert all(len(p) == length and all(1000 <= i < 3000 for i in p) for p in prompts)
    assert [Prompts(range(1000, 3000), seed).fresh(length)] == prompts[:1]


def test_special_and_padding_ids_stand_in_no_prompt(tmp_path: Path) -> None:
    vocabulary = {f"t{i}": i for i in range(100)}
    content = {"model": {"vocab": vocabulary}, "added_tokens": [{"id": 3, "content": "<image>"}, {"id": 120}]}
    (tmp_path / "tokenizer.json").write_text(json.dumps(content))
    assert list(usable_token_ids(tmp_path, 128)) == [i for i in range(100) if i != 3]
    assert list(usable_token_ids(tmp_path, 50)) == [i for i in range(50) if i != 3]


def test_without_a_tokenizer_all_ids_are_usable(tmp_path: Path) -> None:
    assert list(usable_token_ids(tmp_path, 40)) == list(range(40))


@pytest.mark.parametrize(
    "text",
    ["{", "[]", '{"model": {}}', *(json.dumps({"model": {"vocab": v}}) for v in (3, {"a": "b"}, {"a": 1}))],
)
def test_an_unusable_tokenizer_is_named(tmp_path: Path, text: str) -> None:
    (tmp_path / "tokenizer.json").write_text(text)
    with pytest.raises(InputError, match=r"tokenizer\.json"):
        usable_token_ids(tmp_path, 100)


def test_counters_are_summed_over_engines() -> None:
    text = (
        "# TYPE vllm:prefix_cache_hits_total counter\n"
        'vllm:prefix_cache_hits_total{engine="0",model_name="a b"} 10.0\n'
        'vllm:prefix_cache_hits_total{engine="1"} 5\n'
        'vllm:prefix_cache_queries_total{engine="0"} 1e2\n'
        'vllm:prefix_cache_queries_created{engine="0"} 1.7e9\n'
    )
    assert counters.parse(text) == counters.PrefixCounters(queries=100, hits=15)


@pytest.mark.parametrize("text", ["", "vllm:prefix_cache_hits_total 1", "vllm:prefix_cache_hits_total x"])
def test_missing_counters_are_missing(text: str) -> None:
    assert counters.parse(text) is None


def test_the_shipped_suite_exceeds_a_cache_block_and_shares_whole_blocks() -> None:
    suite = load_settings()
    assert suite.shared_prefix_tokens >= 512
    assert suite.shared_prefix_tokens % 128 == 0
    assert suite.input_tokens > suite.shared_prefix_tokens


def test_a_wrong_key_in_a_suite_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from day0 import home

    shipped = (home.configs() / "suites" / "benchmark.yaml").read_text()
    (tmp_path / "suites").mkdir()
    (tmp_path / "suites" / "mine.yaml").write_text(shipped.replace("warmup_requests", "warm_up_requests"))
    monkeypatch.setenv("DAY0_CONFIGS", str(tmp_path))
    with pytest.raises(InputError, match=r"warm_?up_requests"):
        load_settings("mine")


def test_the_machine_is_described() -> None:
    found = machine.describe()
    assert found["cores"] >= found["usable_cores"] >= 1
    assert found["memory"] > 1 << 28
    assert found["kernel"]
    assert len(machine.load_average()) == 3
    assert machine.last_level_cache() > 1 << 15
