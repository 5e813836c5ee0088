"""Hold a checkpoint's tensor headers against what the config says must be there, tensor by tensor.

Every stored element is told: a parameter, packed with others, a scale, a buffer, a table, a copy, multi-token
prediction. What the headers and the config's quantisation count differently is explained row by row.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field

from day0.architecture.bound import BoundFamily, BoundRule, Match
from day0.architecture.dtypes import SAFETENSORS
from day0.architecture.quantization import Quantization
from day0.architecture.stored import Stored, StoredGroup, stored_from_config, stored_from_matches
from day0.architecture.stored_groups import Role
from day0.architecture.structure import Structure
from day0.artifacts.profile import Difference
from day0.errors import InputError
from day0.safetensors_header import TensorInfo
from day0.verdict import Check, Verdict

NAMED = 3  # offenders that a reason names; the rest are counted

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


@dataclass
class Reconciled:
    """What came of it. `stored` is what the explained tensors hold."""

    stored: Stored
    checks: list[Check] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    differences: list[Difference] = field(default_factory=list)


def reconcile(
    structure: Structure,
    alone: Structure | None,
    tensors: Mapping[str, TensorInfo],
    quantization: Quantization | None,
) -> Reconciled:
    """Checks of names, shapes, dtypes and counts, what differs and why, and warnings.

    A tensor that the config does not explain, or that it calls for and that is missing or of another shape, is a
    failure: whichever of the two is wrong, numbers made from them would be.

    Args:
        structure: the model with what the tensors tell of it.
        alone: the model by its config alone; None where that does not describe it.
    """
    read = _Read(structure.family)
    stored = stored_from_matches(structure.family, read.matches(tensors))
    found = Reconciled(stored)
    missing, wanted = _missing(structure.family, read.seen)
    kinds: Counter[str] = Counter()
    for group in stored.groups:
        kinds[group.dtype] += group.tensors
    found.checks = [
        _check("tensors present", missing, f"all {wanted:,} are there"),
        _check("tensors explained", read.extra, "the config explains all"),
        _check(
            "shapes",
            read.wrong,
            "every shape follows from the config",
            by_config=structure.total,
            by_headers=stored.parameters,
        ),
        _check("dtypes", list(_odd(stored)), f"tensors are {', '.join(sorted(kinds))}", **dict(kinds)),
    ]
    found.differences = [*_accounts(stored), *(_told_by_tensors(alone, structure) if alone else ())]
    complete = all(check.verdict is Verdict.PASS for check in found.checks[:3])
    found.checks.append(_elements(structure, stored, tensors, complete))
    predicted = stored_from_config(structure, quantization)
    rows = list(_unlike(predicted, stored, quantization))
    found.differences += rows
    found.checks.append(_bytes(predicted, stored, rows))
    found.warnings = [*_dropped(read, stored), *_copied_head(structure, stored), *_dtype_warnings(structure, stored)]
    found.warnings += _quantisation_warnings(rows)
    return found


class _Read:
    """Matches tensors to rules; what matches none is kept aside by its fault."""

    def __init__(self, bound: BoundFamily) -> None:
        self.bound = bound
        self.seen: dict[BoundRule, set[tuple[int, ...]]] = defaultdict(set)
        self.extra: list[str] = []
        self.wrong: list[str] = []

    def matches(self, tensors: Mapping[str, TensorInfo]) -> Iterator[Match]:
        for tensor in tensors.values():
            try:
                match = self.bound.match(tensor)
            except InputError:
                self._aside(tensor)
                continue
            if match.companion is None or match.companion.role == "packed":
                self.seen[match.rule].add(match.numbers)
            yield match

    def _aside(self, tensor: TensorInfo) -> None:
        held = self.bound.rule_named(tensor.name)
        if held is None:
            self.extra.append(f"{tensor.name} {list(tensor.shape)}")
            return
        rule, numbers = held
        self.seen[rule].add(numbers)  # it is there, and wrong: said once
        self.wrong.append(f"{tensor.name} is {list(tensor.shape)}, by the config {list(rule.shape)}")


def _missing(bound: BoundFamily, seen: Mapping[BoundRule, Collection[tuple[int, ...]]]) -> tuple[list[str], int]:
    """Names of the tensors that are called for and not there, and how many are called for."""
    missing: list[str] = []
    wanted = 0
    for rule in bound.rules:
        present = seen.get(rule, ())
        if rule.rule.presence == "any" or rule.rule.drop or (rule.optional and not present):
            wanted += len(present)
            continue
        slots = [slot for slot in rule.slots if isinstance(slot, str)]
        place = {slot: rule.slots.index(slot) for slot in slots}
        held = [
            sorted(rule.numbers[slot] or range(1 + max((n[place[slot]] for n in present), default=0))) for slot in slots
        ]
        count = math.prod(map(len, held))
        wanted += count
        if len(present) < count:
            missing += _names(rule, slots, held, present)
    return missing, wanted


def _names(
    rule: BoundRule, slots: list[str], held: list[list[int]], present: Collection[tuple[int, ...]]
) -> Iterator[str]:
    for chosen in itertools.product(*held):
        numbers = dict(zip(slots, chosen, strict=True))
        if tuple(numbers[slot] if isinstance(slot, str) else slot for slot in rule.slots) not in present:
            yield f"{rule.named(numbers)} is missing"


def _odd(stored: Stored) -> Iterator[str]:
    """Weights whose dtype does not tell their values: no float, and not each with a scale beside it."""
    for group in stored.groups:
        if not group.is_weight or group.dtype in SAFETENSORS or group.kind in ("buffer", "router", "residual"):
            continue
        scales: dict[str, Counter[int | None]] = {}
        for other in stored.beside(group):
            if other.companion and other.companion.role == "scale":
                counts = scales.setdefault(other.companion.ending, Counter())
                counts.update(dict.fromkeys(other.layers or (None,), other.copies))
        for layer in group.layers or (None,):
            lacking = group.copies - max((counts[layer] for counts in scales.values()), default=0)
            if lacking > 0:
                which = f"{lacking} such weights of {group.copies} have no scale beside them"
                yield f"{_name(group, layer)} is {group.dtype}, and {which}"


def _accounts(stored: Stored) -> Iterator[Difference]:
    """Every stored element that is no parameter of the model, and every parameter that has no element of its own.

    The elements of these rows and the model's parameters add up to the elements of the headers.
    """
    for role, (what, reason) in ROLES.items():
        amount = stored.by_role.get(role)
        if amount is None:
            continue
        elements = amount.elements - (amount.parameters if role == "packed" else 0)
        yield Difference(sources=HEADERS, what=what, elements=elements, bytes=amount.bytes, reason=reason)


def _told_by_tensors(alone: Structure, structure: Structure) -> Iterator[Difference]:
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


def _elements(structure: Structure, stored: Stored, tensors: Mapping[str, TensorInfo], complete: bool) -> Check:
    """Whether the parameters by the config, and all that is stored besides, are the elements of the headers."""
    held = sum(tensor.numel for tensor in tensors.values())
    besides = sum(row.elements or 0 for row in _accounts(stored))
    measured = {"headers": held, "parameters": structure.total, "besides": besides}
    if not complete:
        reason = "tensors are missing, unexplained or misshapen, so that elements cannot agree"
        return Check(name="elements", verdict=Verdict.SKIPPED, reason=reason, measured=measured)
    if structure.total + besides != held:
        off = held - structure.total - besides
        reason = f"of {held:,} stored elements {off:,} are neither parameters by the config nor explained besides"
        return Check(name="elements", verdict=Verdict.FAIL, reason=reason, measured=measured)
    reason = f"{held:,} stored are {structure.total:,} parameters by the config and {besides:,} of other things"
    return Check(name="elements", verdict=Verdict.PASS, reason=reason, measured=measured)


def _unlike(predicted: Stored, stored: Stored, quantization: Quantization | None) -> Iterator[Difference]:
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


def _bytes(predicted: Stored, stored: Stored, rows: list[Difference]) -> Check:
    """The bytes that the config lets expect against those that are there. Every difference has its reason."""
    measured = {"by_config": predicted.bytes, "by_headers": stored.bytes}
    if not stored.groups:
        return Check(name="bytes", verdict=Verdict.FAIL, reason="there is no tensor to compare", measured=measured)
    if not rows:
        reason = f"{stored.bytes:,} bytes, as the config lets expect"
    else:
        listed = "; ".join(f"{row.what}: {row.reason} ({row.bytes:+,} bytes)" for row in rows[:NAMED])
        more = f" and {len(rows) - NAMED} more" if len(rows) > NAMED else ""
        reason = f"{stored.bytes:,} bytes where the config lets expect {predicted.bytes:,}: {listed}{more}"
    return Check(name="bytes", verdict=Verdict.PASS, reason=reason, measured=measured)


def _dropped(read: _Read, stored: Stored) -> Iterator[str]:
    """What no engine loads, by the reason that the family gives."""
    dropped: dict[str, list[StoredGroup]] = {}
    for group in stored.groups:
        if group.rule.rule.drop:
            dropped.setdefault(group.rule.rule.drop, []).append(group)
    for reason, groups in dropped.items():
        count = sum(group.tensors for group in groups)
        yield f"{count} tensors such as {_name(groups[0])} are not counted: {reason}"


def _copied_head(structure: Structure, stored: Stored) -> Iterator[str]:
    if not structure.stored_head:
        return
    for group in stored.groups:
        if group.rule.rule.kind == "head" and stored.copied(group):
            yield (
                f"{_name(group)} is stored although the config ties it to the embedding: its parameters are not "
                "counted again, but it is served, so that memory is planned for it"
            )


def _quantisation_warnings(rows: list[Difference]) -> Iterator[str]:
    """Weights that an engine, which goes by the config, would take for something else."""
    kinds: dict[str, list[str]] = {}
    for row in rows:
        if row.reason.startswith(("quantised", "not quantised")):
            kinds.setdefault(row.reason, []).append(row.what)
    for reason, listed in kinds.items():
        yield f"weights ({', '.join(listed)}) are {reason}: an engine that goes by the config may not load them"


def _dtype_warnings(structure: Structure, stored: Stored) -> Iterator[str]:
    """Where the config's dtype is not what the unquantised weights are mostly in."""
    formats = {name: count for name, count in stored.formats().items() if name in SAFETENSORS.values()}
    said = structure.config.dtype
    if said and formats and max(formats, key=lambda name: formats[name]) != said:
        listed = ", ".join(f"{name} {count:,}" for name, count in formats.items())
        yield f"the config says {said}, the unquantised weights are stored as {listed}"


def _name(group: StoredGroup, layer: int | None = None) -> str:
    """The first tensor of a group, or of a layer of it, by its weight's name."""
    numbers = {slot: min(group.rule.numbers[slot] or (0,)) for slot in group.rule.places}
    if group.layers is not None:
        numbers["layer"] = group.layers[0] if layer is None else layer
    return group.rule.named(numbers)


def _check(name: str, offenders: list[str], good: str, **measured: int) -> Check:
    if not offenders:
        return Check(name=name, verdict=Verdict.PASS, reason=good, measured=measured)
    more = f" and {len(offenders) - NAMED} more" if len(offenders) > NAMED else ""
    verb = "the config does not explain " if name == "tensors explained" else ""
    reason = f"{verb}{'; '.join(offenders[:NAMED])}{more}"
    return Check(name=name, verdict=Verdict.FAIL, reason=reason, measured={"count": len(offenders), **measured})
