"""The plan of a model on a target: dtypes, devices, the search, and what the engine is told."""

from __future__ import annotations

from typing import Any

from day0.architecture.dtypes import KV_DTYPES, WEIGHT_DTYPES, dtype_name
from day0.architecture.structure import Structure
from day0.artifacts.plan import Layout, ParallelPlan
from day0.artifacts.profile import Profile
from day0.errors import CheckFailed, InputError
from day0.verdict import Check, Verdict
from tasks.plan.constraints import Sizes
from tasks.plan.memory import MemoryModel, replica_sequences
from tasks.plan.search import GB, Found, search
from tasks.plan.settings import PlanSettings

ALTERNATIVES = 4


def plan_layout(structure: Structure, profile: Profile, settings: PlanSettings) -> ParallelPlan:
    """Choose a layout, or say what does not fit.

    Raises:
        CheckFailed: the profile's own checks failed.
        InputError: a dtype is not known, or nothing says that of the weights; the context is beyond the model's.
    """
    if not profile.verdict.good:
        raise CheckFailed(f"the profile failed, and a plan made from it would be wrong: {profile.reason}")
    weight_dtype, kv_dtype = _dtypes(profile, settings)
    if settings.context and settings.context > profile.context_length:
        raise InputError(
            f"a context of {settings.context:,} tokens is longer than the model's {profile.context_length:,}; "
            f"ask for at most that"
        )
    devices = settings.devices or max(settings.spec.devices_per_node.value, (settings.tp or 1) * (settings.pp or 1))
    model = MemoryModel(
        structure, settings.spec.engine_memory, weight_dtype, kv_dtype, bool(profile.architecture["stored_head"])
    )
    found = search(model, settings, devices, profile.context_length)
    chosen = found.layouts[0] if found.layouts else None
    unsupported = _unsupported(settings, weight_dtype, kv_dtype)
    feasible = chosen is not None and not unsupported
    return ParallelPlan(
        checks=(
            Check(
                name="dtypes",
                verdict=Verdict.FAIL if unsupported else Verdict.PASS,
                reason=unsupported or f"{settings.target} computes with {weight_dtype} and caches {kv_dtype}",
            ),
            _fit_check(found, settings, devices, profile.context_length),
        ),
        target=settings.target,
        feasible=feasible,
        minimum_devices=None if unsupported else found.minimum_devices,
        chosen=chosen if feasible else None,
        alternatives=found.layouts[1 : 1 + ALTERNATIVES] if feasible else (),
        rejected=found.rejected,
        max_context=found.max_context,
        context=found.context,
        concurrency=settings.concurrency,
        weight_dtype=weight_dtype,
        kv_dtype=kv_dtype,
        engine_args=engine_args(model, found, settings, chosen) if chosen and feasible else {},
    )


def engine_args(model: MemoryModel, found: Found, settings: PlanSettings, chosen: Layout) -> dict[str, Any]:
    """What an engine is told, in neutral names. The cache has room for every sequence at full length."""
    sizes = Sizes(chosen.tp, chosen.pp, chosen.ep, chosen.dp)
    cache = max(
        model.kv_cache(sizes, stage, found.context, settings.concurrency) + model.null_block(sizes, stage)
        for stage in model.telling_stages(chosen.pp)
    )
    sequences = replica_sequences(settings.concurrency, sizes)
    replicas = {"data_parallel_size": chosen.dp} if chosen.dp > 1 else {}
    return {
        "tensor_parallel_size": chosen.tp,
        "pipeline_parallel_size": chosen.pp,
        **replicas,
        "max_model_len": found.context,
        "max_num_seqs": sequences,
        "max_num_batched_tokens": max(model.engine.batched_tokens, sequences),
        "dtype": model.weight_dtype,
        "kv_cache_dtype": "auto" if model.kv_dtype == model.weight_dtype else model.kv_dtype,
        "kv_cache_bytes": cache,
    }


def _dtypes(profile: Profile, settings: PlanSettings) -> tuple[str, str]:
    stored = settings.weight_dtype or profile.architecture["dtype"]
    if stored is None:
        raise InputError("neither the config nor the weights say the dtype; give --weight-dtype")
    weights = dtype_name(stored, WEIGHT_DTYPES, "weight dtype")
    cache = weights if settings.kv_dtype in (None, "auto") else settings.kv_dtype
    return weights, dtype_name(str(cache), KV_DTYPES, "KV cache dtype")


def _unsupported(settings: PlanSettings, weight_dtype: str, kv_dtype: str) -> str | None:
    """Why the target cannot use a dtype, with the option that changes it."""
    for option, dtype, supported in (
        ("--weight-dtype", weight_dtype, settings.spec.dtypes.weights),
        ("--kv-dtype", kv_dtype, settings.spec.dtypes.kv_cache),
    ):
        if dtype not in supported:
            return f"{settings.target} does not support {dtype}; {option} may be {', '.join(supported)}"
    return None


def _fit_check(found: Found, settings: PlanSettings, devices: int, context_length: int) -> Check:
    measured = {"max_context": found.max_context, "minimum_devices": found.minimum_devices, "devices": devices}
    if found.layouts:
        best = found.layouts[0]
        memory = best.per_device
        short = f" (the model's own is {context_length:,})" if found.context < context_length else ""
        reason = (
            f"tp {best.tp} x pp {best.pp} x dp {best.dp}: {memory.total / GB:.2f} of {memory.capacity / GB:.2f} GB "
            f"a device, {settings.concurrency} sequences of {found.context:,} tokens{short}"
        )
        return Check(name="fit", verdict=Verdict.PASS, reason=reason, measured=measured)
    return Check(name="fit", verdict=Verdict.FAIL, reason=_misfit(found, settings, devices), measured=measured)


def _misfit(found: Found, settings: PlanSettings, devices: int) -> str:
    """One sentence: what is in the way, and what would fit."""
    by_memory = [rejection for rejection in found.rejected if rejection.dimension == "memory"]
    if not by_memory:
        first = found.rejected[0].reason if found.rejected else "there is no layout"
        return f"no layout is possible on {devices} devices: {first}"
    nearest = min(by_memory, key=lambda rejection: rejection.size or 0)
    sizes = f"tp {nearest.tp} x pp {nearest.pp} x dp {nearest.dp}"
    needed = (
        f"{found.minimum_devices} devices would do" if found.minimum_devices else "no number of such devices would do"
    )
    context = f"the longest context that fits is {found.max_context:,}" if found.max_context else "no context fits"
    return f"it does not fit on {devices} devices; nearest is {sizes}, {nearest.reason}; {context}; {needed}"
