"""The two pools that a plan sets against its layout: prefill and decode on devices of their own."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from day0.architecture.parallel import Sizes
from day0.artifacts.plan import Disaggregation, WorkerPool
from tasks.plan.disaggregation import Disaggregated, Pool, Request, disaggregate
from tasks.plan.search import Search
from tasks.plan.speed import SpeedModel


def two_pools(search: Search, model: SpeedModel, context: int, output: int, devices: int) -> Disaggregation | None:
    """The best two pools on the same devices, for prompts and answers that fill the context together.

    None where nothing fits twice, or where the target does not tell the speeds that it takes.
    """
    prompt = context - output
    if prompt < 1:
        return None
    workers = list(_workers(search, devices, context))
    plain = [sizes for sizes in workers if sizes.dcp == 1]
    found = disaggregate(
        model,
        Request(prompt, output),
        devices,
        plain,
        [(sizes, count) for sizes in workers for count in _batches(search, sizes, context)],
        lambda sizes, tokens: max(search.memory.cache(sizes, tokens, 1)),
    )
    return _described(found) if found else None


def _workers(search: Search, devices: int, context: int) -> Iterator[Sizes]:
    """Of each division of attention and experts the shortest pipeline in which a sequence has room."""
    candidates = search.candidates
    for tp in candidates.tensor_parallel(devices):
        for shape in candidates.shapes(tp, devices):
            if shape.dp != shape.group_replicas or shape.devices > devices or candidates.possible(shape):
                continue
            lengths = (replace(shape, pp=pp) for pp in candidates.pipelines(shape, devices))
            fitting = (sizes for sizes in lengths if _fits(search, sizes, context, 1))
            yield from [sizes for sizes in [next(fitting, None)] if sizes]


def _batches(search: Search, sizes: Sizes, context: int) -> list[int]:
    """Sequences of one attention replica: as many as are asked for and have room, and fewer by halves."""
    most = -(-search.settings.concurrency // sizes.dp)
    while most > 1 and not _fits(search, sizes, context, most):
        most //= 2
    return sorted({max(1, most >> shift) for shift in range(0, 6, 2)})


def _fits(search: Search, sizes: Sizes, context: int, sequences: int) -> bool:
    return search.memory.fits(sizes, context, sequences * sizes.dp, search.room(sizes))


def _described(found: Disaggregated) -> Disaggregation:
    return Disaggregation(
        prefill=_pool(found.prefill),
        decode=_pool(found.decode),
        devices=found.devices,
        first_token_seconds=found.first_token_seconds,
        transfer_seconds=found.transfer_seconds,
        seconds_per_token=found.seconds_per_token,
        tokens_per_second=found.tokens_per_second,
    )


def _pool(pool: Pool) -> WorkerPool:
    sizes = pool.sizes
    return WorkerPool(
        tp=sizes.tp,
        pp=sizes.pp,
        ep=sizes.ep,
        dp=sizes.dp,
        dcp=sizes.dcp,
        workers=pool.workers,
        sequences=pool.sequences,
        requests_per_second=pool.requests_per_second,
    )
