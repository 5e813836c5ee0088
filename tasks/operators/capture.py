"""Runs a model of transformers on the meta device and records the operators that it calls.

A process of its own (`python -m tasks.operators.capture REQUEST ANSWER`), so that torch stays out of the
orchestrator and a crash is an answer. No weights are read and none of the model's own code is run.

The record is what a backend is asked for: operators below autograd, where composite ones have been taken apart.
Attention is the exception. What scaled_dot_product_attention becomes depends on the device (a fused kernel on the
CPU, batched products on the meta device), so it is recorded whole, and what it becomes is looked up apart.
"""

from __future__ import annotations

import copy
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils._pytree import tree_leaves
from transformers import CONFIG_MAPPING, MODEL_FOR_CAUSAL_LM_MAPPING, AutoModelForCausalLM
from transformers.generation.stopping_criteria import EosTokenCriteria

from day0.files import write_json
from tasks.operators.costs import Cost, Operand, cost
from tasks.operators.records import (
    EXPLICIT,
    IMPLICIT,
    NON_FUNCTIONAL,
    Capture,
    CapturedOperator,
    CaptureRequest,
    Registration,
)

ATTENTION = "aten::scaled_dot_product_attention"

#: A model whose layers are all alike is traced with so many layers of it, and the difference is repeated.
FEWER, MORE = 2, 3

#: Building a module for each of a billion layers that a hostile config names would never end.
MOST_LAYERS = 10_000

FREE = Cost(0, 0)


@dataclass(frozen=True)
class Tally:
    """Calls of an overload, and what they cost together."""

    calls: int = 0
    cost: Cost = FREE

    def plus(self, other: Tally, times: int = 1) -> Tally:
        flops, moved = (
            None if a is None or b is None else a + times * b for a, b in zip(self.cost, other.cost, strict=True)
        )
        return Tally(self.calls + times * other.calls, Cost(flops, moved))


Tallies = dict[str, Tally]


