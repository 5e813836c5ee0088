"""What the sources of a profile count differently, and why: rows that people read and that add up.

Parameters and headers: every stored element that is no parameter of its own. Config and headers: what the config leaves
open and the checkpoint tells, and what is stored otherwise than the config and its quantisation let expect.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from day0.architecture.bound import BoundRule
from day0.architecture.dtypes import SAFETENSORS
from day0.architecture.quantization import Quantization
from day0.architecture.stored import Stored
from day0.architecture.stored_groups import Role
from day0.architecture.structure import Structure
from day0.artifacts.profile import Difference

HEADERS = "parameters and headers"
CONFIG = "config and headers"

THERE = "in the checkpoint, and the config leaves open whether it is"
NOT_THERE = "not in the checkpoint, and the config lets expect it"

#: What stored elements are that are no parameters of the model itself, and why they are there.
ROLES: Mapping[Role, tuple[str, str]] = {
    "packed": ("packed values", "several values share one stored element"),
    "mtp": ("multi-token prediction", "counted apart from the model itself, as releases do"),
    "copies": ("matrices stored once more", "the model's own embedding or head: counted once"),
    "scales": ("scales", "multiply quantised weights; no parameters"),
    "offsets": ("offsets and zero points", "belong to quantised weights; no parameters"),
    "orders": ("orders of input features", "belong to quantised weights; no parameters"),
    "records": ("scales of whole tensors, shape records", "belong to quantised weights; no parameters"),
    "buffers": ("buffers", "computed from the config, not learned"),
    "tables": ("tables of ids", "which expert a token is sent to; no parameters"),
}


def accounts(stored: Stored) -> Iterator[Difference]:
    """Every stored element that is no parameter of the model, and every parameter that has no element of its own.

    The elements of these rows and the model's parameters add up to the elements of the headers.
    """
    for role, (what, reason) in ROLES.items():
        amount = stored.by_role.get(role)
        if amount is None:
            continue
        elements = amount.elements - (amount.parameters if role == "packed" else 0)
        yield Difference(sources=HEADERS, what=what, elements=elements, bytes=amount.bytes, reason=reason)


def told_by_tensors(alone: Structure, structure: Structure) -> Iterator[Difference]:
    """What the config leaves open and the checkpoint tells: optional parts, a few sizes. Amounts: with less without."""
    sides = [_shapes(alone), _shapes(structure)]
    sums: dict[tuple[str, str], int] = {}
    for name in dict.fromkeys([*sides[0], *sides[1]]):
        before, after = sides[0].get(name), sides[1].get(name)
        if before == after:
            continue
        kind = (after or before or ("", (), 0))[0]
        if before is None:
            reason = THERE
        elif after is None:
            reason = NOT_THERE
        elif before[1] != after[1]:
            reason = f"by the config alone {list(before[1])}, and {list(after[1])} in the checkpoint ({name})"
        else:
            reason = "the config does not say how many there are"
        key = kind, reason
        sums[key] = sums.get(key, 0) + (after[2] if after else 0) - (before[2] if before else 0)
    for (kind, reason), elements in _cancelled(sums).items():
        yield Difference(sources=CONFIG, what=kind, elements=elements, reason=reason)


def _cancelled(sums: Mapping[tuple[str, str], int]) -> dict[tuple[str, str], int]:
    """A kind that is there under other names than expected, element for element, is one row."""
    found = dict(sums)
    for kind in {kind for kind, _ in sums}:
        if found.get((kind, THERE), 0) and found[kind, THERE] == -found.get((kind, NOT_THERE), 0):
            del found[kind, THERE], found[kind, NOT_THERE]
            found[kind, "the same elements in other tensors (experts one by one instead of stacked, or fused)"] = 0
    return found


def _shapes(structure: Structure) -> dict[str, tuple[str, tuple[int, ...], int]]:
    """Of each rule its kind, its shape, and the elements of all its tensors."""
    found: dict[str, tuple[str, tuple[int, ...], int]] = {}
    for group in structure.groups:
        elements = found[group.rule.name][2] if group.rule.name in found else 0
        found[group.rule.name] = group.kind, group.rule.shape, elements + group.elements
    return found


def unlike(predicted: Stored, stored: Stored, quantization: Quantization | None) -> Iterator[Difference]:
    """Rules that are not stored as the config lets expect, together by the reason. Amounts: headers less config."""
    sums: dict[tuple[str, str], list[int]] = {}
    for rule, (ours, theirs) in _by_rule(predicted, stored).items():
        if ours == theirs:
            continue
        elements = _total(theirs, 0) - _total(ours, 0)
        nbytes = _total(theirs, 1) - _total(ours, 1)
        key = rule.rule.kind, _reason(predicted.format_of(rule), stored.format_of(rule), quantization)
        total = sums.setdefault(key, [0, 0])
        total[0] += elements
        total[1] += nbytes
    for (kind, reason), (elements, nbytes) in sums.items():
        yield Difference(sources=CONFIG, what=kind, elements=elements, bytes=nbytes, reason=reason)


_Amounts = dict[tuple[str, str, tuple[int, ...]], list[int]]


def _by_rule(predicted: Stored, stored: Stored) -> dict[BoundRule, tuple[_Amounts, _Amounts]]:
    found: dict[BoundRule, tuple[_Amounts, _Amounts]] = {}
    for side, held in enumerate((predicted, stored)):
        for group in held.groups:
            ending = group.companion.ending if group.companion else ""
            amounts = found.setdefault(group.rule, ({}, {}))[side]
            total = amounts.setdefault((ending, group.dtype, group.shape), [0, 0])
            total[0] += group.elements
            total[1] += group.bytes
    return found


def _total(amounts: _Amounts, which: int) -> int:
    return sum(amount[which] for amount in amounts.values())


def _reason(ours: str, theirs: str, quantization: Quantization | None) -> str:
    floats = tuple(SAFETENSORS.values())
    if theirs == "absent":
        return "not among the tensors"
    if ours == "absent":
        return "the checkpoint has it, and the config leaves open whether it is there"
    if ours in floats and theirs in floats:
        return (
            f"{theirs}, where the config lets expect {ours}" if ours != theirs else "some layers are stored otherwise"
        )
    if quantization is None:
        return f"quantised ({theirs}), and the config states no quantisation"
    if theirs in floats:
        return f"not quantised ({theirs}), where {quantization.method} of the config means {ours}"
    if ours in floats:
        return f"quantised ({theirs}), and {quantization.where} leaves it out"
    if ours == theirs:
        return f"{theirs} with other tensors beside it than {quantization.method} usually writes"
    return f"{theirs}, where {quantization.method} of the config means {ours}"
