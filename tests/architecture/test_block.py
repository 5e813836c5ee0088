"""Activations of a layer by its operators: by hand, over all published configs, and against real layers."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from day0.architecture.block import alike, end_ops, expert_pairs, layer_ops
from day0.architecture.block_attention import EXPANDED_PAST, INDEX_SCORES
from day0.architecture.block_parts import Load
from day0.architecture.decoder_rules import BoundRouting
from day0.architecture.lifetimes import Op, pools
from day0.architecture.parallel import Sizes
from day0.architecture.structure import Structure, structure_of
from tests.architecture.data import DATA, config, read

CONFIGS = sorted(path for path in (DATA / "configs").glob("*.json") if not path.stem.endswith("_hf_quant"))
ONE = Sizes(tp=1, pp=1)
GIB = 1 << 30


@functools.cache
def published(name: str) -> Structure:
    return structure_of(read(DATA / "configs" / f"{name}.json"), name)


def sizes_of(ops: Sequence[Op]) -> dict[str, int]:
    return {op.output: op.elements for op in ops}


def layer(name: str, number: int, load: Load, sizes: Sizes = ONE) -> dict[str, int]:
    return sizes_of(layer_ops(published(name), number, sizes, load))


def test_a_dense_layer_by_hand() -> None:
    structure = structure_of(config(), "config.json")  # hidden 64, MLP 192, 8 heads and 2 kv heads of 8
    ops = layer_ops(structure, 0, Sizes(tp=2, pp=1), Load(10))
    assert sizes_of(ops) == {
        "residual": 640,
        "hidden": 640,
        "qkv_proj": 10 * (4 + 2) * 8,
        "attention": 320,
        "attention output": 640,
        "MLP: gate and up": 10 * 2 * 96,
        "MLP: activation": 960,
        "MLP: down": 640,
        "next layer": 0,
    }
    assert pools(ops, alignment=1).peak_live == 2 * (640 + 1920 + 960)
    assert pools(ops, alignment=1).largest[0] == ("MLP: gate and up", 2 * 1920)


def test_key_value_heads_are_replicated_over_more_ranks_than_there_are() -> None:
    structure = structure_of(config(), "config.json")
    assert sizes_of(layer_ops(structure, 0, Sizes(tp=8, pp=1), Load(10)))["qkv_proj"] == 10 * (1 + 2) * 8


@pytest.mark.parametrize("tp", [1, 2])
def test_the_published_measurement_is_met(tp: int) -> None:
    """vllm-project/vllm#10511: 1.26 GiB for Llama-3-8B on one device and on two, so it is not the layers' peak."""
    structure, sizes = published("meta-llama__Meta-Llama-3.1-8B"), Sizes(tp=tp, pp=1)
    load = Load(8192, rows=256, sorted_sampling=True)
    end = pools(end_ops(structure, sizes, load), keep=("hidden",))
    assert end.peak_live / GIB == pytest.approx(1.26, rel=0.035)
    layers = pools(layer_ops(structure, 0, sizes, load))
    assert layers.peak_live == 8192 * (4096 + 3 * 14336 // tp) * 2
    assert layers.static_pool < end.peak_live


def test_latent_attention_expands_keys_and_values_and_those_of_the_past_in_pieces() -> None:
    tp4 = Sizes(tp=4, pp=1)
    plain = layer("deepseek-ai__DeepSeek-V3", 0, Load(1000), tp4)
    assert plain["keys and values"] == 1000 * 32 * (128 + 128)
    assert plain["keys"] == 1000 * 32 * (128 + 64)
    assert plain["fused_qkv_a_proj"] == 1000 * (1536 + 512 + 64)  # whole on every rank
    assert plain["q_b_proj: input, normed"] == 1000 * 1536
    assert "keys of the past" not in plain
    after = layer("deepseek-ai__DeepSeek-V3", 0, Load(1000, past=1_000_000), tp4)
    assert after["keys of the past"] == EXPANDED_PAST * 32 * (128 + 64)


def test_absorbed_latent_attention_stays_in_the_latent_space() -> None:
    found = layer("deepseek-ai__DeepSeek-V3", 0, Load(64, past=100_000, absorbed=True))
    assert found["queries in latent space"] == 64 * 128 * (512 + 64)
    assert found["attention in latent space"] == 64 * 128 * 512
    assert "keys" not in found


def test_an_indexers_scores_are_bounded() -> None:
    few = layer("deepseek-ai__DeepSeek-V3.2", 5, Load(100, past=900))
    assert few["indexer scores"] == 100 * 1000
    assert few["chosen entries"] == 100 * 2048
    assert layer("deepseek-ai__DeepSeek-V3.2", 5, Load(8192, past=120_000))["indexer scores"] == INDEX_SCORES // 4


def test_compressed_attention_scores_compressed_entries() -> None:
    structure = published("deepseek-ai__DeepSeek-V4-Flash")
    found = [layer("deepseek-ai__DeepSeek-V4-Flash", n, Load(1000)) for n in range(structure.layers)]
    assert {sizes.get("indexer scores") for sizes in found} == {None, 1000 * 250}
    assert {sizes["residual"] for sizes in found} == {1000 * 4 * 4096}  # four residual streams
    assert {sizes["attention"] for sizes in found} == {1000 * 64 * 512}


def test_a_delta_rule_holds_a_state_a_chunk() -> None:
    found = layer("Qwen__Qwen3-Next-80B-A3B-Instruct", 0, Load(8192))
    assert found["states of chunks"] == 128 * 32 * 128 * 128
    assert found["convolved"] == 8192 * (2 * 16 * 128 + 32 * 128)
    assert found["keys to erase"] == 8192 * 32 * 128


def test_layers_of_one_part_alone() -> None:
    """Nemotron-H: a layer is Mamba 2 (256 heads of 64, a state of 256), an MLP or attention."""
    name = "nvidia__Nemotron-H-56B-Base-8K"
    structure = published(name)
    mamba, mlp, attention = (layers[0] for layers in alike(structure, (0, structure.layers)))
    [entry] = [entry for entry in structure.attention if mamba in entry.layers]
    chunks = 4096 // entry.attention.sizes["chunk"]
    assert layer(name, mamba, Load(4096))["states of chunks"] == chunks * 256 * 64 * 256
    assert not any(written.startswith("MLP") for written in layer(name, mamba, Load(4096)))
    assert set(layer(name, mlp, Load(4096))) == {
        "residual", "hidden", "MLP: gate and up", "MLP: activation", "MLP: down", "next layer",
    }  # fmt: skip
    assert set(layer(name, attention, Load(4096))) == {
        "residual", "hidden", "qkv_proj", "attention", "attention output", "next layer",
    }  # fmt: skip


def test_latent_experts_take_a_smaller_input() -> None:
    """Kimi-K3: experts of 3,584 for a hidden state of 7,168, one of 8 ranks, 16 of 896 experts a token."""
    found = layer("moonshotai__Kimi-K3", 10, Load(1000, imbalance=1.0), Sizes(tp=8, pp=1, ep=8))
    assert found["experts' input"] == 1000 * 3584
    assert found["experts: gate and up, then down"] == 2000 * 6144
    assert found["experts: activation"] == 2000 * 3584
    assert found["experts: output"] == 1000 * 7168


def test_attention_residuals_hold_the_blocks_before() -> None:
    """Kimi-K3's 93 layers are eight blocks of twelve; a stage that ends with layer 24 has two."""
    structure, load = published("moonshotai__Kimi-K3"), Load(1000)
    assert layer("moonshotai__Kimi-K3", 10, load)["residual"] == 1000 * 7168 * (1 + 8)
    assert sizes_of(layer_ops(structure, 10, ONE, load, end=24))["residual"] == 1000 * 7168 * (1 + 2)


def test_data_parallel_attention_sends_all_tokens_to_their_experts() -> None:
    found = layer("deepseek-ai__DeepSeek-V3", 10, Load(1000, imbalance=1.0), Sizes(tp=1, pp=1, ep=32, dp=32))
    assert found["tokens received"] == 1000 * 8 * 7168
    assert found["experts: result"] == 1000 * 7168


@pytest.mark.parametrize(
    ("tokens", "ep", "imbalance", "pairs"),
    [
        (100, 1, 9.0, 800),  # every pair is here
        (100, 8, 1.0, 100),
        (100, 8, 1.5, 150),
        (100, 8, 99.0, 800),  # not more than there are
        (100, 128, 999.0, 200),  # two experts on a rank: no token is there more than twice
        (1, 256, 1.0, 1),
    ],
)
def test_pairs_of_tokens_and_experts(tokens: int, ep: int, imbalance: float, pairs: int) -> None:
    routing = BoundRouting(frozenset({0}), 256, 8, 1, {}, False)
    assert expert_pairs(routing, tokens, ep, imbalance) == pairs


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_every_published_model_has_its_layers(path: Path) -> None:
    structure = published(path.stem)
    kinds = alike(structure, (0, structure.layers))
    assert sorted(itertools.chain(*kinds)) == list(range(structure.layers))
    load = Load(4096, past=4096, rows=64)
    for layers in kinds:
        ops = layer_ops(structure, layers[0], Sizes(tp=8, pp=1, ep=8), load)
        written = {op.output for op in ops if op.elements}
        assert written & {"attention output", "MLP: down", "experts: result"}
        has_attention = any(layers[0] in entry.layers for entry in structure.attention)
        assert ("attention output" in written) is has_attention
        routed = any(layers[0] in routing.layers for routing in structure.routing)
        assert ("experts: result" in written) is routed
        found = pools(ops)
        assert found.peak_live <= found.static_pool <= found.without_reuse
        assert found.peak_live >= 2 * 4096 * structure.hidden * 2


MODELS = st.sampled_from(
    [
        "meta-llama__Meta-Llama-3.1-8B",
        "deepseek-ai__DeepSeek-V3",
        "deepseek-ai__DeepSeek-V4-Flash",
        "Qwen__Qwen3.5-397B-A17B",
        "moonshotai__Kimi-K3",
        "nvidia__NVIDIA-Nemotron-3-Ultra-550B-A55B-BF16",
    ]
)


@settings(max_examples=30, deadline=None)
@given(MODELS, st.sampled_from([1, 2, 4, 8]), st.integers(1, 20_000), st.integers(1, 5000), st.integers(0, 100_000))
def test_more_work_takes_no_less_and_more_ranks_no_more(name: str, tp: int, tokens: int, more: int, past: int) -> None:
    structure = published(name)
    kinds = alike(structure, (0, structure.layers))

    def taken(tp: int, tokens: int, past: int) -> int:
        load = Load(tokens, past=past)
        return max(pools(layer_ops(structure, layers[0], Sizes(tp=tp, pp=1), load)).peak_live for layers in kinds)

    now = taken(tp, tokens, past)
    assert taken(tp, tokens + more, past) >= now
    assert taken(tp, tokens, past + more) >= now
    assert taken(2 * tp, tokens, past) <= now


@pytest.mark.parametrize("sort", [True, False])
def test_logits_are_gathered_whole_on_every_rank(sort: bool) -> None:
    structure = structure_of(config(vocab_size=512), "config.json")
    found = sizes_of(end_ops(structure, Sizes(tp=4, pp=1), Load(100, rows=3, sorted_sampling=sort)))
    assert (found["logits"], found["gathered logits"], found["float32 logits"]) == (3 * 128, 3 * 512, 3 * 512)
    assert ("sorted indices" in found) is sort


# Real layers: transformers with random weights on the CPU, attention recorded as the one operator that a fused kernel
# is. What they hold at least, by the flow of data, is what an engine's compiled layer holds; Python's frames hold more.


def tiny_llama() -> Any:
    from transformers import LlamaConfig

    return LlamaConfig(
        hidden_size=256, intermediate_size=1024, num_attention_heads=8, num_key_value_heads=2, num_hidden_layers=1,
        vocab_size=512,
    )  # fmt: skip


def tiny_qwen3_moe() -> Any:
    from transformers import Qwen3MoeConfig

    return Qwen3MoeConfig(
        hidden_size=256, moe_intermediate_size=128, intermediate_size=512, num_attention_heads=8, head_dim=32,
        num_key_value_heads=2, num_experts=8, num_experts_per_tok=2, num_hidden_layers=1, vocab_size=512,
    )  # fmt: skip


def tiny_deepseek_v3() -> Any:
    from transformers import DeepseekV3Config

    return DeepseekV3Config(
        hidden_size=256, intermediate_size=512, moe_intermediate_size=128, num_attention_heads=8, q_lora_rank=96,
        num_key_value_heads=8, kv_lora_rank=128, qk_nope_head_dim=64, qk_rope_head_dim=32, v_head_dim=64,
        n_routed_experts=8, num_experts_per_tok=2, n_group=2, topk_group=1, first_k_dense_replace=1,
        num_hidden_layers=2, vocab_size=512,
    )  # fmt: skip


TOKENS, WIDTH = 512, 4


@pytest.mark.reference
@pytest.mark.parametrize(
    ("made", "number", "engine_more"),
    [
        pytest.param(tiny_llama, 0, 0, id="llama: the same to the byte"),
        # vLLM's workspace of the activations is as wide as the hidden state (256), the activations are 128 wide
        pytest.param(tiny_qwen3_moe, 0, TOKENS * 2 * (256 - 128) * WIDTH, id="qwen3_moe"),
        # the engine's attention takes a part of the first projection (q and kv latents, rotated keys), and so holds it
        pytest.param(tiny_deepseek_v3, 0, TOKENS * (96 + 128 + 32) * WIDTH, id="deepseek_v3, dense"),
        pytest.param(tiny_deepseek_v3, 1, TOKENS * (96 + 128 + 32) * WIDTH, id="deepseek_v3, experts"),
    ],
)
def test_a_real_layer_holds_as_much(made: Any, number: int, engine_more: int) -> None:
    from tests.architecture.tracing import trace_layer

    real = made()
    recorder = trace_layer(real, number, TOKENS)
    traced = pools(recorder.ops, keep=[recorder.ops[-1].output])
    structure = structure_of({**real.to_dict(), "dtype": "float32"}, "config.json")
    ours = pools(layer_ops(structure, number, ONE, Load(TOKENS, width=WIDTH)))
    assert traced.peak_live <= traced.static_pool <= traced.without_reuse
    assert ours.peak_live - engine_more == pytest.approx(
        traced.peak_live, rel=0.005
    )  # small index tensors are left out
    assert traced.peak_live <= recorder.peak <= traced.without_reuse
    assert traced.without_reuse > 1.5 * ours.without_reuse  # a library's layer is many small operators
