"""A plan says where every byte goes, and refuses what it cannot write right. The engine's own: test_engine_keys.py."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from day0.architecture.family import find_family
from day0.architecture.slicing import World, expert_range, rank_range, stage_layers
from day0.checkpoint import Checkpoint, open_checkpoint
from day0.errors import InputError
from day0.safetensors_header import DTYPE_BITS, TensorInfo
from tasks.reshard.planner import plan_writes, tensors_of
from tasks.reshard.writes import Stream, WritePlan
from tests.models.by_rules import plain, write_sparse
from tests.models.published import published_config
from tests.models.safetensors_file import write_holes
from tests.models.tiny import make_tiny_llama


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Checkpoint:
    return open_checkpoint(make_tiny_llama(tmp_path_factory.mktemp("tiny") / "m", vocab=500))


def plan(checkpoint: Checkpoint, **options: Any) -> WritePlan:
    arguments: dict[str, Any] = {"layout": "vllm", "tp": 1, **options}
    return plan_writes(checkpoint, find_family(checkpoint.config), **arguments)


def altered(checkpoint: Checkpoint, name: str, **changes: Any) -> Checkpoint:
    """The checkpoint with one header entry changed."""
    tensor = checkpoint.tensors[name]
    return replace(checkpoint, tensors={**checkpoint.tensors, name: replace(tensor, **changes)})


def with_tensor(checkpoint: Checkpoint, name: str, shape: tuple[int, ...]) -> Checkpoint:
    tensor = TensorInfo(name, "BF16", shape, next(iter(checkpoint.files)), 0, 2)
    return replace(checkpoint, tensors={**checkpoint.tensors, name: tensor})


def configured(checkpoint: Checkpoint, **changes: Any) -> Checkpoint:
    return replace(checkpoint, config={**checkpoint.config, **changes})


def test_file_names_are_those_that_the_loader_looks_for(tiny: Checkpoint) -> None:
    assert plan(tiny).engine == "vllm 0.32.0"
    assert [f.name for f in plan(tiny, tp=2).files] == [
        "model-rank-0-part-0.safetensors",
        "model-rank-1-part-0.safetensors",
    ]
    assert [f.name for f in plan(tiny, tp=1, pp=2).files] == [
        "model-pp-0-tp-0-part-0.safetensors",
        "model-pp-1-tp-0-part-0.safetensors",
    ]
    parts = plan(tiny, tp=2, part_bytes=50_000).files
    assert [f.name for f in parts if f.rank == 1] == [
        f"model-rank-1-part-{n}.safetensors" for n in range(len(parts) // 2)
    ]
    assert len(parts) > 4
    # One tensor is never cut, so a part is beyond the limit only if it holds a single one.
    assert all(f.nbytes - len(f.header) <= 50_000 or len(f.tensors) == 1 for f in parts)


@pytest.mark.parametrize(
    "options",
    [
        {"tp": 1},
        {"tp": 4},
        {"tp": 2, "pp": 2},
        {"tp": 2, "part_bytes": 10_000},
        {"layout": "hf", "tp": 2, "pp": 2},
        {"layout": "hf", "tp": 1, "cut_to_share": True},
        {"tp": 2, "weight_dtype": "int8"},
        {"layout": "hf", "tp": 2, "weight_dtype": "float32"},
    ],
)
def test_pieces_and_fills_cover_every_target_byte_once(tiny: Checkpoint, options: dict[str, Any]) -> None:
    planned = plan(tiny, **options)
    covered: list[list[tuple[int, int]]] = [[(0, len(file.header))] for file in planned.files]
    for streams in planned.streams.values():
        assert [s.inputs[0].begin for s in streams] == sorted(s.inputs[0].begin for s in streams)
        for stream in streams:
            sizes = [math.prod(shape) * DTYPE_BITS[dtype] // 8 for dtype, shape in outputs_of(stream)]
            for piece in stream.pieces:
                covered[piece.target].append((piece.target_offset, piece.target_offset + piece.nbytes))
                last = piece.offset + (piece.rows - 1) * piece.stride + piece.run
                assert 0 <= piece.offset < last <= sizes[piece.output]
    for fill in planned.fills:
        end = fill.target_offset + fill.count * len(fill.pattern)
        covered[fill.target].append((fill.target_offset, end))
    for file, ranges in zip(planned.files, covered, strict=True):
        ranges.sort()
        assert [end for _, end in ranges] == [begin for begin, _ in ranges[1:]] + [file.nbytes]


def outputs_of(stream: Stream) -> tuple[tuple[str, tuple[int, ...]], ...]:
    return stream.conversion.outputs if stream.conversion else ((stream.inputs[0].dtype, stream.inputs[0].shape),)


@pytest.mark.parametrize("layout", ["hf", "vllm"])
def test_each_source_tensor_is_read_once(tiny: Checkpoint, layout: str) -> None:
    assert tensors_of(plan(tiny, layout=layout, tp=2)) == dict.fromkeys(tiny.tensors, 1)


def test_tensors_lie_where_a_reader_can_view_them(tmp_path: Path) -> None:
    """A scale of nine bytes before a weight of two would put it at an odd place; then larger elements come first, and
    the first of them lies in its page as in the source's."""
    config = {**open_checkpoint(make_tiny_llama(tmp_path / "m")).config, "hidden_size": 9}
    stored = plain(config)
    norm, embedding = "model.layers.0.input_layernorm.weight", "model.embed_tokens.weight"
    first = {embedding: ("F8_E4M3", stored[embedding][1]), "model.norm.weight": ("BF16", (9,)), norm: ("F8_E4M3", (9,))}
    folder = tmp_path / "odd"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config))
    write_holes(folder / "model.safetensors", {**first, **{n: t for n, t in stored.items() if n not in first}})
    odd = open_checkpoint(folder)
    (file,) = plan(odd, layout="hf", tp=1).files
    assert all(tensor.begin % (DTYPE_BITS[tensor.dtype] // 8) == 0 for tensor in file.tensors)
    assert [tensor.name for tensor in file.tensors][:: len(stored) - 1] == ["model.norm.weight", norm]
    assert file.tensors[0].begin % 4096 == odd.tensors["model.norm.weight"].begin % 4096


@pytest.mark.parametrize("cut_to_share", [False, True])
@pytest.mark.parametrize("tp", [1, 2])
def test_data_lies_in_its_page_as_in_the_sources(tiny: Checkpoint, tp: int, cut_to_share: bool) -> None:
    """That of the first tensor which is copied in one run; blocks can be shared, or pages copied whole."""
    planned = plan(tiny, layout="hf", tp=tp, cut_to_share=cut_to_share)
    first = {
        piece.target: (piece.target_offset, stream.inputs[0].begin + piece.offset)
        for streams in planned.streams.values()
        for stream in reversed(streams)
        for piece in reversed(stream.pieces)
        if piece.rows == 1 or piece.run == piece.stride
    }
    assert first.keys() == set(range(len(planned.files)))
    assert all(target % 4096 == source % 4096 for target, source in first.values())


def test_a_dropped_tensor_is_listed_with_its_reason(tiny: Checkpoint) -> None:
    planned = plan(with_tensor(tiny, "model.layers.0.self_attn.rotary_emb.inv_freq", (8,)))
    assert [(d.tensor, "rope_theta" in d.reason) for d in planned.dropped] == [
        ("model.layers.0.self_attn.rotary_emb.inv_freq", True)
    ]


def test_a_head_of_its_own_beside_tied_embeddings_unties_the_config(tiny: Checkpoint) -> None:
    planned = plan(configured(tiny, tie_word_embeddings=True))
    names = {t.name for f in planned.files for t in f.tensors}
    assert planned.config_changes == {"tie_word_embeddings": False}
    assert {"lm_head.weight", "model.embed_tokens.weight"} <= names


def test_the_last_stage_has_its_copy_of_a_tied_embedding(tmp_path: Path) -> None:
    tied = open_checkpoint(make_tiny_llama(tmp_path / "m", tied=True))
    for layout, names in (
        ("vllm", ["model.embed_tokens.weight", "lm_head.weight"]),
        ("hf", ["model.embed_tokens.weight"] * 2),
    ):
        planned = plan(tied, layout=layout, pp=2)
        found = [t.name for f in planned.files for t in f.tensors if t.shape == (512, 64)]
        assert found == names


def test_headers_and_config_that_disagree_are_named(tiny: Checkpoint) -> None:
    name = "model.layers.1.mlp.gate_proj.weight"
    with pytest.raises(InputError, match=rf"'{name}' has shape \[127, 64\] \(BF16\), but .* says \[128, 64\]"):
        plan(altered(tiny, name, shape=(127, 64)))
    with pytest.raises(InputError, match=r"embed_tokens\.weight' has shape \[500, 64\].*\[501, 64\] \(vocab, hidden\)"):
        plan(configured(tiny, vocab_size=501))
    with pytest.raises(InputError, match=r"'model\.layers\.1\..* by config\.json .*layer is one of 1, 0 to 0"):
        plan(configured(tiny, num_hidden_layers=1))
    with pytest.raises(InputError, match=r"lacks tensor 'model\.layers\.2\.input_layernorm\.weight'"):
        plan(configured(tiny, num_hidden_layers=3))
    with pytest.raises(InputError, match=r"lacks tensor 'model\.layers\.0\.self_attn\.q_proj\.bias'"):
        plan(configured(tiny, attention_bias=True))
    with pytest.raises(InputError, match=r"'model\.layers\.0\.mlp\.up_proj\.bias' has no rule"):
        plan(with_tensor(tiny, "model.layers.0.mlp.up_proj.bias", (128,)))


def test_an_unknown_tensor_is_an_error_never_a_replica(tiny: Checkpoint) -> None:
    with pytest.raises(InputError, match=r"'model\.layers\.0\.self_attn\.q_norm\.weight' has no rule"):
        plan(with_tensor(tiny, "model.layers.0.self_attn.q_norm.weight", (16,)))


def test_what_does_not_divide_is_named_with_size_and_divisor(tiny: Checkpoint) -> None:
    with pytest.raises(InputError, match=r"num_attention_heads = 4 is not divisible by tp 8"):
        plan(tiny, tp=8)
    with pytest.raises(InputError, match=r"is not divisible by tp 3"):
        plan(tiny, tp=3)
    with pytest.raises(InputError, match=r"pp 3 is more than the model's 2 layers"):
        plan(tiny, pp=3)


def test_what_is_not_supported_is_refused_by_name(tiny: Checkpoint) -> None:
    with pytest.raises(InputError, match="layout 'deepseek' is not described for family 'llama'; it has: hf, vllm"):
        plan(tiny, layout="deepseek")
    with pytest.raises(InputError, match="has no experts"):
        plan(tiny, ep=2, tp=2)
    with pytest.raises(InputError, match="layout 'vllm' with tp 1 has ep 1 or 1, not 2"):
        plan(tiny, ep=2)
    with pytest.raises(InputError, match=r"not written as 'fp7'; .*the nearest is 'fp8'"):
        plan(tiny, weight_dtype="fp7")
    with pytest.raises(InputError, match=r"of tp 2 and ep 3 one must divide the other"):
        plan(tiny, layout="hf", tp=2, ep=3)
    assert len(plan(tiny, weight_dtype="bfloat16").ranks) == 1


def test_a_world_of_ranks() -> None:
    ranks = [(r.rank, r.tp, r.pp, r.ep) for r in World(tp=2, pp=2, ep=4).ranks()]
    assert ranks[:5] == [(0, 0, 0, 0), (1, 1, 0, 1), (2, 0, 0, 2), (3, 1, 0, 3), (4, 0, 1, 0)]
    assert [r.ep for r in World(tp=4, pp=1, ep=2).ranks()] == [0, 0, 1, 1]
    assert [expert_range(10, 4, group) for group in range(4)] == [(0, 3), (3, 6), (6, 8), (8, 10)]
    with pytest.raises(InputError, match="ep 4 is more than the model's 3 experts"):
        expert_range(3, 4, 0)


def test_quantised_weights_are_cut_between_blocks_or_not_at_all(tmp_path: Path) -> None:
    """The rows of 320 in blocks of 128: no tensor parallelism is legal, and the message says which would be."""
    config = {**json.loads((make_tiny_llama(tmp_path / "m") / "config.json").read_text()), "intermediate_size": 256}
    tensors = plain(config)
    for name, (_, shape) in plain(config).items():
        if ".mlp." in name:
            tensors[name] = "F8_E4M3", shape
            tensors[f"{name}_scale_inv"] = "F32", tuple(-(-n // 128) for n in shape)
    checkpoint = write_sparse(tmp_path / "fp8", config, tensors)
    held = {t.name: t.shape for f in plan(checkpoint, tp=2).files if f.rank == 1 for t in f.tensors}
    assert held["model.layers.0.mlp.gate_up_proj.weight_scale_inv"] == (2, 1)
    assert held["model.layers.0.mlp.down_proj.weight_scale_inv"] == (1, 1)
    with pytest.raises(InputError, match=r"256 divided by tp 4 is 64, .* block of 128; legal are tp 1, 2, or convert"):
        plan(checkpoint, tp=4)
    whole = plan(checkpoint, tp=4, weight_dtype="bf16")
    assert {t.dtype for f in whole.files for t in f.tensors if ".mlp." in t.name} == {"BF16"}


def test_the_config_says_what_the_weights_now_are(tmp_path: Path) -> None:
    config = json.loads((make_tiny_llama(tmp_path / "m") / "config.json").read_text())
    config |= {"quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128]}}
    tensors = plain(config)
    for name, (_, shape) in plain(config).items():
        if ".mlp." in name:
            tensors[name] = "F8_E4M3", shape
            tensors[f"{name}_scale_inv"] = "F32", tuple(-(-n // 128) for n in shape)
    checkpoint = write_sparse(tmp_path / "fp8", config, tensors)
    assert plan(checkpoint).config_changes == {}
    assert plan(checkpoint, weight_dtype="bf16").config_changes == {
        "quantization_config": None, "torch_dtype": "bfloat16",
    }  # fmt: skip
    changed = plan(checkpoint, weight_dtype="int8").config_changes["quantization_config"]
    assert changed["quant_method"] == "compressed-tensors"
    assert changed["ignore"] == ["lm_head"]
    missing = replace(checkpoint, tensors={n: t for n, t in checkpoint.tensors.items() if not n.endswith("_inv")})
    with pytest.raises(InputError, match="is F8_E4M3 without a scale beside it"):
        plan(missing, weight_dtype="bf16")


@pytest.mark.parametrize(("kv_heads", "tp", "group"), [(8, 16, 2), (4, 8, 2), (1, 4, 4), (2, 8, 4)])
def test_fewer_kv_heads_than_ranks_are_shared_by_neighbours(kv_heads: int, tp: int, group: int) -> None:
    for rank in range(tp):
        held = rank_range(kv_heads * 128, kv_heads, tp, rank, True, False, "k_proj: kv_heads")
        assert held == (rank // group * 128, (rank // group + 1) * 128)
    with pytest.raises(InputError, match="tp 6 is not divisible by k_proj: kv_heads = 4"):
        rank_range(512, 4, 6, 0, True, False, "k_proj: kv_heads")


def test_stages_are_those_of_the_engine() -> None:
    """vLLM: what is left over goes to the stages before the last, from the back."""
    assert stage_layers(32, 1) == [(0, 32)]
    assert [b - a for a, b in stage_layers(10, 4)] == [2, 3, 3, 2]
    assert [b - a for a, b in stage_layers(11, 4)] == [3, 3, 3, 2]
    assert [b - a for a, b in stage_layers(5, 2)] == [3, 2]


def test_what_an_engine_never_holds_quantised_is_computed_out(tmp_path: Path) -> None:
    """DeepSeek V3.2's indexer: FP8 on disk, one BF16 matrix with another weight in the engine."""
    config = published_config("deepseek_v3.2") or {}
    config |= {"num_hidden_layers": 1, "num_nextn_predict_layers": 0, "first_k_dense_replace": 1, "hidden_size": 256}
    tensors = plain(config)
    key = "model.layers.0.self_attn.indexer.wk.weight"
    tensors |= {key: ("F8_E4M3", tensors[key][1]), f"{key}_scale_inv": ("F32", (1, 2))}
    plan = plan_writes(write_sparse(tmp_path, config, tensors), find_family(config), "vllm", 2)
    for file in plan.files:
        for written in file.tensors:
            if written.name.endswith("wk_weights_proj.weight"):
                assert (written.dtype, written.shape) == ("BF16", (128 + 64, 256))
                assert [origin.conversion.split()[0] for origin in written.origins] == ["fp8_block_dequant", "none"]
    names = {written.name for file in plan.files for written in file.tensors}
    assert "model.layers.0.self_attn.indexer.wk_weights_proj.weight" in names
    assert not any(name.endswith("scale_inv") for name in names)
