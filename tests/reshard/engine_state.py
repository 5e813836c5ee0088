"""What vLLM's own loaders make of a checkpoint and of our files: run inside an environment that has vLLM, as

    python tests/reshard/engine_state.py MODEL OUT.json [--moe-backend NAME] WORLD=FOLDER ...

For each world (`TP-PP` or `TP-PP-ep`) and rank, the SHA-256 of every tensor of the model before any post-processing,
after it has loaded MODEL, and after it has loaded FOLDER, our files for that world, as `sharded_state`:
`{world: [{"original": {name: digest, or null where no weight came}, "ours": the same}]}`, ranks in order. Memory is
filled with a pattern first, so that a tensor that was not loaded shows. That of experts is left as the engine made it
for the original, and is zero for ours: what the engine pads them with is the same only if it is zero.
"""

from __future__ import annotations

import argparse
import hashlib
import json
from pathlib import Path
from typing import Any

from capture_engine_keys import parse_world
from engine_world import World, make_model, rank_of, state

PATTERN = 0xA5


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("model")
    parser.add_argument("out", type=Path)
    parser.add_argument("worlds", nargs="+", metavar="WORLD=FOLDER")
    parser.add_argument("--moe-backend", default="auto")
    arguments = parser.parse_intermixed_args()
    found = {}
    for text in arguments.worlds:
        name, _, folder = text.partition("=")
        world = parse_world(name)
        ranks = range(world.size)
        found[name] = [loaded(arguments.model, folder, world, rank, arguments.moe_backend) for rank in ranks]
    arguments.out.write_text(json.dumps(found))


def loaded(original: str, ours: str, world: World, rank: int, moe_backend: str) -> dict[str, dict[str, str | None]]:
    from vllm.config import LoadConfig
    from vllm.model_executor.model_loader.default_loader import DefaultModelLoader
    from vllm.model_executor.model_loader.sharded_state_loader import ShardedStateLoader

    with rank_of(original, world, rank, moe_backend) as config:
        model = make_model(config)
        for name, tensor in state(model).items():
            if "routed_experts" not in name and tensor.ndim > 0:  # scalars keep what the engine gives them
                as_bytes(tensor).fill_(PATTERN)
        DefaultModelLoader(config.load_config).load_weights(model, config.model_config)
        found = {"original": {name: digest(tensor) for name, tensor in state(model).items()}}
        for name, tensor in state(model).items():
            as_bytes(tensor).fill_(0 if "routed_experts" in name else PATTERN)
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
