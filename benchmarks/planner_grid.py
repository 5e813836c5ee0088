"""What AIConfigurator is asked: models, layouts, prompts and batches."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from day0.architecture.parallel import Sizes

#: Tokens of an answer.
OUTPUT = 1000

#: The models whose limits the benchmark keeps; half of their points are fitted to.
MAIN = (
    "deepseek-ai/DeepSeek-V3",
    "Qwen/Qwen3-235B-A22B",
    "meta-llama/Meta-Llama-3.1-70B",
    "zai-org/GLM-5",
    "moonshotai/Kimi-K3",
)

#: Requests whose first choices are compared: H200s by model, for 4000 tokens in and 1000 out, the first token within
#: 2 s and each further one within 50 ms.
CHOICES = dict(zip(MAIN, (32, 16, 8, 32, 64), strict=True))


@dataclass(frozen=True)
class Group:
    """A model in a layout; `ep` None: no routed experts."""

    model: str
    tp: int
    pp: int
    dp: int
    ep: int | None

    @property
    def sizes(self) -> Sizes:
        return Sizes(self.tp, self.pp, self.ep or 1, self.dp)

    def json(self) -> dict[str, Any]:
        return {"model": self.model, "tp": self.tp, "pp": self.pp, "dp": self.dp, "ep": self.ep}


#: Model → layouts as (tp, pp, dp, ep).
LAYOUTS: dict[str, list[tuple[int, int, int, int | None]]] = {
    "deepseek-ai/DeepSeek-V3": [
        (8, 1, 1, 8), (8, 1, 1, 1), (1, 1, 8, 8), (2, 1, 4, 8), (16, 1, 1, 16), (1, 1, 16, 16), (8, 2, 1, 8),
        (1, 1, 32, 32),
    ],
    "Qwen/Qwen3-235B-A22B": [
        (4, 1, 1, 1), (8, 1, 1, 1), (8, 1, 1, 8), (4, 1, 1, 4), (1, 1, 8, 8), (4, 1, 2, 8), (4, 2, 1, 4),
    ],
    "meta-llama/Meta-Llama-3.1-70B": [
        (2, 1, 1, None), (4, 1, 1, None), (8, 1, 1, None), (2, 2, 1, None), (4, 2, 1, None), (1, 4, 1, None),
    ],
    "zai-org/GLM-5-FP8": [
        (8, 1, 1, 8), (8, 1, 1, 1), (1, 1, 8, 8), (4, 1, 2, 8), (8, 2, 1, 8), (1, 1, 16, 16), (16, 1, 1, 16),
    ],
    "moonshotai/Kimi-K3": [
        (16, 1, 1, 1), (8, 2, 1, 8), (8, 2, 1, 1), (1, 2, 8, 8), (2, 2, 4, 8), (8, 4, 1, 8), (16, 2, 1, 1),
    ],
    "zai-org/GLM-5": [
        (16, 1, 1, 16), (16, 1, 1, 1), (8, 2, 1, 8), (8, 2, 1, 1), (1, 1, 16, 16), (8, 1, 2, 16), (2, 1, 8, 16),
        (1, 2, 8, 8),
    ],
    "Qwen/Qwen3-235B-A22B-FP8": [(4, 1, 1, 1), (8, 1, 1, 8), (4, 1, 1, 4), (1, 1, 8, 8), (2, 1, 2, 4)],
    "Qwen/Qwen3-32B": [(1, 1, 1, None), (2, 1, 1, None), (4, 1, 1, None)],
    "Qwen/Qwen3-30B-A3B": [(1, 1, 1, 1), (2, 1, 1, 1), (4, 1, 1, 4), (1, 1, 4, 4)],
    "meta-llama/Meta-Llama-3.1-8B": [(1, 1, 1, None), (2, 1, 1, None)],
    "meta-llama/Meta-Llama-3.1-405B": [(8, 1, 1, None), (8, 2, 1, None)],
    "MiniMaxAI/MiniMax-M2.5": [(4, 1, 1, 4), (8, 1, 1, 8), (1, 1, 8, 8)],
    "deepseek-ai/DeepSeek-V3.2": [(8, 1, 1, 8), (1, 1, 8, 8), (1, 1, 16, 16)],
    "openai/gpt-oss-120b": [(1, 1, 1, 1), (2, 1, 1, 1), (4, 1, 1, 4), (1, 1, 4, 4)],
}  # fmt: skip

GRID = tuple(Group(model, *layout) for model, layouts in LAYOUTS.items() for layout in layouts)


def grid_requests() -> Iterator[tuple[str, int, int]]:
    """Phase, tokens of a prompt, and sequences of one attention replica."""
    for prompt in (1000, 4000, 16000):
        for sequences in (1, 4):
            yield "prefill", prompt, sequences
        for sequences in (1, 4, 16, 64, 256):
            yield "decode", prompt, sequences
