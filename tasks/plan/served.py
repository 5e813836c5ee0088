"""What the weights and the cache are served as: as they are stored, or converted to what the target can hold."""

from __future__ import annotations

from dataclasses import dataclass

from day0.architecture.dtypes import KV_DTYPES, SAFETENSORS, WEIGHT_DTYPES, dtype_name
from day0.architecture.stored import Stored, converted, own_dtype
from day0.architecture.weight_dtypes import weight_dtype_of
from day0.errors import InputError
from day0.target import Target
from tasks.plan.model import Model
from tasks.plan.settings import PlanSettings

GB = 1e9

#: A quantised form that a target cannot hold is computed out to the first of these that it computes with.
_PLAIN = ("bfloat16", "float16", "float32")
_NONSTANDARD = "float8_e4m3fnuz"


@dataclass(frozen=True)
class Served:
    """Weights as they are loaded."""

    stored: Stored
    weight_dtype: str
    """What most of the parameters are."""
    compute_dtype: str
    """What is no matrix of a quantised form, and what flows between operators."""
    kv_dtype: str
    convert_to: str | None
    reason: str
    fault: str | None = None
    """Why the target cannot use it, with the option that changes it."""
    unchecked: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


def served(model: Model, settings: PlanSettings) -> Served:
    """The weights as the target gets them, and the dtype of the cache.

    Raises:
        InputError: a dtype is not known, or nothing says that of the weights.
    """
    if not model.dtype_known and settings.weight_dtype is None and not model.quantization:
        raise InputError("neither the config nor the weights say the dtype; give --weight-dtype")
    wanted, reason = _wanted(model.stored, settings)
    stored = converted(model.stored, model.structure, wanted) if wanted else model.stored
    convert_to = wanted if set(stored.groups) != set(model.stored.groups) else None
    if convert_to:
        reason += f": {model.stored.bytes / GB:.1f} GB of weights become {stored.bytes / GB:.1f}"
    formats = list(stored.formats())
    compute = SAFETENSORS.get(own_dtype(stored) or "", model.structure.config.dtype or "bfloat16")
    weight_dtype = formats[0] if formats else compute
    kv_dtype = _kv_dtype(model, settings, compute)
    fault = (
        _unreadable(model.stored, convert_to)
        or _unsupported(settings, formats, compute)
        or _unsupported_cache(settings, kv_dtype)
    )
    unknown = tuple(
        f"formats.{name}" for name in formats if name not in WEIGHT_DTYPES and _holds(settings.spec, name) is None
    )
    return Served(
        stored,
        weight_dtype,
        compute,
        kv_dtype,
        convert_to,
        reason if convert_to else "served as stored",
        fault,
        unknown,
        tuple(_notes(stored, settings.spec)),
    )


def _wanted(stored: Stored, settings: PlanSettings) -> tuple[str | None, str]:
    """What the weights must be converted to, and why."""
    if settings.weight_dtype:
        name = weight_dtype_of(settings.weight_dtype)[0]
        return name, f"--weight-dtype {name}"
    spec = settings.spec
    lacking = [name for name in stored.formats() if name not in WEIGHT_DTYPES and _holds(spec, name) is False]
    if lacking:
        plain = next((name for name in _PLAIN if name in spec.dtypes.weights), spec.dtypes.weights[0])
        return plain, f"{settings.target} has no kernel for {', '.join(lacking)}, computed out to {plain}"
    fnuz = [group for group in stored.groups if group.dtype == "F8_E4M3FNUZ"]
    if fnuz and spec.fp8_format and spec.fp8_format.name != _NONSTANDARD:
        return "fp8_ocp", f"{settings.target} reads fp8 as OCP has it, and the checkpoint is e4m3fnuz"
    return None, ""


def _holds(spec: Target, name: str) -> bool | None:
    return spec.holds(name)


def _kv_dtype(model: Model, settings: PlanSettings, compute: str) -> str:
    """The asked one; or what the checkpoint's quantisation says, where the target holds it; or the weights'."""
    if settings.kv_dtype not in (None, "auto"):
        return dtype_name(str(settings.kv_dtype), KV_DTYPES, "KV cache dtype")
    stated = model.quantization.kv_dtype if model.quantization else None
    return stated if stated in settings.spec.dtypes.kv_cache else compute


def _unsupported(settings: PlanSettings, formats: list[str], compute: str) -> str | None:
    """Why the target cannot use the weights, with the option that changes it."""
    plain = settings.spec.dtypes.weights
    for name in (compute, *formats):
        if name in WEIGHT_DTYPES:
            if name not in plain and (name == compute or name == formats[0]):
                return f"{settings.target} does not support {name}; --weight-dtype may be {', '.join(plain)}"
        elif _holds(settings.spec, name) is False:
            return f"{settings.target} has no kernel for {name}; --weight-dtype may be {', '.join(plain)}"
    return None


def _unsupported_cache(settings: PlanSettings, kv_dtype: str) -> str | None:
    held = settings.spec.dtypes.kv_cache
    if kv_dtype in held or (kv_dtype not in ("bfloat16", "float16", "float32") and "fp8" in held):
        return None
    return f"{settings.target} does not support {kv_dtype}; --kv-dtype may be {', '.join(held)}"


def _unreadable(stored: Stored, convert_to: str | None) -> str | None:
    """A quantised form that nothing computes out, where it would have to be."""
    if convert_to is None or convert_to.startswith("fp8_"):
        return None
    for group in stored.groups:
        beside = group.companion
        if beside and (
            (beside.role == "offset" and stored.format_of(group.rule) == "int8") or beside.ending == ".deq_scale"
        ):
            return (
                f"{group.rule.name} is int8 with a tensor {beside.ending} beside it, which no conversion to "
                f"{convert_to} reads; use a target that holds int8, or another release"
            )
    return None


def _notes(stored: Stored, spec: Target) -> list[str]:
    if spec.fp8_format is None or spec.fp8_format.name == "float8_e4m3fn":
        return []
    if not any(group.dtype == "F8_E4M3" for group in stored.groups):
        return []
    return [
        f"the weights are fp8 as OCP has it (e4m3fn, up to 448) and the target computes with "
        f"{spec.fp8_format.name} (up to {spec.fp8_format.largest:.0f}): their scales are doubled "
        f"at loading, or by reshard --weight-dtype fp8_fnuz"
    ]
