"""Whether a model has a vision tower, from its config and the names of its tensors."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from day0.artifacts.multimodal import MultimodalReport
from day0.verdict import Check, Verdict

#: Keys that say so in a config.json (transformers' own, Llava's, Qwen-VL's and Phi's).
CONFIG_KEYS = ("vision_config", "vision_tower", "mm_vision_tower", "visual", "img_processor", "image_token_id",
               "image_token_index", "vision_start_token_id")  # fmt: skip

#: Parts of dotted tensor names that only a vision tower, or what joins it to the language model, has.
TENSOR_PARTS = frozenset({"vision_tower", "vision_model", "vision_encoder", "vision_embed_tokens", "visual", "vit",
                          "vision", "image_encoder", "multi_modal_projector", "mm_projector"})  # fmt: skip


def vision_evidence(config: Mapping[str, Any], tensors: Iterable[str]) -> str | None:
    """What shows that the model has a vision tower; None: nothing does."""
    for key in CONFIG_KEYS:
        if config.get(key) is not None:
            return f"config.json has {key}"
    for name in tensors:
        if part := next((part for part in name.split(".") if part in TENSOR_PARTS), None):
            return f"tensor {name} belongs to {part}"
    return None


def judge_vision(config: Mapping[str, Any], tensors: Iterable[str]) -> MultimodalReport:
    """`skipped` without a vision tower. With one `inconclusive`: nothing here looks through it yet."""
    names = list(tensors)
    if evidence := vision_evidence(config, names):
        check = Check(
            name="image path",
            verdict=Verdict.INCONCLUSIVE,
            reason=f"the image path was not checked: {evidence}, and day0 checks text alone so far",
        )
    else:
        check = Check(
            name="image path",
            verdict=Verdict.SKIPPED,
            reason="no vision tower",
            measured={"tensors": len(names)},
        )
    return MultimodalReport(checks=(check,))
