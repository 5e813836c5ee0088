"""A plan as people keep it in review: YAML that says the request and what was chosen, and can be planned again."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import yaml
from pydantic import Field

from day0.artifacts.base import Frozen
from day0.artifacts.plan import ParallelPlan
from day0.config import load_config
from day0.errors import InputError
from day0.files import atomic_write
from day0.verdict import Check, Verdict
from tasks.plan.settings import PlanSettings, Size

_HEAD = """\
# A plan of day0. `day0 plan MODEL --load FILE` plans the request again with these sizes and says what differs.
"""


class Request(Frozen):
    """What was asked."""

    target: str
    context: int = Field(ge=1)
    concurrency: int = Field(ge=1)
    weight_dtype: str | None = None
    kv_dtype: str | None = None
    index_dtype: str | None = None
    mtp: bool = False


class Sizes(Frozen):
    """What was chosen."""

    tp: Size
    pp: Size
    ep: Size
    dp: Size
    dcp: Size = 1


class Gigabytes(Frozen):
    """On the fullest device, 10^9 bytes."""

    weights: float
    kv_cache: float
    activations: float
    overhead: float
    total: float
    capacity: float


class Review(Frozen):
    """The file."""

    plan: Literal[1] = 1
    """The version of the format."""
    request: Request
    layout: Sizes
    devices: int
    weights_bytes: int
    """Of the fullest device, to the byte: what a changed checkpoint or family would change."""
    per_device_gb: Gigabytes
    engine_args: dict[str, Any]
    engines: dict[str, str] = Field(default_factory=dict)
    notes: tuple[str, ...] = ()


def save_review(plan: ParallelPlan, path: Path) -> None:
    """Write a feasible plan to a file.

    Raises:
        InputError: nothing was chosen, or the file cannot be written.
    """
    if plan.chosen is None:
        raise InputError(f"nothing to save: {plan.reason}")
    layout, memory = plan.chosen, plan.chosen.per_device
    names = ("weights", "kv_cache", "activations", "overhead", "total", "capacity")
    review = Review(
        request=Request(
            target=plan.target,
            context=plan.context,
            concurrency=plan.concurrency,
            weight_dtype=plan.convert_to,
            kv_dtype=plan.kv_dtype,
            index_dtype=plan.index_dtype,
            mtp=plan.mtp,
        ),
        layout=Sizes(tp=layout.tp, pp=layout.pp, ep=layout.ep, dp=layout.dp, dcp=layout.dcp),
        devices=layout.devices,
        weights_bytes=memory.weights,
        per_device_gb=Gigabytes(**{name: round(getattr(memory, name) / 1e9, 2) for name in names}),
        engine_args=plan.engine_args,
        engines={name: " ".join(arguments) for name, arguments in plan.engines.items()},
        notes=plan.notes,
    )
    text = yaml.safe_dump(review.model_dump(mode="json"), sort_keys=False, allow_unicode=True, width=120)
    try:
        with atomic_write(path) as file:
            file.write((_HEAD + text).encode())
    except OSError as error:
        raise InputError(f"{path} cannot be written: {error.strerror}") from error


def load_review(path: Path) -> Review:
    """The plan in a file.

    Raises:
        InputError: there is none, or it is malformed; names the key.
    """
    return load_config(path, Review)


def settings_of(review: Review, given: dict[str, Any]) -> PlanSettings:
    """The request of a file with its sizes, and what is given beside them, such as the device's memory.

    Raises:
        InputError: something is given that the file says.
    """
    held = {**review.request.model_dump(), **review.layout.model_dump(), "devices": review.devices}
    for name, value in given.items():
        if value is not None and name in held:
            raise InputError(
                f"--{name.replace('_', '-')} is what the file says; change it there, or plan without --load"
            )
    return PlanSettings.model_validate({**{k: v for k, v in given.items() if v is not None}, **held})


def compare(review: Review, plan: ParallelPlan) -> Check:
    """Whether a plan made anew is the one in the file."""
    if plan.chosen is None:
        return Check(
            name="review", verdict=Verdict.FAIL, reason=f"the plan in the file is no longer possible: {plan.reason}"
        )
    changed = []
    if plan.chosen.per_device.weights != review.weights_bytes:
        changed.append(
            f"weights were {review.weights_bytes:,} bytes a device and are {plan.chosen.per_device.weights:,}"
        )
    for name in sorted({*review.engine_args, *plan.engine_args}):
        before, now = review.engine_args.get(name), plan.engine_args.get(name)
        if before != now:
            changed.append(f"{name} was {before} and is {now}")
    if changed:
        return Check(name="review", verdict=Verdict.FAIL, reason=f"not the plan of the file: {'; '.join(changed)}")
    return Check(name="review", verdict=Verdict.PASS, reason="the same plan as in the file")
