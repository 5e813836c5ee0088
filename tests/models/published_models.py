"""Every published tensor table with a config that belongs to it: the release's own, or its published sizes."""

from __future__ import annotations

from typing import Any

from day0.safetensors_header import TensorInfo
from tests.architecture.test_families import SIZES
from tests.architecture.test_families_moe import SIZES as MOE_SIZES
from tests.models.published import NAMES, published_config, published_tensors, with_experts

#: What the published sizes leave out, and no tensor's shape depends on.
_REST = {"max_position_embeddings": 32768, "torch_dtype": "bfloat16"}
_CHOSEN = {"glm_4.5v": 8, "glm_4.7_flash": 4}
_KNOWN = SIZES | MOE_SIZES

#: All but those whose family is not described.
TABLES = [name for name in NAMES if name in _KNOWN or published_config(name) is not None]


def config_of(name: str, experts: int | None = None) -> dict[str, Any]:
    """The config; with so many experts a layer, where that is not None."""
    config = published_config(name)
    if config is None:
        config = {**_REST, **_KNOWN[name]}
        if name in _CHOSEN:
            config = {**config, "num_experts_per_tok": _CHOSEN[name]}
    return config if experts is None else with_experts(config, experts)


def infos(name: str, experts: int | None = None) -> dict[str, TensorInfo]:
    """The tensors, as their headers would have them."""
    return {
        tensor: TensorInfo(tensor, dtype, shape, "model.safetensors", 0, 0)
        for tensor, dtype, shape in published_tensors(name, experts)
    }
