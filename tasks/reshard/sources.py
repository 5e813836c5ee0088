"""A checkpoint's tensors held against its family and its config, before anything is planned."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from day0.architecture.family import Family, TensorRule, evaluate, flag
from day0.checkpoint import Checkpoint
from day0.errors import InputError
from day0.safetensors_header import TensorInfo

#: What a dtype is called in a plan or on the command line → in a safetensors header.
DTYPES = {"bfloat16": "BF16", "float16": "F16", "float32": "F32"}


@dataclass(frozen=True, slots=True)
class Source:
    """A tensor of the checkpoint with the rule that covers it."""

    tensor: TensorInfo
    rule: TensorRule
    layer: int | None


def refuse_quantised(config: Mapping[str, Any]) -> None:
    quantization = config.get("quantization_config")
    if quantization:
        method = quantization.get("quant_method", "unknown") if isinstance(quantization, dict) else quantization
        raise InputError(
            f"the checkpoint is quantised ({str(method)[:40]}); only unquantised checkpoints "
            f"({', '.join(DTYPES)}) are resharded"
        )


def match_sources(checkpoint: Checkpoint, family: Family, sizes: Mapping[str, int]) -> list[Source]:
    """Every tensor with its rule, by name; headers held against the config."""
    sources = []
    for name in sorted(checkpoint.tensors):
        tensor = checkpoint.tensors[name]
        rule, layer = family.match(name)
        if layer is not None and layer >= sizes["layers"]:
            key = family.sizes["layers"].key
            raise InputError(f"tensor {name!r} is of layer {layer}, but config.json has {key} {sizes['layers']}")
        if rule.when and not flag(checkpoint.config, rule.when):
            raise InputError(f"tensor {name!r} is in {tensor.file}, but config.json does not set {rule.when}")
        shape = tuple(evaluate(size, sizes, name) for size in rule.shape)
        if tensor.shape != shape:
            stated = ", ".join(rule.shape)
            raise InputError(
                f"{tensor.file}: tensor {name!r} has shape {list(tensor.shape)}, but config.json says "
                f"{list(shape)} ({stated}); one of the two is wrong"
            )
        sources.append(Source(tensor, rule, layer))
    _refuse_missing(sources, family, checkpoint.config, sizes)
    return sources


def _refuse_missing(sources: list[Source], family: Family, config: Mapping[str, Any], sizes: Mapping[str, int]) -> None:
    present = {s.tensor.name for s in sources}
    for rule in family.tensors:
        may_lack = rule.optional or (rule.kind == "head" and family.is_tied(config))
        if may_lack or (rule.when and not flag(config, rule.when)):
            continue
        for layer in range(sizes["layers"]) if rule.per_layer else (None,):
            if rule.named(layer) not in present:
                raise InputError(f"the checkpoint lacks tensor {rule.named(layer)!r}, which config.json calls for")


def refuse_conversion(sources: list[Source], weight_dtype: str | None) -> None:
    """Bytes are copied as they are: every weight must have the one dtype that is asked for."""
    kept = [s.tensor for s in sources if not s.rule.drop]
    own = {dtype: name for name, dtype in DTYPES.items()}
    for tensor in kept:
        if tensor.dtype not in own:
            raise InputError(f"tensor {tensor.name!r} has dtype {tensor.dtype}; supported are {', '.join(own)}")
    if weight_dtype is not None and weight_dtype not in DTYPES:
        raise InputError(f"weight dtype {weight_dtype!r} is not supported; there is: {', '.join(DTYPES)}")
    wanted = DTYPES[weight_dtype] if weight_dtype else kept[0].dtype
    for tensor in kept:
        if tensor.dtype != wanted:
            raise InputError(
                f"tensor {tensor.name!r} is {own[tensor.dtype]}, but {own[wanted]} is "
                f"{'asked for' if weight_dtype else f'that of {kept[0].name!r}'}; weights are written in the "
                f"checkpoint's own dtype alone, conversion is not supported"
            )
