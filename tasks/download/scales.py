"""Quantised weights and their scales belong together: neither may stand alone, and their shapes must fit.

A loader that does not find a scale may go on with ones, and one that finds a scale of another shape may broadcast it:
a model that answers, wrongly. Which names and dtypes belong together, and how their shapes do, is data:
configs/quantised.yaml.
"""

from __future__ import annotations

import functools
from collections.abc import Container, Iterator, Mapping
from typing import Any

from day0.architecture.quantised import Format, quantised
from day0.artifacts.snapshot import Fault
from day0.safetensors_header import TensorInfo

Shape = tuple[int, ...]
Block = tuple[int | None, int | None]
"""Rows and columns that share a scale; None: all of them."""

#: The block that a config's `weight_block_size` stands in place of.
_USUAL_BLOCK = (128, 128)
#: How many fused parts with blocks of their own a weight may have: q, k and v; gate and up; or one for each rank.
_PARTS = range(2, 17)
#: Values in a 32-bit word, by the bits of one: 8, 4, 3 (32 in three words) and 2.
_PACKED = (4, 8, 16)


def stated_block(config: Mapping[str, Any]) -> tuple[int, int] | None:
    """The `weight_block_size` of a config, if it states a usable one."""
    for part in (config, config.get("text_config")):
        quantization = part.get("quantization_config") if isinstance(part, Mapping) else None
        size = quantization.get("weight_block_size") if isinstance(quantization, Mapping) else None
        if isinstance(size, list) and len(size) == 2 and all(type(n) is int and n > 0 for n in size):
            return size[0], size[1]
    return None


def unpaired(
    tensors: Mapping[str, TensorInfo], block: tuple[int, int] | None = None, absent: Container[str] = ()
) -> Iterator[Fault]:
    """A fault for every quantised tensor without a scale that fits, and for every scale without its tensor.

    Args:
        block: rows and columns of a block, where the config states them.
        absent: tensors that the index names and no readable file holds: that is a fault already, so not one of pairs.
    """
    kinds: dict[tuple[str, str], tuple[tuple[Format, ...], str | None]] = {}
    fitting: dict[tuple[Shape, Shape, tuple[str, ...]], bool] = {}
    for tensor in tensors.values():
        key = (_tail(tensor.name), tensor.dtype)
        if key not in kinds:
            kinds[key] = _kind(*key)
        candidates, ending = kinds[key]
        if candidates and (problem := _problem(tensor, candidates, tensors, block, absent, fitting)):
            yield Fault(kind="scale_pair", file=tensor.file, tensor=tensor.name, detail=problem)
        if ending and (problem := _orphan(tensor, ending, tensors, absent)):
            yield Fault(kind="scale_pair", file=tensor.file, tensor=tensor.name, detail=problem)


def _tail(name: str) -> str:
    """The last two parts of a name with the dot before them: all that endings look at, and few in any model."""
    return "." + ".".join(name.rsplit(".", 2)[-2:])


def _kind(tail: str, dtype: str) -> tuple[tuple[Format, ...], str | None]:
    """The formats that a tensor may be a quantised weight of, and the ending by which it is a companion of one."""
    ending = max((e for e in _beside() if tail.endswith(e)), key=len, default=None)
    if ending:
        alone = _beside()[ending]
        return (), ending if alone is None or dtype in alone else None
    return tuple(f for f in quantised().formats if tail.endswith(f.weight) and dtype in f.dtypes), None


@functools.cache
def _beside() -> dict[str, frozenset[str] | None]:
    """Endings of the tensors that stand beside a weight → the dtypes that tell it without one; None: every dtype."""
    alone = {companion.ending: companion.alone for companion in quantised().companions}
    return {ending: alone[ending] for format_ in quantised().formats for ending in format_.beside}


