"""The formulas on synthetic times of arrival."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tasks.benchmark import metrics

times = st.lists(st.floats(0.001, 100), min_size=2, max_size=50).map(sorted)


@settings(deadline=None, max_examples=50)
@given(times)
def test_tpot_and_ttft_make_up_the_latency(arrivals: list[float]) -> None:
    tpot = metrics.tpot(0.0, arrivals)
    assert tpot is not None
    total = tpot * (len(arrivals) - 1) + metrics.ttft(0.0, arrivals)
    assert math.isclose(total, metrics.e2e(0.0, arrivals), rel_tol=1e-9)


@settings(deadline=None, max_examples=50)
@given(st.lists(times, min_size=1, max_size=5))
def test_pooled_gaps_add_up_to_the_time_after_the_first_tokens(requests: list[list[float]]) -> None:
    pooled = [gap for arrivals in requests for gap in metrics.gaps(arrivals)]
    assert math.isclose(sum(pooled), sum(a[-1] - a[0] for a in requests), rel_tol=1e-9, abs_tol=1e-9)
    assert len(pooled) == sum(len(a) - 1 for a in requests)


@settings(deadline=None, max_examples=50)
@given(st.lists(st.floats(0, 1e6), min_size=1, max_size=200), st.floats(0, 1))
def test_percentiles_are_numpys_linear_ones(values: list[float], q: float) -> None:
    assert metrics.percentile(sorted(values), q) == pytest.approx(float(np.quantile(values, q)), rel=1e-9, abs=1e-9)


@settings(deadline=None, max_examples=50)
@given(st.lists(st.floats(0, 1e6), min_size=1))
def test_a_summary_is_ordered_and_counts_its_sample(values: list[float]) -> None:
    found = metrics.summary(values)
    assert found is not None
    assert found.count == len(values)
    assert min(values) <= found.p50 <= found.p90 <= found.p99 <= found.max == max(values)


def test_the_worked_example() -> None:
    arrivals = [1.5, 1.6, 1.6, 2.0]  # two tokens share a chunk
    assert metrics.ttft(1.0, arrivals) == pytest.approx(0.5)
    assert metrics.e2e(1.0, arrivals) == pytest.approx(1.0)
    assert metrics.tpot(1.0, arrivals) == pytest.approx(0.5 / 3)
    assert metrics.gaps(arrivals) == pytest.approx([0.1, 0.0, 0.4])


def test_nothing_measured_is_nothing_not_zero() -> None:
    assert metrics.summary([]) is None
    assert metrics.tpot(0.0, [1.0]) is None
