"""Each kind of attention: its FLOPs against counting one by one, what a rank has, what a step reads and writes."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from day0.architecture.attention import pairs
from day0.architecture.attention.base import Attention, CacheItem
from day0.architecture.attention.block_sparse import BlockSparseAttention
from day0.architecture.attention.compressed import CompressedAttention
from day0.architecture.attention.full import ChunkedAttention, CrossAttention, FullAttention, SlidingAttention
from day0.architecture.attention.kinds import KINDS, attention_of
from day0.architecture.attention.latent import ABSORBED_TOKENS, LatentAttention, SparseLatentAttention
from day0.architecture.attention.recurrent import DeltaNet, KimiDelta, LightningAttention, Mamba2, delta_rule
from day0.architecture.decoder_rules import BoundAttention
from day0.errors import InputError

GQA: dict[str, int] = {"heads": 32, "kv_heads": 8, "key_dim": 128, "value_dim": 64}
MLA: dict[str, int] = {"heads": 128, "latent": 512, "rope_dim": 64, "nope_dim": 128, "value_dim": 128}
V4: dict[str, int] = {"heads": 64, "dim": 512, "rope_dim": 64, "window": 128}
INDEX = {"index_heads": 64, "index_dim": 128}

EXAMPLES: tuple[Attention, ...] = (
    FullAttention(**GQA),
    SlidingAttention(**GQA, window=10),
    ChunkedAttention(**GQA, window=10),
    CrossAttention(**GQA, encoder=1_500),
    LatentAttention(**MLA),
    SparseLatentAttention(**MLA, topk=20, **INDEX),
    SparseLatentAttention(**MLA, topk=20),
    CompressedAttention(**V4),
    CompressedAttention(**V4, ratio=4, topk=5, **INDEX),
    CompressedAttention(**V4, ratio=128),
    BlockSparseAttention(**GQA, block=4, topk=3, index_heads=4, index_dim=128),
    DeltaNet(16, 32, 128, 128, 4),
    KimiDelta(96, 128, 4),
    Mamba2(64, 64, 8, 128, 4, 128),
    LightningAttention(64, 128),
)
RECURRENT = (DeltaNet, KimiDelta, Mamba2, LightningAttention)
LENGTHS = st.integers(0, 400)


def test_every_kind_has_an_example() -> None:
    assert {type(example) for example in EXAMPLES} == set(KINDS.values())
    assert {example.kind for example in EXAMPLES} == set(KINDS)


@given(LENGTHS, LENGTHS, st.integers(1, 50), st.integers(1, 9))
def test_pairs_are_as_many_as_counted(new: int, past: int, most: int, every: int) -> None:
    places = range(past, past + new)
    assert pairs.causal(new, past) == sum(p + 1 for p in places)
    assert pairs.windowed(new, past, most) == sum(min(p + 1, most) for p in places)
    assert pairs.chunked(new, past, most) == sum(p % most + 1 for p in places)
    assert pairs.grouped(new, past, every) == sum((p + 1) // every for p in places)
    assert pairs.grouped(new, past, every, most) == sum(min((p + 1) // every, most) for p in places)


@pytest.mark.parametrize("attention", EXAMPLES, ids=lambda a: f"{a.kind}-{a.sizes.get('ratio', '')}")
@settings(max_examples=25, deadline=None)
@given(past=st.integers(0, 400), new=st.integers(1, 60), more=st.integers(1, 60))
def test_a_pass_in_two_parts_does_what_one_does(attention: Attention, past: int, new: int, more: int) -> None:
    """But for states, whose chunks begin anew with each pass."""
    whole, parts = attention.flops(new + more, past), attention.flops(new, past) + attention.flops(more, past + new)
    if isinstance(attention, RECURRENT):
        assert attention.flops(new, past) == attention.flops(new, 0) > 0
        assert attention.flops(new + more, past) >= attention.flops(1, 0) * (new + more)
    else:
        assert whole == parts > 0


def test_scores_of_full_attention() -> None:
    """2·H·(d_k + d_v) a pair: for Llama 405B as transformers' modules on the meta device count them."""
    llama = FullAttention(128, 8, 128, 128)
    matrices = 405_853_388_800 - 128_256 * 16_384 - (126 * 2 + 1) * 16_384
    assert (126 * llama.flops(1, 512) + 2 * matrices) / 1e9 == pytest.approx(811.7, abs=0.05)


