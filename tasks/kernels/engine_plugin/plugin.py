"""Loaded by vLLM in each of its processes: puts accepted kernels in the place of its operators and layers.

It is copied, so it imports nothing of day0: torch, vLLM, and the files beside it. Each folder there with a
`kernel.json` is a kernel; where DAY0_KERNELS_GIVEN names some, separated by commas, the others are left out. Each call
that a kernel answers is counted; one that it fails, or all where it cannot be loaded, is answered by the engine's own
code, counted apart and logged. Where the engine compiles its graphs, a call is counted when it is traced.

A kernel that kills the process is named in the stack that faulthandler prints: a function of its name calls it.
"""

import faulthandler
import functools
import importlib
import importlib.util
import json
import logging
import os
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from . import counts, operators
from .counts import Use
from .places import IR, LAYERS

logger = logging.getLogger("vllm.day0_kernels")

HERE = Path(__file__).parent
PROVIDER = "day0"

LIBRARIES: list[torch.library.Library] = []


def register() -> None:
    """The entry point. Nothing that goes wrong here may end the engine: it goes on with its own code."""
    faulthandler.enable(file=2)  # the log, as it is before the engine puts its own words before each line
    given = os.environ.get("DAY0_KERNELS_GIVEN")
    files = sorted(HERE.glob("*/kernel.json"))
    described = [json.loads(f.read_text()) for f in files if given is None or f.parent.name in given.split(",")]
    for entry in described:
        entry["dtypes"] = frozenset(getattr(torch, name) for name in entry["dtypes"])
        kernel = usable(entry)
        for operator in entry["places"]:
            namespace, _, name = operator.partition("::")
            put = {"vllm_ir": add_provider, "vllm": replace_layer}.get(namespace)
            try:
                if put:
                    put(name, operator, entry, kernel)
                else:
                    # On the CPU itself what was there before answers what a kernel fails. Elsewhere the scan found that
                    # the target has none, or one that is wrong.
                    LIBRARIES.append(operators.replace(operator, entry, kernel, wrong=entry["key"] != "CPU")[0])
            except Exception as error:  # another version of the engine or of torch has no such place
                Use(operator, entry["name"]).because(error)
    counts.start()
    logger.info("day0 offers kernels: %s", "; ".join(f"{e['name']} for {', '.join(e['places'])}" for e in described))


def usable(entry: dict[str, Any]) -> Callable[..., Any]:
    """The kernel, or, where it cannot be loaded, a function that raises why: the engine's own code then answers."""
    try:
        load(entry)
    except Exception as error:  # such as a torch that the library was not made for
        why = f"it cannot be loaded: {type(error).__name__}: {error}"
        logger.warning("follow-up: kernel %s: %s", entry["name"], why)

        def unusable(*_args: Any) -> Any:
            raise RuntimeError(why)

        return unusable
    return named(entry["name"], getattr(torch.ops.day0, entry["name"]).default)


def named(name: str, kernel: Callable[..., Any]) -> Callable[..., Any]:
    """A function `day0_kernel_NAME` that calls the kernel: so it is called in a stack, too."""

    def call(*args: Any) -> Any:
        return kernel(*args)

    code = call.__code__.replace(co_name=f"day0_kernel_{name}")
    return types.FunctionType(code, call.__globals__, code.co_name, None, call.__closure__)


def load(entry: dict[str, Any]) -> None:
    """Define `day0::NAME` with its implementation, and the reference on meta tensors as its meta function."""
    qualified = f"day0::{entry['name']}"
    library = torch.library.Library("day0", "FRAGMENT")  # type: ignore[no-untyped-call]
    LIBRARIES.append(library)
    library.define(entry["schema"])  # type: ignore[no-untyped-call]
    if entry["out_schema"]:
        library.define(entry["out_schema"])  # type: ignore[no-untyped-call]
    folder = HERE / entry["name"]
    reference = _module(folder / "reference.py").reference

    def meta(*args: Any) -> Any:
        outputs = tuple(x.new_empty(x.shape) for x in reference(*args))
        return outputs[0] if len(outputs) == 1 else outputs

    torch.library.register_fake(qualified, meta, lib=library)
    if entry["library"]:
        torch.ops.load_library(str(folder / entry["library"]))  # type: ignore[no-untyped-call]
    else:
        run = _module(folder / entry["module"]).run
        library.impl(entry["name"], run, entry["key"])  # type: ignore[no-untyped-call]
    if not torch._C._dispatch_has_kernel_for_dispatch_key(qualified, entry["key"]):
        raise RuntimeError(f"it registers no {qualified} for {entry['key']}")


def _module(path: Path) -> Any:
    spec = importlib.util.spec_from_file_location(f"day0_kernels_{path.parent.name}_{path.stem}", path)
    if spec is None or spec.loader is None:
        raise ImportError(f"{path} is no Python file")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def takes(entry: dict[str, Any], *tensors: Any) -> bool:
    """Whether the kernel was accepted for this dtype, which all tensors share, for as many elements, on the device that
    it is for."""
    dtype, most = tensors[0].dtype, entry["elements"]
    for tensor in tensors:  # on the path of every call: a generator would cost more than all of this
        if tensor is None or tensor.dtype is not dtype or (most is not None and tensor.numel() > most):
            return False
    return dtype in entry["dtypes"] and tensors[0].device.type == entry["device"]


