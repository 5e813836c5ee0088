"""Operators whose result hangs on data, traced without any."""

from __future__ import annotations

import pytest

pytestmark = pytest.mark.reference


def shapes(device: str) -> list[tuple[int, ...]]:
    """What operators give whose masks choose all: traced without values on `meta`, computed on `cpu`."""
    import torch

    from tasks.operators.recorder import Recorder

    x = torch.ones(2, 3, 4, device=device)
    recorder = Recorder()
    with torch.inference_mode(), recorder:
        found = [
            x[torch.ones(2, 3, dtype=torch.bool, device=device)],
            x.masked_select(torch.ones(4, dtype=torch.bool, device=device)),
            x.nonzero(),
            # Positions are no mask: they give as many as there are.
            x[torch.ones(5, dtype=torch.long, device=device)],
        ]
    assert set(recorder.log.selected) == (
        {"aten::index.Tensor", "aten::masked_select", "aten::nonzero"} if device == "meta" else set()
    )
    assert "aten::index.Tensor" in recorder.log.names
    return [tuple(t.shape) for t in found]


def test_masks_are_taken_to_choose_all_where_they_have_no_values() -> None:
    assert shapes("meta") == shapes("cpu") == [(6, 4), (24,), (24, 3), (5, 3, 4)]
