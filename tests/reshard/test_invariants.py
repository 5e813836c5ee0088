"""What holds for every family, size and layout: nothing lost, nothing doubled, nothing changed."""

from __future__ import annotations

import json
import math
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from day0.architecture.binding import bind
from day0.architecture.family import find_family
from day0.checkpoint import Checkpoint, open_checkpoint
from day0.errors import InputError
from day0.safetensors_header import DTYPE_BITS
from day0.verdict import Verdict
from tasks.reshard.planner import plan_writes
from tasks.reshard.shards import write_shards
from tests.models.by_rules import rule_tensors
from tests.models.safetensors_file import write_file
from tests.reshard.merging import Array, converted, element, merged
from tests.reshard.test_engine_keys import stored

ENGINE = Path(__file__).parent / "data/engine"

#: One small config a family, and a quantised one where there is: those that the engine's own models were recorded with.
RECORDS = {
    path.stem.removesuffix("-1-1"): json.loads(path.read_text())
    for path in sorted(ENGINE.glob("*-1-1.json"))
    if not path.stem.startswith(("gpt_oss-mxfp4_marlin", "gpt_oss-mxfp4_triton"))  # the same model as for the cpu
}

# Of the tower that was recorded at its full size, two layers of an eighth of the width say as much.
RECORDS["kimi_k25-int4"]["config"]["vision_config"] |= {
    "vt_hidden_size": 144, "mm_hidden_size": 144, "vt_intermediate_size": 538, "vt_num_hidden_layers": 2,
}  # fmt: skip

#: The same bytes under another name.
VIEWS = ({"F8_E8M0", "U8"}, {"I8", "U8"})

WORLDS = [(1, 1, 1), (2, 1, 1), (1, 2, 1), (1, 1, 2), (2, 1, 2), (2, 2, 1), (2, 2, 2), (4, 1, 2), (1, 1, 4), (2, 1, 4)]


def write(root: Path, config: Mapping[str, Any], values: Mapping[str, tuple[str, Array]], cut: list[str]) -> Checkpoint:
    """A checkpoint with these tensors; `cut` are the names that begin another shard."""
    root.mkdir(parents=True)
    (root / "config.json").write_text(json.dumps(config))
    shards: list[list[str]] = [[]]
    for name in values:
        if name in cut and shards[-1]:
            shards.append([])
        shards[-1].append(name)
    weight_map = {}
    for number, names in enumerate(shards, 1):
        file = f"model-{number:05d}-of-{len(shards):05d}.safetensors"
        weight_map |= dict.fromkeys(names, file)
        described = {name: (values[name][0], values[name][1].shape) for name in names}
        write_file(root / file, described, (values[name][1].tobytes() for name in names))
    (root / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    return open_checkpoint(root)


def random_values(record: Mapping[str, Any], seed: int) -> dict[str, tuple[str, Array]]:
    """Every tensor that the config calls for, of random bits, in a random order; quantised as the engine's model is."""
    source = np.random.default_rng(seed)
    config = record["config"]
    rules = rule_tensors(bind(find_family(config), config))
    tensors = stored(config, record)
    for name, (rule, shape) in rules.items():  # what an engine holds as another dtype is stored as that: no rounding
        target = rule.targets.get("vllm")
        if name in tensors and tensors[name][0] in ("BF16", "F32"):
            computed = target is not None and target.function
            tensors[name] = "F32" if computed else target.dtype if target and target.dtype else "BF16", shape
    names = list(tensors)
    source.shuffle(names)
    values = {}
    for name in names:
        dtype, shape = tensors[name]
        kind = element(dtype)
        if dtype == "F32":  # of some an engine computes others: numbers that it can compute with
            values[name] = dtype, source.standard_normal(shape, np.float32).view(kind)
        else:
            values[name] = dtype, source.integers(0, 1 << (8 * kind.itemsize), shape, dtype=kind)
    return values


def reshard(checkpoint: Checkpoint, target: Path, layout: str, tp: int, pp: int, ep: int) -> None:
    plan = plan_writes(checkpoint, find_family(checkpoint.config), layout, tp, pp, ep, part_bytes=1_000_000)
    target.mkdir(parents=True)
    shards = write_shards(plan, checkpoint, target)
    assert [c.name for c in shards.checks if c.verdict is Verdict.FAIL] == []


def same(left: Mapping[str, tuple[str, Array]], right: Mapping[str, tuple[str, Array]]) -> None:
    assert left.keys() == right.keys()
    for name, (dtype, array) in left.items():
        assert right[name][0] == dtype or {right[name][0], dtype} in VIEWS, name
        np.testing.assert_array_equal(right[name][1], array, name)


def contents(folder: Path) -> dict[str, bytes]:
    """Every file but those that say where its content is from."""
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.name != "ranks.json"
    }


