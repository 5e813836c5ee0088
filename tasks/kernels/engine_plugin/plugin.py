"""Loaded by vLLM in each of its processes: puts accepted kernels in the place of its operators and layers.

It is copied, so it imports nothing of day0: torch, vLLM, and the files beside it. `kernels.json` there says which
kernels there are. Each call that a kernel answers is counted; one that it fails is answered by the engine's own code,
counted apart and logged. The counts go to a file for each process in the folder that DAY0_KERNEL_USES names.
"""

import atexit
import functools
import importlib
import importlib.util
import json
import logging
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

logger = logging.getLogger("vllm.day0_kernels")

HERE = Path(__file__).parent
PROVIDER = "day0"
SECONDS_BETWEEN_WRITES = 0.5

LIBRARIES: list[torch.library.Library] = []


class Uses:
    """Calls of kernels in this process, written to a file soon after they change."""

    def __init__(self) -> None:
        self.folder = os.environ.get("DAY0_KERNEL_USES")
        self.counts: dict[tuple[str, str], dict[str, Any]] = {}
        self.process = 0
        self.written = ""
        self.lock = threading.Lock()

    def offer(self, operator: str, kernel: str) -> None:
        self.counts[operator, kernel] = {"calls": 0, "fallbacks": 0, "reason": ""}

    def answered(self, operator: str, kernel: str) -> None:
        self.counts[operator, kernel]["calls"] += 1
        self.start()

    def failed(self, operator: str, kernel: str, error: Exception) -> None:
        its = self.counts[operator, kernel]
        its["fallbacks"] += 1
        if not its["reason"]:
            its["reason"] = f"{type(error).__name__}: {(str(error).splitlines() or [''])[0][:200]}"
            logger.warning("follow-up: kernel %s failed for %s: %s", kernel, operator, its["reason"])
        self.start()

    def start(self) -> None:
        """Begin to write, once in each process."""
        if self.process == os.getpid() or not self.folder:
            return
        self.process = os.getpid()
        threading.Thread(target=self._keep_writing, name="day0-kernel-uses", daemon=True).start()
        atexit.register(self.write)

    def forget(self) -> None:
        """In a forked process: what the parent counted is the parent's, and its thread is not here."""
        self.lock, self.written = threading.Lock(), ""
        for its in self.counts.values():
            its.update(calls=0, fallbacks=0, reason="")

    def _keep_writing(self) -> None:
        while True:
            self.write()
            time.sleep(SECONDS_BETWEEN_WRITES)

    def write(self) -> None:
        if not self.folder:
            return
        uses = [{"operator": o, "kernel": k, **its} for (o, k), its in self.counts.items()]
        text = json.dumps(uses)
        with self.lock:
            if text == self.written:
                return
            path = Path(self.folder, f"{os.getpid()}.json")
            path.parent.mkdir(parents=True, exist_ok=True)
            temporary = path.with_suffix(".tmp")
            temporary.write_text(text)
            temporary.replace(path)
            self.written = text


USES = Uses()
os.register_at_fork(after_in_child=USES.forget)


def register() -> None:
    """The entry point."""
    described = json.loads((HERE / "kernels.json").read_text())
    kernels = {entry["name"]: entry for entry in described}
    for entry in kernels.values():
        load(entry)
    for entry in kernels.values():
        for operator in entry["replaces"]:
            namespace, _, name = operator.partition("::")
            if namespace == "vllm_ir" and name in IR:
                add_provider(name, operator, entry)
            elif namespace == "vllm" and name in LAYERS:
                replace_layers(name, operator, entry)
    USES.start()
    logger.info("day0 offers kernels for %s", ", ".join(operator for operator, _ in USES.counts) or "nothing")


def load(entry: dict[str, Any]) -> None:
    """Define `day0::NAME` with its implementation, and the reference on meta tensors as its meta function."""
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

    torch.library.register_fake(f"day0::{entry['name']}", meta, lib=library)
    if entry["library"]:
        torch.ops.load_library(str(folder / entry["library"]))  # type: ignore[no-untyped-call]
    else:
        run = _module(folder / entry["module"]).run
        library.impl(entry["name"], run, entry["key"])  # type: ignore[no-untyped-call]


def _module(path: Path) -> Any:
    spec = importlib.util.spec_from_file_location(f"day0_kernels_{path.parent.name}_{path.stem}", path)
    if spec is None or spec.loader is None:
        raise ImportError(f"{path} is no Python file")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def kernel_of(entry: dict[str, Any]) -> Callable[..., Any]:
    kernel: Callable[..., Any] = getattr(torch.ops.day0, entry["name"]).default
    return kernel


def takes(entry: dict[str, Any], *tensors: Any) -> bool:
    """Whether the kernel was accepted for this dtype, which all tensors share, on the device that it is for."""
    first = tensors[0]
    return (
        str(first.dtype).removeprefix("torch.") in entry["dtypes"]
        and first.device.type == entry["device"]
        and all(isinstance(t, torch.Tensor) and t.dtype == first.dtype for t in tensors)
    )


