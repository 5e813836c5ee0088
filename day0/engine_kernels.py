"""The launch of an engine with accepted kernels, and how the work goes on where it ends in one of them."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from day0.artifacts.kernels import GivenKernel
from day0.artifacts.service import LaunchSpec, OfService, Service
from day0.endpoint import EngineDied, LastWords, LiveEngine
from day0.verdict import FOLLOW_UP, Check, Verdict

T = TypeVar("T")
R = TypeVar("R", bound=OfService)

log = logging.getLogger("day0.kernels")

CONTAINER_KERNELS = "/kernels"
#: The variable that names the kernels of the folder that an engine uses; without it, it uses all.
GIVEN = "DAY0_KERNELS_GIVEN"
_PATH = "PYTHONPATH"


@dataclass(frozen=True)
class End:
    """An engine's end with accepted kernels."""

    sentence: str
    log: tuple[str, ...] = ()
    """Lines of its log."""


def with_kernels(spec: LaunchSpec, given: Sequence[GivenKernel], folder: Path) -> LaunchSpec:
    """The launch with the kernels that lie in `folder`: its arguments, and the folder on the engine's Python path."""
    path = os.pathsep.join(filter(None, (spec.env.get(_PATH), _seen(spec, str(folder)))))
    return spec.model_copy(
        update={
            "command": (*spec.command, *_arguments(given)),
            "env": {**spec.env, _PATH: path},
            "kernels": str(folder),
            "given": tuple(given),
        }
    )


def without_kernels(spec: LaunchSpec, names: Collection[str]) -> LaunchSpec:
    """The launch without these of its kernels; without the last of them it is the engine's own."""
    left = tuple(kernel for kernel in spec.given if kernel.name not in names)
    old, new = _arguments(spec.given), _arguments(left)
    at = next((i for i in range(len(spec.command)) if spec.command[i : i + len(old)] == old), len(spec.command))
    changed = {"command": (*spec.command[:at], *new, *spec.command[at + len(old) :]), "given": left}
    if left or spec.kernels is None:
        return spec.model_copy(update=changed)
    seen = _seen(spec, spec.kernels)
    path = os.pathsep.join(part for part in spec.env.get(_PATH, "").split(os.pathsep) if part not in ("", seen))
    env = {name: value for name, value in spec.env.items() if name != _PATH} | ({_PATH: path} if path else {})
    return spec.model_copy(update={**changed, "env": env, "kernels": None})


def bearing_kernels(
    launch: LaunchSpec, last_words: Callable[[], LastWords], work: Callable[[LaunchSpec], T]
) -> tuple[T, LaunchSpec, list[End]]:
    """Do the work with a launch; where the engine ends in it, again without the kernel that it ended in, or without
    any where that cannot be told.

    Args:
        last_words: of the engine that ended last.

    Returns:
        What the work gives, the launch that it was done with, and each end before.

    Raises:
        EngineDied: it ends without kernels too.
    """
    ends: list[End] = []
    while True:
        try:
            return work(launch), launch, ends
        except EngineDied as error:
            if not launch.given:
                raise
            words = last_words()
            found = next((kernel for kernel in launch.given if kernel.name == words.kernel), None)
            if found:
                said = f"the engine ended in kernel {found.name} for {', '.join(found.places)}: {error}"
            else:
                named = ", ".join(kernel.name for kernel in launch.given)
                said = f"the engine ended with the kernels {named}, and it is not known in which: {error}"
            ends.append(End(said, words.log))
            log.warning("follow-up: %s; going on without\n%s", said, "\n".join(words.log))
            launch = without_kernels(launch, [kernel.name for kernel in ([found] if found else launch.given)])


def taken_out(launch: LaunchSpec, ends: Sequence[End]) -> list[Check]:
    """The check of an engine that went on as `launch` after it had ended so; none where it never ended."""
    if not ends:
        return []
    left = ", ".join(kernel.name for kernel in launch.given)
    said = [end.sentence for end in ends]
    reason = f"kernels were taken out, to follow up: {'; '.join(said)}; it went on with {left or 'none'}"
    measured = {FOLLOW_UP: said, "log": [list(end.log) for end in ends]}
    return [Check(name="kernels_taken_out", verdict=Verdict.PASS, reason=reason, measured=measured)]


def on_service(
    service: Service, engine: LiveEngine, work: Callable[[Service], R], before: OfService | None = None
) -> R:
    """The report of some work on a service, with the kernels that `before` left; it says which, where these are fewer.

    Raises:
        EngineDied: the engine ends without kernels too.
    """

    def with_launch(its: LaunchSpec) -> R:
        return work(service.model_copy(update={"launch": its}))

    report, launch, ends = bearing_kernels(left_by(service, before).launch, engine.last_words, with_launch)
    if launch == service.launch:
        return report
    return report.model_copy(update={"checks": (*report.checks, *taken_out(launch, ends)), "launch": launch})


def took_out(service: Service, before: OfService, report: OfService) -> bool:
    """Whether the work of `report` took kernels out that `before` had left."""
    return left_by(service, report).launch.given != left_by(service, before).launch.given


def left_by(service: Service, *reports: OfService | None) -> Service:
    """The service with the kernels that no work of these reports took out."""
    launches = [service.launch, *(report.launch for report in reports if report is not None and report.launch)]
    return service.model_copy(update={"launch": min(launches, key=lambda launch: len(launch.given))})


def _seen(spec: LaunchSpec, folder: str) -> str:
    """The folder as the engine sees it."""
    return CONTAINER_KERNELS if spec.runtime == "docker" else folder


def _arguments(given: Sequence[GivenKernel]) -> tuple[str, ...]:
    """Of vLLM, which ranks the providers of its IR's operators: one in the list that is not there is an error."""
    places = [place.partition("::") for kernel in given for place in kernel.places]
    first = {name: ["day0", "native"] for namespace, _, name in places if namespace == "vllm_ir"}
    return ("--ir-op-priority", json.dumps(first)) if first else ()
