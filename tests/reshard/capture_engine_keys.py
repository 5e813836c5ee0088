"""Write down the tensors that vLLM's own model has, as the truth that the plan is tested against.

Run inside an environment that has vLLM (not this project's own), once per vLLM version:

    python tests/reshard/capture_engine_keys.py CONFIG_FOLDER TP PP KEYS.json

Writes `{"vllm": version, "ranks": [{"tp": r, "pp": s, "tensors": {name: [dtype, shape]}}]}`: what the sharded_state
loader expects to find for each rank, that is the state dict of the model right after construction, without the
tensors that share another's memory, before any post-processing of weights.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from pathlib import Path

import torch
import torch.multiprocessing as mp


def rank_tensors(folder: str, tp: int, pp: int, rank: int, rendezvous: str, out: str) -> None:
    from vllm.config import set_current_vllm_config
    from vllm.distributed import init_distributed_environment, initialize_model_parallel
    from vllm.engine.arg_utils import EngineArgs
    from vllm.model_executor.model_loader.sharded_state_loader import ShardedStateLoader
    from vllm.model_executor.model_loader.utils import initialize_model

    args = EngineArgs(model=folder, skip_tokenizer_init=True, enforce_eager=True, dtype="bfloat16", max_model_len=128)
    config = args.create_engine_config()
    config.parallel_config.tensor_parallel_size = tp
    config.parallel_config.pipeline_parallel_size = pp
    with set_current_vllm_config(config):
        init_distributed_environment(tp * pp, rank, f"file://{rendezvous}", rank, "gloo")
        initialize_model_parallel(tp, pp)
        torch.set_default_dtype(torch.bfloat16)
        model = initialize_model(config, prefix="")
        kept = ShardedStateLoader._filter_subtensors(model.state_dict())
    tensors = {name: [str(t.dtype).removeprefix("torch."), list(t.shape)] for name, t in sorted(kept.items())}
    with open(out, "w") as file:
        json.dump({"tp": rank % tp, "pp": rank // tp, "tensors": tensors}, file)


def main(folder: str, tp: int, pp: int, target: str) -> None:
    import vllm

    os.environ["VLLM_DIST_IDENT"] = "capture"  # names the shared memory of several ranks

    with tempfile.TemporaryDirectory() as scratch:
        outs = [os.path.join(scratch, f"{rank}.json") for rank in range(tp * pp)]
        rendezvous = os.path.join(scratch, "rendezvous")
        context = mp.get_context("spawn")
        workers = [
            context.Process(target=rank_tensors, args=(folder, tp, pp, rank, rendezvous, out))
            for rank, out in enumerate(outs)
        ]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        ranks = [json.loads(Path(out).read_text()) for out in outs]
    with open(target, "w") as file:  # the engine logs to standard output
        json.dump({"vllm": vllm.__version__, "tp": tp, "pp": pp, "ranks": ranks}, file)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4])
