"""MultimodalReport: whether the image path works; `skipped` for a model without a vision tower."""

from __future__ import annotations

from typing import ClassVar

from day0.artifacts.base import Artifact


class MultimodalReport(Artifact):
    kind: ClassVar[str] = "multimodal"
