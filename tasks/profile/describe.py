"""Read a model folder, or a config.json alone, and put down what the model is and costs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from day0.architecture.cache import CacheDtypes, ModelCache, cache_of, dtypes_of, element_bytes
from day0.architecture.dtypes import KV_DTYPES, SAFETENSORS, dtype_name
from day0.architecture.quantization import Quantization, quantization_of
from day0.architecture.stored import Stored, own_dtype, stored_from_config
from day0.architecture.structure import Structure, structure_of
from day0.architecture.unread import unread_sizes
from day0.architecture.work import WorkModel
from day0.artifacts.profile import CheckpointSize, Difference, EngineCache, KVCache, Profile
from day0.checkpoint import Checkpoint, has_weights, open_checkpoint, read_config, read_quantisation
from day0.errors import InputError
from day0.verdict import Check, Verdict
from tasks.profile.costs import costs
from tasks.profile.facts import architecture_facts
from tasks.profile.folder import NO_FOLDER, folder_facts
from tasks.profile.modules import ModuleCount as Modules
from tasks.profile.modules import check_modules, count_modules, explain
from tasks.profile.parameters import concentration, count_parameters
from tasks.profile.reconcile import reconcile
from tasks.profile.settings import ProfileSettings


@dataclass
class _Told:
    """What the sources say of each other."""

    checks: list[Check] = field(default_factory=list)
    differences: list[Difference] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Examined:
    """A profile, and what it was made from: reading half a million headers takes seconds, which a plan can spare."""

    profile: Profile
    structure: Structure
    stored: Stored
    quantization: Quantization | None


def describe_model(path: Path, settings: ProfileSettings) -> Profile:
    """The profile of a model folder, or of a config.json alone.

    Raises:
        InputError: the config or the checkpoint's headers cannot be used, or the model is of a kind not known here.
    """
    return examine_model(path, settings).profile


def examine_model(path: Path, settings: ProfileSettings) -> Examined:
    """The profile, with the structure and the stored weights that it is of; raises as `describe_model`."""
    checkpoint = open_checkpoint(path) if has_weights(path) else None
    raw = checkpoint.config if checkpoint else read_config(path)
    structure = structure_of(raw, str(path), checkpoint.tensors if checkpoint else None)
    quantization = quantization_of(raw, read_quantisation(path), str(path))
    told = _Told()
    told.checks += [_config_check(structure), _family_check(structure)]
    stored = _hold_together(structure, checkpoint, quantization, told)
    if quantization is not None:
        told.checks.append(_quantisation_check(quantization))
    if settings.library:
        _library(raw, structure, told)
    config = structure.config
    kv_dtype = dtype_name(settings.kv_dtype, KV_DTYPES, "KV cache dtype")
    index_dtype = dtype_name(settings.index_dtype or _plain(kv_dtype), KV_DTYPES, "indexer dtype")
    dtypes = dtypes_of(structure, kv_dtype, index_dtype)
    context = settings.context or config.context_length
    cache = cache_of(structure, dtypes)
    own = own_dtype(stored) if checkpoint else None
    dtype = config.dtype or (SAFETENSORS[own] if own else None)
    facts, warnings = folder_facts(path) if path.is_dir() else (NO_FOLDER, [])
    told.warnings += [*_warnings(structure, quantization, context, dtype), *warnings]
    counted = count_parameters(structure)
    work = WorkModel(structure, stored, element_bytes(structure, dtypes))
    profile = Profile(
        checks=tuple(told.checks),
        architecture={
            **architecture_facts(structure, dtype),
            "quantization": _quantisation(quantization, stored),
            **facts,
            "work": costs(work, context, settings.concurrency, settings.spec),
        },
        parameters=counted,
        context_length=config.context_length,
        context=context,
        concurrency=settings.concurrency,
        kv_cache=kv_cache(structure, cache, dtypes, context, settings),
        checkpoint=_checkpoint_size(checkpoint),
        target=settings.target,
        concentration=concentration(structure, counted, settings.concentration),
        differences=tuple(told.differences),
        warnings=(*_faults(told.checks), *told.warnings),
    )
    return Examined(profile, structure, stored, quantization)


def kv_cache(
    structure: Structure, cache: ModelCache, dtypes: CacheDtypes, context: int, settings: ProfileSettings
) -> KVCache:
    """Cache and state, ideal and as an engine hands it out in pages."""
    engine = cache.engine(context, settings.page, settings.batched_tokens)
    ideal = cache.bytes(context)
    mtp = [part for part in cache_of(structure, dtypes, mtp=True).parts if part.mtp]
    return KVCache(
        dtype=dtypes.cache,
        index_dtype=dtypes.index,
        state_dtype=dtypes.state,
        bytes_per_token=cache.bytes_per_token,
        bytes_per_sequence=cache.bytes_per_sequence,
        bytes_at_context=settings.concurrency * ideal,
        by_layer_kind=tuple(part.as_json() for part in cache.parts),
        engine=EngineCache(
            page_tokens=engine.page_tokens,
            batched_tokens=settings.batched_tokens,
            bytes_per_sequence=engine.bytes,
            fragmentation=engine.bytes - ideal,
        ),
        mtp={
            "layers": sum(len(part.layers) for part in mtp),
            "bytes_per_token": sum(part.bytes_per_token for part in mtp),
            "bytes_per_sequence": sum(part.bytes_per_sequence for part in mtp),
        }
        if mtp
        else None,
        curve=tuple((tokens, cache.bytes(tokens)) for tokens in _lengths(context)),
    )


def _hold_together(
    structure: Structure, checkpoint: Checkpoint | None, quantization: Quantization | None, told: _Told
) -> Stored:
    """What is stored: by the headers where there are some, held against the config; else predicted."""
    if checkpoint is None:
        reason = "there are no weights to hold the config against"
        told.checks.append(Check(name="checkpoint", verdict=Verdict.SKIPPED, reason=reason))
        return stored_from_config(structure, quantization)
    found = reconcile(structure, _alone(checkpoint), checkpoint.tensors, quantization)
    told.checks += found.checks
    told.differences += found.differences
    told.warnings += found.warnings
    return found.stored


def _alone(checkpoint: Checkpoint) -> Structure | None:
    """The model by its config alone; None where only the tensors tell some size of it."""
    try:
        return structure_of(checkpoint.config, str(checkpoint.root / "config.json"))
    except InputError:
        return None


def _library(raw: dict[str, Any], structure: Structure, told: _Told) -> None:
    """The third source: the library's own modules."""
    modules = count_modules(raw, structure)
    rows = explain(modules, structure, raw) if isinstance(modules, Modules) else []
    told.checks.append(check_modules(modules, rows))
    told.differences += [
        Difference(
            sources="config and library",
            what=row.what,
            elements=row.elements,
            reason=row.reason or "not explained",
        )
        for row in rows
    ]


