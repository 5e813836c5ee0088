"""What the multimodal stage is asked."""

from __future__ import annotations

from day0.artifacts.base import Settings


class MultimodalSettings(Settings):
    """Nothing to choose: whether the model sees is read from its config and tensors."""
