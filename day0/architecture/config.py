"""What a model's config.json says beside the sizes, read strictly: every value is checked, an error names its key.

The sizes are read by the family's rules (configs/families/). A default is used where the field's own library
(transformers) defines one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from day0.checkpoint import read_config
from day0.errors import InputError

#: Names that torch has for what a config may call its dtype.
DTYPES = ("bfloat16", "float16", "float32")

#: RoPE types under which `max_position_embeddings` already is the extended length; under the others the engine
#: multiplies it by the factor (vLLM 0.32.0, config/model.py `_get_and_verify_max_len`).
ALREADY_EXTENDED = ("default", "llama3", "yarn", "longrope", "su", "mrope", "proportional")
MULTIPLIED = ("linear", "dynamic")

#: Largest believable sizes. They only have to keep hostile numbers from reaching arithmetic and loops.
LIMITS = {
    "max_position_embeddings": 1 << 31,
}


@dataclass(frozen=True)
class Rope:
    """Rotary position embedding."""

    type: str
    theta: float
    factor: float
    original_context: int | None
    """Positions that the model was first trained on, where the config says."""


@dataclass(frozen=True)
class ModelConfig:
    """What a config says beside the sizes, which are the family's business. Of a model of several parts, the text's."""

    model_type: str
    """The outermost one."""
    architectures: tuple[str, ...]
    max_position_embeddings: int
    rope: Rope
    tied_embeddings: bool
    dtype: str | None
    quantization: str | None
    """The method's name where the checkpoint is quantised."""
    remote_code: bool
    """The model came with Python code of its own (`auto_map`)."""
    text: Mapping[str, Any] = field(repr=False, compare=False)
    """The config of the language model, what it lacks taken from around it."""
    notes: tuple[str, ...]
    """What was read and is not known here, as warnings."""
    raw: Mapping[str, Any] = field(repr=False, compare=False)

    @property
    def context_length(self) -> int:
        """Tokens of the longest sequence: `max_position_embeddings`, times the factor for `linear` and `dynamic`."""
        factor = self.rope.factor if self.rope.type in MULTIPLIED else 1.0
        return int(self.max_position_embeddings * factor)


#: Nested objects that hold the language model's own config.
TEXT = ("text_config", "language_config", "llm_config")


def text_of(raw: Mapping[str, Any]) -> Mapping[str, Any]:
    """The language model's config within a model of several parts, over what stands around it."""
    for key in TEXT:
        nested = raw.get(key)
        if isinstance(nested, Mapping):
            return {**raw, **nested}
    return raw


def load_model_config(path: Path) -> ModelConfig:
    """The config of a model folder, or of a config.json alone.

    Raises:
        InputError: there is none, or a value in it cannot be used; the key is named.
    """
    return parse_model_config(read_config(path), str(path))


def model_type_of(raw: Mapping[str, Any], where: str) -> str:
    """The config's `model_type`.

    Raises:
        InputError: there is none: nothing says what kind of model this is.
    """
    value = raw.get("model_type")
    if not isinstance(value, str) or not value:
        raise InputError(f"{where}: model_type is {_shown(value)}; without it the architecture is not known")
    return value


def parse_model_config(raw: Mapping[str, Any], where: str) -> ModelConfig:
    """The checked facts of a config object; `where` names the file in errors."""
    text = text_of(raw)
    read = _Reader(text, where)
    rope = _rope(read)
    return ModelConfig(
        model_type=model_type_of(raw, where),
        architectures=_Reader(raw, where).strings("architectures"),
        max_position_embeddings=read.count("max_position_embeddings"),
        rope=rope,
        tied_embeddings=read.flag("tie_word_embeddings", default=False),
        dtype=_dtype(read),
        quantization=_quantization(read),
        remote_code=read.mapping("auto_map") is not None,
        text=text,
        notes=_notes(rope),
        raw=raw,
    )


