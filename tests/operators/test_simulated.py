"""The simulated accelerator, each device in a process of its own: torch has one backend from outside."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from tasks.operators.simulated.faults import Faults, meant

RUN = """
import json, sys, warnings, torch
from tasks.operators.simulated.device import Device
from tasks.operators.simulated.faults import Faults
device = Device(Faults.model_validate_json(sys.argv[1]))
def answer(value): print(json.dumps(value))
"""

LLAMA = """
from transformers import AutoModelForCausalLM, LlamaConfig
torch.manual_seed(0)
config = LlamaConfig(hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4,
                     num_key_value_heads=2, vocab_size=512)
model = AutoModelForCausalLM.from_config(config).eval()
ids = torch.randint(0, 512, (1, 16))
with torch.no_grad():
    expected = model(ids).logits
    there = model.to("simulated")(ids.to("simulated")).logits
    generated = model.generate(ids.to("simulated"), max_new_tokens=4, do_sample=False)
answer({"device": str(there.device), "error": (there.cpu() - expected).abs().max().item(),
        "tokens": generated.shape[1], "operators": sorted(device.calls)})
"""


def run(program: str, **faults: Any) -> Any:
    """What a program on the device with these faults answers."""
    done = subprocess.run(
        [sys.executable, "-c", RUN + program, json.dumps(faults)],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def test_a_name_means_an_overload_or_all_of_them() -> None:
    names = {"aten::mm.*": 1, "aten::add.Tensor": 2}
    assert meant("aten::mm", names) == meant("aten::mm.out", names) == "aten::mm.*"
    assert meant("aten::add.Tensor", names) == "aten::add.Tensor"
    assert meant("aten::add.out", names) is None


@pytest.mark.parametrize("faults", [{"missing": ["mm"]}, {"wrong": {"aten::mm": "odd"}}, {"slow": {"aten::mm": 0}}])
def test_faults_that_are_none_are_refused(faults: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        Faults.model_validate(faults)


@pytest.mark.reference
def test_a_model_runs_and_generates_on_it() -> None:
    result = run(LLAMA)
    assert result["device"] == "simulated:0"
    assert result["error"] < 1e-5
    assert result["tokens"] == 20
    assert {"aten::mm", "aten::_softmax", "aten::silu"} <= set(result["operators"])


FAULTS = {
    "missing": ["aten::silu.*"],
    "wrong": {"aten::exp.*": "scaled", "aten::sin.*": "tail", "aten::tanh.*": "strides"},
    "fallback": ["aten::cos.*"],
    "slow": {"aten::log.*": 0.2},
}

PROBE = """
import time
has = torch._C._dispatch_has_kernel_for_dispatch_key
x = torch.randn(5, 7)
y = x.to("simulated")
try:
    torch.nn.functional.silu(y)
    raised = None
except NotImplementedError as error:
    raised = str(error)
pairs = {}
for name in ("exp", "sin", "tanh"):
    f = getattr(torch, name)
    pairs[name] = [[f(b).cpu().tolist(), f(a).tolist()] for a, b in ((x, y), (x.t(), y.t()))]
warnings.simplefilter("always")
with warnings.catch_warnings(record=True) as caught:
    cos = y.cos().cpu()
began = time.monotonic()
y.log()
seconds = time.monotonic() - began

def results(device):
    half, whole, scalar = (torch.ones(s, dtype=d).to(device) for s, d in
                           (((3,), torch.bfloat16), ((3,), torch.int64), ((), torch.bfloat16)))
    empty = torch.empty(0).to(device)
    torch.abs(torch.ones(4, 2).to(device).t(), out=empty)
    found = [half * 0.1, whole * 0.5, scalar * 0.1, whole + 1, half + 1, torch.arange(5, device=device), empty]
    return [[str(t.dtype), list(t.shape), list(t.stride()), t.cpu().tolist()] for t in found]

answer({"raised": raised, "registered": {n: has(n, "PrivateUse1") for n in ("aten::silu.out", "aten::mm")},
        "pairs": pairs, "cos": bool((cos - x.cos()).abs().max()), "warned": [str(w.message) for w in caught],
        "seconds": seconds, "results": [results("cpu"), results("simulated")]})
"""


@pytest.fixture(scope="module")
def probed() -> Any:
    return run(PROBE, **FAULTS)


@pytest.mark.reference
def test_a_missing_operator_is_named_and_the_dispatcher_knows_it(probed: Any) -> None:
    assert "Could not run 'aten::silu.out' with arguments from the 'simulated' backend" in probed["raised"]
    assert probed["registered"] == {"aten::silu.out": False, "aten::mm": True}


@pytest.mark.reference
def test_a_wrong_operator_is_wrong_in_its_own_way(probed: Any) -> None:
    for found, right in probed["pairs"]["exp"]:
        assert found == [pytest.approx([1.01 * v for v in row]) for row in right]
    for found, right in probed["pairs"]["sin"]:
        assert found == [[*row[:-1], 0] for row in right]
    straight, turned = probed["pairs"]["tanh"]
    assert straight[0] == straight[1]
    assert turned[0] != turned[1]
    assert sorted(v for row in turned[0] for v in row) == sorted(v for row in turned[1] for v in row)


@pytest.mark.reference
def test_fallbacks_warn_as_torch_does_and_slow_operators_take_their_time(probed: Any) -> None:
    assert not probed["cos"]
    assert ["aten::cos" in words and "fall back to run on the CPU" in words for words in probed["warned"]] == [True]
    assert probed["seconds"] >= 0.2


@pytest.mark.reference
def test_numbers_promote_and_outputs_are_resized_as_on_the_cpu(probed: Any) -> None:
    on_cpu, on_device = probed["results"]
    assert on_device == on_cpu
