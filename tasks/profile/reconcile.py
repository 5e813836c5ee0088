"""Hold a checkpoint's tensor headers against what the config says must be there, tensor by tensor."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from day0.architecture.dtypes import SAFETENSORS
from day0.architecture.structure import Part, Structure
from day0.safetensors_header import TensorInfo
from day0.verdict import Check, Verdict

NAMED = 3  # offenders that a reason names; the rest are counted


def reconcile(structure: Structure, tensors: Mapping[str, TensorInfo]) -> tuple[list[Check], list[str]]:
    """Checks of names, shapes and dtypes, and warnings about what is there for a known reason.

    A tensor that the config does not explain, or that it calls for and that is missing or of another shape, is a
    failure: whichever of the two is wrong, numbers made from them would be.
    """
    expected = {part.name: part for part in structure.parts}
    missing = [name for name in expected if name not in tensors]
    extra = {name: tensor for name, tensor in tensors.items() if name not in expected}
    warnings = _explained(structure, extra)
    shared = [(part, tensors[name]) for name, part in expected.items() if name in tensors]
    wrong = [
        f"{part.name} is {list(tensor.shape)}, by the config {list(part.shape)}"
        for part, tensor in shared
        if tensor.shape != part.shape
    ]
    kinds = Counter(tensor.dtype for _, tensor in shared)
    odd = [f"{tensor.name} is {tensor.dtype}" for _, tensor in shared if tensor.dtype not in SAFETENSORS]
    warnings += _dtype_warnings(structure, kinds)
    counted = sum(tensor.numel for _, tensor in shared)
    measured = {"by_config": structure.total, "by_headers": counted}
    return [
        _check("tensors present", [f"{name} is missing" for name in missing], f"all {len(expected)} are there"),
        _check(
            "tensors explained", [f"{name} {list(t.shape)}" for name, t in extra.items()], "the config explains all"
        ),
        _check("shapes", wrong, "every shape follows from the config", **measured),
        _check("dtypes", odd, f"weights are {', '.join(sorted(kinds))}", **dict(kinds)),
    ], warnings


def stores_tied_head(structure: Structure, tensors: Mapping[str, TensorInfo]) -> bool:
    """Whether the checkpoint has an output head although the config says that it is the embedding."""
    rules = (structure.family.covers(name) for name in tensors)
    return structure.config.tied_embeddings and any(rule is not None and rule.kind == "head" for rule in rules)


def dominant_dtype(structure: Structure, tensors: Mapping[str, TensorInfo]) -> str | None:
    """The dtype that holds most parameters, in torch's name; None where none is a plain float."""
    sizes: Counter[str] = Counter()
    for part in structure.parts:
        tensor = tensors.get(part.name)
        if tensor and tensor.dtype in SAFETENSORS:
            sizes[SAFETENSORS[tensor.dtype]] += tensor.numel
    return sizes.most_common(1)[0][0] if sizes else None


def _explained(structure: Structure, extra: dict[str, TensorInfo]) -> list[str]:
    """Take out of `extra` what is there for a known reason, and say so."""
    warnings = []
    dropped: dict[str, list[str]] = {}
    for name, tensor in list(extra.items()):
        rule = structure.family.covers(name)
        if rule is None:
            continue
        if rule.drop:
            dropped.setdefault(rule.drop, []).append(name)
            del extra[name]
        elif rule.kind == "head" and structure.config.tied_embeddings and tensor.shape == _table(structure):
            warnings.append(
                f"{name} is stored although the config ties it to the embedding: its parameters are not counted "
                f"again, but it is served, so that memory is planned for it"
            )
            del extra[name]
    for reason, names in dropped.items():
        warnings.append(f"{len(names)} tensors such as {names[0]} are not counted: {reason}")
    return warnings


def _table(structure: Structure) -> tuple[int, int]:
    return structure.config.vocab_size, structure.config.hidden_size


def _dtype_warnings(structure: Structure, kinds: Counter[str]) -> list[str]:
    warnings = []
    if len(kinds) > 1:
        warnings.append("weights are of several dtypes: " + ", ".join(f"{n} {kind}" for kind, n in kinds.most_common()))
    stored = {SAFETENSORS.get(kind) for kind in kinds}
    said = structure.config.dtype
    if said and None not in stored and stored != {said}:
        warnings.append(f"the config says {said}, the weights are stored as {', '.join(sorted(kinds))}")
    return warnings


def _check(name: str, offenders: list[str], good: str, **measured: int) -> Check:
    if not offenders:
        return Check(name=name, verdict=Verdict.PASS, reason=good, measured=measured)
    more = f" and {len(offenders) - NAMED} more" if len(offenders) > NAMED else ""
    verb = "the config does not explain " if name == "tensors explained" else ""
    reason = f"{verb}{'; '.join(offenders[:NAMED])}{more}"
    return Check(name=name, verdict=Verdict.FAIL, reason=reason, measured={"count": len(offenders), **measured})


def kinds_of(parts: tuple[Part, ...]) -> dict[str, int]:
    """Parameters by kind, in the order of the model."""
    counts: Counter[str] = Counter()
    for part in parts:
        counts[part.kind] += part.numel
    return dict(counts)
