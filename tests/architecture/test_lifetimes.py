"""Lifetimes of buffers, and the pool they are laid out in."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from day0.architecture.lifetimes import Buffer, Op, Pools, lifetimes, place, pool_size, pools


@st.composite
def sequences(draw: st.DrawFn) -> list[Op]:
    """Operators that read some outputs of earlier ones."""
    ops: list[Op] = []
    for at in range(draw(st.integers(0, 20))):
        inputs = draw(st.lists(st.sampled_from([op.output for op in ops]), max_size=3, unique=True)) if ops else []
        elements, width = draw(st.integers(0, 5000)), draw(st.sampled_from([1, 2, 4, 8]))
        ops.append(Op(f"op {at}", tuple(inputs), f"buffer {at}", elements, width))
    return ops


@given(sequences(), st.sampled_from([1, 512]), st.data())
def test_a_pool_lies_between_what_is_alive_and_all_together(ops: list[Op], alignment: int, data: st.DataObject) -> None:
    keep = data.draw(st.sets(st.sampled_from([op.output for op in ops]))) if ops else set()
    found = pools(ops, keep, alignment)
    assert found.peak_live <= found.static_pool <= found.without_reuse
    assert found.peak_live == sum(size for _, size in found.largest)
    assert found.without_reuse == sum(-(-op.bytes // alignment) * alignment for op in ops)


@given(sequences())
def test_no_two_buffers_that_are_alive_together_overlap(ops: list[Op]) -> None:
    held = lifetimes(ops)
    offsets = place(held)
    for one, other in itertools.combinations(held, 2):
        if one.meets(other) and one.bytes and other.bytes:
            first, second = sorted((one, other), key=lambda buffer: offsets[buffer.name])
            assert offsets[first.name] + first.bytes <= offsets[second.name]
    assert pool_size(held, offsets) == pools(ops).static_pool


@given(sequences())
def test_an_output_is_alive_while_it_is_written_and_read(ops: list[Op]) -> None:
    held = {buffer.name: buffer for buffer in lifetimes(ops)}
    for at, op in enumerate(ops):
        for name in (op.output, *op.inputs):
            assert held[name].first <= at <= held[name].last


def test_a_chain_reuses_what_is_no_longer_read() -> None:
    ops = [
        Op("a", (), "a", 10, 1),
        Op("b", ("a",), "b", 20, 1),
        Op("c", ("b",), "c", 5, 2),
        Op("d", ("c",), "d", 20, 1),
    ]
    assert pools(ops, alignment=1) == Pools(60, 30, 30, (("b", 20), ("a", 10)))
    assert place(lifetimes(ops, alignment=1)) == {"b": 0, "d": 0, "a": 20, "c": 20}


def test_what_is_kept_is_alive_to_the_end() -> None:
    ops = [Op("a", (), "a", 10, 1), Op("b", (), "b", 20, 1), Op("c", ("b",), "c", 10, 1)]
    assert pools(ops, alignment=1).peak_live == 30
    assert pools(ops, keep={"a"}, alignment=1).peak_live == 40


def test_the_smallest_gap_that_fits_is_taken() -> None:
    """While `last` is alive there is a gap of 50 behind `b`, and one of 45 behind `c`."""
    held = [
        Buffer("a", 100, 0, 3),
        Buffer("b", 50, 4, 9),
        Buffer("c", 50, 0, 9),
        Buffer("d", 45, 0, 3),
        Buffer("e", 30, 0, 9),
        Buffer("last", 20, 4, 9),
    ]
    offsets = place(held)
    assert offsets == {"a": 0, "b": 0, "c": 100, "d": 150, "e": 195, "last": 150}
    assert pool_size(held, offsets) == 225


def test_bytes_are_rounded_up_as_torch_does() -> None:
    assert pools([Op("a", (), "a", 1, 2)]).static_pool == 512


def test_nothing_takes_nothing() -> None:
    assert pools([]) == Pools(0, 0, 0, ())


@pytest.mark.parametrize(
    ("ops", "message"),
    [
        ([Op("a", ("b",), "a", 1, 1)], "a reads 'b', which no operator before it writes"),
        ([Op("a", (), "x", 1, 1), Op("b", (), "x", 1, 1)], "b writes 'x', which is written already"),
    ],
)
def test_a_sequence_that_cannot_be(ops: list[Op], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        pools(ops)
