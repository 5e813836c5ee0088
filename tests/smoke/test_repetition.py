"""Loops are found; tables, code and poems are not loops (case T12)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tasks.smoke.repetition import measure, pieces
from tasks.smoke.settings import RepetitionLimits, load_settings

LIMITS = load_settings().repetition
assert LIMITS is not None

TABLE = "| n | square | cube |\n|---|---|---|\n" + "".join(f"| {n} | {n * n} | {n**3} |\n" for n in range(1, 30))
CODE = (
    "MATRIX = [\n"
    + "    [0, 0, 0, 0, 0, 0, 0, 0],\n" * 8
    + "]\n\n\ndef trace(m):\n    return sum(m[i][i] for i in range(8))\n"
)
POEM = """Rain on the roof and rain on the sea,
  rain, rain, go to the sea.
Wind in the wood and wind in the tree,
  rain, rain, go to the sea.
Snow on the hill where the foxes run free,
  rain, rain, go to the sea.
Sun on the sand and a boat for me,
  rain, rain, go to the sea.
"""
RULE = "| a | b | c | d | e | f |\n|" + "---|" * 6 + "\n"


@pytest.mark.parametrize("finish", ["stop", "length"])
@pytest.mark.parametrize("text", [TABLE, CODE, POEM, RULE + "| 1 | 2 | 3 | 4 | 5 | 6 |\n"])
def test_legitimate_repetition_passes(text: str, finish: str) -> None:
    assert not measure(pieces(text), finish, LIMITS).loop


@pytest.mark.parametrize(
    "text",
    [
        "The answer is: " + "!" * 60,
        "I think that " + "the cat sat on the mat and " * 12,
        "Hier ist die Antwort. " + "好的。" * 30,
        "".join(f"Step {n}: go back to the step before and do it again. " for n in range(1, 30)),
    ],
)
def test_loop_up_to_the_end_fails(text: str) -> None:
    found = measure(pieces(text), "length", LIMITS)
    assert found.loop
    assert found.reason


def test_loop_that_starts_late_is_found() -> None:
    varied = [f"word{n}" for n in range(20_000)]
    found = measure([*varied, *(["round", "and", "round", "it", "goes"] * 40)], "length", LIMITS)
    assert found.loop
    assert found.period == 5
    assert found.start == 20_000


def test_very_long_repetition_fails_even_if_it_ended() -> None:
    assert measure([1, 2, 3] * 400 + [4], "stop", LIMITS).loop


@given(
    lead=st.lists(st.integers(1000, 2000), unique=True, max_size=50),
    unit=st.lists(st.integers(0, 999), min_size=1, max_size=20, unique=True),
    rounds=st.integers(24, 40),
)
def test_any_planted_loop_is_found_with_its_period(lead: list[int], unit: list[int], rounds: int) -> None:
    found = measure([*lead, *unit * rounds], "length", LIMITS)
    assert found.loop
    assert found.period == len(unit)
    assert found.start == len(lead)


@given(st.lists(st.integers(), unique=True, max_size=300))
def test_distinct_tokens_never_loop(tokens: list[int]) -> None:
    assert not measure(tokens, "length", LIMITS).loop


def test_limits_are_needed_in_full() -> None:
    with pytest.raises(ValueError, match="window"):
        RepetitionLimits.model_validate({"repeats": 4, "tokens": 24, "ended_tokens": 512, "distinct": 0.2})
