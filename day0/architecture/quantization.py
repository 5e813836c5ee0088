"""How a config says that weights are stored: the methods in use, read from what model makers publish.

The methods, forms and exceptions are data: configs/quantization.yaml. What is not understood is kept as `unread`, so
that whoever predicts bytes from it knows that the prediction may be wrong.
"""

from __future__ import annotations

import fnmatch
import functools
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from day0.architecture.bound import BoundRule
from day0.architecture.config import TEXT
from day0.architecture.module_names import MAX_PATTERNS, ModuleMap, ModuleNames
from day0.architecture.quantization_forms import Form, Method, Part, Variant, quantizations
from day0.architecture.rules import TOWERS
from day0.errors import InputError

_KEYS = ("quantization_config", "compression_config")
_LARGEST = 1 << 20
_WORD = 32  # bits of the integers that values are packed in


@dataclass(frozen=True)
class Sized:
    """A form with the config's own block sizes."""

    name: str
    form: Form
    sizes: Mapping[str, int]
    static: bool = False

    @property
    def format(self) -> str:
        """Such as `fp8_block`, `nvfp4`, `int4`."""
        return f"int{_WORD // self.sizes['word']}" if self.form.format == "int" else self.form.format

    def beside(self) -> Iterator[Part]:
        """The tensors beside the weight."""
        return (part for part in self.form.beside if self.static or not part.static)

    def block(self, part: Part) -> tuple[int, int]:
        """How many rows and columns of the weight one element of a tensor covers; 0: all."""
        rows, columns = (self.sizes[n] if isinstance(n, str) else n for n in part.blocks or (1, 1))
        return rows, columns


@dataclass(frozen=True)
class Target:
    """Modules that are quantised in one way. No names: all that are of the method's kinds."""

    sized: Sized
    names: ModuleNames | None = None


@dataclass(frozen=True)
class Quantization:
    """What a config says of its weights and its cache."""

    method: str
    where: str
    """The key of the config, or the file, that says it."""
    targets: tuple[Target, ...]
    by_module: ModuleMap[Sized]
    """Modules whose form is given one by one."""
    excluded: ModuleNames
    kinds: frozenset[str]
    kept: tuple[str, ...]
    """Patterns of the names of weights that stay as they are."""
    kv_dtype: str | None
    variants: tuple[tuple[Variant, Sized], ...] = ()
    unread: tuple[str, ...] = field(default=())
    """What is not understood, in words; the bytes predicted from this may be wrong."""

    def format_of(self, weight_name: str, rule: BoundRule) -> Sized | None:
        """How the weight is stored; None: as it is.

        Args:
            weight_name: the rule's name with its numbers.
        """
        if not _matrix(rule) or rule.rule.kind not in self.kinds or _any(rule.name, self.kept):
            return None
        module = weight_name.removesuffix(".weight")
        found = self.by_module.get(module) if self.by_module else None
        if found is None:
            if self.excluded.match(module):
                return None
            hits = (target for target in self.targets if target.names is None or target.names.match(module))
            found = next((target.sized for target in hits), None)
        if found is not None:
            for variant, sized in self.variants:
                if found.name == variant.form and (not variant.names or _any(rule.name, variant.names)):
                    return sized
        return found


def quantization_of(raw: Mapping[str, Any], hf_quant: Mapping[str, Any] | None, where: str) -> Quantization | None:
    """The quantisation that a config object states, or the hf_quant_config.json beside it; None where none does.

    A method that is not known is no error: nothing is predicted from it, and `unread` says so.

    Raises:
        InputError: it is malformed; names the key.
    """
    stated = _stated(raw, where)
    beside = _beside(hf_quant, where)
    if stated is None and beside is None:
        return None
    key, value = stated or beside or ("", {})
    read = _Reader(value, f"{where}: {key}")
    method = _method(read)
    made = _read(method, read, raw)
    kv = made.kv_dtype
    if kv is None and stated and beside:
        kv = _cache(_Reader(beside[1], f"{where}: {beside[0]}"))
    # A nested config of the language model says nothing of the towers around it.
    kinds = made.kinds - frozenset(TOWERS) if key.partition(".")[0] in TEXT else made.kinds
    return Quantization(
        method,
        key,
        made.targets,
        made.by_module,
        made.excluded,
        kinds,
        made.kept,
        kv,
        made.variants,
        tuple(made.unread),
    )


def plain_dtypes(raw: Mapping[str, Any]) -> Sequence[tuple[re.Pattern[str], str]]:
    """Names of what a model stores in another dtype than its config's → that dtype."""
    return [
        (re.compile("|".join(map(fnmatch.translate, rule.names))), rule.dtype)
        for rule in quantizations().plain
        if rule.when is None or rule.when.holds(raw)
    ]


