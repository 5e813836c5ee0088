"""The model as torch.export has it: its operators, and the patterns in it that engines and backends fuse.

A second view beside the trace: one layer of each kind, prefill without cache, before dispatch.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import torch

from tasks.operators.blocks import Blocks
from tasks.operators.models import UNTRACEABLE, Description, build, in_short, without_data
from tasks.operators.patterns import Matcher, load_patterns
from tasks.operators.records import CapturedGraph

#: The graph does not hang on the length; a short one is exported sooner where a model's loops are unrolled.
MOST_TOKENS = 128


class _Prefill(torch.nn.Module):
    """The model with tokens as its one input and the last logits as its one output."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.model(input_ids=tokens, use_cache=False, logits_to_keep=1).logits
        return logits


def export_graph(model: Description, prompt: int) -> CapturedGraph:
    """Operators and patterns of the exported graph, or why the model could not be exported."""
    try:
        with without_data(fake=False):
            built = build(model)
            blocks = Blocks(built)
            tokens = torch.zeros(1, min(prompt, MOST_TOKENS), dtype=torch.long)
            with torch.no_grad(), blocks.alone():
                exported = torch.export.export(_Prefill(built), (tokens,), strict=False)
    except UNTRACEABLE as error:
        return CapturedGraph(failed=f"torch.export failed ({in_short(error)})")
    nodes = [node for node in exported.graph.nodes if node.op == "call_function"]
    operators = Counter(str(n.target._name) for n in nodes if isinstance(n.target, torch._ops.OpOverload))
    matcher = Matcher(exported.graph)
    return CapturedGraph(
        operators=dict(operators.most_common()),
        patterns={name: matcher.count(pattern) for name, pattern in load_patterns().items()},
        layers=min(blocks.run, model.layers),
    )
