"""The second pass: the same files in the same engine at float32, where no rounding can hide a fault in the weights.

At bfloat16 the engine's rounding is of the size of a small fault: two exchanged rows of one projection move the mean
error by nothing that could be told from it. At float32 a right engine agrees with the reference to about 1e-5 nats.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from day0.artifacts.service import LaunchSpec, Service
from day0.artifacts.smoke import ExactParity
from day0.endpoint import Endpoint, EngineDied
from day0.errors import Cancelled, Day0Error, StageTimeout
from day0.progress import report
from day0.target import GIB, machine_memory
from day0.verdict import Check, Verdict
from tasks.smoke.answers import PromptScores
from tasks.smoke.engine import Engine, Outcomes, ask
from tasks.smoke.limits import FLOAT32, float32
from tasks.smoke.parity import distribution
from tasks.smoke.reference_client import Scored
from tasks.smoke.settings import SmokeSettings

#: Lengths are rounded up to it: a multiple of every block size in which engines hand out their KV cache.
BLOCK = 256
#: Bytes of an element that float32 needs, for each that the option's value needs.
GROWTH = {"bfloat16": 2, "float16": 2, "auto": 2}
REMEDY = (
    "an engine that runs already cannot be started anew at float32; "
    "serve the same files at float32 (`day0 serve DIR --weight-dtype float32`) and give --engine-dtype float32"
)


@dataclass(frozen=True)
class Sequence:
    """Token ids, and what the reference made of them at float32."""

    ids: list[int]
    float32: Scored


class NotPossible(Exception):
    """The engine cannot be started at float32, which is known without trying; the message says why."""


#: Starts the engine at float32 with room for so many tokens. Raises NotPossible, or what a failed start raises.
Relaunch = Callable[[int], Endpoint]


def no_relaunch(tokens: int) -> Endpoint:
    """The `Relaunch` of an engine that somebody else started."""
    raise NotPossible(REMEDY)


def exact_pass(
    sequences: Mapping[str, Sequence], relaunch: Relaunch, settings: SmokeSettings, *, with_kernels: bool = False
) -> tuple[Check, ExactParity | None]:
    """Start the engine at float32, score the sequences, and hold the mean error against its limit.

    Raises:
        StageTimeout, Cancelled: the stage's time is up.
        EngineDied: it ended with accepted kernels, one of which may be why.
    """
    if not sequences:
        return _check(Verdict.INCONCLUSIVE, "there is no sequence to score at float32"), None
    seen = Outcomes()
    scores: dict[str, PromptScores] = {}

    async def questions(engine: Engine) -> None:
        async def one(name: str, ids: list[int]) -> None:
            if found := await seen.of(name, engine.score(ids)):
                scores[name] = found

        await asyncio.gather(*(one(name, sequence.ids) for name, sequence in sequences.items()))

    report("starting the engine at float32")
    try:
        endpoint = relaunch(1 + max(len(sequence.ids) for sequence in sequences.values()))
        report("asking the engine at float32 for log-probabilities")
        ask(endpoint, settings.request_timeout, settings.concurrency, questions)
        seen.raise_if_ended(endpoint)
    except NotPossible as error:
        return _check(Verdict.SKIPPED, f"not compared at float32: {error}"), None
    except (StageTimeout, Cancelled):
        raise
    except Day0Error as error:
        if with_kernels and isinstance(error, EngineDied):
            raise
        return _check(Verdict.INCONCLUSIVE, f"the engine could not be asked at float32: {error}"), None
    if lost := seen.faults:
        name, why = next(iter(sorted(lost.items())))
        return _check(Verdict.FAIL, f"{len(lost)} answers at float32 lost or malformed; {name}: {why}"), None
    if lacking := seen.unsupported:
        name, why = next(iter(sorted(lacking.items())))
        return _check(Verdict.INCONCLUSIVE, f"no evidence at float32; {name}: {why}"), None
    errors = {name: _errors(sequence, scores[name]) for name, sequence in sequences.items()}
    found = ExactParity(
        error=distribution([error for several in errors.values() for error in several]),
        worst={name: max(several) for name, several in errors.items()},
    )
    return float32(found.error, settings.thresholds, found.worst), found


def _errors(sequence: Sequence, found: PromptScores) -> list[float]:
    return [abs(e - r) for e, r in zip(found.logprobs, sequence.float32.logprobs, strict=True)]


def _check(verdict: Verdict, reason: str) -> Check:
    return Check(name=FLOAT32, verdict=verdict, reason=reason)


def float32_service(service: Service, tokens: int) -> Service:
    """The service as it would be started at float32, for sequences of at most `tokens` tokens.

    Weights and activations are taken as twice as large; the KV cache holds as many sequences as before, but only as
    long as is needed. Everything else in `memory_bytes` is doubled too, since the launch does not say what of it is
    activations. Files that hold less than two bytes for a weight grow more: the engine then says itself what it lacks.

    Raises:
        NotPossible: this machine has not the memory.
    """
    launch = service.launch
    length = math.ceil(tokens / BLOCK) * BLOCK
    command, cache, grown = launch.command, 0, 0
    devices = math.prod(
        int(option(command, f"--{kind}-parallel-size") or 1) for kind in ("tensor", "pipeline", "data")
    )  # fmt: skip
    if given := option(command, "--kv-cache-memory-bytes"):
        cache = int(given)
        growth = GROWTH.get(option(command, "--kv-cache-dtype") or "auto", 4)
        # one block more than the longest sequence: engines keep one for themselves
        grown = math.ceil(growth * cache * min(1.0, (length + BLOCK) / service.max_model_len))
        command = with_option(command, "--kv-cache-memory-bytes", str(grown))
    if length < service.max_model_len:
        command = with_option(command, "--max-model-len", str(length))
    command = with_option(with_option(command, "--dtype", "float32"), "--kv-cache-dtype", "auto")
    memory = 2 * max(0, launch.memory_bytes - devices * cache) + devices * grown
    _check_memory(launch, memory)
    return service.model_copy(
        update={
            "launch": launch.model_copy(update={"command": command, "memory_bytes": memory}),
            "max_model_len": min(length, service.max_model_len),
        }
    )


def _check_memory(launch: LaunchSpec, memory: int) -> None:
    machine = machine_memory()
    if memory <= machine:
        return
    weights = sum(file.stat().st_size for file in Path(launch.model_path).glob("*.safetensors"))
    raise NotPossible(
        f"the engine would need {memory / GIB:.1f} GiB at float32 ({2 * weights / GIB:.1f} GiB of it for weights) and "
        f"this machine has {machine / GIB:.1f} GiB; faults below the rounding of the served type stay unseen"
    )


def option(command: tuple[str, ...], name: str) -> str | None:
    """The value of `--name value` or `--name=value` in a command line."""
    for here, following in zip(command, (*command[1:], None), strict=True):
        if here == name:
            return following
        if here.startswith(f"{name}="):
            return here.removeprefix(f"{name}=")
    return None


def with_option(command: tuple[str, ...], name: str, value: str) -> tuple[str, ...]:
    """The command line with that option set to `value`, wherever and however it was given."""
    kept: list[str] = []
    words = iter(command)
    for word in words:
        if word == name:
            next(words, None)
        elif not word.startswith(f"{name}="):
            kept.append(word)
    return (*kept, name, value)
