"""The plan is what the engine's own model has, and refuses what it cannot write right."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from day0.architecture.family import find_family
from day0.checkpoint import Checkpoint, open_checkpoint
from day0.errors import InputError
from day0.safetensors_header import TensorInfo
from tasks.reshard.planner import plan_writes
from tasks.reshard.slicing import rank_range, stage_layers
from tasks.reshard.writes import Copy, WritePlan
from tests.models.tiny import make_tiny_llama

DATA = Path(__file__).parent / "data"
DTYPE = {"BF16": "bfloat16", "F32": "float32"}


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


@pytest.mark.parametrize("record", sorted(DATA.glob("*.json")), ids=lambda path: path.stem)
def test_the_plan_has_the_tensors_of_the_engines_own_model(record: Path, tmp_path: Path) -> None:
    """Names, shapes and dtypes, for every rank, against what vLLM 0.32.0 says (tests/reshard/data/README.md)."""
    engine = json.loads(record.read_text())
    assert engine["vllm"] == "0.32.0"
    model = record.stem.split("-")[0]
    checkpoint = open_checkpoint(make_tiny_llama(tmp_path / "m", layers=5, vocab=500, tied=model == "tied"))
    if model == "mistral":
        checkpoint = configured(checkpoint, model_type="mistral")
    tp, pp = engine["tp"], engine["pp"]
    planned = plan(checkpoint, tp=tp, pp=pp)
    assert planned.engine == "vllm 0.32.0"
    assert len(engine["ranks"]) == tp * pp
    for rank in engine["ranks"]:
        number = rank["pp"] * tp + rank["tp"]
        tensors = {
            t.name: [DTYPE[t.dtype], list(t.shape)] for f in planned.files if f.rank == number for t in f.tensors
        }
        assert tensors == rank["tensors"]


def test_file_names_are_those_that_the_loader_looks_for(tiny: Checkpoint) -> None:
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


@pytest.mark.parametrize("options", [{"tp": 1}, {"tp": 4}, {"tp": 2, "pp": 2}, {"tp": 2, "part_bytes": 10_000}])
def test_steps_cover_every_target_file_in_order_without_a_gap(tiny: Checkpoint, options: dict[str, int]) -> None:
    planned = plan(tiny, **options)
    cursor = [len(file.header) for file in planned.files]
    for step in planned.steps:
        if isinstance(step, Copy):
            for piece in step.pieces:
                assert piece.target_offset == cursor[piece.target]
                cursor[piece.target] += piece.nbytes
                last = piece.source_offset + (piece.rows - 1) * piece.stride + piece.run
                assert step.source.begin <= piece.source_offset < last <= step.source.end
        else:
            assert step.target_offset == cursor[step.target]
            cursor[step.target] += step.count * len(step.pattern)
    assert cursor == [file.nbytes for file in planned.files]


def test_each_source_tensor_is_read_once(tiny: Checkpoint) -> None:
    read = [step.source.name for step in plan(tiny, tp=2).steps if isinstance(step, Copy)]
    assert sorted(read) == sorted(tiny.tensors)


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
    with pytest.raises(InputError, match=rf"'{name}' has shape \[127, 64\], but config\.json says \[128, 64\]"):
        plan(altered(tiny, name, shape=(127, 64)))
    with pytest.raises(InputError, match=r"'lm_head\.weight' has shape \[500, 64\].*\[501, 64\] \(vocab, hidden\)"):
        plan(configured(tiny, vocab_size=501))
    with pytest.raises(InputError, match=r"of layer 1, but config\.json has num_hidden_layers 1"):
        plan(configured(tiny, num_hidden_layers=1))
    with pytest.raises(InputError, match=r"lacks tensor 'model\.layers\.2\.input_layernorm\.weight'"):
        plan(configured(tiny, num_hidden_layers=3))
    with pytest.raises(InputError, match=r"lacks tensor 'model\.layers\.0\.self_attn\.q_proj\.bias'"):
        plan(configured(tiny, attention_bias=True))
    with pytest.raises(InputError, match="does not set mlp_bias"):
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
    with pytest.raises(InputError, match="layout 'deepseek' is not for family 'llama'"):
        plan(tiny, layout="deepseek")
    with pytest.raises(InputError, match="has no experts"):
        plan(tiny, ep=2)
    with pytest.raises(InputError, match="conversion is not supported"):
        plan(tiny, weight_dtype="float32")
    with pytest.raises(InputError, match=r"'fp8' is not supported; there is: bfloat16"):
        plan(tiny, weight_dtype="fp8")
    with pytest.raises(InputError, match=r"quantised \(fp8\)"):
        plan(configured(tiny, quantization_config={"quant_method": "fp8"}))
    with pytest.raises(InputError, match=r"'model\.norm\.weight' is float32"):
        plan(altered(tiny, "model.norm.weight", dtype="F32"))
    assert plan(tiny, weight_dtype="bfloat16").ranks == 1


@pytest.mark.parametrize(("kv_heads", "tp", "group"), [(8, 16, 2), (4, 8, 2), (1, 4, 4), (2, 8, 4)])
def test_fewer_kv_heads_than_ranks_are_shared_by_neighbours(kv_heads: int, tp: int, group: int) -> None:
    for rank in range(tp):
        held = rank_range(kv_heads * 128, kv_heads, tp, rank, True, "k_proj: kv_heads")
        assert held == (rank // group * 128, (rank // group + 1) * 128)
    with pytest.raises(InputError, match="tp 6 is not divisible by k_proj: kv_heads = 4"):
        rank_range(512, 4, 6, 0, True, "k_proj: kv_heads")


def test_stages_are_those_of_the_engine() -> None:
    """vLLM: what is left over goes to the stages before the last, from the back."""
    assert stage_layers(32, 1) == [(0, 32)]
    assert [b - a for a, b in stage_layers(10, 4)] == [2, 3, 3, 2]
    assert [b - a for a, b in stage_layers(11, 4)] == [3, 3, 3, 2]
    assert [b - a for a, b in stage_layers(5, 2)] == [3, 2]
