"""The plan of a model on a target: what is served, the search, and what the engine is told."""

from __future__ import annotations

from day0.architecture.cache import cache_of, dtypes_of
from day0.architecture.dtypes import BYTES
from day0.architecture.parallel import Sizes
from day0.architecture.pipeline import pipeline_stages
from day0.artifacts.plan import Disaggregation, Layout, Offload, ParallelPlan
from day0.artifacts.profile import Profile
from day0.errors import CheckFailed, InputError
from day0.verdict import Check, Verdict
from tasks.plan.activations import Activations
from tasks.plan.candidates import Candidates
from tasks.plan.constraints import Constraints
from tasks.plan.engines import engine_arguments, neutral_arguments
from tasks.plan.memory import MemoryModel, replica_sequences
from tasks.plan.model import Model
from tasks.plan.placement import placements
from tasks.plan.pools import two_pools
from tasks.plan.predicted import predictor
from tasks.plan.search import GB, Found, Ranked, Search, different, named
from tasks.plan.served import Served, served
from tasks.plan.settings import PlanSettings
from tasks.plan.weights import Weights

ALTERNATIVES = 4


def plan_layout(model: Model, profile: Profile, settings: PlanSettings) -> ParallelPlan:
    """Choose a layout, or say what does not fit.

    Raises:
        CheckFailed: the profile's own checks failed.
        InputError: a dtype is not known, or nothing says that of the weights; the context is beyond the model's.
    """
    if not profile.verdict.good:
        raise CheckFailed(f"the profile failed, and a plan made from it would be wrong: {profile.reason}")
    if settings.context and settings.context > profile.context_length:
        raise InputError(
            f"a context of {settings.context:,} tokens is longer than the model's {profile.context_length:,}; "
            f"ask for at most that"
        )
    if settings.output and settings.output >= (settings.context or profile.context_length):
        raise InputError(
            f"an answer of {settings.output:,} tokens leaves none of {settings.context or profile.context_length:,} "
            f"for a prompt; ask for a shorter one, or a longer context"
        )
    return _Planner(model, served(model, settings), settings, profile.context_length).plan()


