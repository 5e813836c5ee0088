"""The output folder: rank files, what goes beside them, ranks.json, and what a dry run foretells of it."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from day0.architecture.family import find_family
from day0.artifacts.shards import RankShards
from day0.checkpoint import open_checkpoint
from day0.errors import CheckFailed, InputError
from day0.files import sha256_file
from day0.verdict import Verdict
from tasks.reshard.partial import plan_key, resumable_folder
from tasks.reshard.planner import plan_writes
from tasks.reshard.shards import describe, write_shards
from tests.models.tiny import make_tiny_llama
from tests.reshard.reading import rank_tensors, tensors_in


def reshard(source: Path, target: Path, expected: dict[str, str] | None = None, **options: Any) -> RankShards:
    checkpoint = open_checkpoint(source)
    hashes = options.pop("hashes", True)
    arguments: dict[str, Any] = {"layout": "vllm", "tp": 1, **options}
    plan = plan_writes(checkpoint, find_family(checkpoint.config), **arguments)
    with resumable_folder(target, plan_key(plan, checkpoint)) as partial:
        return write_shards(plan, checkpoint, partial.root, expected, hashes=hashes, journal=partial.journal)


def test_every_file_is_recorded_with_its_digest(tmp_path: Path) -> None:
    source = make_tiny_llama(tmp_path / "m")
    made = reshard(source, tmp_path / "out", {p.name: sha256_file(p) for p in source.iterdir()}, tp=2)
    assert made.verdict is Verdict.PASS
    assert {f.name for f in made.files} == {p.name for p in (tmp_path / "out").iterdir()}
    assert all(f.sha256 == hashlib.sha256((tmp_path / "out" / f.name).read_bytes()).hexdigest() for f in made.files)


def test_without_hashes_the_same_bytes_and_no_claim(tmp_path: Path) -> None:
    source = make_tiny_llama(tmp_path / "m")
    reshard(source, tmp_path / "hashed", tp=2)
    made = reshard(source, tmp_path / "plain", {p.name: sha256_file(p) for p in source.iterdir()}, tp=2, hashes=False)
    for path in (tmp_path / "hashed").glob("*.safetensors"):
        assert path.read_bytes() == (tmp_path / "plain" / path.name).read_bytes()
    assert made.verdict is Verdict.INCONCLUSIVE
    assert {f.sha256 for f in made.files if f.name.endswith(".safetensors")} == {""}


def test_a_rank_holds_the_rows_that_are_its_own(tmp_path: Path) -> None:
    """Values say where they come from: rank 1's file is no copy of rank 0's, and parts are not cut after joining."""
    source = make_tiny_llama(tmp_path / "m", layers=1)
    original = tensors_in(source)
    reshard(source, tmp_path / "out", tp=2)
    zero, one = rank_tensors(tmp_path / "out", 0), rank_tensors(tmp_path / "out", 1)
    layer = "model.layers.0"
    gate, up = original[f"{layer}.mlp.gate_proj.weight"], original[f"{layer}.mlp.up_proj.weight"]
    assert (one[f"{layer}.mlp.gate_up_proj.weight"] == np.concatenate([gate[64:], up[64:]])).all()
    q, k, v = (original[f"{layer}.self_attn.{n}_proj.weight"] for n in "qkv")
    assert (zero[f"{layer}.self_attn.qkv_proj.weight"] == np.concatenate([q[:32], k[:16], v[:16]])).all()
    assert (one[f"{layer}.mlp.down_proj.weight"] == original[f"{layer}.mlp.down_proj.weight"][:, 64:]).all()


def test_layout_hf_is_a_whole_folder_for_each_rank(tmp_path: Path) -> None:
    source = make_tiny_llama(tmp_path / "m")
    reshard(source, tmp_path / "out", layout="hf", tp=2)
    ranks = [tensors_in(open_checkpoint(tmp_path / "out" / f"rank-0000{r}").root) for r in range(2)]
    original = tensors_in(source)
    name = "model.layers.1.self_attn.o_proj.weight"
    assert (np.concatenate([r[name] for r in ranks], axis=1) == original[name]).all()
    assert ranks[0].keys() == original.keys()


def test_how_the_source_is_cut_into_shards_does_not_change_a_byte(tmp_path: Path) -> None:
    digests = []
    for shards in (1, 3):
        source = make_tiny_llama(tmp_path / f"m{shards}", layers=3, shards=shards)
        reshard(source, tmp_path / f"out{shards}", tp=2)
        folder = tmp_path / f"out{shards}"
        digests.append({p.name: sha256_file(p) for p in folder.glob("*.safetensors")})
    assert digests[0] == digests[1]
    assert len(digests[0]) == 2


def test_ranks_json_says_where_every_tensor_is_from(tmp_path: Path) -> None:
    source = make_tiny_llama(tmp_path / "m", vocab=500)
    shards = reshard(source, tmp_path / "out", tp=2)
    ranks = json.loads((tmp_path / "out" / "ranks.json").read_text())
    assert (ranks["layout"], ranks["source"]) == ("vllm", shards.source)
    assert ranks["ranks"][1] == {"rank": 1, "tp": 1, "pp": 0, "ep": 0, "files": ["model-rank-1-part-0.safetensors"]}
    original = tensors_in(source)
    written = [rank_tensors(tmp_path / "out", r) for r in range(2)]
    assert len(ranks["tensors"]) == sum(map(len, written))
    for entry in ranks["tensors"]:
        pieces = []
        for part in entry["sources"]:
            shape = [b - a for a, b in part["slice"]]
            if part["tensor"]:
                pieces.append(original[part["tensor"]][tuple(slice(a, b) for a, b in part["slice"])])
            elif part["conversion"] == "zeros":
                pieces.append(np.zeros(shape, "<u2"))
            else:
                assert part["conversion"] == "constant 1"
                pieces.append(np.float32(1))
        rebuilt = np.concatenate(pieces) if len(pieces) > 1 else pieces[0]
        assert (rebuilt == written[entry["rank"]][entry["tensor"]]).all()


def test_the_source_index_does_not_come_along(tmp_path: Path) -> None:
    source = make_tiny_llama(tmp_path / "m")
    (source / "modeling_tiny.py").write_text("print('never')")
    reshard(source, tmp_path / "out")
    names = {p.name for p in (tmp_path / "out").iterdir()}
    assert names == {
        "config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json", "chat_template.jinja",
        "model-rank-0-part-0.safetensors", "ranks.json",
    }  # fmt: skip


def test_a_tokenizer_that_points_outside_the_folder_is_refused(tmp_path: Path) -> None:
    source = make_tiny_llama(tmp_path / "m")
    (tmp_path / "secret").write_text("{}")
    (source / "tokenizer.json").unlink()
    (source / "tokenizer.json").symlink_to(tmp_path / "secret")
    with pytest.raises(InputError, match=r"tokenizer\.json"):
        reshard(source, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_an_untied_config_is_written_where_the_checkpoint_has_its_own_head(tmp_path: Path) -> None:
    source = make_tiny_llama(tmp_path / "m")
    config = json.loads((source / "config.json").read_text())
    (source / "config.json").write_text(json.dumps({**config, "tie_word_embeddings": True}))
    reshard(source, tmp_path / "out")
    assert json.loads((tmp_path / "out" / "config.json").read_text()) == {**config, "tie_word_embeddings": False}


def test_a_dry_run_foretells_files_and_sizes(tmp_path: Path) -> None:
    source = make_tiny_llama(tmp_path / "m")
    checkpoint = open_checkpoint(source)
    for layout in ("vllm", "hf"):
        plan = plan_writes(checkpoint, find_family(checkpoint.config), layout, 2)
        foretold = {entry["name"]: entry["bytes"] for entry in describe(plan, checkpoint)}
        made = reshard(source, tmp_path / layout, layout=layout, tp=2)
        assert foretold == {f.name: f.bytes for f in made.files}


def test_a_source_that_is_not_what_was_recorded_fails_and_leaves_nothing(tmp_path: Path) -> None:
    source = make_tiny_llama(tmp_path / "m")
    expected = {p.name: sha256_file(p) for p in source.iterdir()}
    shard = source / "model-00002-of-00002.safetensors"
    content = bytearray(shard.read_bytes())
    content[-5] ^= 1
    shard.write_bytes(content)
    with pytest.raises(CheckFailed, match=r"model-00002-of-00002\.safetensors: SHA-256 is"):
        reshard(source, tmp_path / "out", expected)
    assert not (tmp_path / "out").exists()
    shard.write_bytes(bytes(content[:-5]) + bytes([content[-5] ^ 1]) + bytes(content[-4:]))
    assert reshard(source, tmp_path / "out", expected).verdict is Verdict.PASS


def test_dropped_tensors_are_passed_over_and_still_hashed(tmp_path: Path) -> None:
    source = make_tiny_llama(tmp_path / "m", layers=1, shards=1)
    shard = source / "model-00001-of-00001.safetensors"
    content = shard.read_bytes()
    length = int.from_bytes(content[:8], "little")
    header = json.loads(content[8 : 8 + length])
    end = len(content) - 8 - length
    name = "model.layers.0.self_attn.rotary_emb.inv_freq"
    header[name] = {"dtype": "F32", "shape": [8], "data_offsets": [end, end + 32]}
    text = json.dumps(header).encode()
    shard.write_bytes(len(text).to_bytes(8, "little") + text + content[8 + length :] + bytes(32))
    index = json.loads((source / "model.safetensors.index.json").read_text())
    index["weight_map"][name] = shard.name
    (source / "model.safetensors.index.json").write_text(json.dumps(index))
    made = reshard(source, tmp_path / "out", {p.name: sha256_file(p) for p in source.iterdir()})
    assert [d.tensor for d in made.dropped] == [name]
    assert made.verdict is Verdict.PASS


def test_without_recorded_digests_the_verdict_is_inconclusive(tmp_path: Path) -> None:
    made = reshard(make_tiny_llama(tmp_path / "m"), tmp_path / "out")
    assert made.verdict is Verdict.INCONCLUSIVE
    assert "no recorded digest" in made.reason


def test_a_folder_with_something_in_it_is_not_touched(tmp_path: Path) -> None:
    source = make_tiny_llama(tmp_path / "m")
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "precious").write_text("x")
    with pytest.raises(InputError, match="is not empty"):
        reshard(source, tmp_path / "out")
    assert [p.name for p in (tmp_path / "out").iterdir()] == ["precious"]
    (tmp_path / "empty").mkdir()
    assert reshard(source, tmp_path / "empty").files
