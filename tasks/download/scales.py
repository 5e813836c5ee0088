"""Quantised weights and their scales belong together: neither may stand alone.

A loader that does not find a scale may go on with ones, which gives a model that answers, wrongly. Names are matched
from their end, never by substring. The ways of naming are those of published checkpoints: block FP8
(`weight_scale_inv`), compressed-tensors (`weight_packed`, `weight_scale`), W8A8 (`weight_scale`, `deq_scale`),
bitsandbytes (`SCB`), MXFP4 (`_blocks`, `_scales`), and `scale` in E8M0.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from day0.artifacts.snapshot import Fault
from day0.safetensors_header import TensorInfo

_FP8 = ("F8_E4M3", "F8_E5M2", "F8_E4M3FNUZ", "F8_E5M2FNUZ")
_SCALE_ENDINGS = ("_scale_inv", "_scale", "_scale_2", ".scale", "_scales")


def unpaired(tensors: Mapping[str, TensorInfo]) -> Iterator[Fault]:
    """A fault for every quantised tensor without its scale, and for every scale without its tensor."""
    for tensor in tensors.values():
        wanted = _scales_of(tensor)
        if wanted and not any(name in tensors for name in wanted):
            detail = f"it is stored as {tensor.dtype}, but its scale {wanted[0]} is missing"
            yield Fault(kind="scale_pair", file=tensor.file, tensor=tensor.name, detail=detail)
        wanted = _weights_of(tensor)
        if wanted and not any(name in tensors for name in wanted):
            detail = f"it is a scale, but there is no {wanted[0]} that it could belong to"
            yield Fault(kind="scale_pair", file=tensor.file, tensor=tensor.name, detail=detail)


def _scales_of(tensor: TensorInfo) -> list[str]:
    """The names of which one must exist for a quantised tensor; empty for any other tensor."""
    name = tensor.name
    if name.endswith(_SCALE_ENDINGS):
        return []
    stem = name.rpartition(".")[0]
    if name.endswith(".weight_packed"):
        return [f"{stem}.weight_scale"]
    if name.endswith("_blocks") and tensor.dtype == "U8":
        return [f"{name.removesuffix('_blocks')}_scales"]
    if tensor.dtype in _FP8:
        plain = [f"{name}_scale_inv", f"{name}_scale"]
        return [*plain, f"{stem}.scale"] if name.endswith(".weight") else plain
    if tensor.dtype == "I8" and name.endswith(".weight"):
        return [f"{name}_scale", f"{stem}.deq_scale", f"{stem}.scale", f"{stem}.SCB"]
    return []


def _weights_of(tensor: TensorInfo) -> list[str]:
    """The names of which one must exist for a scale; empty for any other tensor."""
    name = tensor.name
    for ending in (".weight_scale_inv", ".weight_scale_2", ".weight_scale"):
        if name.endswith(ending):
            stem = name.removesuffix(ending)
            return [f"{stem}.weight", f"{stem}.weight_packed"]
    if name.endswith("_scale_inv"):  # fused experts: gate_up_proj and gate_up_proj_scale_inv
        return [name.removesuffix("_scale_inv")]
    if name.endswith("_scales") and tensor.dtype == "U8":
        return [f"{name.removesuffix('_scales')}_blocks"]
    if name.endswith(".scale") and tensor.dtype == "F8_E8M0":
        return [f"{name.removesuffix('.scale')}.weight"]
    return []