class _Reader:
    """Typed access to one JSON object."""

    def __init__(self, raw: Mapping[str, Any], where: str, prefix: str = "") -> None:
        self.raw = raw
        self.where = where
        self.prefix = prefix

    def error(self, key: str, wanted: str) -> InputError:
        return InputError(f"{self.where}: {self.prefix}{key} is {_shown(self.raw.get(key))}; it must be {wanted}")

    def count(self, key: str, *, default: int | None = None) -> int:
        """A whole number of at least 1; `default` where the key is absent or null."""
        value = self.raw.get(key)
        if value is None and default is not None:
            return default
        limit = LIMITS.get(key, 1 << 31)
        if type(value) is not int or not 1 <= value <= limit:
            raise self.error(key, f"a whole number from 1 to {limit:,}")
        return value

    def number(self, key: str, *, default: float) -> float:
        value = self.raw.get(key)
        if value is None:
            return default
        if type(value) not in (int, float) or not 0 < value < 1e12:  # NaN is in no range
            raise self.error(key, "a positive number")
        return float(value)

    def flag(self, key: str, *, default: bool) -> bool:
        value = self.raw.get(key)
        if value is None:
            return default
        if type(value) is not bool:
            raise self.error(key, "true or false")
        return value

    def strings(self, key: str) -> tuple[str, ...]:
        value = self.raw.get(key)
        if value is None:
            return ()
        if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
            raise self.error(key, "a list of names")
        return tuple(value)

    def mapping(self, key: str) -> Mapping[str, Any] | None:
        value = self.raw.get(key)
        if value is not None and not isinstance(value, dict):
            raise self.error(key, "an object")
        return value or None


def _rope(read: _Reader) -> Rope:
    """From `rope_parameters` (transformers 5) or `rope_theta` and `rope_scaling` (before).

    Where kinds of layers have parameters of their own, those of full attention: they bound the context.
    """
    key = "rope_parameters" if read.raw.get("rope_parameters") is not None else "rope_scaling"
    given = read.mapping(key) or {}
    if given and all(isinstance(value, dict) for value in given.values()):
        kind_of_layer = "full_attention" if "full_attention" in given else next(iter(given))
        key, given = f"{key}.{kind_of_layer}", given[kind_of_layer]
    scaling = _Reader(given, read.where, prefix=f"{key}.")
    kind = scaling.raw.get("rope_type", scaling.raw.get("type", "default"))
    if not isinstance(kind, str) or not kind or len(kind) > 40:
        raise InputError(f"{read.where}: {key} has the type {_shown(kind)}; it must be a name such as yarn")
    if kind in MULTIPLIED and scaling.raw.get("factor") is None:
        raise InputError(f"{read.where}: {key}.factor is missing; a {kind} scaling needs it")
    original = "original_max_position_embeddings"
    holder = scaling if scaling.raw.get(original) is not None else read
    factor = scaling.number("factor", default=1.0)
    if factor > 1e6:
        raise scaling.error("factor", "at most 1,000,000")
    return Rope(
        type=kind,
        theta=scaling.number("rope_theta", default=read.number("rope_theta", default=10_000.0)),
        factor=factor,
        original_context=holder.count(original) if holder.raw.get(original) is not None else None,
    )


def _notes(rope: Rope) -> tuple[str, ...]:
    if rope.type in ALREADY_EXTENDED + MULTIPLIED:
        return ()
    known = ", ".join(ALREADY_EXTENDED + MULTIPLIED)
    return (
        f"positions are scaled by {rope.type!r}, which is not known here ({known}): "
        f"max_position_embeddings is taken as the longest context",
    )


def _dtype(read: _Reader) -> str | None:
    key = "dtype" if read.raw.get("dtype") is not None else "torch_dtype"
    value = read.raw.get(key)
    if value is None or value == "auto":
        return None
    name = value.removeprefix("torch.") if isinstance(value, str) else None
    if name not in DTYPES:
        raise read.error(key, f"one of {', '.join(DTYPES)}")
    return name


def _quantization(read: _Reader) -> str | None:
    value = read.mapping("quantization_config") or read.mapping("compression_config")
    return None if value is None else str(value.get("quant_method", "unnamed"))[:40]


def _shown(value: Any) -> str:
    """A value as an error shows it, whatever it is."""
    if value is None:
        return "missing"
    text = repr(value) if isinstance(value, str) else str(value) if not _huge(value) else "a number of many digits"
    return text if len(text) <= 60 else text[:57] + "..."


def _huge(value: Any) -> bool:
    return isinstance(value, int) and abs(value) > 10**50