class _Planner:
    """What one plan is made with."""

    def __init__(self, model: Model, held: Served, settings: PlanSettings, context_length: int) -> None:
        self.model, self.held, self.settings, self.context_length = model, held, settings, context_length
        structure, engine = model.structure, settings.spec.engine_memory
        self.weights = Weights(structure.family, held.stored)
        self.constraints = Constraints(structure, self.weights)
        dtypes = dtypes_of(structure, held.kv_dtype, settings.index_dtype or held.kv_dtype)
        width = max(2, BYTES.get(held.compute_dtype, 2))
        self.memory = MemoryModel(
            structure,
            self.weights,
            engine,
            Activations(structure, width, context_length, engine.prompt_logits),
            cache_of(structure, dtypes, mtp=settings.mtp),
        )
        self.predictor = predictor(structure, held, settings, dtypes)
        candidates = Candidates(self.constraints, settings)
        self.search = Search(candidates, self.memory, settings, self.predictor.screen, self.predictor.predict)

    def plan(self) -> ParallelPlan:
        settings, held = self.settings, self.held
        devices = settings.devices or self._default_devices()
        found = self.search.run(devices, self.context_length)
        shown = [self._layout(ranked, found.context) for ranked in different(found.layouts, 1 + ALTERNATIVES)]
        chosen = shown[0] if shown and not held.fault else None
        engine_args: dict[str, object] = {}
        engines: dict[str, tuple[str, ...]] = {}
        engine_notes: list[str] = []
        if chosen:
            engine_args = self._neutral(chosen, found.context)
            engines, engine_notes = engine_arguments(
                engine_args,
                sizes_of(chosen),
                chosen.per_device,
                experts=bool(self.weights.experts),
                whole_towers=self._has_towers and self.weights.whole_towers(chosen.tp),
                mtp=settings.mtp,
            )
        notes = self.constraints.notes(sizes_of(chosen)) if chosen else []
        return ParallelPlan(
            checks=(self._dtype_check(), self._fit_check(found, shown, devices)),
            target=settings.target,
            feasible=chosen is not None,
            minimum_devices=found.minimum.devices if found.minimum and not held.fault else None,
            minimum_layout=_sizes_json(found.minimum) if found.minimum and not held.fault else {},
            chosen=chosen,
            alternatives=tuple(shown[1:]) if chosen else (),
            rejected=found.rejected,
            max_context=found.max_context,
            context=found.context,
            concurrency=settings.concurrency,
            objective=settings.objective,
            weight_dtype=held.weight_dtype,
            convert_to=held.convert_to,
            weight_reason=held.reason,
            kv_dtype=held.kv_dtype,
            index_dtype=settings.index_dtype,
            mtp=settings.mtp,
            placement=placements(self.weights, sizes_of(chosen)) if chosen else (),
            notes=(*notes, *engine_notes, *held.notes, *self._unread()),
            offload=self._offload(found) if not chosen and not held.fault else None,
            disaggregation=self._pools(found.context, devices) if chosen else None,
            unchecked=tuple(dict.fromkeys((*held.unchecked, *settings.spec.unknown()))),
            engine_args=engine_args,
            engines=engines,
        )

    @property
    def _has_towers(self) -> bool:
        return any(group.kind in ("vision", "audio") for group in self.weights.groups)

    def _default_devices(self) -> int:
        """One node, or as many as the given sizes need."""
        s = self.settings
        replicas = s.dp or max(1, (s.ep or 1) // (s.tp or 1))
        return max(s.spec.devices_per_node.value, (s.tp or 1) * (s.pp or 1) * replicas)

    def _layout(self, ranked: Ranked, context: int) -> Layout:
        sizes, speed = ranked.sizes, ranked.speed
        room = self.search.room(sizes)
        return Layout(
            tp=sizes.tp,
            pp=sizes.pp,
            ep=sizes.ep,
            dp=sizes.dp,
            dcp=sizes.dcp,
            devices=sizes.devices,
            per_device=self.memory.device(sizes, context, self.settings.concurrency, room),
            stages=pipeline_stages(self.model.structure.layers, sizes.pp),
            seconds_per_token=speed.seconds_per_token,
            prefill_seconds=self.predictor.prefill(sizes, context, self.memory.engine.batched_tokens),
            tokens_per_second=speed.tokens_per_second,
            terms=speed.terms,
        )

    def _neutral(self, chosen: Layout, context: int) -> dict[str, object]:
        """The cache has room for every sequence at full length, on every stage."""
        sizes = sizes_of(chosen)
        sequences = replica_sequences(self.settings.concurrency, sizes)
        cached, null = self.memory.cache(sizes, context, sequences), self.memory.null_block(sizes)
        cache = max(held + block for held, block in zip(cached, null, strict=True))
        batched = self.memory.tokens(sequences)
        return neutral_arguments(sizes, context, sequences, batched, self.held.compute_dtype, self.held.kv_dtype, cache)

    def _dtype_check(self) -> Check:
        held = self.held
        good = f"{self.settings.target} holds {held.weight_dtype} and caches {held.kv_dtype}; {held.reason}"
        return Check(name="dtypes", verdict=Verdict.FAIL if held.fault else Verdict.PASS, reason=held.fault or good)

    def _fit_check(self, found: Found, shown: list[Layout], devices: int) -> Check:
        minimum = found.minimum.devices if found.minimum else None
        measured = {"max_context": found.max_context, "minimum_devices": minimum, "devices": devices}
        if shown:
            memory = shown[0].per_device
            short = f" (the model's own is {self.context_length:,})" if found.context < self.context_length else ""
            reason = (
                f"{named(sizes_of(shown[0]))}: {memory.total / GB:.2f} of {memory.capacity / GB:.2f} GB a device, "
                f"{self.settings.concurrency} sequences of {found.context:,} tokens{short}"
            )
            return Check(name="fit", verdict=Verdict.PASS, reason=reason, measured=measured)
        return Check(name="fit", verdict=Verdict.FAIL, reason=_misfit(found, devices), measured=measured)

    def _unread(self) -> list[str]:
        """What of the quantisation was predicted without being understood."""
        if self.model.quantization is None or self.model.stored.source == "headers":
            return []
        return [f"weights may be other than planned: {text}" for text in self.model.quantization.unread]

    def _pools(self, context: int, devices: int) -> Disaggregation | None:
        """Prefill and decode by themselves, where it is said how long answers are."""
        output = self.settings.output
        if output is None:
            return None
        return two_pools(self.search, self.predictor.model, context, output, devices)

    def _offload(self, found: Found) -> Offload | None:
        """What the nearest layout lacks, and what reading that from the host for every step would cost."""
        sizes = found.nearest
        if sizes is None:
            return None
        wanted = self.settings.context or self.memory.engine.kv_block_tokens
        memory = self.memory.device(sizes, wanted, self.settings.concurrency, self.search.room(sizes))
        lacking = memory.total - memory.capacity
        if lacking >= memory.weights or self.settings.spec.memory.shared:
            return None
        link = self.settings.spec.host_link
        seconds = lacking / link.value if link else None
        cost = f"{seconds * 1e3:,.0f} ms more a token" if seconds is not None else "a time that is not known"
        return Offload(
            tp=sizes.tp,
            pp=sizes.pp,
            ep=sizes.ep,
            dp=sizes.dp,
            bytes_per_device=lacking,
            seconds_per_token=seconds,
            reason=(
                f"{named(sizes)} would fit with {lacking / GB:.2f} GB of each device's weights in the host's memory, "
                f"read over the host link in every step: {cost}"
            ),
        )


def _misfit(found: Found, devices: int) -> str:
    """One sentence: what is in the way, and what would fit."""
    slow = next((rejection for rejection in found.rejected if rejection.constraint == "tpot"), None)
    if slow is not None:
        return f"no layout on {devices} devices is quick enough; the quickest is {slow.reason}"
    by_memory = [rejection for rejection in found.rejected if rejection.dimension == "memory"]
    if not by_memory:
        first = found.rejected[0].reason if found.rejected else "there is no layout"
        return f"no layout is possible on {devices} devices: {first}"
    nearest = min(by_memory, key=lambda rejection: rejection.size or 0)
    needed = (
        f"{found.minimum.devices} devices would do ({named(found.minimum)})"
        if found.minimum
        else "no number of such devices would do"
    )
    context = f"the longest context that fits is {found.max_context:,}" if found.max_context else "no context fits"
    sizes = Sizes(nearest.tp, nearest.pp, nearest.ep, nearest.dp, nearest.dcp)
    return f"it does not fit on {devices} devices; nearest is {named(sizes)}, {nearest.reason}; {context}; {needed}"


def sizes_of(layout: Layout) -> Sizes:
    return Sizes(layout.tp, layout.pp, layout.ep, layout.dp, layout.dcp)


def _sizes_json(sizes: Sizes) -> dict[str, int]:
    return {"tp": sizes.tp, "pp": sizes.pp, "ep": sizes.ep, "dp": sizes.dp, "dcp": sizes.dcp}
