"""Records the operators that a model calls, before torch takes composite ones apart and after.

Under inference mode torch hands a dispatch mode its composite operators whole; the mode takes them apart itself, so
that one run tells both. Attention is never taken apart: what scaled_dot_product_attention becomes depends on the device
(a fused kernel on the CPU, batched products on the meta device), so it is recorded whole, and what it becomes is looked
up apart.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map_only

from tasks.operators.calls import Kept, keep, merge
from tasks.operators.costs import Cost, Operand, cost, is_product
from tasks.operators.data_dependent import HOST_READS, SELECTIONS, read, selected
from tasks.operators.records import ATTENTION, TensorSpec

FREE = Cost(0, 0)

#: Composite reads of one value, and what they become.
READS_ONE = ("aten::item", "aten::is_nonzero")
READ = torch.ops.aten._local_scalar_dense.default

#: The tensors of a call: its operands, its results.
Signature = tuple[tuple[TensorSpec, ...], tuple[TensorSpec, ...]]


@dataclass(frozen=True)
class Tally:
    """Calls, and what they cost together."""

    calls: int = 0
    cost: Cost = FREE

    def plus(self, other: Tally) -> Tally:
        flops, moved = (None if a is None or b is None else a + b for a, b in zip(self.cost, other.cost, strict=True))
        return Tally(self.calls + other.calls, Cost(flops, moved))


@dataclass
class Log:
    """What was called, in the order of first use."""

    after: dict[tuple[str, Signature], Tally] = field(default_factory=dict)
    """After dispatch, by overload and signature: what a backend is asked for."""
    before: dict[str, Tally] = field(default_factory=dict)
    """Before dispatch, by overload; a composite one costs what its parts cost."""
    parts: dict[str, dict[str, None]] = field(default_factory=dict)
    """What each composite overload was taken apart into, in order."""
    forms: dict[str, tuple[Any, Any]] = field(default_factory=dict)
    """One call of each form of attention."""
    scopes: dict[str, float] = field(default_factory=dict)
    """FLOPs of matrix products and attention within a named scope."""
    assumed: dict[str, None] = field(default_factory=dict)
    """Operators whose value was taken to be 0."""
    selected: dict[str, None] = field(default_factory=dict)
    """Operators whose mask was taken to choose all."""
    kept: Kept = field(default_factory=dict)
    """Calls after dispatch with all their arguments, some of each overload."""

    def merge(self, other: Log) -> None:
        for key, tally in other.after.items():
            self.after[key] = self.after.get(key, Tally()).plus(tally)
        for name, tally in other.before.items():
            self.before[name] = self.before.get(name, Tally()).plus(tally)
        for name, parts in other.parts.items():
            self.parts.setdefault(name, {}).update(parts)
        for scope, flops in other.scopes.items():
            self.scopes[scope] = self.scopes.get(scope, 0) + flops
        self.forms |= other.forms
        self.assumed |= other.assumed
        self.selected |= other.selected
        merge(self.kept, other.kept)

    @property
    def names(self) -> tuple[str, ...]:
        """Overloads after dispatch, by first use."""
        return tuple(dict.fromkeys(name for name, _ in self.after))


class Recorder(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Tallies the operators that are called while it is active. Enter it within `torch.inference_mode()`."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.log = Log()
        self._composites: list[str] = []
        self._scopes: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        args, kwargs = _without_values(args, kwargs or {})
        name = func.name()
        if func.namespace == "prim":  # asks a fake tensor for its device: no operator
            return func(*args, **kwargs)
        if self._composites:
            self.log.parts.setdefault(self._composites[-1], {})[name] = None
        if name == ATTENTION:
            return self._attention(func, args, kwargs)
        if name in HOST_READS and (value := read(func, args)) is not None:
            self.log.assumed[name] = None
            keep(self.log.kept, READ if name in READS_ONE else func, args, kwargs)
            return self._read_on_host(name, (args, kwargs), value)
        if name in SELECTIONS and (result := selected(name, args)) is not None:
            self.log.selected[name] = None
            keep(self.log.kept, func, args, kwargs)
            self._add(name, (args, kwargs), result, cost(name, operands((args, kwargs)), operands(result)))
            return result
        before, self.log.after = self.log.after, {}
        try:
            with self._taken_apart(name), self:
                result = func.decompose(*args, **kwargs)
        finally:
            inner, self.log.after = self.log.after, before
        if result is not NotImplemented:
            for key, tally in inner.items():
                self.log.after[key] = self.log.after.get(key, Tally()).plus(tally)
            if not self._composites:
                whole = Tally()
                for tally in inner.values():
                    whole = whole.plus(tally)
                self._add_before(name, Tally(1, whole.cost))
            return result
        # Before it is called: it may change an operand in place, its shape too.
        keep(self.log.kept, func, args, kwargs)
        result = func(*args, **kwargs)
        call = cost(name, operands((args, kwargs)), operands(result), is_view=is_view(func._schema))
        self._add(name, (args, kwargs), result, call)
        return result

    def _read_on_host(self, name: str, arguments: Any, value: Any) -> Any:
        call = cost(name, operands(arguments), ())
        if name in READS_ONE:
            self.log.parts.setdefault(name, {})[HOST_READS[0]] = None
            if not self._composites:
                self._add_before(name, Tally(1, call))
            with self._taken_apart(name):
                self._add(HOST_READS[0], arguments, (), call)
        else:
            self._add(name, arguments, (), call)
        return value

    @contextmanager
    def _taken_apart(self, name: str) -> Iterator[None]:
        self._composites.append(name)
        try:
            yield
        finally:
            self._composites.pop()

    def _attention(self, func: Any, args: Any, kwargs: Any) -> Any:
        causal = bool(kwargs.get("is_causal", args[5] if len(args) > 5 else False))
        keep(self.log.kept, func, args, kwargs)
        result = func(*args, **kwargs)
        if result.dim() == 4:
            # In memory as fused kernels leave it, [B, S, H, d], or a copy would follow that only the meta device makes.
            result = result.transpose(1, 2).contiguous().transpose(1, 2)
        form = repr((causal, [t.shape[-1:] for t in tree_leaves((args, kwargs)) if isinstance(t, torch.Tensor)]))
        self.log.forms.setdefault(form, (args, kwargs))
        self._add(
            ATTENTION,
            (args, kwargs),
            result,
            cost(ATTENTION, operands((args, kwargs)), operands(result), causal=causal),
        )
        return result

    def _add(self, name: str, arguments: Any, result: Any, call: Cost) -> None:
        key = (name, (_specs(arguments), _specs(result)))
        tally = Tally(1, call)
        self.log.after[key] = self.log.after.get(key, Tally()).plus(tally)
        if not self._composites:
            self._add_before(name, tally)
        if self._scopes and is_product(name) and call.flops:
            scope = self._scopes[-1]
            self.log.scopes[scope] = self.log.scopes.get(scope, 0) + call.flops

    def _add_before(self, name: str, tally: Tally) -> None:
        self.log.before[name] = self.log.before.get(name, Tally()).plus(tally)

    @contextmanager
    def section(self) -> Iterator[Log]:
        """A log of the body alone, which is added to the whole when it ends."""
        whole, self.log = self.log, Log()
        try:
            yield self.log
        finally:
            part, self.log = self.log, whole
            self.log.merge(part)

    @contextmanager
    def scope(self, name: str) -> Iterator[None]:
        """Sum the FLOPs of products in the body under `name` too."""
        self._scopes.append(name)
        try:
            yield
        finally:
            self._scopes.pop()


class Names(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """The overloads that are called while it is active, and some of their calls."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.names: dict[str, None] = {}
        self.kept: Kept = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names[func.name()] = None
        keep(self.kept, func, args, kwargs)
        return func(*args, **(kwargs or {}))


