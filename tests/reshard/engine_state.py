"""What vLLM's own loaders make of a checkpoint and of our files: run inside an environment that has vLLM, as

    python tests/reshard/engine_state.py

Jobs come as lines of JSON: `{"model": folder, "worlds": {world: folder}, "moe_backend": name}`, a world as `TP-PP` or
`TP-PP-ep`. The answer to each is a line on standard output: for each world and rank the SHA-256 of every tensor of the
model before any post-processing, after it has loaded the model, and after it has loaded our files for that world as
`sharded_state`: `{world: [{"original": {name: digest, or null where no weight came}, "ours": the same}]}`, ranks in
order. Memory is filled with a pattern first, so that a tensor that was not loaded shows. What may be padded is left as
the engine made it for the original, and is zero for ours: the same only if the engine pads with zeros.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
from typing import Any

from capture_engine_keys import parse_world
from engine_world import World, make_model, rank_of, state

PATTERN = 0xA5

#: Experts, for the needs of kernels; the projections of Kimi-K3's linear attention.
PADDED = ("routed_experts", "in_proj_qkvgfab")


def main() -> None:
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # the engine logs to standard output
    for line in sys.stdin:
        job = json.loads(line)
        found = {}
        for name, folder in job["worlds"].items():
            world = parse_world(name)
            ranks = range(world.size)
            found[name] = [loaded(job["model"], folder, world, rank, job["moe_backend"]) for rank in ranks]
        print(json.dumps(found), file=answers, flush=True)


def loaded(original: str, ours: str, world: World, rank: int, moe_backend: str) -> dict[str, dict[str, str | None]]:
    from vllm.config import LoadConfig
    from vllm.model_executor.model_loader.default_loader import DefaultModelLoader
    from vllm.model_executor.model_loader.sharded_state_loader import ShardedStateLoader

    with rank_of(original, world, rank, moe_backend) as config:
        model = make_model(config)
        for name, tensor in state(model).items():
            if not any(part in name for part in PADDED) and tensor.ndim > 0:  # scalars keep what the engine gives them
                as_bytes(tensor).fill_(PATTERN)
        DefaultModelLoader(config.load_config).load_weights(model, config.model_config)
        found = {"original": {name: digest(tensor) for name, tensor in state(model).items()}}
        for name, tensor in state(model).items():
            as_bytes(tensor).fill_(0 if any(part in name for part in PADDED) else PATTERN)
        config.model_config.model = ours
        ShardedStateLoader(LoadConfig(load_format="sharded_state")).load_weights(model, config.model_config)
        return found | {"ours": {name: digest(tensor) for name, tensor in state(model).items()}}


def digest(tensor: Any) -> str | None:
    data = as_bytes(tensor)
    if bool((data == PATTERN).all()):
        return None
    return hashlib.sha256(data.numpy().tobytes()).hexdigest()


def as_bytes(tensor: Any) -> Any:
    import torch

    return tensor.detach().reshape(-1).view(torch.uint8)


if __name__ == "__main__":
    main()
