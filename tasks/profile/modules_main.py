"""Builds the library's model for a config on the meta device, and counts its parameters.

    python -m tasks.profile.modules_main REQUEST.json ANSWER.json

A process of its own, so that torch stays out of the orchestrator and a crash is an answer. No weights are read or
allocated, code that came with a model is never run, and nothing is fetched.

The request is `{"config": config.json's object, "names": [a checkpoint's tensor names]}`. The answer holds the
parameters and buffers with their numbers folded to `#`, and for each of the names where the library's own loader would
put that tensor; or `{"error": sentence}`.
"""

from __future__ import annotations

import json
import re
import sys
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers import (
    CONFIG_MAPPING,
    MODEL_FOR_CAUSAL_LM_MAPPING,
    MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING,
    MODEL_FOR_MULTIMODAL_LM_MAPPING,
)
from transformers.conversion_mapping import get_model_conversion_mapping
from transformers.core_model_loading import WeightConverter, rename_source_key

#: A model of text and images before its language model alone: the checkpoint is the former's.
CLASSES = (MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING, MODEL_FOR_MULTIMODAL_LM_MAPPING, MODEL_FOR_CAUSAL_LM_MAPPING)

#: Neither changes the shapes of the weights that are computed with; the second names code that is not run.
LEFT_OUT = ("quantization_config", "compression_config", "auto_map")

_NUMBER = re.compile(r"(?<=\.)\d+(?=\.|\Z)")


class NoModel(Exception):
    """The library has no model for this config; the message says why."""


def build(config: dict[str, Any]) -> Any:
    """The model on the meta device."""
    kind = config["model_type"]
    if kind not in CONFIG_MAPPING:
        raise NoModel(f"model_type {kind!r} is not known to transformers {transformers.__version__}")
    plain = {key: value for key, value in config.items() if key not in LEFT_OUT}
    try:
        parsed = CONFIG_MAPPING[kind].from_dict(plain)
        found: Any = next((classes[type(parsed)] for classes in CLASSES if type(parsed) in classes), None)
        if found is None:
            raise NoModel(f"transformers {transformers.__version__} has no language model for {kind!r}")
        with torch.device("meta"):
            return found(parsed)
    except NoModel:
        raise
    except Exception as error:  # any of some hundred constructors, given any config: what it raises is the answer
        raise NoModel(f"transformers cannot build a {kind!r} of this config: {_first_line(error)}") from error


def count(model: Any) -> dict[str, Any]:
    """Parameters, each once, and buffers that a checkpoint may hold, by folded name and shape."""
    parameters = dict(model.named_parameters())
    return {
        "class_name": type(model).__name__,
        "total": sum(parameter.numel() for parameter in parameters.values()),
        "parameters": _folded(parameters.items()),
        "buffers": _folded((name, held) for name, held in model.state_dict().items() if name not in parameters),
    }


def places(model: Any, names: list[str]) -> list[dict[str, Any]]:
    """For each name in a checkpoint where the library's loader puts that tensor.

    `where` is `parameter`, `tied` (a parameter that has another name too), `buffer`, `ignored` (the library lists it
    as one that it leaves in the file) or `absent`; `targets` are folded names, several where the library divides it.
    """
    held = model.state_dict()
    parameters = dict(model.named_parameters())
    every = {name for name, _ in model.named_parameters(remove_duplicate=False)}
    mapping = get_model_conversion_mapping(model)
    renamings: Any = [step for step in mapping if not isinstance(step, WeightConverter)]
    converters = [step for step in mapping if isinstance(step, WeightConverter)]
    ignored = [re.compile(pattern) for pattern in model._keys_to_ignore_on_load_unexpected or ()]
    found = []
    for name in names:
        target, source = rename_source_key(name, renamings, converters, model.base_model_prefix, held)
        if target not in held and name in held:
            target, source = name, None
        converter = next((step for step in converters if source is not None and source in step.source_patterns), None)
        first, *others = converter.target_patterns if converter else [""]
        targets = [target, *(target.replace(first, other) for other in others)]
        if target in parameters:
            where = "parameter"
        elif target in every:
            where = "tied"
        elif target in held:
            where = "buffer"
        else:
            where = "ignored" if any(pattern.search(name) for pattern in ignored) else "absent"
        found.append({"where": where, "targets": [fold(each) for each in targets]})
    return found


def fold(name: str) -> str:
    return _NUMBER.sub("#", name)


def _folded(named: Iterable[tuple[str, Any]]) -> list[dict[str, Any]]:
    counted = Counter((fold(name), tuple(tensor.shape)) for name, tensor in named)
    return [{"name": name, "shape": list(shape), "count": times} for (name, shape), times in counted.items()]


def _first_line(error: BaseException) -> str:
    line = next((line.strip() for line in str(error).splitlines() if line.strip()), "")
    return f"{type(error).__name__}: {line}"[:300]


def answer(request: dict[str, Any]) -> dict[str, Any]:
    """The answer to one request."""
    found: dict[str, Any]
    try:
        model = build(request["config"])
        found = {**count(model), "places": places(model, request["names"])}
    except NoModel as error:
        found = {"error": str(error)}
    return {**found, "library": f"transformers {transformers.__version__}"}


def main(request_path: str, answer_path: str) -> int:
    talk: Any = transformers.logging
    talk.set_verbosity_error()
    found = answer(json.loads(Path(request_path).read_text(encoding="utf-8")))
    Path(answer_path).write_text(json.dumps(found), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:3]))
