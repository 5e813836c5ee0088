"""Find the layouts that a model can have on a target's devices, and say why it cannot have the others."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace

from day0 import deadline
from day0.architecture.parallel import Sizes
from day0.architecture.slicing import MAX_RANKS
from day0.artifacts.plan import Rejection
from tasks.plan.candidates import Candidates
from tasks.plan.constraints import Obstacle
from tasks.plan.memory import MemoryModel, Room
from tasks.plan.settings import PlanSettings

GB = 1e9

#: Layouts whose speed is predicted, the first by what they are screened by.
PREDICTED = 32

#: What screening may have too long: it leaves out what stages send.
SCREENED_SLACK = 1.05


@dataclass(frozen=True)
class Speed:
    """Predicted for a layout at a context and a concurrency; None where the target's figures do not tell."""

    seconds_per_token: float | None = None
    tokens_per_second: float | None = None
    terms: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Ranked:
    """Sizes that fit, with their speed."""

    sizes: Sizes
    speed: Speed


@dataclass(frozen=True)
class Found:
    """What the search found. `layouts` fit at `context`, best first."""

    context: int
    max_context: int
    layouts: tuple[Ranked, ...]
    rejected: tuple[Rejection, ...]
    minimum: Sizes | None
    """Those with the fewest devices, of whatever number."""
    nearest: Sizes | None
    """Where none fits: those that lack least memory."""


