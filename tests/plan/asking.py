"""Plans of configs and folders, as tests ask for them."""

from __future__ import annotations

import functools
import json
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from day0.architecture.quantization import quantization_of
from day0.architecture.stored import stored_from_config
from day0.architecture.structure import structure_of
from day0.artifacts.plan import ParallelPlan
from day0.artifacts.profile import Profile
from tasks.plan.constraints import Constraints
from tasks.plan.layout import plan_layout
from tasks.plan.model import Model, read_model
from tasks.plan.settings import PlanSettings
from tasks.plan.weights import Weights
from tasks.profile.describe import describe_model
from tasks.profile.settings import ProfileSettings
from tests.architecture.data import config, write_config


def model_of(raw: Mapping[str, Any]) -> Model:
    """A model by its config alone."""
    structure = structure_of(raw, "config.json")
    quantization = quantization_of(raw, None, "config.json")
    return Model(structure, stored_from_config(structure, quantization), quantization)


def constraints_of(raw: Mapping[str, Any]) -> Constraints:
    model = model_of(raw)
    return Constraints(model.structure, Weights(model.structure.family, model.stored))


def plan(source: Path | Mapping[str, Any], **asked: Any) -> ParallelPlan:
    """The plan of a folder, a config file or a config, on an H100 unless asked otherwise."""
    model = read_model(source) if isinstance(source, Path) else model_of(source)
    profile = any_profile().model_copy(update={"context_length": model.structure.config.context_length})
    return plan_layout(model, profile, PlanSettings.model_validate({"target": "h100", "concurrency": 1, **asked}))


@functools.cache
def any_profile() -> Profile:
    """A good profile: what a plan takes from it is its verdict and the context's length."""
    with tempfile.TemporaryDirectory() as folder:
        return describe_model(write_config(Path(folder), config()), ProfileSettings())


def edited(path: Path, **changes: Any) -> dict[str, Any]:
    """A published config with some keys changed; a value of None takes the key out."""
    raw: dict[str, Any] = {**json.loads(path.read_text()), **changes}
    return {key: value for key, value in raw.items() if value is not None}