def _config_check(structure: Structure) -> Check:
    total = structure.total
    reason = f"{total:,} parameters follow from the config as {structure.family.family.name}"
    return Check(name="config", verdict=Verdict.PASS, reason=reason, measured={"parameters": total})


def _family_check(structure: Structure) -> Check:
    """Whether the model's type is one that a family names, or was taken for one on evidence."""
    found, kind = structure.recognised, structure.config.model_type
    if found.evidence is None:
        reason = f"model_type {kind} is one of family {structure.family.family.name}"
        return Check(name="family", verdict=Verdict.PASS, reason=reason)
    verdict = Verdict.PASS if found.sure else Verdict.INCONCLUSIVE
    return Check(name="family", verdict=verdict, reason=f"no family names model_type {kind}; {found.evidence}")


def _quantisation_check(quantization: Quantization) -> Check:
    if quantization.unread:
        reason = "; ".join(quantization.unread[:3])
        return Check(name="quantisation", verdict=Verdict.INCONCLUSIVE, reason=reason)
    reason = f"{quantization.method} by {quantization.where}"
    return Check(name="quantisation", verdict=Verdict.PASS, reason=reason)


def _quantisation(quantization: Quantization | None, stored: Stored) -> dict[str, Any]:
    """`method`, `where`, `kv_dtype` as stated; `formats`: parameters by how they are stored; bytes of all weights."""
    total = sum(stored.formats().values())
    return {
        "method": quantization.method if quantization else None,
        "where": quantization.where if quantization else None,
        "kv_dtype": quantization.kv_dtype if quantization else None,
        "formats": {name: f"{count / total:.1%}" for name, count in stored.formats().items()},
        "parameters": stored.formats(),
        "bytes": stored.bytes,
        "source": stored.source,
    }


def _warnings(
    structure: Structure, quantization: Quantization | None, context: int, dtype: str | None
) -> Iterator[str]:
    config = structure.config
    if unread := unread_sizes(config.raw, structure.family):
        yield f"the config has keys that look like sizes and that nothing read: {', '.join(unread)}"
    if context > config.context_length:
        yield f"a context of {context:,} tokens is longer than the model's {config.context_length:,}"
    if config.remote_code:
        yield "the config names code of its own (auto_map), which is not executed"
    if dtype is None:
        yield "neither config nor weights say the dtype: weights and work are stated for bfloat16"
    if quantization is not None and quantization.kv_dtype:
        yield f"{quantization.where} is for a KV cache in {quantization.kv_dtype}; choose it with --kv-dtype"


def _faults(checks: list[Check]) -> Iterator[str]:
    for check in checks:
        if check.verdict in (Verdict.FAIL, Verdict.INCONCLUSIVE):
            yield f"{check.name}: {check.reason}"


def _plain(kv_dtype: str) -> str:
    """What an indexer's keys are held in beside such a cache."""
    return "fp8" if kv_dtype == "fp8_ds_mla" else kv_dtype


def _lengths(context: int) -> list[int]:
    """Powers of two up to the context, and the context."""
    return sorted({1 << power for power in range(10, context.bit_length())} | {context})


def _checkpoint_size(checkpoint: Checkpoint | None) -> CheckpointSize | None:
    if checkpoint is None:
        return None
    return CheckpointSize(files=len(checkpoint.files), tensors=len(checkpoint.tensors), bytes=checkpoint.tensor_bytes)
