"""The multimodal stage: skipped without a vision tower, and never a pass with one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from day0.checkpoint import open_checkpoint
from day0.verdict import Verdict
from tasks.multimodal.vision import judge_vision
from tests.models.tiny import make_tiny_llama


def test_a_language_model_is_skipped(tmp_path: Path) -> None:
    checkpoint = open_checkpoint(make_tiny_llama(tmp_path / "model"))
    report = judge_vision(checkpoint.config, checkpoint.tensors)
    assert report.verdict is Verdict.SKIPPED
    assert report.reason == "no vision tower"


@pytest.mark.parametrize(
    ("config", "tensors", "named"),
    [
        ({"vision_config": {"depth": 2}}, [], "vision_config"),
        ({"image_token_id": 151655}, [], "image_token_id"),
        ({}, ["model.visual.blocks.0.attn.qkv.weight"], "visual"),
        ({}, ["lm_head.weight", "multi_modal_projector.linear_1.weight"], "multi_modal_projector"),
    ],
)
def test_a_vision_tower_is_not_checked_and_so_never_passes(
    config: dict[str, Any], tensors: list[str], named: str
) -> None:
    report = judge_vision(config, tensors)
    assert report.verdict is Verdict.INCONCLUSIVE
    assert named in report.reason


def test_names_that_only_resemble_one_are_none() -> None:
    tensors = ["model.layers.0.supervision.weight", "model.visualize.weight", "vitality.bias"]
    assert judge_vision({"vision_config": None}, tensors).verdict is Verdict.SKIPPED
