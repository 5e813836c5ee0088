"""What vLLM answers, to the last bit: run inside an environment that has it, as

    python tests/reshard/engine_logprobs.py

Jobs come as lines of JSON: `{"model": folder, "load_format": F, "tp": T}`. The answer to each is a line on standard
output: the log-probability of every token of fixed prompts and of what is generated after them, as hexadecimal floats.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import sys
from typing import Any

os.environ.setdefault("TORCHDYNAMO_DISABLE", "1")  # what would be compiled needs a compiler
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")
os.environ.setdefault("VLLM_CPU_OMP_THREADS_BIND", "nobind")
os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")
os.environ.setdefault("OMP_NUM_THREADS", "1")  # sums are made in one order
os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")  # a process less that imports the engine

PROMPTS = [[1, 7, 9, 300, 12, 40, 41, 42, 255, 256, 257, 11], list(range(100, 180)), [499, 3]]


def main() -> None:
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # the engine logs to standard output
    for line in sys.stdin:
        print(json.dumps(answer(**json.loads(line))), file=answers, flush=True)


def answer(model: str, load_format: str, tp: int) -> list[dict[str, Any]]:
    import vllm.v1.executor.multiproc_executor as executor
    from vllm import LLM, SamplingParams
    from vllm.distributed import cleanup_dist_env_and_memory

    executor.get_mp_context = lambda: multiprocessing.get_context("fork")  # most of the time went into imports
    engine = LLM(
        model,
        load_format=load_format,
        tensor_parallel_size=tp,
        dtype="bfloat16",
        enforce_eager=True,
        max_model_len=256,
        max_num_seqs=4,
        enable_prefix_caching=False,
        seed=0,
    )
    sampling = SamplingParams(temperature=0.0, max_tokens=8, ignore_eos=True, logprobs=1, prompt_logprobs=1)
    answered = engine.generate([{"prompt_token_ids": prompt} for prompt in PROMPTS], sampling)
    written = []
    for prompt, one in zip(PROMPTS, answered, strict=True):
        generated = one.outputs[0]
        read = [entry[token].logprob.hex() for token, entry in zip(prompt[1:], one.prompt_logprobs[1:], strict=True)]
        said = [
            entry[token].logprob.hex() for token, entry in zip(generated.token_ids, generated.logprobs, strict=True)
        ]
        written.append({"prompt": read, "tokens": list(generated.token_ids), "generated": said})
    engine.llm_engine.engine_core.shutdown()
    del engine
    cleanup_dist_env_and_memory()
    return written


if __name__ == "__main__":
    main()
