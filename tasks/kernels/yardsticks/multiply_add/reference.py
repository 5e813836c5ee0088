"""The reference: a sum."""

from __future__ import annotations

import torch


def reference(x: torch.Tensor, steps: int) -> tuple[torch.Tensor]:
    """x (rows, 384), float32, plus 2 for each step: 1 * 1 + 1 * 1."""
    return (x + 2 * steps,)