def _stated(raw: Mapping[str, Any], where: str) -> tuple[str, Mapping[str, Any]] | None:
    """The config's own statement, with its key."""
    for place in ("", *TEXT):
        held = raw if not place else raw.get(place)
        for key in _KEYS if isinstance(held, Mapping) else ():
            value = held.get(key) if isinstance(held, Mapping) else None
            if value is None or value == {}:
                continue
            path = f"{place}.{key}" if place else key
            if not isinstance(value, Mapping):
                raise InputError(f"{where}: {path} is {str(value)[:40]!r}; it must be an object")
            return path, value
    return None


def _beside(hf_quant: Mapping[str, Any] | None, where: str) -> tuple[str, Mapping[str, Any]] | None:
    if hf_quant is None:
        return None
    value = hf_quant.get("quantization")
    if not isinstance(value, Mapping):
        raise InputError(f"{where}: hf_quant_config.json has no object `quantization`; fetch it again")
    return "hf_quant_config.json", value


@dataclass
class _Made:
    kinds: frozenset[str]
    kept: tuple[str, ...]
    excluded: ModuleNames
    kv_dtype: str | None
    targets: tuple[Target, ...] = ()
    by_module: ModuleMap[Sized] = field(default_factory=lambda: ModuleMap[Sized]({}))
    variants: tuple[tuple[Variant, Sized], ...] = ()
    unread: list[str] = field(default_factory=list)


class _Reader:
    """Typed access to a quantisation object."""

    def __init__(self, value: Mapping[str, Any], where: str) -> None:
        self.value = value
        self.where = where

    def text(self, key: str) -> str | None:
        value = self.value.get(key)
        if value is not None and not isinstance(value, str):
            raise InputError(f"{self.where}.{key} is {str(value)[:40]}; it must be a name")
        return value

    def count(self, key: str, default: int) -> int:
        value = self.value.get(key)
        if value is None:
            return default
        if type(value) is not int or not (1 <= value <= _LARGEST or value == -1):
            raise InputError(f"{self.where}.{key} is {str(value)[:40]}; it must be a whole number of at least 1")
        return 0 if value == -1 else value  # -1: one for the whole row

    def mapping(self, key: str) -> Mapping[str, Any]:
        value = self.value.get(key)
        if value is None:
            return {}
        if not isinstance(value, Mapping):
            raise InputError(f"{self.where}.{key} is {str(value)[:40]!r}; it must be an object")
        return value

    def names(self, key: str) -> list[str]:
        value = self.value.get(key)
        if value is None:
            return []
        if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
            raise InputError(f"{self.where}.{key} must be a list of names of modules")
        if len(value) > MAX_PATTERNS:
            raise InputError(f"{self.where}.{key} lists {len(value):,} modules; at most {MAX_PATTERNS:,} are read")
        return value

    def nested(self, key: str) -> _Reader:
        return _Reader(self.mapping(key), f"{self.where}.{key}")

    def block(self) -> dict[str, int] | None:
        """`weight_block_size` as sizes of a form."""
        value = self.value.get("weight_block_size")
        if value is None:
            return None
        if not isinstance(value, list) or len(value) != 2 or any(type(n) is not int or n < 1 for n in value):
            raise InputError(f"{self.where}.weight_block_size is {str(value)[:40]}; it must be two whole numbers")
        return {"rows": value[0], "columns": value[1]}


def _method(read: _Reader) -> str:
    """The method's name; modelopt often leaves it out and names its algorithm."""
    method = read.text("quant_method")
    if method is None and read.text("quant_algo") is not None:
        return "modelopt"
    return method or "unnamed"


def _read(method: str, read: _Reader, raw: Mapping[str, Any]) -> _Made:
    known = quantizations().methods.get(method)
    if known is None:
        listed = ", ".join(quantizations().methods)
        reason = f"the quantisation method {method[:40]!r} is not known (known: {listed})"
        return _Made(frozenset(), (), ModuleNames(()), _cache(read), unread=[reason])
    excluded = ModuleNames(name for key in known.excluded for name in read.names(key))
    kept = [name for kinds in {"linear", known.kinds} for name in quantizations().kept.get(kinds, ())]
    made = _Made(quantizations().kinds[known.kinds], tuple(kept), excluded, _cache(read))
    made.unread += [f"{read.where} leaves out {entry[:60]!r}, which is not read" for entry in excluded.unread]
    if known.form is not None:
        _single(known, read, raw, made)
    elif method == "modelopt":
        _modelopt(read, made)
    else:
        _compressed(read, made)
    if layers := read.mapping("quantized_layers"):
        _by_layer(layers, read, made)
    return made


