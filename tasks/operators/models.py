"""Models of transformers by their config alone, without weights: on the meta device, or of fake tensors."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any

import torch
from huggingface_hub.errors import StrictDataclassError
from torch._subclasses.fake_tensor import FakeTensorMode
from transformers import (
    CONFIG_MAPPING,
    MODEL_FOR_CAUSAL_LM_MAPPING,
    MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING,
    MODEL_MAPPING,
    AutoConfig,
    AutoModel,
    AutoModelForCausalLM,
    AutoModelForImageTextToText,
)
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from tasks.operators.records import Resembling

#: Building a module for each of a billion layers that a hostile config names would never end.
MOST_LAYERS = 10_000

#: Keys of a config.json that count layers: of the model, a tower, an indexer, or modules that predict.
_LAYERS = re.compile(r"layers?$|^depth$|modules$")

#: The side of the image that a vision tower is traced with where its config names no size, pixels.
IMAGE = 448

#: What tracing a model of the library may raise, whose code runs without data here.
UNTRACEABLE = (
    ArithmeticError, AssertionError, AttributeError, ImportError, LookupError, NameError, NotImplementedError,
    RuntimeError, TypeError, ValueError,
)  # fmt: skip

#: Keys of a config.json that say how weights are stored and by what code or kernels the model was run: the operators
#: are those of the library's model at its dtype, as the library runs it by default.
LEFT_OUT = {
    "auto_map", "quantization_config", "compression_config", "attn_implementation", "_attn_implementation",
    "_attn_implementation_internal", "experts_implementation", "_experts_implementation",
}  # fmt: skip


def in_short(error: BaseException) -> str:
    """An error's class and the first line of what it says."""
    lines = str(error).strip().splitlines()[: 2 if isinstance(error, StrictDataclassError) else 1]
    return f"{type(error).__name__}: {' '.join(line.strip() for line in lines)[:200]}"


@dataclass(frozen=True)
class Description:
    """A model as the library describes it."""

    config: Any
    """The config that the model is built from: the text model's where the library has that by itself."""
    text: Any
    vision: Any
    """The vision tower's config, or None."""
    whole: Any
    """The config of all parts."""
    model_type: str
    """The type that the library knows it by."""
    code: str | None = None
    """The folder with the model's own code, where that is what runs."""
    resembles: Resembling | None = None
    """The type is not the model's own, but one that it may be like."""

    @property
    def layers(self) -> int:
        return int(self.text.num_hidden_layers)

    @property
    def dtype(self) -> torch.dtype:
        found = getattr(self.text, "dtype", None)
        return found if isinstance(found, torch.dtype) else torch.bfloat16


def describe(raw: dict[str, Any], resembling: Sequence[Resembling] = ()) -> tuple[Description | None, str]:
    """The model that a config.json describes; None where transformers has no such model, with the reason.

    Args:
        resembling: the first of these that transformers has stands for a type that it lacks, with the language model's
            config alone.
    """
    model_type, release = raw.get("model_type"), version("transformers")
    known = model_type if isinstance(model_type, str) and model_type in CONFIG_MAPPING else _of_architecture(raw)
    alike = None
    if known is None:
        alike = next((one for one in resembling if one.model_type in CONFIG_MAPPING), None)
        if alike is None:
            return None, f"transformers {release} does not know the model type {model_type!r}"
        known, raw = alike.model_type, raw["text_config"] if isinstance(raw.get("text_config"), dict) else raw
    if (count := most_layers(raw)) > MOST_LAYERS:
        return None, f"a model of {count:,} layers is not believed (at most {MOST_LAYERS:,})"
    try:
        whole = CONFIG_MAPPING[known].from_dict(_without(raw) | {"model_type": known})
        text = whole.get_text_config()
    except (*UNTRACEABLE, StrictDataclassError) as error:
        return None, f"transformers {release} cannot read the config ({in_short(error)})"
    if type(text) in MODEL_FOR_CAUSAL_LM_MAPPING:
        config = text
    elif type(whole) in MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING:
        config = whole
    else:
        return None, f"transformers {release} has no language model for the model type {model_type!r}"
    layers = getattr(text, "num_hidden_layers", 0)
    if not isinstance(layers, int) or not 0 < layers <= MOST_LAYERS:
        return None, f"a model of {layers:,} layers is not believed (at most {MOST_LAYERS:,})"
    # A tower that the config does not describe would be one of the library's defaults.
    vision = getattr(whole, "vision_config", None) if raw.get("vision_config") else None
    return Description(config, text, vision, whole, known, resembles=alike), ""


def describe_by_code(raw: dict[str, Any], folder: str) -> tuple[Description | None, str]:
    """The model that a folder's own code describes; None where that cannot be read, with the reason.

    Runs what the release ships: only ever in a container without network (tasks/operators/container.py).
    """
    try:
        whole = AutoConfig.from_pretrained(folder, trust_remote_code=True)
        text = whole.get_text_config()
    except (*UNTRACEABLE, OSError, StrictDataclassError) as error:
        return None, f"the model's own code cannot be run ({in_short(error)})"
    layers = getattr(text, "num_hidden_layers", 0)
    if not isinstance(layers, int) or not 0 < layers <= MOST_LAYERS:
        return None, f"a model of {layers!r} layers is not believed (at most {MOST_LAYERS:,})"
    return Description(whole, text, None, whole, str(raw.get("model_type")), folder), ""


