"""What generate() calls outside of the model's own forward: masks, positions, the choice of a token, the test for the
end. Operators that an accelerator lacks hide there: `isin` did on several."""

from __future__ import annotations

import functools
from contextlib import suppress
from typing import Any
from unittest.mock import patch

import torch
from transformers.generation.stopping_criteria import EosTokenCriteria

from tasks.operators.models import UNTRACEABLE, in_short
from tasks.operators.recorder import Log, Recorder


class _Enough(Exception):
    """Both tokens have been chosen."""


Around = tuple[Log, Log]
"""What is called before the model's forward and after it."""


def generation(model: Any, tokens: torch.Tensor, outputs: dict[str, Any]) -> tuple[dict[str, Around], str | None]:
    """Logs of greedy generate() for its first token and for the second, and why its own code could not be traced.

    The model's forward is replaced by `outputs` of traced passes, so that only generate()'s own operators are left.
    Where it cannot be traced, the logs are those of the choice of a token and of the test for the end.
    """
    try:
        return dict(zip(outputs, _generate(model, tokens, list(outputs.values())), strict=True)), None
    except UNTRACEABLE as error:
        reason = f"generate() could not be traced ({in_short(error)}): of its own operators "
        reason += "only the choice of a token and the test for the end are known"
        return {phase: (Log(), _choose(model, output)) for phase, output in outputs.items()}, reason


def _generate(model: Any, tokens: torch.Tensor, outputs: list[Any]) -> list[Around]:
    recorder = Recorder()
    logs = [recorder.log]
    forward, prepare = model.forward, model.prepare_inputs_for_generation

    def next_log() -> None:
        recorder.log = Log()
        logs.append(recorder.log)

    @functools.wraps(prepare)
    def prepared(*args: Any, **kwargs: Any) -> Any:
        if len(logs) == 2 * len(outputs):
            raise _Enough
        if len(logs) == 2:  # the second token begins
            next_log()
        return prepare(*args, **kwargs)

    @functools.wraps(forward)
    def answered(*args: Any, **kwargs: Any) -> Any:
        passes = len(logs) // 2
        next_log()
        return outputs[passes]

    replaced = (
        patch.object(model, "forward", answered),
        patch.object(model, "prepare_inputs_for_generation", prepared),
    )
    with torch.inference_mode(), replaced[0], replaced[1], recorder, suppress(_Enough):
        model.generate(tokens, max_new_tokens=len(outputs) + 1, do_sample=False, use_cache=True, pad_token_id=0)
    if len(logs) < 2 * len(outputs):
        raise RuntimeError("it ended before the second token")
    return list(zip(logs[::2], logs[1::2], strict=True))


def _choose(model: Any, output: Any) -> Log:
    recorder, eos = Recorder(), model.config.get_text_config().eos_token_id
    ended = None if eos is None else EosTokenCriteria(eos)
    with torch.inference_mode(), recorder:
        chosen = output.logits[:, -1].argmax(-1)
        if ended:
            ended(chosen[:, None], None)
    return recorder.log
