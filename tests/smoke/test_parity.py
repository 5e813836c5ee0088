"""The statistics: what they are of identical, permuted, shifted and absent numbers."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tasks.smoke.limits import parity
from tasks.smoke.parity import compare, distribution, median_ratio, ratio
from tasks.smoke.settings import Thresholds, load_settings

LIMITS = load_settings().thresholds
errors = st.lists(st.floats(1e-6, 10), min_size=1, max_size=60)


@given(errors)
def test_ratio_of_identical_is_one(values: list[float]) -> None:
    assert ratio(values, values) == 1
    assert median_ratio(values, values) == 1


@given(errors, st.randoms(use_true_random=False))
def test_order_does_not_matter(values: list[float], random: object) -> None:
    mixed = list(values)
    random.shuffle(mixed)  # type: ignore[attr-defined]
    assert ratio(mixed, values) == pytest.approx(1)
    assert distribution(mixed) == distribution(values)


@given(errors, st.floats(0.1, 50))
def test_ratio_scales_with_the_error(values: list[float], factor: float) -> None:
    scaled = [v * factor for v in values]
    assert ratio(scaled, values) == pytest.approx(factor)
    assert median_ratio(scaled, values) == pytest.approx(factor)


@given(errors)
def test_distribution_is_ordered(values: list[float]) -> None:
    d = distribution(values)
    assert d.p50 <= d.p90 <= d.p99 <= d.max
    assert d.count == len(values)


def test_no_rounding_to_compare_with_is_no_ratio() -> None:
    assert ratio([0.1], [0.0]) is None
    assert ratio([0.0], [0.0]) == 1
    assert ratio([], []) is None


def test_near_ties_do_not_count_against_agreement() -> None:
    made = compare("p", "prefill", [0, 0], [0, 0], [0, 0], [7, 8], [7, 9], [2.0, 0.1], near_tie=0.5)
    assert made.agrees == [True]


def test_lengths_must_match() -> None:
    with pytest.raises(ValueError, match="zip"):
        compare("p", "prefill", [0.0], [0.0, 0.0], [0.0, 0.0], [1, 2], [1, 2], [1, 1], near_tie=0.5)


def made(factor: float, count: int = 1000) -> list[object]:
    """One comparison whose engine errors are `factor` times a deterministic rounding."""
    noise = [0.03 * (1 + math.sin(i)) for i in range(count)]
    exact = [-2.0] * count
    engine = [-2.0 + factor * n for n in noise]
    working = [-2.0 - n for n in noise]
    return [compare("p", "prefill", engine, exact, working, [1] * count, [1] * count, [2.0] * count, 0.5)]


def verdicts(factor: float, limits: Thresholds = LIMITS, count: int = 1000) -> dict[str, str]:
    compared = made(factor, count)
    return {c.name: str(c.verdict) for c in parity(compared, compared, [True] * 50, limits, [])}  # type: ignore[arg-type]


def test_rounding_passes() -> None:
    assert set(verdicts(1.05).values()) == {"pass"}


def test_twice_the_rounding_fails() -> None:
    assert verdicts(2.1)["parity.ratio"] == "fail"
    assert verdicts(2.1)["parity.prompt_ratio"] == "fail"


def test_nothing_compared_is_inconclusive() -> None:
    assert {str(c.verdict) for c in parity([], [], [], LIMITS, [])} == {"inconclusive"}


def test_too_few_positions_fail() -> None:
    assert verdicts(1.0, count=20)["parity.positions"] == "fail"


@pytest.mark.parametrize(
    "name", sorted(set(Thresholds.model_fields) - {"near_tie", "min_positions", "float32_mean_error"})
)
def test_missing_threshold_never_passes(name: str) -> None:
    assert verdicts(1.0, LIMITS.model_copy(update={name: None}))[f"parity.{name}"] == "inconclusive"


@pytest.mark.parametrize(("factor", "verdict"), [(0.0001, "pass"), (0.12, "fail")])
def test_float32_engine_has_no_rounding_to_hide_behind(factor: float, verdict: str) -> None:
    """A fault far below the rounding of bfloat16 is seen in an engine that computes in float32."""
    compared = made(factor)
    found = {c.name: str(c.verdict) for c in parity(compared, compared, [True], LIMITS, [], "float32")}  # type: ignore[arg-type]
    assert found["parity.ratio"] == "pass"
    assert found["parity.float32_mean_error"] == verdict


def test_float32_engine_without_its_limit_is_inconclusive() -> None:
    limits = LIMITS.model_copy(update={"float32_mean_error": None})
    found = {c.name: str(c.verdict) for c in parity(made(0), made(0), [True], limits, [], "float32")}  # type: ignore[arg-type]
    assert found["parity.float32_mean_error"] == "inconclusive"