def add_provider(name: str, operator: str, entry: dict[str, Any], kernel: Callable[..., Any]) -> None:
    """Offer a kernel for an operator of the engine's IR; `--ir-op-priority` puts it first.

    The engine does not start with a provider in that list that nobody registered, so that one which fails is too.
    """
    op = getattr(importlib.import_module("vllm.ir.ops"), name)
    use = Use(operator, entry["name"])
    implementation, supports = ADAPTERS[name](op.impls["native"].impl_fn, use, entry, kernel)
    op.register_impl(PROVIDER, supports_args=supports, supported=True)(implementation)


# Names and annotations of parameters are the operators' own: the engine compares them.


def _rms_norm(
    native: Callable[..., Any], use: Use, entry: dict[str, Any], kernel: Callable[..., Any]
) -> tuple[Callable[..., Any], Callable[..., bool]]:
    def implementation(
        x: torch.Tensor, weight: torch.Tensor | None, epsilon: float, variance_size: int | None = None
    ) -> torch.Tensor:
        result: torch.Tensor = use.answer(
            kernel, (x, weight, epsilon), lambda: native(x, weight, epsilon, variance_size)
        )
        return result

    def supports(
        x: torch.Tensor, weight: torch.Tensor | None, epsilon: float, variance_size: int | None = None
    ) -> bool:
        given = variance_size is None and takes(entry, x, weight)
        use.declined += not given
        return given

    return implementation, supports


def _fused_add_rms_norm(
    native: Callable[..., Any], use: Use, entry: dict[str, Any], kernel: Callable[..., Any]
) -> tuple[Callable[..., Any], Callable[..., bool]]:
    def implementation(
        x: torch.Tensor,
        x_residual: torch.Tensor,
        weight: torch.Tensor | None,
        epsilon: float,
        variance_size: int | None = None,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        result: tuple[torch.Tensor, torch.Tensor] = use.answer(
            kernel, (x, x_residual, weight, epsilon), lambda: native(x, x_residual, weight, epsilon, variance_size)
        )
        return result

    def supports(
        x: torch.Tensor,
        x_residual: torch.Tensor,
        weight: torch.Tensor | None,
        epsilon: float,
        variance_size: int | None = None,
    ) -> bool:
        given = variance_size is None and takes(entry, x, x_residual, weight)
        use.declined += not given
        return given

    return implementation, supports


def replace_layer(name: str, operator: str, entry: dict[str, Any], kernel: Callable[..., Any]) -> None:
    """Put a layer of our own in the place of one that is no IR operator: it asks the kernel, else the layer."""
    module, class_name = LAYERS[name]
    original: Any = getattr(importlib.import_module(module), class_name)
    arguments = ARGUMENTS[name]
    use = Use(operator, entry["name"])

    @functools.wraps(original, updated=())
    class Replaced(original):  # type: ignore[misc]
        def forward(self, *args: Any, **kwargs: Any) -> Any:
            own = super().forward
            given = arguments(self, *args, **kwargs)
            if given is None or not takes(entry, *given[1]):
                use.declined += 1
                return own(*args, **kwargs)
            return use.answer(lambda *its: given[2](kernel(*its)), given[0], lambda: own(*args, **kwargs))

    registered = original.name
    original.register_oot(Replaced, name=class_name)
    Replaced.name = registered  # what `custom_ops` of the engine calls the layer


# Of a layer's call: the kernel's arguments, the tensors whose dtype decides, and the result as the layer gives it.
# None: the kernel does not compute this one.


def _gated(activation: Callable[[Any], str | None], interleaved: bool = False) -> Callable[..., Any]:
    def arguments(layer: Any, x: torch.Tensor) -> Any:
        word = activation(layer)
        if word is None:
            return None
        limit = getattr(layer, "swiglu_limit", getattr(layer, "limit", None))
        alpha, beta = getattr(layer, "alpha", 1.0), getattr(layer, "beta", 1.0 if interleaved else 0.0)
        return (x, word, limit, float(alpha), float(beta), interleaved), (x,), lambda result: result

    return arguments


def _rotary(layer: Any, positions: torch.Tensor, query: torch.Tensor, key: torch.Tensor | None = None) -> Any:
    # Several position ids for a token, or queries of three dimensions, are other layers' ways.
    if key is None or positions.dim() != 1 or query.dim() != 2 or key.dim() != 2:
        return None
    heads = (len(positions), -1, layer.head_size)
    given = (positions, query.view(heads), key.view(heads), layer.cos_sin_cache, not layer.is_neox_style)
    return given, (query, key), lambda out: (out[0].view(query.shape), out[1].view(key.shape))


ADAPTERS: dict[str, Callable[..., Any]] = {"rms_norm": _rms_norm, "fused_add_rms_norm": _fused_add_rms_norm}
ARGUMENTS: dict[str, Callable[..., Any]] = {
    "silu_and_mul": _gated(lambda layer: "silu"),
    "gelu_and_mul": _gated(lambda layer: "gelu_tanh" if layer.approximate == "tanh" else "gelu"),
    "swigluoai_and_mul": _gated(lambda layer: "silu", interleaved=True),
    "silu_and_mul_with_clamp": _gated(lambda layer: "silu"),
    "rotary_embedding": _rotary,
}
assert set(ADAPTERS) == set(IR)
assert set(ARGUMENTS) == set(LAYERS)
