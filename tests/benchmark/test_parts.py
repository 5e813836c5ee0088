"""Prompts, counters, settings, bandwidth, roofline and the description of the machine."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from day0.artifacts.profile import KVCache, Parameters, Profile
from day0.errors import InputError
from day0.verdict import Check, Verdict
from tasks.benchmark import bandwidth, counters, machine
from tasks.benchmark.prompts import Prompts, usable_token_ids
from tasks.benchmark.roofline import decode_bytes, roofline
from tasks.benchmark.settings import load_settings


def profile(tied: bool) -> Profile:
    """1000 parameters in the layers, a vocabulary of 50 at width 4, a head of its own unless tied."""
    embedding = 200
    total = 1000 + embedding * (1 if tied else 2)
    return Profile(
        checks=(Check(name="x", verdict=Verdict.PASS, reason=""),),
        architecture={"tied_embeddings": tied, "vocab_size": 50, "hidden_size": 4},
        parameters=Parameters(
            total=total, active=total, active_without_embedding=total - embedding, by_kind={}, by_layer=(1000,)
        ),
        context_length=100,
        context=100,
        concurrency=1,
        kv_cache=KVCache(
            dtype="bfloat16",
            index_dtype="bfloat16",
            state_dtype="float32",
            bytes_per_token=8,
            bytes_per_sequence=100,
            bytes_at_context=900,
            by_layer_kind=(),
        ),
        checkpoint=None,
    )


def test_a_tied_matrix_is_read_whole_as_the_head() -> None:
    work = decode_bytes(profile(tied=True), "bfloat16", 20.5)
    assert work is not None
    assert work.weights == 2 * 1200
    assert work.kv_cache == 8 * 20.5 + 100


def test_an_untied_embedding_is_read_by_one_row() -> None:
    work = decode_bytes(profile(tied=False), "float32", 0)
    assert work is not None
    assert work.weights == 4 * (1000 + 200 + 4)


def test_an_unknown_dtype_has_no_roofline() -> None:
    assert decode_bytes(profile(tied=True), "fp3", 1) is None


def test_roofline_arithmetic() -> None:
    work = decode_bytes(profile(tied=True), "bfloat16", 0)
    assert work is not None
    found = roofline(work, bandwidth=1e4, tpot=0.5)
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
