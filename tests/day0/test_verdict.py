from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from day0.verdict import LADDER, Rung, Verdict, exit_code, missing_evidence, rung, worst

verdicts = st.sampled_from(Verdict)
ALL = [stage for stages in LADDER.values() for stage in stages]


def test_nothing_checked_is_a_failure() -> None:
    assert worst([]) is Verdict.FAIL


@given(st.lists(verdicts, min_size=1), verdicts)
def test_one_more_check_never_makes_a_verdict_better(some: list[Verdict], more: Verdict) -> None:
    assert exit_code(worst([*some, more])) == exit_code(worst([worst(some), more]))
    if not worst(some).good:
        assert not worst([*some, more]).good


@given(st.lists(verdicts, min_size=1))
def test_pass_needs_every_part_to_be_good(some: list[Verdict]) -> None:
    assert worst(some).good == all(verdict.good for verdict in some)


@pytest.mark.parametrize(
    ("evidence", "reached"),
    [
        ({}, Rung.NONE),
        ({"service": Verdict.PASS}, Rung.NONE),
        ({"service": Verdict.PASS, "smoke": Verdict.PASS}, Rung.RUNS),
        ({"service": Verdict.PASS, "smoke": Verdict.INCONCLUSIVE}, Rung.NONE),
        ({"smoke": Verdict.PASS, "benchmark": Verdict.PASS}, Rung.NONE),
        (dict.fromkeys(ALL, Verdict.PASS), Rung.FAST),
        (dict.fromkeys(ALL, Verdict.PASS) | {"precision": Verdict.FAIL}, Rung.RUNS),
    ],
)
def test_a_rung_needs_its_own_evidence_and_that_of_every_rung_below(
    evidence: dict[str, Verdict], reached: Rung
) -> None:
    assert rung(evidence) is reached


@given(st.dictionaries(st.sampled_from(ALL), verdicts))
def test_evidence_that_was_never_gathered_is_named(evidence: dict[str, Verdict]) -> None:
    following, lacking = missing_evidence(evidence)
    if following is None:
        assert rung(evidence) is Rung.FAST
    else:
        assert lacking
        assert all(stage.split()[0].rstrip(":") in LADDER[following] for stage in lacking)


@given(st.dictionaries(st.sampled_from(ALL), verdicts), st.sampled_from(ALL))
def test_losing_evidence_never_raises_the_rung(evidence: dict[str, Verdict], lost: str) -> None:
    order = list(Rung)
    less = {stage: verdict for stage, verdict in evidence.items() if stage != lost}
    assert order.index(rung(less)) <= order.index(rung(evidence))