def _problem(
    weight: TensorInfo,
    candidates: tuple[Format, ...],
    tensors: Mapping[str, TensorInfo],
    block: tuple[int, int] | None,
    absent: Container[str],
    fitting: dict[tuple[Shape, Shape, tuple[str, ...]], bool],
) -> str | None:
    """Why a quantised tensor cannot be read, or None."""
    problems = []
    for format_ in candidates:
        stem = weight.name.removesuffix(format_.weight)
        scale = tensors.get(stem + format_.scale)
        if scale is None:
            if stem + format_.scale in absent:
                return None
            continue
        lacks = [stem + e for e in format_.also if stem + e not in tensors and stem + e not in absent]
        key = (weight.shape, scale.shape, format_.law)
        if key not in fitting:
            fitting[key] = any(fits(weight.shape, scale.shape, law, block) for law in format_.law)
        if scale.dtype not in format_.scales:
            problems.append((0, f"its scale {scale.name} is stored as {scale.dtype}"))
        elif not fitting[key]:
            shapes = f"{list(scale.shape)} does not fit its own {list(weight.shape)}"
            problems.append((1, f"the shape of its scale {scale.name} {shapes}"))
        elif lacks:
            problems.append((2, f"it is stored as {weight.dtype}, but its {lacks[0]} is missing"))
        else:
            return None
    if problems:
        return max(problems, key=lambda problem: problem[0])[1]  # of the format that comes nearest
    for format_ in candidates:
        stem = weight.name.removesuffix(format_.weight)
        if format_.sure or any(stem + ending in tensors for ending in format_.also):
            return f"it is stored as {weight.dtype}, but its scale {stem}{format_.scale} is missing"
    return None


def _orphan(tensor: TensorInfo, ending: str, tensors: Mapping[str, TensorInfo], absent: Container[str]) -> str | None:
    """Why a tensor that belongs to a quantised weight stands alone, or None."""
    stem = tensor.name.removesuffix(ending)
    owners = [(stem + weight, dtypes) for weight, dtypes in _owners(ending)]
    for name, dtypes in owners:
        if tensors[name].dtype in dtypes if name in tensors else name in absent:
            return None
    if there := [tensors[name] for name, _ in owners if name in tensors]:
        return f"it is a scale of {there[0].name}, which is stored as {there[0].dtype} and has none"
    return f"it is a scale, but there is no {owners[0][0]} that it could belong to"


@functools.cache
def _owners(ending: str) -> tuple[tuple[str, frozenset[str]], ...]:
    """Endings and dtypes of the weights that a companion with this ending may belong to."""
    found: dict[str, frozenset[str]] = {}
    for format_ in quantised().formats:
        if ending in format_.beside:
            found[format_.weight] = found.get(format_.weight, frozenset()) | format_.dtypes
    return tuple(found.items())


def fits(weight: Shape, scale: Shape, law: str, block: tuple[int, int] | None = None) -> bool:
    """Whether a scale's shape follows from the weight's by one of the laws of configs/quantised.yaml."""
    match law:
        case "any":
            return True
        case "rows":
            return scale == weight[:-1]
        case "grouped":
            return _grouped(weight, scale)
    rows, _, columns = law.partition("x")
    size: Block = (None if rows == "*" else int(rows), None if columns == "*" else int(columns))
    if size == _USUAL_BLOCK and block:
        size = block
    *leading, n, k = weight if len(weight) > 1 else (*weight, 1)
    stacked = tuple(leading)
    for down in _blocks_of_rows(n, size[0]):
        across = 1 if size[1] is None else -(-k // size[1])
        shapes = {(*stacked, down, across)}
        if across == 1:
            shapes.add((*stacked, down))
        if across == down == 1:
            shapes |= {stacked, (*stacked, 1), (), (1,)}
        if scale in shapes:
            return True
    return False


def _blocks_of_rows(rows: int, size: int | None) -> Iterator[int]:
    """How many blocks a weight's rows make: as one, or as equal parts that were fused when they had their scales."""
    if size is None:
        yield 1
        return
    yield -(-rows // size)
    if size > 1:
        yield from (parts * -(-(rows // parts) // size) for parts in _PARTS if rows % parts == 0)


def _grouped(weight: Shape, scale: Shape) -> bool:
    """GPTQ [inputs / packed, outputs], AWQ [inputs, outputs / packed]; scales [groups, outputs]."""
    if len(weight) != 2 or len(scale) != 2 or not scale[0]:
        return False
    groups, outputs = scale
    if weight[1] == outputs:  # three words hold 32 values of 3 bits
        return any(weight[0] * packed % groups == 0 for packed in _PACKED) or weight[0] * 32 % (3 * groups) == 0
    return weight[0] % groups == 0 and any(weight[1] * packed == outputs for packed in _PACKED)
