"""Two pools whose rates match."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from day0.architecture.parallel import Sizes
from day0.target import load_target
from tasks.plan.disaggregation import Disaggregated, Pool, Request, disaggregate, matched
from tasks.plan.speed import SpeedModel
from tests.architecture.data import LLAMA_70B, read
from tests.plan.test_speed import H200, published, speed

REQUEST = Request(prompt=4000, output=1000)
PREFILL = [Sizes(tp, 1) for tp in (2, 4, 8)]
DECODE = [(Sizes(tp, 1), count) for tp in (2, 4, 8) for count in (16, 64)]
CACHE = 327_680  # bytes of a token, facts of the model


def found_for(devices: int, request: Request = REQUEST, model: SpeedModel | None = None) -> Disaggregated | None:
    return disaggregate(
        model or published(LLAMA_70B), request, devices, PREFILL, DECODE, lambda sizes, n: CACHE * n / sizes.tp
    )


def test_both_pools_keep_up() -> None:
    found = found_for(64)
    assert found is not None
    assert found.devices <= 64
    rate = min(found.prefill.requests_per_second, found.decode.requests_per_second)
    assert found.tokens_per_second == pytest.approx(rate * 1000)
    model = published(LLAMA_70B)
    prefill = model.prefill_seconds(found.prefill.sizes, 4000)
    decode = model.decode_seconds(found.decode.sizes, 4500, found.decode.sequences)
    assert prefill is not None
    assert decode is not None
    assert found.prefill.requests_per_second == pytest.approx(found.prefill.workers / prefill.seconds)
    each = found.decode.workers * found.decode.sequences / (1000 * decode.seconds)
    assert found.decode.requests_per_second == pytest.approx(each)
    assert found.seconds_per_token == decode.seconds
    assert found.first_token_seconds == pytest.approx(prefill.seconds + found.transfer_seconds)


def test_the_cache_goes_over_every_rank_s_own_link() -> None:
    found = found_for(64)
    assert found is not None
    assert H200.scale_out is not None
    sent = CACHE * 4000 / found.prefill.sizes.tp
    assert found.transfer_seconds == pytest.approx(sent / (H200.scale_out.value * 0.9))


def test_more_devices_are_never_fewer_tokens() -> None:
    rates = []
    for devices in (4, 8, 16, 32, 64, 128):
        found = found_for(devices)
        assert found is not None
        rates.append(found.tokens_per_second)
    assert rates == sorted(rates)


def test_limits_are_kept() -> None:
    free = found_for(64)
    assert free is not None
    token = found_for(64, Request(4000, 1000, seconds_per_token=0.8 * free.seconds_per_token))
    assert token is not None
    assert token.seconds_per_token <= 0.8 * free.seconds_per_token
    assert token.tokens_per_second <= free.tokens_per_second
    first = found_for(64, Request(4000, 1000, first_token_seconds=0.3))
    assert first is not None
    assert first.first_token_seconds <= 0.3
    assert found_for(64, Request(4000, 1000, seconds_per_token=1e-6)) is None
    assert found_for(64, Request(4000, 1000, first_token_seconds=1e-6)) is None


def test_two_workers_need_room() -> None:
    assert found_for(3) is None
    assert found_for(4) is not None


def test_a_target_without_bandwidth_or_links_has_no_prediction() -> None:
    unknown = H200.model_copy(update={"bandwidth": None})
    assert found_for(64, model=speed(read(LLAMA_70B), unknown)) is None
    assert found_for(64, model=speed(read(LLAMA_70B), load_target("cpu"))) is None


@settings(deadline=None)
@given(st.integers(1, 8), st.floats(0.1, 10), st.integers(1, 8), st.floats(0.1, 10), st.integers(2, 40))
def test_the_numbers_of_workers_are_the_best(
    before: int, prefill: float, after: int, decode: float, devices: int
) -> None:
    pools = Pool(Sizes(before, 1), 1, 1, prefill), Pool(Sizes(after, 1), 1, 1, decode)
    found = matched(*pools, devices)
    rates = [
        min(p * prefill, d * decode)
        for p in range(1, devices // before + 1)
        for d in range(1, devices // after + 1)
        if p * before + d * after <= devices
    ]
    if not rates:
        assert found is None
        return
    assert found is not None
    assert found[0].devices + found[1].devices <= devices
    assert min(pool.requests_per_second for pool in found) == pytest.approx(max(rates))
