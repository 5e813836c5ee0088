"""What vLLM answers, to the last bit: run inside an environment that has it, as

    python tests/reshard/engine_logprobs.py MODEL OUT.json [--load-format F] [--tp T]

Writes the log-probability of every token of fixed prompts and of what is generated after them, as hexadecimal floats.
"""

from __future__ import annotations

import argparse
import json
import os
from pathlib import Path

os.environ.setdefault("TORCHDYNAMO_DISABLE", "1")  # what would be compiled needs a compiler
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")
os.environ.setdefault("VLLM_CPU_OMP_THREADS_BIND", "nobind")
os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")
os.environ.setdefault("OMP_NUM_THREADS", "1")  # sums are made in one order

PROMPTS = [[1, 7, 9, 300, 12, 40, 41, 42, 255, 256, 257, 11], list(range(100, 180)), [499, 3]]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("model")
    parser.add_argument("out", type=Path)
    parser.add_argument("--load-format", default="auto")
    parser.add_argument("--tp", type=int, default=1)
    arguments = parser.parse_args()

    from vllm import LLM, SamplingParams

    engine = LLM(
        arguments.model,
        load_format=arguments.load_format,
        tensor_parallel_size=arguments.tp,
        dtype="bfloat16",
        enforce_eager=True,
        max_model_len=256,
        max_num_seqs=4,
        enable_prefix_caching=False,
        seed=0,
    )
    sampling = SamplingParams(temperature=0.0, max_tokens=8, ignore_eos=True, logprobs=1, prompt_logprobs=1)
    answers = engine.generate([{"prompt_token_ids": prompt} for prompt in PROMPTS], sampling)
    written = []
    for prompt, answer in zip(PROMPTS, answers, strict=True):
        generated = answer.outputs[0]
        read = [entry[token].logprob.hex() for token, entry in zip(prompt[1:], answer.prompt_logprobs[1:], strict=True)]
        said = [
            entry[token].logprob.hex() for token, entry in zip(generated.token_ids, generated.logprobs, strict=True)
        ]
        written.append({"prompt": read, "tokens": list(generated.token_ids), "generated": said})
    arguments.out.write_text(json.dumps(written))


if __name__ == "__main__":
    main()
