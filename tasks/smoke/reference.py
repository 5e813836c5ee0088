"""The reference: transformers on the original model folder, in a process of its own.

    python -m tasks.smoke.reference REQUEST.json ANSWER.json

It is a process of its own so that torch never enters day0's, its memory is given back, and a time limit can end it.
Code that came with the model is never run. The request is `{"task": "prepare" | "score", "model": DIR, ...}`; the
answer holds the result, or `{"error": sentence}` if there can be no reference for this model.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROWS = 64  # positions per log-softmax: bounds the float32 copy to ROWS × vocabulary


class NoReference(Exception):
    """This model has no usable reference; the message says why."""


def prepare(request: dict[str, Any]) -> dict[str, Any]:
    """Token ids of every prompt, and what the tokenizer knows of templates and special tokens.

    Text is encoded with the special tokens that the tokenizer adds by itself; messages are rendered with the
    generation prompt, once with string content and once with a list of text parts.
    """
    from transformers import AutoTokenizer

    try:
        tokenizer = AutoTokenizer.from_pretrained(request["model"], trust_remote_code=False, local_files_only=True)
    except (OSError, ValueError, KeyError) as error:
        raise NoReference(f"transformers cannot load the tokenizer: {_first_line(error)}") from error
    answers = []
    for prompt in request["prompts"]:
        answer: dict[str, Any] = {"name": prompt["name"]}
        if prompt.get("text") is not None:
            answer["ids"] = list(tokenizer(prompt["text"])["input_ids"])
        elif not tokenizer.chat_template:
            answer["error"] = "the model has no chat template"
        else:
            try:
                answer["ids"] = _render(tokenizer, prompt["messages"], True)
                answer["without_generation_prompt"] = _render(tokenizer, prompt["messages"], False)
            except Exception as error:  # a template is the model's own program: it may raise anything
                answer["error"] = f"the chat template fails: {type(error).__name__}: {_first_line(error)}"
        answers.append(answer)
    special = {str(token) for token in tokenizer.all_special_tokens}
    special |= {token.content for token in tokenizer.added_tokens_decoder.values() if token.special}
    return {
        "prompts": answers,
        "chat_template": bool(tokenizer.chat_template),
        "special_tokens": sorted(token for token in special if token.strip()),
    }


def _render(tokenizer: Any, messages: list[dict[str, str]], generation_prompt: bool) -> list[int]:
    rendered = tokenizer.apply_chat_template(
        messages, tokenize=True, add_generation_prompt=generation_prompt, return_dict=False
    )
    return [int(token) for token in rendered]


def score(request: dict[str, Any]) -> dict[str, Any]:
    """Teacher-forced log-probabilities of `sequences` at float32 and at `working_dtype`.

    At float32, of weights rounded to `weights_dtype` if there is one, `continuations` (`{name, ids, tokens}`) are first
    continued greedily, and then scored as sequences under the same name. One model is in memory at a time.
    """
    import torch

    torch.set_num_threads(os.cpu_count() or 1)
    sequences = {s["name"]: list(s["ids"]) for s in request["sequences"]}
    scores: dict[str, dict[str, Any]] = {name: {} for name in sequences}
    continuations: dict[str, list[int]] = {}
    for name, dtype in (("float32", torch.float32), ("working", getattr(torch, request["working_dtype"]))):
        if name == "float32" and request["weights_dtype"]:
            model = _load(request["model"], getattr(torch, request["weights_dtype"])).float()
        else:
            model = _load(request["model"], dtype)
        if name == "float32":
            for item in request["continuations"]:
                print(f"continuing {item['name']} at float32", flush=True)
                continuations[item["name"]] = _continue(model, item["ids"], item["tokens"])
                sequences[item["name"]] = [*item["ids"], *continuations[item["name"]]]
                scores[item["name"]] = {}
        for sequence, ids in sequences.items():
            print(f"scoring {sequence} at {dtype}", flush=True)
            scores[sequence][name] = _score(model, ids)
        del model
    return {"scores": scores, "continuations": continuations}


def _load(folder: str, dtype: Any) -> Any:
    """The model at `dtype`, on the CPU, complete: a weight made up by the loader would be no reference."""
    from transformers import AutoModelForCausalLM

    loader: Any = AutoModelForCausalLM

    try:
        model, info = loader.from_pretrained(
            folder,
            dtype=dtype,
            trust_remote_code=False,
            local_files_only=True,
            use_safetensors=True,
            attn_implementation="eager",
            output_loading_info=True,
        )
    except (OSError, ValueError, KeyError) as error:
        raise NoReference(f"transformers cannot load the model: {_first_line(error)}") from error
    lacking = [*info.get("missing_keys", ()), *info.get("mismatched_keys", ())]
    if lacking:
        raise NoReference(
            f"{len(lacking)} weights are missing or misshapen, the first is {sorted(map(str, lacking))[0]}"
        )
    return model.eval()


def _score(model: Any, ids: list[int]) -> dict[str, list[float] | list[int]]:
    """For each position from 1 on: log p(ids[i] | ids[:i]), the most likely token, its log-probability and its lead.

    Logits are widened to float32 before the softmax, as serving engines do.
    """
    import torch

    with torch.inference_mode():
        logits = model(torch.tensor([ids]), use_cache=False).logits[0, :-1]
        targets = torch.tensor(ids[1:])
        found: dict[str, list[Any]] = {"logprobs": [], "top1": [], "top1_logprobs": [], "lead": []}
        for rows, wanted in _pieces(logits, targets):
            logprobs = torch.log_softmax(rows.float(), dim=-1)
            if not bool(torch.isfinite(logprobs.gather(1, wanted[:, None])).all()):
                raise NoReference("the reference itself gives NaN or infinite log-probabilities")
            best = logprobs.topk(2, dim=-1)
            found["logprobs"] += logprobs.gather(1, wanted[:, None])[:, 0].tolist()
            found["top1"] += best.indices[:, 0].tolist()
            found["top1_logprobs"] += best.values[:, 0].tolist()
            found["lead"] += (best.values[:, 0] - best.values[:, 1]).tolist()
    return found


def _pieces(logits: Any, targets: Any) -> Iterator[tuple[Any, Any]]:
    for start in range(0, len(targets), ROWS):
        yield logits[start : start + ROWS], targets[start : start + ROWS]


def _continue(model: Any, ids: list[int], tokens: int) -> list[int]:
    """Plain argmax decoding, without the penalties that a generation_config may ask for; ends at end-of-sequence."""
    import torch

    ends = model.generation_config.eos_token_id
    stop = set(ends if isinstance(ends, list) else [ends])
    made: list[int] = []
    step, cache = torch.tensor([ids]), None
    with torch.inference_mode():
        while len(made) < tokens:
            output = model(step, past_key_values=cache, use_cache=True)
            cache = output.past_key_values
            made.append(int(output.logits[0, -1].argmax()))
            if made[-1] in stop:
                break
            step = torch.tensor([[made[-1]]])
    return made


def _first_line(error: BaseException) -> str:
    return next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)


def main(request_path: str, answer_path: str) -> int:
    """Answer one request."""
    import torch
    import transformers

    talk: Any = transformers.logging
    talk.set_verbosity_error()
    talk.disable_progress_bar()
    request = json.loads(Path(request_path).read_text(encoding="utf-8"))
    answer: dict[str, Any]
    try:
        answer = {"prepare": prepare, "score": score}[request["task"]](request)
    except NoReference as error:
        answer = {"error": str(error)}
    answer["library"] = f"transformers {transformers.__version__}"
    answer["torch"] = torch.__version__
    Path(answer_path).write_text(json.dumps(answer), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:3]))
