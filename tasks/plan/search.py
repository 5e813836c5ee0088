"""Find the layouts that a model can have on a target's devices, and say why it cannot have the others."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from day0.architecture.pipeline import pipeline_stages
from day0.architecture.structure import Structure
from day0.artifacts.plan import Layout, Rejection
from tasks.plan.constraints import Obstacle, Sizes, obstacles
from tasks.plan.memory import MemoryModel
from tasks.plan.settings import PlanSettings
from tasks.plan.speed import seconds_per_token

GB = 1e9


@dataclass(frozen=True)
class Found:
    """What the search found. `layouts` fit at `context`, best first."""

    context: int
    max_context: int
    layouts: tuple[Layout, ...]
    rejected: tuple[Rejection, ...]
    minimum_devices: int | None


def search(model: MemoryModel, settings: PlanSettings, devices: int, context_length: int) -> Found:
    """All layouts over at most `devices` devices, within the sizes that are given.

    The context is the asked one; without one, the longest that any layout has room for, up to the model's own.
    """
    possible, rejected = _candidates(model.structure, settings, devices)
    longest = {sizes: _longest(model, settings, sizes) for sizes in possible}
    max_context = min(max(longest.values(), default=0), context_length)
    context = settings.context or max_context
    fitting = [sizes for sizes in possible if context and longest[sizes] >= context]
    wanted = context or model.engine.kv_block_tokens  # what those that do not fit are told to lack room for
    rejected += [_no_room(model, settings, sizes, wanted) for sizes in possible if sizes not in fitting]
    layouts = sorted((_layout(model, settings, sizes, context) for sizes in fitting), key=_rank)
    minimum = minimum_devices(model, settings, settings.context or model.engine.kv_block_tokens)
    return Found(context or context_length, max_context, tuple(layouts), tuple(rejected), minimum)


def minimum_devices(model: MemoryModel, settings: PlanSettings, context: int) -> int | None:
    """The fewest devices, of whatever number, on which the context fits within the given sizes. None: none do."""
    structure = model.structure
    best: int | None = None
    for tp in [settings.tp] if settings.tp else range(1, settings.spec.devices_per_node.value + 1):
        if obstacles(structure, Sizes(tp, settings.pp or 1, settings.ep or 1)):
            continue
        pipelines = [settings.pp] if settings.pp else range(1, structure.config.layers + 1)
        if not any(_longest(model, settings, Sizes(tp, pp)) >= context for pp in (pipelines[0], pipelines[-1])):
            continue  # with one layer a stage there is most room, but for what a single device saves
        pp = next(pp for pp in pipelines if _longest(model, settings, Sizes(tp, pp)) >= context)
        best = min(best or tp * pp, tp * pp)
    return best


def _candidates(structure: Structure, settings: PlanSettings, devices: int) -> tuple[list[Sizes], list[Rejection]]:
    """Sizes that nothing but memory may forbid, and a rejection for each that something else does."""
    possible: list[Sizes] = []
    rejected: list[Rejection] = []
    for tp in [settings.tp] if settings.tp else range(1, devices + 1):
        found = _tp_obstacles(structure, settings, tp)
        if found:
            rejected.append(_rejection(Sizes(tp, settings.pp or 1, settings.ep or 1), found))
            if tp > structure.config.heads and not settings.tp:
                break  # no larger tp divides the heads either
            continue
        for sizes in _pipelines(structure, settings, tp, devices):
            found = obstacles(structure, sizes)
            if sizes.devices > devices:
                reason = f"tp {sizes.tp} x pp {sizes.pp} needs {sizes.devices} devices and {devices} are given"
                found.append(Obstacle(reason, "devices", devices, sizes.devices))
            if found:
                rejected.append(_rejection(sizes, found))
            else:
                possible.append(sizes)
    return possible, rejected


def _tp_obstacles(structure: Structure, settings: PlanSettings, tp: int) -> list[Obstacle]:
    """What forbids a tensor-parallel size whatever the rest. One that spans nodes has to be asked for."""
    found = obstacles(structure, Sizes(tp, 1, settings.ep or 1))
    node = settings.spec.devices_per_node.value
    if tp > node and not settings.tp and not settings.spec.memory.shared:
        reason = f"tp {tp} would span nodes of {node} devices; it is not chosen unless --tp asks for it"
        found.append(Obstacle(reason, "devices_per_node", node, tp))
    return found


def _pipelines(structure: Structure, settings: PlanSettings, tp: int, devices: int) -> Iterator[Sizes]:
    """Pipeline and data-parallel sizes beside a tensor-parallel one. No replica without a sequence to serve.

    Replicas in powers of two, and as many as there is room for.
    """
    ep = settings.ep or 1
    for pp in [settings.pp] if settings.pp else range(1, min(structure.config.layers, max(1, devices // tp)) + 1):
        most = max(1, min(devices // (tp * pp), settings.concurrency))
        for dp in sorted({most, *(1 << power for power in range(most.bit_length()))}):
            yield Sizes(tp, pp, ep, dp)


def _longest(model: MemoryModel, settings: PlanSettings, sizes: Sizes) -> int:
    capacity, on_node = settings.capacity(sizes.devices), settings.on_node(sizes.devices)
    return model.longest_context(sizes, settings.concurrency, capacity, on_node)


def _layout(model: MemoryModel, settings: PlanSettings, sizes: Sizes, context: int) -> Layout:
    capacity, on_node = settings.capacity(sizes.devices), settings.on_node(sizes.devices)
    return Layout(
        tp=sizes.tp,
        pp=sizes.pp,
        ep=sizes.ep,
        dp=sizes.dp,
        devices=sizes.devices,
        per_device=model.device(sizes, context, settings.concurrency, capacity, on_node),
        stages=pipeline_stages(model.structure.config.layers, sizes.pp),
        seconds_per_token=seconds_per_token(model, settings.spec, sizes, context, settings.concurrency),
    )


def _rank(layout: Layout) -> tuple[float, int, int, int]:
    """Fastest token first, where that can be told; then fewest devices, shortest pipeline, fewest replicas."""
    return (layout.seconds_per_token or 0.0, layout.devices, layout.pp, layout.dp)


def _no_room(model: MemoryModel, settings: PlanSettings, sizes: Sizes, context: int) -> Rejection:
    layout = _layout(model, settings, sizes, context)
    memory = layout.per_device
    parts = {name: getattr(memory, name) for name in ("weights", "kv_cache", "activations", "overhead")}
    largest = max(parts, key=parts.__getitem__)
    listed = ", ".join(f"{name} {size / GB:.2f}" for name, size in parts.items())
    reason = (
        f"memory: {memory.total / GB:.2f} GB needed on each device and {memory.capacity / GB:.2f} GB there, at a "
        f"context of {context:,} for {settings.concurrency} sequences ({listed}; most is {largest})"
    )
    return _rejection(sizes, [Obstacle(reason, "memory", memory.total, None)])


def _rejection(sizes: Sizes, found: list[Obstacle]) -> Rejection:
    return Rejection(
        tp=sizes.tp,
        pp=sizes.pp,
        ep=sizes.ep,
        dp=sizes.dp,
        reason="; ".join(obstacle.reason for obstacle in found),
        dimension=found[0].dimension,
        size=found[0].size,
        divisor=found[0].divisor,
    )
