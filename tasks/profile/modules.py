"""The third source of a profile: the library's own modules, counted on the meta device.

transformers builds the model's class for the config, without weights (modules_main.py, in a process of its own), and
says where its loader would put each tensor that the family's rules name. What the two count differently is then
explained to the element, or named: the library drops multi-token prediction, holds a router's bias as a buffer, makes
up a vision tower that the config does not describe.
"""

from __future__ import annotations

import importlib.util
import json
import math
import os
import re
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from day0 import process
from day0.architecture.structure import Structure, TensorGroup
from day0.verdict import Check, Verdict

NEEDS = ("torch", "transformers")

#: Types that are another one under a name of their publisher's own; the config's keys are that one's.
ALIASES = {"kimi_k2": "deepseek_v3", "deepseek_ref": "deepseek_v4"}

#: Types whose config is that of a language model alone, but whose checkpoint is the library's model of text and images:
#: the library's type, and that of its `text_config`.
TEXT_ALONE = {"minimax_m3": ("minimax_m3_vl", "minimax_m3_vl_text")}

#: A module for each of a billion layers that a hostile config names would never be built.
MOST_LAYERS = 10_000

#: Kinds of parameters beside the language model, and what the library calls the modules that hold them.
TOWER_KINDS = ("vision", "audio", "projector")
_TOWER = re.compile(r"(^|[._])(vision|visual|audio|multi_modal_projector|mm_projector)([._]|$)")

NAMED = 3  # unexplained differences that a reason names; the rest are counted


@dataclass(frozen=True)
class Parameter:
    """`count` tensors of one shape whose names differ in their numbers alone (`#`)."""

    name: str
    shape: tuple[int, ...]
    count: int

    @property
    def elements(self) -> int:
        return self.count * math.prod(self.shape)


class Place(NamedTuple):
    """Where the library puts a tensor of the checkpoint: `parameter`, `tied`, `buffer`, `ignored` or `absent`."""

    where: str
    targets: tuple[str, ...]


@dataclass(frozen=True)
class ModuleCount:
    """The library's model of a config. `places` has one entry for each layer of each of the structure's groups."""

    library: str
    class_name: str
    total: int
    parameters: tuple[Parameter, ...]
    buffers: tuple[Parameter, ...]
    places: Mapping[tuple[int, int | None], Place]

    @property
    def by_module(self) -> dict[str, int]:
        """Elements by the module that holds them, numbers folded."""
        counted: dict[str, int] = defaultdict(int)
        for parameter in self.parameters:
            counted[parameter.name.rpartition(".")[0] or parameter.name] += parameter.elements
        return dict(counted)


@dataclass(frozen=True)
class NoModules:
    """The library's modules were not counted: there are none (skipped), or the count failed (inconclusive)."""

    reason: str
    verdict: Verdict


@dataclass(frozen=True)
class Difference:
    """What one side counts and the other does not. `elements` is ours less the library's; no `reason`: not known."""

    what: str
    elements: int
    reason: str | None


def count_modules(raw: Mapping[str, Any], structure: Structure) -> ModuleCount | NoModules:
    """Build and count the library's model for a config in a process of its own.

    Raises:
        StageTimeout, Cancelled: the stage's time was up.
    """
    if absent := [name for name in NEEDS if importlib.util.find_spec(name) is None]:
        needed = f"{' and '.join(absent)}, not installed here; pip install 'day0[reference]'"
        return NoModules(f"the library's modules need {needed}", Verdict.SKIPPED)
    if structure.layers > MOST_LAYERS:
        return NoModules(f"{structure.layers:,} layers are too many to build module by module", Verdict.INCONCLUSIVE)
    keys, names = zip(*_names(structure.groups), strict=True)
    try:
        answer = _ask({"config": _as_library(raw), "names": names})
    except process.ProcessFailed as error:
        killed = " (killed: probably out of memory)" if error.returncode == -9 else ""
        return NoModules(f"the library's modules could not be counted{killed}: {error}", Verdict.INCONCLUSIVE)
    if "error" in answer:
        return NoModules(answer["error"], Verdict.SKIPPED)
    return ModuleCount(
        library=answer["library"],
        class_name=answer["class_name"],
        total=answer["total"],
        parameters=_parameters(answer["parameters"]),
        buffers=_parameters(answer["buffers"]),
        places={
            key: Place(place["where"], tuple(place["targets"]))
            for key, place in zip(keys, answer["places"], strict=True)
        },
    )


def explain(modules: ModuleCount, structure: Structure, raw: Mapping[str, Any]) -> list[Difference]:
    """All that the two count differently; the elements add up to `stored_total(structure) - modules.total`.

    Both sides are held together by what the library's loader makes of each tensor, not by resemblance of names.
    """
    ours: dict[tuple[str, ...], int] = defaultdict(int)
    told: dict[tuple[str, str | None], int] = defaultdict(int)
    has_tower = any(_TOWER.search(parameter.name) for parameter in modules.parameters)
    for index, group in enumerate(structure.groups):
        if group.kind == "buffer":
            continue
        for layer in group.layers or (None,):
            place = modules.places[index, layer]
            if place.where == "parameter":
                ours[place.targets] += group.layer_elements
            else:
                told[_not_there(group, layer, place, modules, has_tower)] += group.layer_elements
    theirs: dict[str, int] = defaultdict(int)
    for parameter in modules.parameters:
        theirs[parameter.name] += parameter.elements
    for targets, elements in ours.items():
        counted = sum(theirs.pop(target, 0) for target in targets)
        if counted != elements:
            unlike = (f"{' + '.join(targets)}: {elements:,} here, {counted:,} there", None)
            told[_made_up(targets[0], raw) or unlike] += elements - counted
    for name, elements in theirs.items():
        told[_made_up(name, raw) or (f"{name} is there alone", None)] -= elements
    return [Difference(what, elements, reason) for (what, reason), elements in told.items()]


