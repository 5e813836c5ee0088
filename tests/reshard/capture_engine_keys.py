"""Write down the tensors that vLLM's own model has, as the truth that the plan is tested against.

Run inside an environment that has vLLM (not this project's own), once per vLLM version:

    python tests/reshard/capture_engine_keys.py CONFIG.json FOLDER [WORLD ...] [--moe-backend NAME]

A world is `TP-PP` or `TP-PP-ep`. Writes FOLDER/<name of CONFIG.json>-<world>.json for each:
`{"vllm": version, "moe_backend": ..., "config": ..., "tp": t, "pp": p, "ep": e, "ranks": [{"tp": r, "pp": s,
"tensors": {name: [dtype, shape]}}]}`: what the sharded_state loader expects to find for each rank, that is the state
dict of the model right after construction, without the tensors that share another's memory, before any post-processing
of weights. `ep` is the number of expert groups. `--moe-backend` names the kernels for the experts where the layout
depends on them. The sizes in a config must be small: the model is made in memory.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path
from typing import Any

from engine_world import World, make_model, rank_of, state, version


def parse_world(text: str) -> World:
    tp, pp, *ep = text.split("-")
    if ep not in ([], ["ep"]):
        raise SystemExit(f"{text!r} is not a world: TP-PP or TP-PP-ep")
    return World(int(tp), int(pp), bool(ep))


def capture(config: dict[str, Any], world: World, moe_backend: str) -> dict[str, Any]:
    ranks = []
    for rank in range(world.size):
        with tempfile.TemporaryDirectory() as folder:
            (Path(folder) / "config.json").write_text(json.dumps(config))
            with rank_of(folder, world, rank, moe_backend) as engine:
                tensors = {
                    name: [str(t.dtype).removeprefix("torch."), list(t.shape)]
                    for name, t in state(make_model(engine)).items()
                }
        ranks.append({"tp": rank % world.tp, "pp": rank // world.tp, "tensors": tensors})
    ep = world.tp if world.ep else 1
    made_for = {"vllm": version(), "moe_backend": moe_backend, "config": config}
    return made_for | {"tp": world.tp, "pp": world.pp, "ep": ep, "ranks": ranks}


def readable(record: dict[str, Any]) -> str:
    """JSON with a line per tensor, so that a change of version is one of lines."""
    head = ",\n".join(f"{json.dumps(k)}: {json.dumps(v)}" for k, v in record.items() if k != "ranks")
    ranks = ",\n".join(
        f'{{"tp": {rank["tp"]}, "pp": {rank["pp"]}, "tensors": {{\n'
        + ",\n".join(f"{json.dumps(name)}: {json.dumps(what)}" for name, what in rank["tensors"].items())
        + "}}"
        for rank in record["ranks"]
    )
    return f'{{{head},\n"ranks": [\n{ranks}]}}\n'


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("config", type=Path)
    parser.add_argument("folder", type=Path)
    parser.add_argument("worlds", nargs="*", default=["1-1", "2-1", "2-2"], metavar="WORLD")
    parser.add_argument("--moe-backend", default="auto")
    arguments = parser.parse_intermixed_args()
    config = json.loads(arguments.config.read_text())
    for world in arguments.worlds:
        record = capture(config, parse_world(world), arguments.moe_backend)
        target = arguments.folder / f"{arguments.config.stem}-{world}.json"
        target.write_text(readable(record))  # the engine logs to standard output


if __name__ == "__main__":
    main()
