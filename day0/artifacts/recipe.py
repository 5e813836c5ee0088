"""Recipe: the folder that is handed over: how to run the model, and the evidence that it works."""

from __future__ import annotations

from typing import ClassVar

from day0.artifacts.base import Artifact


class Recipe(Artifact):
    kind: ClassVar[str] = "recipe"

    model: str
    revision: str
    target: str
    rung: str
    report: str
    """File name of the HTML report within the recipe."""
