"""What is written is the source's bytes, whatever the split; and nothing half-written stays."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from day0.architecture.family import find_family
from day0.artifacts.shards import RankShards
from day0.checkpoint import open_checkpoint
from day0.errors import CheckFailed, InputError
from day0.files import sha256_file
from day0.verdict import Verdict
from tasks.reshard import writer
from tasks.reshard.planner import plan_writes
from tasks.reshard.shards import describe, write_shards
from tests.models.tiny import make_tiny_llama
from tests.reshard.reading import rank_tensors, tensors_in

Arrays = dict[str, np.ndarray]


def reshard(source: Path, target: Path, expected: dict[str, str] | None = None, **options: Any) -> RankShards:
    checkpoint = open_checkpoint(source)
    arguments: dict[str, Any] = {"layout": "vllm", "tp": 1, **options}
    plan = plan_writes(checkpoint, find_family(checkpoint.config), **arguments)
    with writer.new_folder(target) as root:
        return write_shards(plan, checkpoint, root, expected)


def merged(ranks: list[Arrays], heads: int, kv_heads: int, head_dim: int, vocab: int) -> Arrays:
    """The checkpoint that rank files came from, put together again by what the engine does with them."""
    tp = len(ranks)
    local = {"q": heads // tp * head_dim, "kv": max(1, kv_heads // tp) * head_dim}
    copies = max(1, tp // kv_heads)
    whole: Arrays = {}
    for name in ranks[0]:
        parts = [rank[name] for rank in ranks]
        if name.endswith(("lm_head.weight", "embed_tokens.weight")):
            padded = np.concatenate(parts)
            assert not padded[vocab:].any(), "padding must be zero"
            whole[name] = padded[:vocab]
        elif "qkv_proj" in name:
            q, k, v = zip(*(np.split(p, [local["q"], local["q"] + local["kv"]]) for p in parts), strict=True)
            whole[name.replace("qkv", "q")] = np.concatenate(q)
            for letter, pieces in (("k", k), ("v", v)):
                for start in range(0, tp, copies):
                    assert all((p == pieces[start]).all() for p in pieces[start : start + copies])
                whole[name.replace("qkv", letter)] = np.concatenate(pieces[::copies])
        elif "gate_up_proj" in name:
            gate, up = zip(*(np.split(p, 2) for p in parts), strict=True)
            whole[name.replace("gate_up", "gate")] = np.concatenate(gate)
            whole[name.replace("gate_up", "up")] = np.concatenate(up)
        elif "o_proj" in name or "down_proj" in name:
            whole[name] = np.concatenate(parts, axis=1)
        else:
            assert all((p == parts[0]).all() for p in parts), f"replicas of {name} differ"
            if not name.endswith("_scale"):
                whole[name] = parts[0]
            else:
                assert parts[0] == 1.0
    return whole


@settings(max_examples=15, deadline=None)
@given(
    tp=st.sampled_from([1, 2, 4, 8]),
    kv_heads=st.sampled_from([1, 2, 4, 8]),
    vocab=st.sampled_from([64, 100, 129, 512]),
    tied=st.booleans(),
    shards=st.integers(1, 4),
    part_bytes=st.sampled_from([4_000, 1 << 30]),
    block=st.sampled_from([128, 1000, 1 << 20]),
    seed=st.integers(0, 3),
)
def test_rank_slices_together_are_the_source_bit_for_bit(
    tp: int, kv_heads: int, vocab: int, tied: bool, shards: int, part_bytes: int, block: int, seed: int
) -> None:
    with tempfile.TemporaryDirectory() as scratch, pytest.MonkeyPatch.context() as patch:
        patch.setattr(writer, "BLOCK", block)
        source = make_tiny_llama(
            Path(scratch) / "m", layers=1, hidden=32, heads=8, kv_heads=kv_heads, vocab=vocab, tied=tied,
            shards=shards, seed=seed,
        )  # fmt: skip
        target = Path(scratch) / "out"
        expected = {p.name: sha256_file(p) for p in source.iterdir()}
        shards_made = reshard(source, target, expected, tp=tp, part_bytes=part_bytes)
        whole = merged([rank_tensors(target, rank) for rank in range(tp)], 8, kv_heads, 4, vocab)
        original = tensors_in(source)
        if tied:
            original["lm_head.weight"] = original.pop("model.embed_tokens.weight")
        assert whole.keys() == original.keys()
        assert all((whole[name] == original[name]).all() for name in original)
        assert shards_made.verdict is Verdict.PASS
        assert all(f.sha256 == hashlib.sha256((target / f.name).read_bytes()).hexdigest() for f in shards_made.files)
        assert {f.name for f in shards_made.files} == {p.name for p in target.iterdir()}


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


def test_one_rank_is_the_identity_in_layout_hf(tmp_path: Path) -> None:
    source = make_tiny_llama(tmp_path / "m")
    reshard(source, tmp_path / "out", layout="hf")
    again = open_checkpoint(tmp_path / "out" / "rank-00000")
    original, written = tensors_in(source), tensors_in(again.root)
    assert written.keys() == original.keys()
    assert all((written[name] == original[name]).all() for name in original)


def test_layout_hf_is_a_whole_folder_for_each_rank(tmp_path: Path) -> None:
    source = make_tiny_llama(tmp_path / "m")
    reshard(source, tmp_path / "out", layout="hf", tp=2, part_bytes=50_000)
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
    assert [p.name for p in tmp_path.iterdir()] == ["m"]


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


def test_a_disk_too_small_is_refused_before_writing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = make_tiny_llama(tmp_path / "m")
    monkeypatch.setattr(writer.shutil, "disk_usage", lambda _: type("Usage", (), {"free": 1000})())
    with pytest.raises(InputError, match="1,000 are free"):
        reshard(source, tmp_path / "out")
    assert [p.name for p in tmp_path.iterdir()] == ["m"]


RUN = "import sys; from flows.cli import main; main(sys.argv[1:])"


def test_a_disk_that_fills_up_meanwhile_ends_cleanly(tmp_path: Path) -> None:
    """A limit on file size stands in for a full disk: the operating system refuses the write in the middle."""
    source = make_tiny_llama(tmp_path / "m")
    code = "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000)); " + RUN
    command = [
        sys.executable,
        "-c",
        code,
        "reshard",
        str(source),
        str(tmp_path / "out"),
        "--layout",
        "vllm",
        "--tp",
        "1",
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "nothing was kept, make space and try again" in done.stderr
    assert "Traceback" not in done.stderr
    assert [p.name for p in tmp_path.iterdir()] == ["m"]


def test_killed_in_the_middle_leaves_no_final_folder(tmp_path: Path) -> None:
    source = make_tiny_llama(tmp_path / "m")
    # Stops for good after the first block, so that the kill surely comes in the middle.
    code = (
        "import time; from day0 import progress; from tasks.reshard import writer; "
        "writer.progress.report = lambda *a: (print('block', flush=True), time.sleep(600)); " + RUN
    )
    command = [
        sys.executable,
        "-c",
        code,
        "reshard",
        str(source),
        str(tmp_path / "out"),
        "--layout",
        "vllm",
        "--tp",
        "1",
    ]
    process = subprocess.Popen(command, stdout=subprocess.PIPE)
    assert process.stdout
    assert process.stdout.readline() == b"block\n"
    assert any(p.name.startswith(".out.") for p in tmp_path.iterdir())
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    process.stdout.close()
    assert not (tmp_path / "out").exists()
    assert reshard(source, tmp_path / "out").files