def test_latent_attention_is_absorbed_in_decode_and_not_in_prefill() -> None:
    """Of DeepSeek-V3: 2·H·(2·512 + 64) and 2·H·(192 + 128) a pair."""
    latent = LatentAttention(**MLA)
    assert latent.flops(1, 999) == 2 * 128 * 1_088 * 1_000
    assert latent.flops(512, 0) == 2 * 128 * 320 * (512 * 513 // 2)
    again = 2 * 1_000 * 512 * 128 * (128 + 128)  # keys and values of what is cached are expanded again
    assert latent.flops(512, 1_000) == 2 * 128 * 320 * pairs.causal(512, 1_000) + again
    assert latent.flops(ABSORBED_TOKENS, 0) == 2 * 128 * 1_088 * pairs.causal(ABSORBED_TOKENS, 0)


def test_sparse_attention_is_capped_and_its_indexer_is_not() -> None:
    sparse = SparseLatentAttention(**MLA, topk=2_048, **INDEX)
    at = {tokens: sparse.flops(1, tokens - 1) for tokens in (2_048, 4_096, 8_192)}
    assert at[2_048] == 2 * 128 * 1_088 * 2_048 + 2 * 64 * 128 * 2_048
    assert at[4_096] - at[2_048] == 2 * 64 * 128 * 2_048 == (at[8_192] - at[4_096]) // 2
    follower = SparseLatentAttention(**MLA, topk=2_048)
    assert follower.flops(1, 8_191) == 2 * 128 * 1_088 * 2_048
    assert [item.held for item in follower.cache] == ["cache"]
    assert follower.read(1, 8_191) == {"cache": 2_048 * 576}
    assert sparse.read(1, 8_191) == {"cache": 2_048 * 576, "index": 8_192 * 128}
    assert sparse.read(8_192, 0) == {"cache": 8_192 * 576, "index": 8_192 * 128}


def test_compressed_attention_sees_its_window_and_what_is_compressed() -> None:
    window, chosen, all_of_it = (
        CompressedAttention(**V4),
        CompressedAttention(**V4, ratio=4, topk=512, **INDEX),
        CompressedAttention(**V4, ratio=128),
    )
    assert window.flops(1, 65_535) == 4 * 64 * 512 * 128
    assert chosen.flops(1, 65_535) == 4 * 64 * 512 * (128 + 512) + 2 * 64 * 128 * 16_384
    assert all_of_it.flops(1, 65_535) == 4 * 64 * 512 * (128 + 512)
    assert window.read(1, 65_535) == {"cache": 128 * 512}
    assert chosen.read(1, 65_535) == {"cache": (128 + 512) * 512, "index": 16_384 * 128}
    assert all_of_it.read(1, 65_535) == {"cache": (128 + 512) * 512}
    assert not window.engine_extra
    assert [item.elements(1_000_000) for item in chosen.engine_extra] == [8 * 2_048, 8 * 512]
    assert [item.elements(1_000_000) for item in all_of_it.engine_extra] == [128 * 1_024]


def test_blocks_of_tokens_are_chosen() -> None:
    sparse = BlockSparseAttention(64, 4, 128, 128, block=128, topk=16, index_heads=4, index_dim=128)
    assert sparse.flops(1, 99_999) == 4 * 64 * 128 * 2_048 + 2 * 4 * 128 * 100_000
    assert sparse.read(1, 99_999) == {"cache": 2_048 * 1_024, "index": 100_000 * 128}
    assert sparse.rank(8).sizes == {**sparse.sizes, "heads": 8, "kv_heads": 1, "index_heads": 1}


def test_a_window_and_a_chunk() -> None:
    sliding, chunked = SlidingAttention(**GQA, window=8), ChunkedAttention(**GQA, window=8)
    pair, entry = 2 * 32 * 192, 8 * 192
    assert [sliding.flops(1, past) // pair for past in (0, 6, 7, 8, 16)] == [1, 7, 8, 8, 8]
    assert [chunked.flops(1, past) // pair for past in (0, 6, 7, 8, 16)] == [1, 7, 8, 1, 1]
    assert [sliding.read(1, past)["cache"] // entry for past in (0, 7, 8, 16)] == [1, 8, 8, 8]
    assert [chunked.read(1, past)["cache"] // entry for past in (0, 7, 8, 16)] == [1, 8, 1, 1]
    assert sliding.write(100, 0) == {"cache": 8 * entry}


def test_what_an_engine_holds_past_a_window() -> None:
    """vLLM: min(window - 1 + batched, tokens) and a block more, as the window may begin within one."""
    sliding = SlidingAttention(64, 8, 64, 64, window=128)
    assert sliding.engine_cache(100_000, 2_048, 16) == 1_024 * 16 * (136 + 1)
    assert sliding.engine_cache(64, 2_048, 16) == 1_024 * 16 * 5
    chunked = ChunkedAttention(40, 8, 128, 128, window=8_192)
    assert chunked.engine_cache(100_000, 2_048, 16) == 2_048 * 16 * 640


def test_cross_attention_depends_on_the_encoder_alone() -> None:
    cross = CrossAttention(16, 16, 64, 64, encoder=1_500)
    assert cross.flops(1, 7) == cross.flops(1, 0) == 2 * 16 * 128 * 1_500
    assert [item.elements(tokens) for item in cross.cache for tokens in (0, 10_000)] == [1_500 * 2_048] * 2
    assert cross.write(3, 0) == {"cache": 1_500 * 2_048}
    assert cross.write(3, 3) == {"cache": 0}


@pytest.mark.parametrize(
    ("attention", "state", "conv", "step"),
    [
        (DeltaNet(16, 32, 128, 128, 4), 32 * 128 * 128, 8_192 * 3, 32 * 6 * 128 * 128),
        (KimiDelta(96, 128, 4), 96 * 128 * 128, 3 * 96 * 128 * 3, 96 * 6 * 128 * 128),
        (Mamba2(64, 64, 8, 128, 4), 64 * 64 * 128, (4_096 + 2_048) * 3, 64 * 4 * 64 * 128),
        (LightningAttention(64, 128), 64 * 128 * 128, 0, 64 * 4 * 128 * 128),
    ],
)
def test_states(attention: Attention, state: int, conv: int, step: int) -> None:
    kept = {item.held: item.elements(1_000_000) for item in attention.cache}
    assert kept == ({"state": state, "conv": conv} if conv else {"state": state})
    assert attention.read(1, 5) == attention.write(1, 5) == kept
    assert attention.flops(1, 1_000_000) == step


def test_prefill_of_a_state_is_computed_in_chunks() -> None:
    products = 6 * 128 * 128 * 64 + 64 * 64 * (6 * 128 + 4 * 128)
    assert delta_rule(640, 128, 128) == 10 * products + 10 * 64**3 // 3
    mamba = Mamba2(64, 64, 8, 128, 4, chunk=128)
    assert mamba.flops(256, 0) == 256 * 4 * 64 * 64 * 128 + 2 * 128 * 128 * 2 * (8 * 128 + 64 * 64)
    lightning = LightningAttention(64, 128, block=256)
    assert lightning.flops(256, 0) == 256 * 64 * 4 * 128 * 128 + 4 * 64 * 128 * 256 * 256


@pytest.mark.parametrize("attention", EXAMPLES, ids=lambda a: f"{a.kind}-{a.sizes.get('ratio', '')}")
@settings(max_examples=20, deadline=None)
@given(tp=st.integers(1, 256), tokens=st.integers(0, 300))
def test_ranks_hold_the_whole_together(attention: Attention, tp: int, tokens: int) -> None:
    rank = attention.rank(tp)
    assert attention.rank(1) == attention
    for whole, part in zip(attention.cache, rank.cache, strict=True):
        assert part.elements(tokens) * tp >= whole.elements(tokens)
        assert part.elements(tokens) <= whole.elements(tokens)
    assert rank.flops(1, tokens) * tp >= attention.flops(1, tokens)


@pytest.mark.parametrize("attention", EXAMPLES, ids=lambda a: f"{a.kind}-{a.sizes.get('ratio', '')}")
@given(past=st.integers(0, 300), new=st.integers(1, 300))
def test_no_more_is_read_than_there_is(attention: Attention, past: int, new: int) -> None:
    """A window moves on within a pass, so more may be read than is kept at its end, but no token twice."""
    kept: dict[str, int] = {}
    for item in attention.cache:
        unlimited = dataclasses.replace(item, window=None)
        kept[item.held] = kept.get(item.held, 0) + unlimited.elements(past + new)
    read = attention.read(new, past)
    assert set(read) == set(kept)
    assert all(0 <= read[held] <= kept[held] for held in read)


def test_heads_are_divided_and_latents_are_not() -> None:
    assert FullAttention(64, 8, 128, 128).rank(16) == FullAttention(4, 1, 128, 128)
    assert SparseLatentAttention(**MLA, topk=9, **INDEX).rank(16) == SparseLatentAttention(
        **{**MLA, "heads": 8}, topk=9, **INDEX
    )
    assert Mamba2(64, 64, 8, 128, 4).rank(16) == Mamba2(4, 64, 1, 128, 4)
    assert DeltaNet(16, 32, 128, 128, 4).rank(8) == DeltaNet(2, 4, 128, 128, 4)


def test_bytes_by_dtype() -> None:
    latent, index = SparseLatentAttention(**MLA, topk=9, **INDEX).cache
    assert [latent.entry_bytes(dtype) for dtype in ("bfloat16", "fp8", "fp8_ds_mla")] == [1_152, 576, 656]
    assert [index.entry_bytes(dtype) for dtype in ("float32", "bfloat16", "fp8", "fp8_e4m3")] == [512, 256, 132, 132]
    assert CompressedAttention(**V4).cache[0].entry_bytes("fp8_ds_mla") == 584
    odd = dataclasses.replace(index, size=129)
    assert odd.entry_bytes("fp8") == 129 + 8
    with pytest.raises(InputError, match="fp8_ds_mla is a form of latent caches, and indexer keys are none"):
        index.entry_bytes("fp8_ds_mla")
    with pytest.raises(InputError, match="state cannot be held as 'int2'"):
        CacheItem("state", "state", constant=3).constant_bytes("int2")


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ({"heads": 1, "kv_heads": 1, "key_dim": 1}, "needs the size 'value_dim'"),
        ({**GQA, "rope": 3}, "has no size 'rope'"),
    ],
)
def test_sizes_that_do_not_fit_the_kind_are_named(sizes: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        attention_of(BoundAttention("full", frozenset([0]), sizes, False))
