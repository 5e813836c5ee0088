"""Asks the reference, which runs as a process of its own (`reference.py`)."""

from __future__ import annotations

import importlib.util
import json
import os
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from day0 import process
from day0.errors import EvidenceMissing
from day0.progress import report
from tasks.smoke.settings import Prompt

NEEDS = ("torch", "transformers")


@dataclass(frozen=True)
class Scored:
    """Of one sequence at one precision, for positions 1, 2, …: log-probabilities in nats."""

    logprobs: list[float]
    top1: list[int]
    top1_logprobs: list[float]
    lead: list[float]
    """How far the most likely token is ahead of the second."""


@dataclass(frozen=True)
class Pair:
    """One sequence at float32 and at the working precision."""

    float32: Scored
    working: Scored


@dataclass(frozen=True)
class Prepared:
    """Token ids by prompt name; prompts whose template failed are in `faults`."""

    ids: dict[str, list[int]]
    without_generation_prompt: dict[str, list[int]]
    faults: dict[str, str]
    special_tokens: list[str]
    chat_template: bool
    library: dict[str, str]


@dataclass(frozen=True)
class Scores:
    """By sequence name; `continuations` are the reference's own greedy tokens."""

    pairs: dict[str, Pair]
    continuations: dict[str, list[int]]


def prepare(model: Path, prompts: tuple[Prompt, ...]) -> Prepared:
    """Tokenise the prompts with the model's own tokenizer and template.

    Raises:
        EvidenceMissing: there can be no reference here; says what to do.
    """
    report("tokenising the prompts")
    answer = _ask({"task": "prepare", "model": str(model), "prompts": [p.to_json() for p in prompts]})
    found = {p["name"]: p for p in answer["prompts"]}
    return Prepared(
        ids={name: p["ids"] for name, p in found.items() if "ids" in p},
        without_generation_prompt={
            name: p["without_generation_prompt"] for name, p in found.items() if "without_generation_prompt" in p
        },
        faults={name: p["error"] for name, p in found.items() if "error" in p},
        special_tokens=answer["special_tokens"],
        chat_template=answer["chat_template"],
        library={"library": answer["library"], "torch": answer["torch"]},
    )


def score(
    model: Path,
    sequences: dict[str, list[int]],
    continuations: dict[str, tuple[list[int], int]],
    working_dtype: str,
    weights_dtype: str | None = None,
) -> Scores:
    """Score `sequences`, and continue and score `continuations` (`name: (ids, tokens)`).

    At float32 the weights are rounded to `weights_dtype` first, where one is given.

    Raises:
        EvidenceMissing: the reference cannot be computed; says why.
    """
    answer = _ask(
        {
            "task": "score",
            "model": str(model),
            "working_dtype": working_dtype,
            "weights_dtype": weights_dtype,
            "sequences": [{"name": name, "ids": ids} for name, ids in sequences.items()],
            "continuations": [{"name": n, "ids": ids, "tokens": count} for n, (ids, count) in continuations.items()],
        }
    )
    pairs = {
        name: Pair(Scored(**by_dtype["float32"]), Scored(**by_dtype["working"]))
        for name, by_dtype in answer["scores"].items()
    }
    return Scores(pairs, answer["continuations"])


def _ask(request: dict[str, Any]) -> dict[str, Any]:
    if absent := [name for name in NEEDS if importlib.util.find_spec(name) is None]:
        raise EvidenceMissing(
            f"the reference needs {' and '.join(absent)}, not installed here; pip install 'day0[reference]' "
            "(the README says where torch comes from)"
        )
    quiet = {
        "HF_HUB_OFFLINE": "1",
        "HF_HUB_DISABLE_TELEMETRY": "1",
        "TOKENIZERS_PARALLELISM": "false",
        # the engine is on the same cores: threads that wait must not spin
        "OMP_WAIT_POLICY": "PASSIVE",
    }
    with tempfile.TemporaryDirectory(prefix="day0-reference-") as folder:
        asked, answered = Path(folder, "request.json"), Path(folder, "answer.json")
        asked.write_text(json.dumps(request), encoding="utf-8")
        try:
            process.run(
                [sys.executable, "-m", "tasks.smoke.reference", str(asked), str(answered)],
                env={**os.environ, **quiet},
                on_line=_progress,
            )
        except process.ProcessFailed as error:
            killed = " (killed: probably out of memory)" if error.returncode == -9 else ""
            raise EvidenceMissing(f"the reference could not be computed{killed}: {error}") from error
        answer: dict[str, Any] = json.loads(answered.read_text(encoding="utf-8"))
    if "error" in answer:
        raise EvidenceMissing(f"there is no reference for {request['model']}: {answer['error']}")
    return answer


def _progress(line: str) -> None:
    if line.startswith(("scoring ", "continuing ")):
        report(f"reference: {line}")
