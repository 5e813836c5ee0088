"""FLOPs and bytes, against traces of the real modules on the meta device (transformers 5.24, 512 tokens, batch 1)."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from day0.architecture import work
from day0.architecture.structure import structure_of
from tests.architecture.data import LLAMA_405B, config, read

SMALL = structure_of(config(), "config.json")


def test_decode_flops_are_those_of_a_trace() -> None:
    structure = structure_of(read(LLAMA_405B), "405B")
    assert work.decode(structure, 513, 2, 2).flops / 1e9 == pytest.approx(811.7, abs=0.05)


def test_prefill_flops_are_those_of_a_trace() -> None:
    """The trace counts the scores of all pairs; causal attention needs half of them and the diagonal."""
    structure, tokens = structure_of(read(LLAMA_405B), "405B"), 512
    causal = structure.config.layers * structure.attention.scores_flops(tokens, 0)
    full = causal * 2 * tokens / (tokens + 1)
    counted = work.prefill(structure, tokens, 2, 2).flops - causal + full
    assert counted / 1e9 == pytest.approx(413_455, abs=1)


@settings(deadline=None)
@given(st.integers(1, 300), st.integers(1, 300))
def test_prefill_then_decode_scores_what_one_prefill_scores(first: int, more: int) -> None:
    scores = SMALL.attention.scores_flops
    stepwise = scores(first, 0) + sum(scores(1, first + i) for i in range(more))
    assert stepwise == scores(first + more, 0) == scores(first, 0) + scores(more, first)


def test_a_decode_step_reads_all_weights_but_the_embedding_and_the_whole_cache() -> None:
    done = work.decode(SMALL, context=100, weight_bytes=2, kv_bytes=1, sequences=4)
    embedding = (500 - 4) * 64
    assert done.bytes == (SMALL.total - embedding) * 2 + 4 * 100 * 3 * 2 * 2 * 8


def test_the_roofline_is_the_longer_of_computing_and_moving() -> None:
    done = work.Work(flops=100, bytes=10)
    assert done.least_seconds(10, 1000) == 10
    assert done.least_seconds(None, 5) == 2
    assert done.least_seconds(None, None) is None