def stored_total(structure: Structure) -> int:
    """What is compared with the library's total: all parameters of the rules, multi-token prediction among them."""
    return sum(group.elements for group in structure.groups if group.kind != "buffer")


def check_modules(counted: ModuleCount | NoModules, differences: Sequence[Difference]) -> Check:
    """`pass` if the library counts the same, or every difference has its reason."""
    name = "library modules"
    if isinstance(counted, NoModules):
        return Check(name=name, verdict=counted.verdict, reason=counted.reason)
    measured = {
        "library": counted.library,
        "class": counted.class_name,
        "parameters": counted.total,
        "differences": [{"what": d.what, "elements": d.elements, "reason": d.reason} for d in differences],
    }
    says = f"{counted.library} counts {counted.total:,} in its {counted.class_name}"
    if unknown := [difference for difference in differences if difference.reason is None]:
        named = "; ".join(f"{d.what} ({d.elements:+,})" for d in unknown[:NAMED])
        more = f" and {len(unknown) - NAMED} more" if len(unknown) > NAMED else ""
        reason = f"{says}, and what differs is not explained: {named}{more}"
        return Check(name=name, verdict=Verdict.INCONCLUSIVE, reason=reason, measured=measured)
    if not counted.total:
        return Check(name=name, verdict=Verdict.INCONCLUSIVE, reason=f"{says}: nothing to compare", measured=measured)
    listed = "; ".join(f"{d.what} ({d.elements:+,}): {d.reason}" for d in differences)
    reason = f"{says}; " + (f"the difference is explained: {listed}" if listed else "the same as by the rules")
    return Check(name=name, verdict=Verdict.PASS, reason=reason, measured=measured)


def _not_there(
    group: TensorGroup, layer: int | None, place: Place, modules: ModuleCount, has_tower: bool
) -> tuple[str, str | None]:
    """What a group of ours is called that is no parameter there, and why it is none."""
    library = modules.library.split()[0]
    name = group.rule.name
    if place.where == "tied":
        return name, f"{place.targets[0]} is another parameter's second name there, and counted once"
    if place.where == "buffer":
        return name, "a buffer there, which is not counted as a parameter"
    if group.mtp:
        where = f"multi-token prediction layer {layer}" if layer is not None else "multi-token prediction"
        how = "leaves it in the file by its own list" if place.where == "ignored" else "has no module for it"
        return where, f"{library} {how}"
    if group.kind in TOWER_KINDS and not has_tower:
        return group.kind, f"the {modules.class_name} of {library} is a language model alone"
    return f"{name} has no parameter there", None


def _made_up(name: str, raw: Mapping[str, Any]) -> tuple[str, str] | None:
    """Of a tower's parameter: that the library builds it by its defaults, where the config has no section for it."""
    tower = _TOWER.search(name)
    section = "audio_config" if tower and tower[2] == "audio" else "vision_config"
    if tower is None or raw.get(section) is not None:
        return None
    what = section.removesuffix("_config")
    return what, f"config.json has no {section}, and the library builds the {what} tower by its own defaults"


def _as_library(raw: Mapping[str, Any]) -> Mapping[str, Any]:
    """The config under the type that the library knows it by."""
    kind = str(raw["model_type"])
    if kind in TEXT_ALONE:
        whole, text = TEXT_ALONE[kind]
        return {"model_type": whole, "text_config": {**raw, "model_type": text}}
    return {**raw, "model_type": ALIASES.get(kind, kind)}


def _names(groups: Sequence[TensorGroup]) -> Iterator[tuple[tuple[int, int | None], str]]:
    """A tensor's name for each layer of each group: of numbered copies the first, since they are loaded alike."""
    for index, group in enumerate(groups):
        numbers = {slot: min(held) if held else 0 for slot, held in group.rule.numbers.items()}
        for layer in group.layers or (None,):
            chosen = numbers if layer is None else {**numbers, "layer": layer}
            yield (index, layer), group.rule.named(chosen)


def _ask(request: dict[str, Any]) -> dict[str, Any]:
    quiet = {"HF_HUB_OFFLINE": "1", "HF_HUB_DISABLE_TELEMETRY": "1", "TOKENIZERS_PARALLELISM": "false"}
    with tempfile.TemporaryDirectory(prefix="day0-modules-") as folder:
        asked, answered = Path(folder, "request.json"), Path(folder, "answer.json")
        asked.write_text(json.dumps(request), encoding="utf-8")
        process.run(
            [sys.executable, "-m", "tasks.profile.modules_main", str(asked), str(answered)],
            env={**os.environ, **quiet},
        )
        answer: dict[str, Any] = json.loads(answered.read_text(encoding="utf-8"))
    return answer


def _parameters(listed: list[dict[str, Any]]) -> tuple[Parameter, ...]:
    return tuple(Parameter(entry["name"], tuple(entry["shape"]), entry["count"]) for entry in listed)