class Recorder(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Tallies the operators called while it is active."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.tallies: Tallies = {}
        self.parts: dict[str, set[str]] = {}
        self._inside: str | None = None

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        if self._inside:
            self.parts.setdefault(self._inside, set()).add(func.name())
        else:
            self.add(func.name(), (args, kwargs), result, is_view=_is_view(func._schema))
        return result

    def add(self, name: str, arguments: Any, result: Any, *, is_view: bool = False, causal: bool = False) -> None:
        call = cost(name, _operands(arguments), _operands(result), is_view=is_view, causal=causal)
        self.tallies[name] = self.tallies.get(name, Tally()).plus(Tally(1, call))

    @contextmanager
    def inside(self, name: str) -> Iterator[None]:
        """What the body calls are parts of `name`, recorded as names only."""
        self._inside = name
        try:
            yield
        finally:
            self._inside = None


class WholeAttention(TorchFunctionMode):
    """Records attention as one operator, and keeps one call of each form to look up what it becomes."""

    def __init__(self, recorder: Recorder) -> None:
        super().__init__()
        self.recorder = recorder
        self.forms: dict[str, tuple[list[Any], dict[str, Any]]] = {}

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is not torch.nn.functional.scaled_dot_product_attention:
            return func(*args, **kwargs)
        with self.recorder.inside(ATTENTION):
            result = func(*args, **kwargs)
        with _disable_current_modes():
            # In memory as fused kernels leave it, [B, S, H, d], or a copy would follow that only the meta device makes.
            result = result.transpose(1, -2).contiguous().transpose(1, -2) if result.dim() == 4 else result
        self.recorder.add(ATTENTION, (args, kwargs), result, causal=bool(kwargs.get("is_causal")))
        shapes = [tuple(x.shape) for x in tree_leaves((args, kwargs)) if isinstance(x, torch.Tensor)]
        form = repr([kwargs.get("is_causal"), [shape[-1:] for shape in shapes]])
        self.forms.setdefault(form, (list(args), dict(kwargs)))
        return result


def capture(request: CaptureRequest) -> Capture:
    """The operators of prefill and decode, and what torch has registered for each."""
    config, reason = build_config(request.config)
    if config is None:
        return Capture(unsupported=reason)
    model = build_model(config)
    layers = int(config.num_hidden_layers)
    if layers > MORE and layers_are_alike(model, config):
        fewer, more = (trace(build_model(with_layers(config, n)), request) for n in (FEWER, MORE))
        phases = {name: repeat(fewer.phases[name], more.phases[name], layers - MORE) for name in more.phases}
        traced, last = MORE, more
    else:
        last = trace(model, request)
        phases, traced = last.phases, layers
    parts = {ATTENTION: last.attention_parts} if last.attention_parts else {}
    names = {name for phase in phases.values() for name in phase}
    names |= {part for by_device in parts.values() for found in by_device.values() for part in found}
    return Capture(
        phases={
            phase: tuple(CapturedOperator(name=n, calls=t.calls, flops=t.cost.flops, bytes=t.cost.bytes)
                         for n, t in sorted(tallies.items()))
            for phase, tallies in phases.items()
        },
        registrations=registrations(names, request.dispatch_key),
        parts=parts,
        key_readable=request.dispatch_key is None or has_kernel("aten::mm.out", request.dispatch_key),
        layers=layers,
        traced_layers=traced,
        dtype=str(dtype_of(config)).removeprefix("torch."),
        packages={name: version(name) for name in ("torch", "transformers")},
    )  # fmt: skip


def build_config(raw: dict[str, Any]) -> tuple[Any, str]:
    """The text model's config object; None where transformers has no such model, with the reason."""
    model_type, release = raw.get("model_type"), version("transformers")
    if not isinstance(model_type, str) or model_type not in CONFIG_MAPPING:
        return None, f"transformers {release} does not know the model type {model_type!r}"
    # Whatever quantisation the weights have, the operators are those of the model at its dtype.
    raw = {k: v for k, v in raw.items() if k not in ("auto_map", "quantization_config")}
    config = CONFIG_MAPPING[model_type].from_dict(raw).get_text_config()
    if type(config) not in MODEL_FOR_CAUSAL_LM_MAPPING:
        return None, f"transformers {release} has no language model for the model type {model_type!r}"
    if not 0 < config.num_hidden_layers <= MOST_LAYERS:
        return None, f"a model of {config.num_hidden_layers:,} layers is not believed (at most {MOST_LAYERS:,})"
    return config, ""


def dtype_of(config: Any) -> torch.dtype:
    return config.dtype if isinstance(config.dtype, torch.dtype) else torch.bfloat16


def build_model(config: Any) -> Any:
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(  # type: ignore[no-untyped-call]
            config, dtype=dtype_of(config), trust_remote_code=False
        )
    return model.eval()


def with_layers(config: Any, layers: int) -> Any:
    """A copy of the config with fewer layers; lists that have an entry for each layer are cut too."""
    whole = config.num_hidden_layers
    config = copy.deepcopy(config)
    for name, value in vars(config).items():
        if isinstance(value, list) and len(value) == whole:
            setattr(config, name, value[:layers])
    config.num_hidden_layers = layers
    return config


def layers_are_alike(model: Any, config: Any) -> bool:
    """Whether every decoder layer has the same modules, sizes and settings, by what was built."""
    layers = config.num_hidden_layers
    per_layer = [v for v in vars(config).values() if isinstance(v, list) and len(v) == layers]
    if any(value != values[0] for values in per_layer for value in values):
        return False
    stacks = [m for m in model.modules() if isinstance(m, torch.nn.ModuleList) and len(m) == layers]
    return len(stacks) == 1 and len({_signature(layer) for layer in stacks[0]}) == 1


def _signature(layer: torch.nn.Module) -> str:
    def settings(module: torch.nn.Module) -> list[tuple[str, Any]]:
        return sorted((k, v) for k, v in vars(module).items()
                      if k not in ("layer_idx", "training") and isinstance(v, int | float | str | None))  # fmt: skip

    modules = [(name, type(m).__qualname__, settings(m)) for name, m in layer.named_modules()]
    return repr((modules, [(name, tuple(p.shape), p.dtype) for name, p in layer.named_parameters()]))


@dataclass
class Trace:
    """Both phases of one model as it was built."""

    phases: dict[str, Tallies]
    attention_parts: dict[str, tuple[str, ...]]


def trace(model: Any, request: CaptureRequest) -> Trace:
    """Prefill of `prompt` tokens, then one token with `context` tokens in the cache; batch 1.

    Each ends as greedy generation does: logits of the last position only, the likeliest token, and the test for the
    end of the sequence, whose operators stand outside the model's own forward.
    """
    recorders = {"prefill": Recorder(), "decode": Recorder()}
    forms: dict[str, tuple[list[Any], dict[str, Any]]] = {}
    with torch.no_grad():
        for phase, recorder in recorders.items():
            tokens, cache = request.prompt, None
            if phase == "decode":
                tokens, cache = 1, model(input_ids=_tokens(request.context), use_cache=True, logits_to_keep=1).cache
            attention = WholeAttention(recorder)
            ids, eos = _tokens(tokens), model.config.eos_token_id
            ended = None if eos is None else EosTokenCriteria(eos)
            with recorder, attention:
                output = model(input_ids=ids, cache=cache, use_cache=True, logits_to_keep=1)
                chosen = output.logits[:, -1].argmax(-1)
                if ended:
                    ended(chosen[:, None], None)
            forms |= attention.forms
    if not forms:
        return Trace({name: r.tallies for name, r in recorders.items()}, {})
    on_cpu = Recorder()
    for args, kwargs in forms.values():
        small_args, small_kwargs = _on_cpu(args, kwargs)
        with torch.no_grad(), on_cpu, on_cpu.inside(ATTENTION):
            torch.nn.functional.scaled_dot_product_attention(*small_args, **small_kwargs)
    decomposed = set[str]().union(*(r.parts.get(ATTENTION, ()) for r in recorders.values()))
    parts = {"CPU": on_cpu.parts.get(ATTENTION, set()), "decomposed": decomposed}
    return Trace(
        {name: r.tallies for name, r in recorders.items()}, {device: tuple(sorted(p)) for device, p in parts.items()}
    )


def _on_cpu(args: list[Any], kwargs: dict[str, Any]) -> tuple[list[Any], dict[str, Any]]:
    """The same call on the CPU at a few positions: which kernel torch takes hangs on all but the lengths."""

    def small(value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return value
        *front, rows, columns = value.shape
        is_mask = value is kwargs.get("attn_mask") or (len(args) > 3 and value is args[3])
        return torch.zeros(*front, min(rows, 4), min(columns, 4) if is_mask else columns, dtype=value.dtype)

    return [small(a) for a in args], {k: small(v) for k, v in kwargs.items()}


def _tokens(count: int) -> torch.Tensor:
    return torch.zeros(1, count, dtype=torch.long, device="meta")


def repeat(fewer: Tallies, more: Tallies, times: int) -> Tallies:
    """What a model with `times` further layers calls: the difference of two traces is one layer. Exact."""
    result = {}
    for name, tally in more.items():
        layer = tally.plus(fewer.get(name, Tally()), -1)
        result[name] = tally.plus(layer, times)
    return result


def registrations(names: set[str], key: str | None) -> dict[str, Registration]:
    """What torch has for each operator, and for the out= overloads that structured ones compute through."""
    delegates = structured_delegates()
    keys = sorted({"CPU", IMPLICIT, EXPLICIT, NON_FUNCTIONAL} | ({key} if key else set()))
    known = set(torch._C._dispatch_get_all_op_names())
    names = names | {delegates[name] for name in names if name in delegates}
    return {
        name: Registration(
            exists=name in known,
            keys=tuple(k for k in keys if name in known and has_kernel(name, k)),
            delegate=delegates.get(name),
        )
        for name in sorted(names)
    }


def has_kernel(name: str, key: str) -> bool:
    return torch._C._dispatch_has_kernel_for_dispatch_key(name, key)


def structured_delegates() -> dict[str, str]:
    """Structured operator → the out= overload with its kernel, from the declarations that torch ships."""
    declared = Path(torch.__file__).parents[1] / "torchgen/packaged/ATen/native/native_functions.yaml"
    found, name = {}, ""
    # Two keys of 2,600 entries: reading them as YAML would take seconds.
    for line in declared.read_text(encoding="utf-8").splitlines():
        if match := re.match(r"- func: ([\w.]+)\(", line):
            name = match[1]
        elif match := re.match(r"  structured_delegate: ([\w.]+)", line):
            found[f"aten::{name}"] = f"aten::{match[1]}"
    return found


def _is_view(schema: Any) -> bool:
    return any(r.alias_info is not None and not r.alias_info.is_write for r in schema.returns)


def _operands(value: Any) -> list[Operand]:
    return [
        Operand(
            tuple(t.shape),
            t.element_size(),
            t.is_floating_point(),
            # An expanded dimension has stride 0.
            torch.Size([n for n, stride in zip(t.shape, t.stride(), strict=True) if stride]).numel(),
        )
        for t in tree_leaves(value)
        if isinstance(t, torch.Tensor)
    ]


def main(request: Path, answer: Path) -> None:
    """Answer a request file with a file."""
    asked = CaptureRequest.model_validate_json(request.read_bytes())
    write_json(answer, capture(asked).to_json())


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