@dataclass(frozen=True, eq=False)
class Search:
    """A search for one model, one target and one request."""

    candidates: Candidates
    memory: MemoryModel
    settings: PlanSettings
    screen: Callable[[Sizes, int], Speed]
    """Much the same for less: what is predicted is chosen by it."""
    predict: Callable[[Sizes, int], Speed]
    """The predicted one."""

    def run(self, devices: int, context_length: int) -> Found:
        """All layouts over at most `devices` devices, within the sizes that are given.

        The context is the asked one; without one, the longest that any layout has room for, up to the model's own.
        """
        deadline.current().check()
        rejected = _Rejected()
        possible = list(self._possible(devices, rejected))
        max_context = self._longest(possible, context_length)
        context = self.settings.context or max_context
        fitting = [sizes for sizes in possible if context and self._fits(sizes, context)]
        nearest = self._reject_without_room(possible, set(fitting), context, rejected)
        screened = sorted((Ranked(s, self.screen(s, context)) for s in _undominated(fitting)), key=self._rank)
        best = different(self._quick_enough(screened, SCREENED_SLACK), PREDICTED)
        predicted = sorted((Ranked(r.sizes, self.predict(r.sizes, context)) for r in best), key=self._rank)
        ranked = self._quick_enough(predicted, 1.0)
        if fitting and not ranked:
            self._reject_slow(predicted or screened, rejected)
        wanted = self.settings.context or self.memory.engine.kv_block_tokens
        return Found(
            context=context or context_length,
            max_context=max_context,
            layouts=tuple(ranked),
            rejected=rejected.listed(),
            minimum=self._minimum(wanted),
            nearest=None if fitting else nearest,
        )

    def room(self, sizes: Sizes) -> Room:
        return Room(self.settings.capacity(sizes.devices), self.settings.on_node(sizes.devices))

    def _fits(self, sizes: Sizes, context: int) -> bool:
        return self.memory.fits(sizes, context, self.settings.concurrency, self.room(sizes))

    def _possible(self, devices: int, rejected: _Rejected) -> Iterator[Sizes]:
        """Sizes that nothing but memory may forbid."""
        found = self.candidates
        for tp in found.tensor_parallel(devices):
            for shape in found.shapes(tp, devices):
                obstacles = found.possible(shape)
                pipelines = found.pipelines(shape, devices)
                if shape.devices > devices:
                    reason = f"{named(shape)} needs {shape.devices} devices and {devices} are given"
                    obstacles.append(Obstacle("devices", reason, "devices", devices, shape.devices))
                if obstacles:
                    rejected.add(shape, obstacles)
                    continue
                yield from (replace(shape, pp=pp) for pp in pipelines)
        if not self.settings.tp and devices > found.largest_tp:
            spanning = 2 * found.largest_tp
            if spanning <= devices:
                rejected.add(Sizes(spanning, self.settings.pp or 1), [found.spans_nodes(spanning)])

    def _longest(self, possible: Iterable[Sizes], context_length: int) -> int:
        """The longest context that any of the sizes has room for."""
        longest, block = 0, self.memory.engine.kv_block_tokens
        for sizes in possible:
            if longest >= context_length:
                break
            if self._fits(sizes, min(longest + block, context_length)):
                room = self.room(sizes)
                longest = self.memory.longest_context(sizes, self.settings.concurrency, room, context_length)
        return longest

    def _minimum(self, context: int) -> Sizes | None:
        """The sizes with the fewest devices on which the context fits; of equals the shortest pipeline. None: none."""
        best: Sizes | None = None
        limit = MAX_RANKS
        for tp in self.candidates.tensor_parallel(limit):
            for shape in self.candidates.shapes(tp, limit):
                if shape.devices > limit or self.candidates.possible(shape):
                    continue
                fewest = self._at_least(shape)
                pipelines = [pp for pp in self.candidates.pipelines(shape, limit) if pp >= fewest]
                ends = [replace(shape, pp=pp) for pp in pipelines[::-1][:1] + pipelines[:1]]
                if not any(self._fits(sizes, context) for sizes in ends):
                    continue  # with few layers a stage there is most room, but for what a single device saves
                fitting = (replace(shape, pp=pp) for pp in pipelines)
                best = next(sizes for sizes in fitting if self._fits(sizes, context))
                limit = best.devices - 1
        return best

    def _at_least(self, shape: Sizes) -> int:
        """The pipeline size below which the weights alone have no room, however well they are balanced."""
        if self.settings.spec.memory.shared:
            return 1
        held = self.memory.weight_bytes(replace(shape, pp=1))[0]
        return -(-held // self.settings.capacity(1))

    def _quick_enough(self, listed: list[Ranked], slack: float) -> list[Ranked]:
        """Those whose token takes no longer than is asked, times `slack`; all, where nothing is asked."""
        limit = self.settings.tpot
        if limit is None:
            return listed
        return [
            r for r in listed if r.speed.seconds_per_token is not None and r.speed.seconds_per_token <= slack * limit
        ]

    def _reject_slow(self, listed: list[Ranked], rejected: _Rejected) -> None:
        """Reject the quickest of those that have room, none of which is quick enough."""
        limit = self.settings.tpot
        assert limit is not None
        quickest = min(listed, key=lambda found: found.speed.seconds_per_token or math.inf)
        seconds = quickest.speed.seconds_per_token
        if seconds is None:
            reason = "the time of a token cannot be predicted, as the target's memory bandwidth is not known"
            obstacle = Obstacle("tpot", reason, "tpot", 0, None)
        else:
            reason = f"a token takes {seconds * 1e3:.1f} ms and at most {limit * 1e3:g} ms are asked (--tpot)"
            obstacle = Obstacle("tpot", f"{named(quickest.sizes)}: {reason}", "tpot", round(seconds * 1e6), None)
        rejected.add(quickest.sizes, [obstacle])

    def _reject_without_room(
        self, possible: list[Sizes], fitting: set[Sizes], context: int, rejected: _Rejected
    ) -> Sizes | None:
        """Reject those that lack memory, of each tensor parallel size the nearest; give the nearest of all."""
        wanted = context or self.memory.engine.kv_block_tokens
        nearest: dict[int, tuple[int, Sizes]] = {}
        for sizes in possible:
            if sizes not in fitting:
                total = self.memory.total(sizes, wanted, self.settings.concurrency, self.room(sizes))
                if sizes.tp not in nearest or total < nearest[sizes.tp][0]:
                    nearest[sizes.tp] = total, sizes
        for total, sizes in nearest.values():
            rejected.add(sizes, [Obstacle("memory", self._no_room(sizes, wanted), "memory", total, None)])
        return min(nearest.values(), key=lambda held: held[0])[1] if nearest else None

    def _no_room(self, sizes: Sizes, context: int) -> str:
        memory = self.memory.device(sizes, context, self.settings.concurrency, self.room(sizes))
        parts = {name: getattr(memory, name) for name in ("weights", "kv_cache", "activations", "overhead")}
        largest = max(parts, key=parts.__getitem__)
        listed = ", ".join(f"{name} {size / GB:.2f}" for name, size in parts.items())
        return (
            f"memory: {memory.total / GB:.2f} GB needed on each device and {memory.capacity / GB:.2f} GB there, at a "
            f"context of {context:,} for {self.settings.concurrency} sequences ({listed}; most is {largest})"
        )

    def _rank(self, found: Ranked) -> tuple[float, int, int, int, Sizes]:
        """The best by the objective first, where it can be told; then fewest devices, shortest pipeline."""
        speed, sizes = found.speed, found.sizes
        rate = speed.tokens_per_second or 0.0
        by = {
            "latency": speed.seconds_per_token or 0.0,
            "throughput": -rate,
            "cost": -rate / sizes.devices,
        }[self.settings.objective]
        return by, sizes.devices, sizes.pp, sizes.dp, sizes


class _Rejected:
    """Rejections, of each constraint the first."""

    def __init__(self) -> None:
        self._by_constraint: dict[tuple[object, ...], Rejection] = {}

    def add(self, sizes: Sizes, obstacles: list[Obstacle]) -> None:
        first = obstacles[0]
        constraint = (
            (first.dimension, sizes.tp) if first.dimension == "memory" else (first.dimension, first.size, first.divisor)
        )
        self._by_constraint.setdefault(
            constraint,
            Rejection(
                tp=sizes.tp,
                pp=sizes.pp,
                ep=sizes.ep,
                dp=sizes.dp,
                dcp=sizes.dcp,
                constraint=first.constraint,
                reason="; ".join(obstacle.reason for obstacle in obstacles),
                dimension=first.dimension,
                size=first.size,
                divisor=first.divisor,
            ),
        )

    def listed(self) -> tuple[Rejection, ...]:
        return tuple(self._by_constraint.values())


def _undominated(fitting: Iterable[Sizes]) -> Iterator[Sizes]:
    """Without longer pipelines than needed: of sizes that differ in it alone the shortest, its double and so on.

    A longer one makes no token faster; for throughput it is like more devices.
    """
    kept: dict[tuple[int, int, int, int], int] = {}
    for sizes in sorted(fitting):
        key = (sizes.tp, sizes.ep, sizes.dp, sizes.dcp)
        if key not in kept or sizes.pp >= 2 * kept[key]:
            kept[key] = sizes.pp
            yield sizes


def different(ranked: Iterable[Ranked], count: int) -> list[Ranked]:
    """The first `count` that differ in how attention and experts are divided; filled up with those that differ in the
    pipeline too, then with the best others."""
    tiers: tuple[list[Ranked], list[Ranked], list[Ranked]] = ([], [], [])
    seen: set[tuple[object, ...]] = set()
    for found in ranked:
        sizes = found.sizes
        division = (sizes.tp, sizes.ep > sizes.tp, sizes.dcp > 1)
        tier = 0 if division not in seen else 1 if (*division, sizes.pp) not in seen else 2
        seen |= {division, (*division, sizes.pp)}
        tiers[tier].append(found)
    return [found for tier in tiers for found in tier][:count]


def named(sizes: Sizes) -> str:
    """For people: `tp 8 x pp 2 x dp 1`, with what else there is."""
    more = f", ep {sizes.ep}" if sizes.ep > 1 else ""
    more += f", dcp {sizes.dcp}" if sizes.dcp > 1 else ""
    return f"tp {sizes.tp} x pp {sizes.pp} x dp {sizes.dp}{more}"
