"""A model on the simulated accelerator, with kernels in the place of what it lacks: `python -m tests.kernels.rehearsal
CONFIG KERNELS USED`, where USED is a JSON list of [kernel, operator, whether the device's own is wrong]."""

from __future__ import annotations

import json
import logging
import sys
from pathlib import Path

import torch
from transformers import CONFIG_MAPPING, AutoModelForCausalLM

from tasks.kernels.definition import KernelDefinition
from tasks.kernels.dispatch import Dispatch
from tasks.operators.simulated.device import KEY, open_device


def main(config: Path, kernels: Path, used: str) -> None:
    logging.basicConfig(level=logging.WARNING, format="%(message)s")
    open_device()
    torch.manual_seed(0)
    raw = json.loads(config.read_text())
    model = AutoModelForCausalLM.from_config(CONFIG_MAPPING[raw["model_type"]].from_dict(raw)).float().eval()
    ids = torch.randint(0, raw["vocab_size"], (1, 16))
    dispatch = Dispatch(KEY)
    for name, operator, wrong in json.loads(used):
        dispatch.use(KernelDefinition(kernels / name), "triton", operator, wrong=wrong)
    answer: dict[str, object] = {}
    with torch.no_grad():
        expected = model(ids).logits
        model.to("simulated")
        try:
            answer["error"] = (model(ids.to("simulated")).logits.cpu() - expected).abs().max().item()
            answer["tokens"] = model.generate(ids.to("simulated"), max_new_tokens=4, do_sample=False).shape[1]
        except NotImplementedError as error:
            answer["raised"] = str(error)
    answer["uses"] = [use.to_json() for use in dispatch.uses]
    dispatch.close()
    print(json.dumps(answer))


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3])
