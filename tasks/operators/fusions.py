"""Which patterns of a graph the target has fused, by configs/patterns.yaml."""

from __future__ import annotations

from day0.artifacts.operators import FusedPattern, Graph
from tasks.operators.patterns import load_patterns
from tasks.operators.records import CapturedGraph


def fused_patterns(graph: CapturedGraph, names: tuple[str, ...]) -> Graph:
    """The exported graph with what of it the target has fused. `names` are its engines and its operator list."""
    patterns = load_patterns()
    return Graph(
        operators=graph.operators,
        patterns=tuple(
            FusedPattern(
                name=name,
                count=count,
                fused=next((patterns[name].fused[own] for own in names if own in patterns[name].fused), None),
            )
            for name, count in graph.patterns.items()
        ),
        layers=graph.layers,
        failed=graph.failed,
    )
