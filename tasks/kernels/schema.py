"""The part of torch's operator schemas that kernels use, read without torch."""

from __future__ import annotations

import re
from dataclasses import dataclass

#: Types of torch's schema language that an argument of a kernel may have.
TYPES = ("Tensor", "int", "float", "bool", "str", "ScalarType", "SymInt")
_SCHEMA = re.compile(r"^([a-z][a-z0-9_]*)\((.*)\)\s*->\s*(.+)$")
_ARGUMENT = re.compile(
    r"^(?P<type>[A-Za-z]+)(?:\((?P<alias>[a-z]\d*)!\))?(?P<list>\[\d*\])?(?P<optional>\?)?"
    r"\s+(?P<name>[a-z_]\w*)(?:=(?P<default>.+))?$"
)


@dataclass(frozen=True)
class Argument:
    """One argument; `mutated` where the operator writes to it."""

    name: str
    type: str
    optional: bool
    mutated: bool

    @property
    def tensor(self) -> bool:
        return self.type == "Tensor"


@dataclass(frozen=True)
class Schema:
    """An operator's name, arguments and number of outputs; `text` as it was written."""

    text: str
    name: str
    arguments: tuple[Argument, ...]
    outputs: int

    @property
    def mutates(self) -> bool:
        return any(argument.mutated for argument in self.arguments)


def parse(text: str) -> Schema:
    """Read a schema such as `scale(Tensor x, float by) -> Tensor`.

    Raises:
        ValueError: it is malformed, or has a type that kernels do not use.
    """
    match = _SCHEMA.match(text.strip())
    if not match:
        raise ValueError(f"operator {text!r} is no schema such as scale(Tensor x, float by) -> Tensor")
    name, inside, returned = match.groups()
    arguments = tuple(_argument(part.strip()) for part in inside.split(",") if part.strip() not in ("", "*"))
    if not any(argument.tensor for argument in arguments):
        raise ValueError(f"operator {name} takes no tensor")
    if len({argument.name for argument in arguments}) < len(arguments):
        raise ValueError(f"operator {name} names an argument twice")
    outputs = _outputs(returned.strip())
    mutates = any(argument.mutated for argument in arguments)
    if bool(outputs) == mutates:
        raise ValueError(f"operator {name} must either return tensors or write to arguments marked Tensor(a!)")
    return Schema(text.strip(), name, arguments, outputs)


def out_schema(schema: Schema) -> str | None:
    """The overload `out` of a functional operator, which writes its outputs to the tensors `out0`, `out1`, …"""
    if schema.mutates:
        return None
    inside = schema.text[schema.text.index("(") + 1 : schema.text.rindex("->")].strip().removesuffix(")")
    joint = ", " if "*" in inside else ", *, "
    outs = ", ".join(f"Tensor(o{index}!) out{index}" for index in range(schema.outputs))
    return f"{schema.name}.out({inside}{joint}{outs}) -> ()"


def _argument(text: str) -> Argument:
    match = _ARGUMENT.match(text)
    if not match or match["type"] not in TYPES:
        raise ValueError(f"argument {text!r} is none of the types {', '.join(TYPES)} with a name")
    if match["type"] == "Tensor" and match["list"]:
        raise ValueError(f"argument {text!r}: a list of tensors has no layout to vary; stack them")
    if match["alias"] and match["type"] != "Tensor":
        raise ValueError(f"argument {text!r}: only a tensor can be written to")
    return Argument(match["name"], match["type"], bool(match["optional"]), bool(match["alias"]))


def _outputs(text: str) -> int:
    if text == "Tensor":
        return 1
    if not (text.startswith("(") and text.endswith(")")):
        raise ValueError(f"operator returns {text!r}, which is neither Tensor nor a tuple of them")
    parts = [part.strip() for part in text[1:-1].split(",") if part.strip()]
    if wrong := next((part for part in parts if part.split()[0] != "Tensor"), None):
        raise ValueError(f"operator returns {wrong!r}: only tensors, and none that is an argument")
    return len(parts)
