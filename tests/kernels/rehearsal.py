"""A model on a target's device, with the kernels of a bundle in the place of what it lacks: `python -m
tests.kernels.rehearsal CONFIG [REPORT BUNDLE]`, JSON files of the model, of the scan and of the kernels stage."""

from __future__ import annotations

import json
import logging
import sys
from pathlib import Path

import torch
from transformers import CONFIG_MAPPING, AutoModelForCausalLM

from day0.artifacts.kernels import KernelBundle
from day0.artifacts.operators import OperatorReport
from day0.device_probe import open_device
from day0.target_operators import device_of
from tasks.kernels.dispatch import Dispatch

TARGET = "simulated"


def main(config: Path, found: list[Path]) -> None:
    logging.basicConfig(level=logging.WARNING, format="%(message)s")
    device = device_of(TARGET)
    assert device is not None
    open_device(device.name, device.modules)
    torch.manual_seed(0)
    raw = json.loads(config.read_text())
    model = AutoModelForCausalLM.from_config(CONFIG_MAPPING[raw["model_type"]].from_dict(raw)).float().eval()
    ids = torch.randint(0, raw["vocab_size"], (1, 16))
    dispatch = Dispatch(device.key)
    if found:
        report, bundle = (path.read_bytes() for path in found)
        dispatch.use_bundle(KernelBundle.model_validate_json(bundle), OperatorReport.model_validate_json(report))
    answer: dict[str, object] = {}
    with torch.no_grad():
        expected = model(ids).logits
        model.to(device.name)
        try:
            answer["error"] = (model(ids.to(device.name)).logits.cpu() - expected).abs().max().item()
            answer["tokens"] = model.generate(ids.to(device.name), max_new_tokens=4, do_sample=False).shape[1]
        except NotImplementedError as error:
            answer["raised"] = str(error)
    answer["uses"] = [use.to_json() for use in dispatch.uses]
    dispatch.close()
    print(json.dumps(answer))


if __name__ == "__main__":
    main(Path(sys.argv[1]), [Path(name) for name in sys.argv[2:]])