def add_provider(name: str, operator: str, entry: dict[str, Any]) -> None:
    """Offer a kernel for an operator of the engine's IR; `--ir-op-priority` puts it first."""
    op = getattr(importlib.import_module("vllm.ir.ops"), name, None)
    if op is None:
        logger.warning("follow-up: this vLLM has no IR operator %s", name)
        return
    implementation, supports = IR[name](op, operator, entry)
    op.register_impl(PROVIDER, supports_args=supports, supported=True)(implementation)
    USES.offer(operator, entry["name"])


# Names and annotations of parameters are the operators' own: the engine compares them.


def _rms_norm(op: Any, operator: str, entry: dict[str, Any]) -> tuple[Callable[..., Any], Callable[..., bool]]:
    kernel, native = kernel_of(entry), op.impls["native"].impl_fn

    def implementation(
        x: torch.Tensor, weight: torch.Tensor | None, epsilon: float, variance_size: int | None = None
    ) -> torch.Tensor:
        try:
            result: torch.Tensor = kernel(x, weight, epsilon)
        except Exception as error:  # whatever a kernel raises, the engine goes on and the failure is on record
            USES.failed(operator, entry["name"], error)
            result = native(x, weight, epsilon, variance_size)
            return result
        USES.answered(operator, entry["name"])
        return result

    def supports(
        x: torch.Tensor, weight: torch.Tensor | None, epsilon: float, variance_size: int | None = None
    ) -> bool:
        return variance_size is None and takes(entry, x, weight)

    return implementation, supports


def _fused_add_rms_norm(
    op: Any, operator: str, entry: dict[str, Any]
) -> tuple[Callable[..., Any], Callable[..., bool]]:
    kernel, native = kernel_of(entry), op.impls["native"].impl_fn

    def implementation(
        x: torch.Tensor,
        x_residual: torch.Tensor,
        weight: torch.Tensor | None,
        epsilon: float,
        variance_size: int | None = None,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        try:
            result: tuple[torch.Tensor, torch.Tensor] = kernel(x, x_residual, weight, epsilon)
        except Exception as error:  # as above
            USES.failed(operator, entry["name"], error)
            result = native(x, x_residual, weight, epsilon, variance_size)
            return result
        USES.answered(operator, entry["name"])
        return result

    def supports(
        x: torch.Tensor,
        x_residual: torch.Tensor,
        weight: torch.Tensor | None,
        epsilon: float,
        variance_size: int | None = None,
    ) -> bool:
        return variance_size is None and takes(entry, x, x_residual, weight)

    return implementation, supports


IR: dict[str, Callable[..., Any]] = {"rms_norm": _rms_norm, "fused_add_rms_norm": _fused_add_rms_norm}


def replace_layers(name: str, operator: str, entry: dict[str, Any]) -> None:
    """Put a layer of our own in the place of one that is no IR operator: it asks the kernel, else the layer."""
    module, class_name, arguments = LAYERS[name]
    try:
        original: Any = getattr(importlib.import_module(module), class_name)
    except (ImportError, AttributeError) as error:
        logger.warning("follow-up: this vLLM has no layer %s: %s", class_name, error)
        return
    kernel = kernel_of(entry)

    @functools.wraps(original, updated=())
    class Replaced(original):  # type: ignore[misc]
        def forward(self, *args: Any, **kwargs: Any) -> Any:
            given = arguments(self, *args, **kwargs)
            if given is None or not takes(entry, *given[1]):
                return super().forward(*args, **kwargs)
            try:
                result = given[2](kernel(*given[0]))
            except Exception as error:  # as above
                USES.failed(operator, entry["name"], error)
                return super().forward(*args, **kwargs)
            USES.answered(operator, entry["name"])
            return result

    registered = original.name
    original.register_oot(Replaced, name=class_name)
    Replaced.name = registered  # what `custom_ops` of the engine calls the layer
    USES.offer(operator, entry["name"])


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


_ACTIVATION = "vllm.model_executor.layers.activation"

LAYERS: dict[str, tuple[str, str, Callable[..., Any]]] = {
    "silu_and_mul": (_ACTIVATION, "SiluAndMul", _gated(lambda layer: "silu")),
    "gelu_and_mul": (
        _ACTIVATION, "GeluAndMul", _gated(lambda layer: "gelu_tanh" if layer.approximate == "tanh" else "gelu"),
    ),
    "swigluoai_and_mul": (_ACTIVATION, "SwigluOAIAndMul", _gated(lambda layer: "silu", interleaved=True)),
    "silu_and_mul_with_clamp": (_ACTIVATION, "SiluAndMulWithClamp", _gated(lambda layer: "silu")),
    "rotary_embedding": ("vllm.model_executor.layers.rotary_embedding.base", "RotaryEmbedding", _rotary),
}  # fmt: skip
