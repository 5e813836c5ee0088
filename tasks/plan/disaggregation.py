"""Prefill and decode as two pools of workers with layouts of their own, so that prompts do not hold up answers.

Zhong et al. 2024 (DistServe, arXiv:2401.09670); Patel et al. 2024 (Splitwise, arXiv:2311.18677).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from day0.architecture.parallel import Sizes
from tasks.plan.figures import figures_of
from tasks.plan.speed import SpeedModel


@dataclass(frozen=True)
class Request:
    """What is served: prompts of `prompt` tokens answered with `output` tokens; most seconds, None: no limit."""

    prompt: int
    output: int
    first_token_seconds: float | None = None
    seconds_per_token: float | None = None


@dataclass(frozen=True)
class Pool:
    """Workers of one layout. `sequences` are those that one attention replica has at a time."""

    sizes: Sizes
    workers: int
    sequences: int
    requests_per_second: float
    """That the whole pool can take."""

    @property
    def devices(self) -> int:
        return self.workers * self.sizes.devices


@dataclass(frozen=True)
class Disaggregated:
    """Two pools whose rates match: the slower one limits both."""

    prefill: Pool
    decode: Pool
    first_token_seconds: float
    """With the transfer of the cache."""
    transfer_seconds: float
    """Of one request's cache from its prefill worker to its decode worker."""
    seconds_per_token: float
    tokens_per_second: float

    @property
    def devices(self) -> int:
        return self.prefill.devices + self.decode.devices


def disaggregate(
    model: SpeedModel,
    request: Request,
    devices: int,
    prefill: Iterable[Sizes],
    decode: Iterable[tuple[Sizes, int]],
    cache_bytes: Callable[[Sizes, int], float],
) -> Disaggregated | None:
    """The two pools with most output tokens per second over at most so many devices.

    Args:
        prefill: layouts of one worker in which the prompt has room.
        decode: layouts of one worker, with the sequences of one attention replica that have room.
        cache_bytes: of one sequence of so many tokens, on the rank of a layout that has most.

    Returns:
        None where no two fit, where none keeps the request's limits, or where the target's memory bandwidth or the
        link between workers is not known.
    """
    if not model.target.scale_out and not model.target.link_bandwidth:
        return None
    first = [each for sizes in prefill if (each := _prefill(model, request, sizes, cache_bytes)) is not None]
    second = [other for sizes, count in decode if (other := _decode(model, request, sizes, count)) is not None]
    best: Disaggregated | None = None
    for before, until, transfer in first:
        for after, token in second:
            pools = matched(before, after, devices)
            if pools is None:
                continue
            rate = min(pool.requests_per_second for pool in pools)
            both = Disaggregated(*pools, until + transfer, transfer, token, rate * request.output)
            if best is None or (both.tokens_per_second, -both.devices) > (best.tokens_per_second, -best.devices):
                best = both
    return best


def _prefill(
    model: SpeedModel, request: Request, sizes: Sizes, cache_bytes: Callable[[Sizes, int], float]
) -> tuple[Pool, float, float] | None:
    """One worker, the seconds until a prompt is computed, and those until its cache is at the decode worker.

    Every rank sends its part over its own link, while the next prompt is computed.
    """
    found = model.prefill_seconds(sizes, request.prompt)
    if found is None:
        return None
    target = model.target
    link = target.scale_out or target.link_bandwidth
    assert link is not None
    transfer = cache_bytes(sizes, request.prompt) / (link.value * figures_of(target).link)
    limit = request.first_token_seconds
    if limit is not None and found.seconds + transfer > limit:
        return None
    rate = sizes.dp / max(found.seconds / sizes.pp, transfer)
    return Pool(sizes, 1, 1, rate), found.seconds, transfer


def _decode(model: SpeedModel, request: Request, sizes: Sizes, sequences: int) -> tuple[Pool, float] | None:
    """One worker and its seconds per token."""
    found = model.decode_seconds(sizes, request.prompt + request.output // 2, sequences)
    limit = request.seconds_per_token
    if found is None or (limit is not None and found.seconds > limit):
        return None
    return Pool(sizes, 1, sequences, sizes.dp * sequences / (request.output * found.seconds)), found.seconds


def matched(prefill: Pool, decode: Pool, devices: int) -> tuple[Pool, Pool] | None:
    """As many workers of each as give most requests per second; of equals the fewest."""
    best: tuple[float, int, int, int] | None = None
    for count in range(1, (devices - decode.sizes.devices) // prefill.sizes.devices + 1):
        others = (devices - count * prefill.sizes.devices) // decode.sizes.devices
        needed = -(-count * prefill.requests_per_second // decode.requests_per_second)
        others = min(others, max(1, int(needed)))
        rate = min(count * prefill.requests_per_second, others * decode.requests_per_second)
        used = count * prefill.sizes.devices + others * decode.sizes.devices
        if best is None or (rate, -used) > best[:2]:
            best = rate, -used, count, others
    if best is None:
        return None
    return _times(prefill, best[2]), _times(decode, best[3])


def _times(pool: Pool, workers: int) -> Pool:
    return Pool(pool.sizes, workers, pool.sequences, workers * pool.requests_per_second)