def _single(known: Method, read: _Reader, raw: Mapping[str, Any], made: _Made) -> None:
    """A method that stores all weights in one form."""
    assert known.form
    block = read.block()
    name = known.unblocked if known.unblocked and block is None else known.form
    bits = read.count("bits", 4)
    if _WORD % (bits or _WORD + 1):
        raise InputError(f"{read.where}.bits is {bits}; it must divide {_WORD}")
    sizes = {"group": read.count("group_size", 32), "word": _WORD // bits, "rows": 128, "columns": 128, **(block or {})}
    static = read.text("activation_scheme") == "static"
    made.targets = (Target(_sized(name, sizes, static)),)
    made.variants = tuple(
        (variant, _sized(variant.instead, sizes, static))
        for variant in quantizations().variants
        if variant.form == name and variant.when.holds(raw)
    )


def _modelopt(read: _Reader, made: _Made) -> None:
    name = read.text("quant_algo") or "unnamed"
    if name == "MIXED_PRECISION" and read.value.get("quantized_layers"):
        return
    if sized := _algorithm(name, read, made):
        made.targets = (Target(sized),)


def _by_layer(layers: Mapping[str, Any], read: _Reader, made: _Made) -> None:
    """modelopt's list of modules, each with its algorithm."""
    found: dict[str, Sized] = {}
    for module, value in layers.items():
        if not isinstance(value, Mapping):
            raise InputError(f"{read.where}.quantized_layers: {module[:60]!r} must be an object")
        one = _Reader(value, f"{read.where}.quantized_layers: {module[:60]!r}")
        if sized := _algorithm(one.text("quant_algo") or "unnamed", one, made):
            found[module] = sized
    made.by_module = ModuleMap(found)


def _algorithm(name: str, read: _Reader, made: _Made) -> Sized | None:
    known = quantizations().algorithms.get(name)
    if known is None:
        reason = f"{read.where}: quant_algo {name[:40]!r} is not known"
        if reason not in made.unread:
            made.unread.append(reason)
        return None
    sizes = {"group": read.count("group_size", 16), "rows": 128, "columns": 128}
    return _sized(known.form, sizes, known.static)


def _compressed(read: _Reader, made: _Made) -> None:
    """compressed-tensors: groups of modules, each with its scheme. A target is a class, a name, or an expression."""
    targets = []
    for key in read.mapping("config_groups"):
        group = read.nested("config_groups").nested(key)
        weights = group.nested("weights")
        if not weights.value:
            continue
        sized = _scheme(weights, group.text("format") or read.text("format"), _static(group), made)
        if sized is None:
            continue
        named = group.names("targets")
        names = None if "Linear" in named or not named else ModuleNames(named)
        for entry in names.unread if names else ():
            made.unread.append(f"{group.where} is for {entry[:60]!r}, which is not read")
        targets.append(Target(sized, names))
    made.targets = tuple(sorted(targets, key=lambda target: target.names is None))  # what is named goes first


def _scheme(weights: _Reader, form: str | None, static: bool, made: _Made) -> Sized | None:
    kind, bits, strategy = weights.text("type") or "int", weights.count("num_bits", 8), weights.text("strategy")
    group = weights.count("group_size", 32)
    block = weights.value.get("block_structure")
    sizes = {"group": group, "rows": 128, "columns": 128}
    if isinstance(block, list) and len(block) == 2 and all(type(n) is int and n > 0 for n in block):
        sizes |= {"rows": block[0], "columns": block[1]}
    if bits and _WORD % bits == 0:
        sizes["word"] = _WORD // bits
    strategy = strategy or ("group" if weights.value.get("group_size") else "tensor")
    if strategy == "channel":
        sizes["group"] = 0
    for scheme in quantizations().schemes:
        asked = (scheme.type == kind, scheme.bits in (None, bits), scheme.strategy in (None, strategy))
        if all(asked) and scheme.format in (None, form) and ("word" in sizes or scheme.form != "int_packed"):
            return _sized(scheme.form, sizes, static)
    made.unread.append(
        f"{weights.where}: {bits} bits of {kind[:20]} by {strategy[:20]} as {str(form)[:40]} are not known"
    )
    return None


def _static(group: _Reader) -> bool:
    """Whether activations have static scales, which the checkpoint then holds."""
    inputs = group.mapping("input_activations")
    return bool(inputs) and inputs.get("dynamic") is False


def _cache(read: _Reader) -> str | None:
    """The dtype of the KV cache, where it is stated."""
    stated = read.value.get("kv_cache_quant_algo") or read.value.get("kv_cache_scheme")
    if isinstance(stated, Mapping):
        return "fp8" if stated.get("num_bits") == 8 and stated.get("type") == "float" else None
    return quantizations().cache.get(stated) if isinstance(stated, str) else None


def _sized(name: str, sizes: Mapping[str, int], static: bool) -> Sized:
    return Sized(name, quantizations().forms[name], sizes, static)


def _matrix(rule: BoundRule) -> bool:
    """Whether a weight is a linear layer's matrix, or the experts' in one tensor."""
    dimensions = len(rule.shape)
    if rule.rule.experts is not None:
        return dimensions == 3
    return dimensions == 2 and rule.name.endswith(".weight")


@functools.lru_cache(maxsize=1 << 12)
def _any(name: str, patterns: tuple[str, ...]) -> bool:
    return any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)
