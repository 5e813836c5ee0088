"""Where a layout puts what is no layer like the others: embedding, head, dense layers, MTP, towers."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from day0.architecture.parallel import Sizes
from day0.architecture.pipeline import pipeline_stages
from day0.architecture.rules import TOWERS
from day0.architecture.stored import StoredGroup
from day0.artifacts.plan import Placement
from tasks.plan.weights import Weights


def placements(weights: Weights, sizes: Sizes) -> tuple[Placement, ...]:
    """What lies where, in the order of a pass."""
    found: dict[tuple[str, int], list[StoredGroup]] = defaultdict(list)
    layers: dict[tuple[str, int], int] = defaultdict(int)
    nbytes: dict[tuple[str, int], int] = defaultdict(int)
    for group in weights.groups:
        for what, stage, count in _places(weights, group, sizes):
            key = (what, stage)
            found[key].append(group)
            layers[key] = max(layers[key], count)
            nbytes[key] += count * weights.rank_bytes(group, sizes)
    order = ("vision", "audio", "projector", "embedding", "dense layers", "head", "multi-token prediction")
    return tuple(
        Placement(
            what=f"{what} ({layers[what, stage]})" if what == "dense layers" else what,
            stage=stage,
            ranks=f"all {sizes.stage_ranks}",
            how=_how(weights, what, found[what, stage], sizes),
            bytes=nbytes[what, stage],
        )
        for what, stage in sorted(found, key=lambda key: (key[1], order.index(key[0])))
    )


def _places(weights: Weights, group: StoredGroup, sizes: Sizes) -> Iterator[tuple[str, int, int]]:
    """What a group is of, the pipeline stage, and how many of its layers are there."""
    kind, last = group.kind, sizes.pp - 1
    if kind == "mtp":
        yield "multi-token prediction", last, len(group.layers or (0,))
    elif kind == "embedding":
        yield "embedding", 0, 1
        if weights.shared_embedding and last:  # on one stage it is the same table
            yield "head", last, 1
    elif kind == "head":
        yield "head", last, 1
    elif kind in TOWERS:
        yield kind, 0 if group.rule.rule.stage == "first" else last, 1
    elif kind == "dense_mlp" and weights.experts and group.layers:
        for stage, (begin, end) in enumerate(pipeline_stages(weights.bound.layers, sizes.pp)):
            if count := sum(begin <= layer < end for layer in group.layers):
                yield "dense layers", stage, count


def _how(weights: Weights, what: str, groups: list[StoredGroup], sizes: Sizes) -> str:
    copies = f", {sizes.group_replicas} copies over the attention replicas" if sizes.group_replicas > 1 else ""
    if what in TOWERS and (weights.whole_towers(sizes.tp) or all(group.rule.dim is None for group in groups)):
        return (
            "whole on each rank, which takes its share of the images" if what != "projector" else "whole on each rank"
        )
    if sizes.tp == 1:
        return f"whole on each rank{copies}"
    divided = {
        "embedding": "its rows",
        "head": "its rows",
        "multi-token prediction": "as the layers are, its experts too",
    }
    return f"divided over tp {sizes.tp} ({divided.get(what, 'as every matrix is')}){copies}"