def test_there_are_families() -> None:
    assert len({name.split("-")[0] for name in RECORDS}) >= 20
    assert sum("quantization_config" in record["config"] for record in RECORDS.values()) >= 6


@pytest.mark.parametrize("name", RECORDS)
@settings(
    max_examples=2,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
    derandomize=True,
    phases=[Phase.generate],
)
@given(data=st.data())
def test_what_was_divided_can_be_put_together_again(name: str, data: st.DataObject) -> None:
    """Concatenated slices are the source to the bit, replicas are equal, and dividing again gives the same files."""
    config = RECORDS[name]["config"]
    tp, pp, ep = data.draw(st.sampled_from(WORLDS))
    layout = data.draw(st.sampled_from(["hf", "vllm"]))
    values = random_values(RECORDS[name], data.draw(st.integers(0, 2**32)))
    cut = data.draw(st.lists(st.sampled_from(sorted(values)), max_size=3))
    root = Path(tempfile.mkdtemp(prefix="day0-tests-"))
    try:
        checkpoint = write(root / "source", config, values, cut)
        try:
            reshard(checkpoint, root / "divided", layout, tp, pp, ep)
        except InputError as error:  # not every size divides, and it must say which
            refused = (
                "divisible",
                "more than the model's",
                "has no experts",
                "has ep",
                "multiple of",
                "not described",
                "divide the other",
                "would pad",
            )
            if not any(word in str(error) for word in refused):
                raise
            return
        found = merged(root / "divided")
        same({name: held for name, held in values.items() if name in found}, found)
        record = json.loads((root / "divided/ranks.json").read_text())
        dropped = {d["tensor"] for d in record["dropped"]}
        assert dropped | converted(root / "divided") == values.keys() - found.keys()
        # What the ranks' files were merged to, in one shard, divided again.
        again = write(root / "again", config, values | found, [])
        reshard(again, root / "divided again", layout, tp, pp, ep)
        if layout == "vllm":
            assert contents(root / "divided") == contents(root / "divided again")
        else:
            same(found, merged(root / "divided again"))
    finally:
        shutil.rmtree(root)


@pytest.mark.parametrize("name", RECORDS)
def test_one_rank_is_the_source(name: str, tmp_path: Path) -> None:
    values = random_values(RECORDS[name], 1)
    checkpoint = write(tmp_path / "source", RECORDS[name]["config"], values, sorted(values)[:2])
    reshard(checkpoint, tmp_path / "one", "hf", 1, 1, 1)
    one = open_checkpoint(tmp_path / "one/rank-00000")
    found = {}
    for file, header in one.files.items():
        data = one.path(file).read_bytes()
        for tensor in header.tensors.values():
            held = np.frombuffer(data[tensor.begin : tensor.end], element(tensor.dtype))
            found[tensor.name] = tensor.dtype, held.reshape(tensor.shape)
    same(values, found)


def test_bytes_written_are_those_of_the_parts() -> None:
    """The element sizes that this file reasons with are the format's."""
    assert all(DTYPE_BITS[dtype] == 8 * element(dtype).itemsize for dtype in ("BF16", "F32", "U8", "F8_E4M3", "I64"))
    assert math.prod(()) == 1


def test_the_last_blocks_of_gpt_oss_are_not_lost(tmp_path: Path) -> None:
    """9 blocks over 4 ranks are 3, 3, 3 and none: a rank that took a quarter would lose rows without any error."""
    record = RECORDS["gpt_oss-mxfp4_cpu"]
    values = random_values(record, 5)
    checkpoint = write(tmp_path / "source", record["config"], values, [])
    reshard(checkpoint, tmp_path / "divided", "hf", 4, 1, 1)
    same(values, merged(tmp_path / "divided"))
    blocks = record["config"]["intermediate_size"] // 32
    held = []
    for rank in range(4):
        tensors = open_checkpoint(tmp_path / f"divided/rank-{rank:05d}").tensors
        name = "model.layers.0.mlp.experts.down_proj_scales"
        held.append(tensors[name].shape[2] if name in tensors else 0)
    assert sum(held) == blocks
    assert held[0] == -(-blocks // 4)