def _of_architecture(raw: dict[str, Any]) -> str | None:
    """The library's model type whose class the config names, of a type that the library does not know (Kimi-K2 is a
    DeepseekV3ForCausalLM); None where it names none."""
    named = raw.get("architectures")
    if not isinstance(named, list) or not named:
        return None
    return next((known for known, name in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.items() if name == named[0]), None)


def most_layers(raw: Any) -> int:
    """The largest count of layers that a config names: the library makes lists of that length as it reads it."""
    if isinstance(raw, list):
        return max(map(most_layers, raw), default=0)
    if not isinstance(raw, dict):
        return 0
    counts = [value for key, value in raw.items() if isinstance(value, int) and _LAYERS.search(str(key))]
    return max([*counts, *map(most_layers, raw.values())], default=0)


def _without(raw: dict[str, Any]) -> dict[str, Any]:
    return {
        key: _without(value) if isinstance(value, dict) else value for key, value in raw.items() if key not in LEFT_OUT
    }


@contextmanager
def without_data(fake: bool) -> Iterator[None]:
    """In the body, tensors have shapes only: on the meta device, or where an operator has no function for it, fake
    ones that claim to lie on the CPU."""
    with FakeTensorMode(allow_non_fake_inputs=True) if fake else nullcontext(), torch.device("cpu" if fake else "meta"):
        yield


def build(model: Description) -> Any:
    """The language model, in inference mode, within `without_data`."""
    if model.code:
        return _built(AutoModelForCausalLM, model.config, model.dtype, code=True)
    auto = AutoModelForCausalLM if model.config is model.text else AutoModelForImageTextToText
    return _built(auto, model.config, model.dtype)


def run(built: Any, tokens: torch.Tensor, cache: Any) -> Any:
    """One pass over `tokens` [1, n] with what is in `cache`: logits of the last position, and the cache as it is then.

    Code of before transformers 5 has other names for the same arguments, or lacks them.
    """
    parameters = inspect.signature(built.forward).parameters
    named = "cache" if "cache" in parameters else "past_key_values"
    last = {"logits_to_keep": 1} if "logits_to_keep" in parameters else {}
    return built(input_ids=tokens, use_cache=True, **{named: cache}, **last)


def cache_of(output: Any) -> Any:
    """What a pass leaves for the next one."""
    return output.cache if "cache" in output else output.past_key_values


def build_vision(model: Description) -> Any:
    """The vision tower, likewise.

    Raises:
        ValueError: transformers has no model of this config.
    """
    if type(model.vision) in MODEL_MAPPING:
        return _built(AutoModel, model.vision, model.dtype)
    if type(model.whole) in MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING:
        # No model by itself, but a part of one; the first module with this config is the tower.
        whole = _built(AutoModelForImageTextToText, model.whole, model.dtype)
        tower = next((m for m in whole.modules() if isinstance(getattr(m, "config", None), type(model.vision))), None)
        if tower is not None:
            return tower
    raise ValueError(f"transformers has no model for {type(model.vision).__name__}")


def _built(auto: Any, config: Any, dtype: torch.dtype, code: bool = False) -> Any:
    return auto.from_config(config, dtype=dtype, trust_remote_code=code).eval()


def image_inputs(tower: Any) -> dict[str, torch.Tensor]:
    """One image for a vision tower: pixels, or patches with the grid that they lie in, which is data and not only a
    shape: it is there, on the CPU."""
    config, dtype = tower.config, tower.dtype
    shape: tuple[int, ...]
    size = config.image_size if isinstance(getattr(config, "image_size", None), int) else IMAGE
    patch = config.patch_size
    channels = getattr(config, "in_channels", getattr(config, "num_channels", 3))
    parameters = inspect.signature(tower.forward).parameters
    if "pixel_position_ids" in parameters:
        # Patches in a row, pooled by squares to so many tokens.
        patches = config.default_output_length * config.pooling_kernel_size**2
        shape = (1, patches, channels * patch * patch)
        positions = torch.zeros(1, patches, 2, dtype=torch.long, device="meta")
        return {"pixel_values": torch.zeros(shape, dtype=dtype, device="meta"), "pixel_position_ids": positions}
    grid = next((name for name in parameters if name in ("grid_thw", "image_grid_thw", "grid_hws", "grid_hw")), None)
    first = next(iter(parameters))
    if grid is None:
        return {first: torch.zeros(1, channels, size, size, dtype=dtype, device="meta")}
    merge = getattr(config, "spatial_merge_size", getattr(config, "merge_kernel_size", 1))
    side = size // patch // 2 * 2 if not isinstance(merge, int) else size // patch // merge * merge
    embedding = next((m for m in tower.modules() if isinstance(m, torch.nn.Conv2d | torch.nn.Conv3d)), None)
    if first == "pixel_values" and isinstance(embedding, torch.nn.Conv2d):
        shape = (side * side, channels, patch, patch)
    else:
        shape = (side * side, channels * getattr(config, "temporal_patch_size", 1) * patch * patch)
    return {
        first: torch.zeros(shape, dtype=dtype, device="meta"),
        grid: torch.tensor([[1, side, side] if grid.endswith("thw") else [side, side]]),
    }
