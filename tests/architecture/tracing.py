"""One layer of a real model, run on the CPU, as the operators that it called with the lifetimes of what they wrote."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from day0.architecture.lifetimes import Op

ATTENTION = torch.nn.functional.scaled_dot_product_attention


class Recorder(TorchDispatchMode):
    """Operators with the memory that each reads and newly writes; views and what is done in place write none.

    `peak` is what was really alive at once, in bytes: Python's frames hold more than the flow of data asks for.
    """

    def __init__(self, given: set[int]) -> None:
        super().__init__()
        self.ops: list[Op] = []
        self.peak = 0
        self._given = given
        self._names: dict[int, str] = {}
        self._alive: list[tuple[StorageWeakRef, int]] = []
        self._inside = False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if not self._inside:
            self.add(func.__name__, (args, kwargs), result)
        return result

    def add(self, name: str, arguments: Any, result: Any) -> None:
        reads = dict.fromkeys(
            self._names[key] for tensor in _tensors(arguments) if (key := _key(tensor)) in self._names
        )
        new = [t for t in _tensors(result) if _key(t) not in self._given and self._names.get(_key(t)) not in reads]
        for tensor in new:
            output = f"{len(self.ops)} {name}"
            self._names[_key(tensor)] = output
            self.ops.append(Op(name, tuple(reads), output, tensor.untyped_storage().nbytes(), 1))
            self._alive.append((StorageWeakRef(tensor.untyped_storage()), tensor.untyped_storage().nbytes()))
        if not new:
            self.ops.append(Op(name, tuple(reads), f"{len(self.ops)} nothing", 0, 1))
        self._alive = [(held, size) for held, size in self._alive if not held.expired()]
        self.peak = max(self.peak, sum(size for _, size in self._alive))

    @contextmanager
    def inside(self) -> Iterator[None]:
        self._inside = True
        try:
            yield
        finally:
            self._inside = False


class WholeAttention(TorchFunctionMode):
    """Attention as one operator, as a fused kernel is: the CPU may write all scores."""

    def __init__(self, recorder: Recorder) -> None:
        super().__init__()
        self.recorder = recorder

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is not ATTENTION:
            return func(*args, **(kwargs or {}))
        with self.recorder.inside():
            result = func(*args, **(kwargs or {})).clone()
        self.recorder.add("attention", (args, kwargs), result)
        return result


def trace_layer(config: Any, layer: int, tokens: int) -> Recorder:
    """Run one decoder layer of a model with random weights over one sequence; what it is given is the first output."""
    from transformers import AutoModelForCausalLM

    model: Any = AutoModelForCausalLM.from_config(config, attn_implementation="sdpa").eval().model
    hidden = torch.randn(1, tokens, config.hidden_size)
    positions = torch.arange(tokens)[None]
    rotations = model.rotary_emb(hidden, positions)
    given = {_key(tensor) for tensor in (*model.parameters(), *model.buffers(), *rotations, positions)}
    recorder = Recorder(given)
    with torch.no_grad(), WholeAttention(recorder), recorder:
        model.layers[layer](hidden.clone(), position_embeddings=rotations, position_ids=positions, attention_mask=None)
    return recorder


def _tensors(tree: Any) -> list[torch.Tensor]:
    return [leaf for leaf in tree_leaves(tree) if isinstance(leaf, torch.Tensor)]


def _key(tensor: torch.Tensor) -> int:
    return int(tensor.untyped_storage()._cdata)
