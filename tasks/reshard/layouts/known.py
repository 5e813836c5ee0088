"""The layouts by name."""

from __future__ import annotations

from tasks.reshard.layouts.base import Layout
from tasks.reshard.layouts.engines import DeepSeekLayout, VllmLayout
from tasks.reshard.layouts.hf import HfLayout

LAYOUTS: dict[str, type[Layout]] = {"hf": HfLayout, "vllm": VllmLayout, "deepseek": DeepSeekLayout}
