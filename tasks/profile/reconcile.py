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
from day0.architecture.structure import Structure
from day0.artifacts.profile import Difference
from day0.errors import InputError
from day0.safetensors_header import TensorInfo
from day0.verdict import Check, Verdict
from tasks.profile.differences import accounts, told_by_tensors, unlike

NAMED = 3  # offenders that a reason names; the rest are counted


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
    found.differences = [*accounts(stored), *(told_by_tensors(alone, structure) if alone else ())]
    complete = all(check.verdict is Verdict.PASS for check in found.checks[:3])
    found.checks.append(_elements(structure, stored, tensors, complete))
    predicted = stored_from_config(structure, quantization)
    rows = list(unlike(predicted, stored, quantization))
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


def _elements(structure: Structure, stored: Stored, tensors: Mapping[str, TensorInfo], complete: bool) -> Check:
    """Whether the parameters by the config, and all that is stored besides, are the elements of the headers."""
    held = sum(tensor.numel for tensor in tensors.values())
    besides = sum(row.elements or 0 for row in accounts(stored))
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
