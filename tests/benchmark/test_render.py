"""What people see."""

from __future__ import annotations

import pytest

from tasks.benchmark.render import show
from tests.recipe.fixtures import benchmark


def test_the_table_fits_a_terminal_and_has_every_cell(capsys: pytest.CaptureFixture[str]) -> None:
    show(benchmark().model_copy(update={"conditions": {**benchmark().conditions, "model": "m", "endpoint": "e"}}))
    lines = capsys.readouterr().out.splitlines()
    rows = [line for line in lines if " × cold" in line or " × warm" in line]
    assert [row.split()[0] for row in rows] == ["1", "4", "1", "4"]
    assert all(len(row) <= 80 and "…" not in row for row in rows)
    assert "…" not in "".join(lines)
    assert any("20% of the roofline" in line for line in lines)
