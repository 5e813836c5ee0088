"""What vLLM's own loader makes of a checkpoint: run inside an environment that has vLLM, as

    python tests/reshard/engine_state.py MODEL OUT.json [--moe-backend NAME] WORLD ...

For each world (`TP-PP` or `TP-PP-ep`) and rank, the SHA-256 of every tensor that a sharded_state file has to hold,
after the model has loaded the checkpoint and before any post-processing: `{world: [{name: digest, or null where no
weight came}]}`, ranks in order. Memory is filled with a pattern first, so that a tensor that was not loaded shows.
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
    parser.add_argument("worlds", nargs="+", metavar="WORLD")
    parser.add_argument("--moe-backend", default="auto")
    arguments = parser.parse_intermixed_args()
    found = {}
    for text in arguments.worlds:
        world = parse_world(text)
        found[text] = [loaded(arguments.model, world, rank, arguments.moe_backend) for rank in range(world.size)]
    arguments.out.write_text(json.dumps(found))


def loaded(model_folder: str, world: World, rank: int, moe_backend: str) -> dict[str, str | None]:
    from vllm.model_executor.model_loader.default_loader import DefaultModelLoader

    with rank_of(model_folder, world, rank, moe_backend) as config:
        model = make_model(config)
        tensors = state(model)
        constants = {name: tensor.clone() for name, tensor in tensors.items() if tensor.ndim == 0}
        padded = [name for name in tensors if "routed_experts" in name]  # made of zeros: what is not loaded stays so
        for name, tensor in tensors.items():
            if name not in constants and name not in padded:
                as_bytes(tensor).fill_(PATTERN)
        DefaultModelLoader(config.load_config).load_weights(model, config.model_config)
        return {name: digest(tensor) for name, tensor in state(model).items()}


def digest(tensor: Any) -> str | None:
    data = as_bytes(tensor)
    if data.numel() > 1 and bool((data == PATTERN).all()):
        return None
    return hashlib.sha256(data.numpy().tobytes()).hexdigest()


def as_bytes(tensor: Any) -> Any:
    import torch

    return tensor.detach().reshape(-1).view(torch.uint8)


if __name__ == "__main__":
    main()
