"""Parameters by what they are for, how many of them a token uses, and where they are concentrated."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from day0.architecture.rules import TOWERS
from day0.architecture.structure import Structure, TensorGroup, counts
from day0.artifacts.profile import Concentration, Parameters
from day0.errors import InputError

#: A layer that holds so many times the mean of all unbalances stages of equally many layers.
MUCH_LARGER = 1.5

#: The order in which kinds are listed.
KINDS = (
    "embedding", "attention", "linear_attention", "indexer", "dense_mlp", "router", "routed_expert", "shared_expert",
    "norm", "residual", "head", "vision", "audio", "projector", "mtp",
)  # fmt: skip


def count_parameters(structure: Structure) -> Parameters:
    """Parameters by the shapes that follow from the config.

    Raises:
        InputError: the family has routed experts and does not say how many of them a token uses.
    """
    by_kind: Counter[str] = Counter()
    by_layer = [0] * structure.layers
    active = embedding = 0
    for group in structure.groups:
        if group.kind == "buffer":
            continue
        by_kind[group.kind] += group.elements
        if not counts(group):
            continue
        if group.layers is not None and group.kind not in TOWERS:
            for layer in group.layers:
                by_layer[layer] += group.layer_elements
        active += _active(group, structure)
        embedding += group.elements if group.kind == "embedding" else 0
    return Parameters(
        total=structure.total,
        active=active,
        active_without_embedding=active - embedding,
        by_kind={kind: by_kind[kind] for kind in KINDS if by_kind[kind]},
        by_layer=tuple(by_layer),
    )


def _active(group: TensorGroup, structure: Structure) -> int:
    """Elements that one token's pass touches: of routed experts the chosen share, of towers none."""
    if group.kind in TOWERS:
        return 0
    if group.kind != "routed_expert":
        return group.elements
    return sum(group.layer_elements * chosen // experts for chosen, experts in _shares(group, structure))


def _shares(group: TensorGroup, structure: Structure) -> Iterator[tuple[int, int]]:
    """(experts that a token uses, experts) of each layer of a group."""
    for layer in group.layers or ():
        routing = next((r for r in structure.routing if not r.mtp and layer in r.layers), None)
        if routing is None:
            raise InputError(
                f"family {structure.family.family.name!r} does not say how many experts a token uses in layer {layer}"
            )
        yield routing.per_token, routing.experts


def concentration(structure: Structure, counted: Parameters, share: float) -> tuple[Concentration, ...]:
    """What a plan must place by itself, in the order of the model, and kinds that hold at least `share` of all."""
    return (*_placed(structure, counted), *_large_kinds(counted, share))


def _placed(structure: Structure, counted: Parameters) -> Iterator[Concentration]:
    kinds = counted.by_kind
    tied = "; it is the output head too, so the last stage has a copy" if structure.family.tied else ""
    for kind in TOWERS:
        if kind in kinds:
            reason = "before the first decoder layer: on the first stage, divided or whole on every rank"
            yield _row(kind, None, kinds[kind], counted, reason)
    yield _row("embedding", None, kinds["embedding"], counted, f"on the first pipeline stage alone{tied}")
    yield from _layers(structure, counted)
    if "head" in kinds:
        yield _row("head", None, kinds["head"], counted, "on the last pipeline stage alone")
    if "mtp" in kinds:
        layers = sorted({layer for g in structure.groups if g.mtp for layer in g.layers or ()})
        reason = "after the last layer, on the last stage, and only where the engine uses multi-token prediction"
        yield _row("mtp", tuple(layers) or None, kinds["mtp"], counted, reason)


def _layers(structure: Structure, counted: Parameters) -> Iterator[Concentration]:
    """Layers unlike the others: dense ones before or between those with experts, and much larger ones."""
    routed = {layer for r in structure.routing if not r.mtp for layer in r.layers}
    having = {layer for g in structure.groups if not g.mtp and g.kind == "dense_mlp" for layer in g.layers or ()}
    if dense := tuple(sorted(having - routed)) if routed else ():
        held = sum(counted.by_layer[layer] for layer in dense)
        reason = (
            "dense, without experts to divide over expert parallel ranks: each holds "
            f"{_times(held / len(dense), sum(counted.by_layer) / len(counted.by_layer))} the mean layer"
        )
        yield _row("dense layers", dense, held, counted, reason)
    mean = sum(counted.by_layer) / max(1, len(counted.by_layer))
    large = tuple(layer for layer, count in enumerate(counted.by_layer) if count > MUCH_LARGER * mean)
    if large:
        held = sum(counted.by_layer[layer] for layer in large)
        most = max(counted.by_layer[layer] for layer in large)
        reason = f"up to {_times(most, mean)} the mean layer: stages of equally many layers are not equally full"
        yield _row("large layers", large, held, counted, reason)


def _large_kinds(counted: Parameters, share: float) -> Iterator[Concentration]:
    """Kinds that hold much, most first."""
    for kind, count in sorted(counted.by_kind.items(), key=lambda item: -item[1]):
        if kind in (*TOWERS, "embedding", "head", "mtp") or count < share * counted.total:
            continue
        experts = "over expert parallel ranks, or each of them " if kind == "routed_expert" else ""
        yield _row(
            kind,
            None,
            count,
            counted,
            f"{count / counted.total:.0%} of all, divided {experts}over tensor parallel ranks",
        )


def _row(what: str, layers: tuple[int, ...] | None, parameters: int, counted: Parameters, reason: str) -> Concentration:
    share = parameters / counted.total
    return Concentration(what=what, layers=layers, parameters=parameters, share=share, reason=reason)


def _times(amount: float, mean: float) -> str:
    return f"{amount / mean:.3g} times"
