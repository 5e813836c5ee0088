"""Reshard against copy_file_range of the same bytes, in one interleaved run.

    python benchmarks/reshard.py [--gigabytes 1] [--tp 4] [--runs 3] [--folder DIR]

Makes a checkpoint of random weights, then takes turns: a plain copy of its files by the kernel, a verified reshard.
Prints JSON: every run's seconds, the medians, and their ratio (what splitting and two SHA-256 cost over a copy).
Both end with fsync. The page cache is warm in both, so this measures work, not the disk's reading speed.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import shutil
import statistics
import sys
import tempfile
import time
from pathlib import Path

from day0.architecture.family import find_family
from day0.checkpoint import Checkpoint, open_checkpoint
from tasks.reshard.planner import plan_writes
from tasks.reshard.shards import write_shards
from tasks.reshard.writer import new_folder

HIDDEN, INTERMEDIATE, HEADS, KV_HEADS, HEAD_DIM, VOCAB = 2048, 8192, 16, 8, 128, 32_000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--gigabytes", type=float, default=1.0)
    parser.add_argument("--tp", type=int, default=4)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--folder", type=Path, help="where to work; by default the system's temporary folder")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=args.folder, prefix="day0-bench-") as scratch:
        work = Path(scratch)
        checkpoint = make_checkpoint(work / "source", args.gigabytes * 1e9)
        copies, reshards = [], []
        for _ in range(args.runs):
            copies.append(timed_copy(checkpoint, work / "copy"))
            reshards.append(timed_reshard(checkpoint, work / "reshard", args.tp))
    copy, reshard = statistics.median(copies), statistics.median(reshards)
    result = {
        "bytes": checkpoint.bytes,
        "tp": args.tp,
        "copy_seconds": copies,
        "reshard_seconds": reshards,
        "copy_median": copy,
        "reshard_median": reshard,
        "ratio": reshard / copy,
        "reshard_bytes_per_second": checkpoint.bytes / reshard,
        "peak_rss_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
        "cpus": os.cpu_count(),
        "load_average": os.getloadavg()[0],
    }
    json.dump(result, sys.stdout, indent=2)
    print()


def timed_copy(checkpoint: Checkpoint, target: Path) -> float:
    """Seconds to copy the shards with copy_file_range and fsync."""
    target.mkdir()
    start = time.monotonic()
    for name, header in checkpoint.files.items():
        with checkpoint.path(name).open("rb") as source, (target / name).open("wb") as copy:
            left = header.file_bytes
            while left:
                left -= os.copy_file_range(source.fileno(), copy.fileno(), left)
            os.fsync(copy.fileno())
    seconds = time.monotonic() - start
    shutil.rmtree(target)
    return seconds


def timed_reshard(checkpoint: Checkpoint, target: Path, tp: int) -> float:
    """Seconds for plan, split, both hashes and fsync."""
    start = time.monotonic()
    plan = plan_writes(checkpoint, find_family(checkpoint.config), "vllm", tp)
    with new_folder(target) as root:
        write_shards(plan, checkpoint, root)
    seconds = time.monotonic() - start
    shutil.rmtree(target)
    return seconds


def make_checkpoint(root: Path, nbytes: float) -> Checkpoint:
    """A Llama of about `nbytes` of random bytes as bf16, a shard for each 250 MB or so."""
    root.mkdir()
    layer = {
        "input_layernorm.weight": (HIDDEN,),
        "mlp.down_proj.weight": (HIDDEN, INTERMEDIATE),
        "mlp.gate_proj.weight": (INTERMEDIATE, HIDDEN),
        "mlp.up_proj.weight": (INTERMEDIATE, HIDDEN),
        "post_attention_layernorm.weight": (HIDDEN,),
        "self_attn.k_proj.weight": (KV_HEADS * HEAD_DIM, HIDDEN),
        "self_attn.o_proj.weight": (HIDDEN, HEADS * HEAD_DIM),
        "self_attn.q_proj.weight": (HEADS * HEAD_DIM, HIDDEN),
        "self_attn.v_proj.weight": (KV_HEADS * HEAD_DIM, HIDDEN),
    }
    outer = {"lm_head.weight": (VOCAB, HIDDEN), "model.embed_tokens.weight": (VOCAB, HIDDEN)}
    layer_bytes = sum(size(shape) for shape in layer.values())
    layers = max(1, round((nbytes - sum(map(size, outer.values()))) / layer_bytes))
    shapes = dict(outer)
    for number in range(layers):
        shapes |= {f"model.layers.{number}.{name}": shape for name, shape in layer.items()}
    shapes["model.norm.weight"] = (HIDDEN,)
    shards: list[dict[str, tuple[int, ...]]] = [{}]
    for name, shape in shapes.items():
        if sum(map(size, shards[-1].values())) > 250e6:
            shards.append({})
        shards[-1][name] = shape
    weight_map = {}
    for number, tensors in enumerate(shards, 1):
        file = f"model-{number:05d}-of-{len(shards):05d}.safetensors"
        write_shard(root / file, tensors)
        weight_map |= dict.fromkeys(tensors, file)
    (root / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    config = {
        "model_type": "llama",
        "hidden_size": HIDDEN,
        "intermediate_size": INTERMEDIATE,
        "num_hidden_layers": layers,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS,
        "head_dim": HEAD_DIM,
        "vocab_size": VOCAB,
    }
    (root / "config.json").write_text(json.dumps(config))
    return open_checkpoint(root)


def write_shard(path: Path, tensors: dict[str, tuple[int, ...]]) -> None:
    """A safetensors file of random bytes, its tensors by name as the format's own library has them."""
    header, offset = {}, 0
    for name in sorted(tensors):
        end = offset + size(tensors[name])
        header[name] = {"dtype": "BF16", "shape": list(tensors[name]), "data_offsets": [offset, end]}
        offset = end
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        while offset:
            offset -= file.write(os.urandom(min(offset, 16 << 20)))


def size(shape: tuple[int, ...]) -> int:
    product = 2
    for n in shape:
        product *= n
    return product


if __name__ == "__main__":
    main()