def attention_parts(forms: dict[str, tuple[Any, Any]]) -> dict[str, tuple[str, ...]]:
    """What calls of attention become on the CPU, and taken apart (as for a device without a kernel of its own)."""
    on_cpu, decomposed = Names(), Names()
    for args, kwargs in forms.values():
        with torch.no_grad():
            small_args, small_kwargs = _small(args, kwargs, "cpu")
            with on_cpu:
                torch.nn.functional.scaled_dot_product_attention(*small_args, **small_kwargs)
            small_args, small_kwargs = _small(args, kwargs, "meta")
            with decomposed:
                torch.nn.functional.scaled_dot_product_attention(*small_args, **small_kwargs)
    found = {"CPU": on_cpu.names, "decomposed": decomposed.names}
    return {device: tuple(sorted(name for name in names)) for device, names in found.items()}


def attention_calls(forms: dict[str, tuple[Any, Any]]) -> Kept:
    """The calls that attention becomes where it is taken apart, at its own shapes."""
    apart = Names()

    def without_data(value: Any) -> Any:
        return torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device="meta")

    for form in forms.values():
        args, kwargs = tree_map_only(torch.Tensor, without_data, form)
        with torch.no_grad(), apart:
            torch.nn.functional.scaled_dot_product_attention(*args, **kwargs)
    return apart.kept


def _small(args: Any, kwargs: Any, device: str) -> tuple[list[Any], dict[str, Any]]:
    """The same call at a few positions: which kernel torch takes hangs on all but the lengths."""

    def small(value: Any, is_mask: bool) -> Any:
        if not isinstance(value, torch.Tensor):
            return value
        *front, rows, columns = value.shape
        shape = (*front, min(rows, 4), min(columns, 4) if is_mask else columns)
        return torch.zeros(shape, dtype=value.dtype, device=device)

    return [small(a, i == 3) for i, a in enumerate(args)], {k: small(v, k == "attn_mask") for k, v in kwargs.items()}


def _without_values(args: Any, kwargs: Any) -> tuple[Any, Any]:
    """Tensors that have values (the grid of an image's patches) lose them where they meet one that has none."""
    devices = {t.is_meta for t in tree_leaves((args, kwargs)) if isinstance(t, torch.Tensor)}
    if len(devices) < 2:
        return args, kwargs
    return tree_map_only(torch.Tensor, lambda t: t.to("meta"), (args, kwargs))  # type: ignore[no-any-return]


def is_view(schema: Any) -> bool:
    """Whether an operator's results lie in its operands' memory."""
    return any(r.alias_info is not None and not r.alias_info.is_write for r in schema.returns)


def _tensors(value: Any) -> list[torch.Tensor]:
    return [t for t in tree_leaves(value) if isinstance(t, torch.Tensor)]


def operands(value: Any) -> list[Operand]:
    """The tensors in nested arguments or results, as cost formulas see them."""
    return [
        Operand(
            tuple(t.shape),
            t.element_size(),
            t.is_floating_point(),
            # An expanded dimension has stride 0.
            torch.Size([n for n, stride in zip(t.shape, t.stride(), strict=True) if stride]).numel(),
        )
        for t in _tensors(value)
    ]


def _specs(value: Any) -> tuple[TensorSpec, ...]:
    return tuple(
        TensorSpec(str(t.dtype).removeprefix("torch."), tuple(t.shape), tuple(t.stride())) for t in _tensors(value)
    )
