"""`day0 profile` and `day0 plan` as scripts and people meet them, and that they stay light."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.architecture.data import DATA, LLAMA_8B, LLAMA_405B
from tests.models.published import make_published
from tests.models.tiny import make_tiny_llama

HEAVY = ("torch", "transformers", "prefect", "numpy", "numba", "sqlalchemy", "docker", "huggingface_hub")


def day0(*arguments: object) -> tuple[int, str, str]:
    call = [sys.executable, "-m", "flows.cli", *map(str, arguments)]
    done = subprocess.run(call, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout, done.stderr


def loaded(*arguments: object) -> set[str]:
    """The top-level packages that a command has imported when it ends."""
    code = (
        "import sys\nfrom flows.cli import main\n"
        "try:\n    main(sys.argv[1:])\nexcept SystemExit:\n    pass\n"
        "print('LOADED', *sorted({name.partition('.')[0] for name in sys.modules}), file=sys.stderr)"
    )
    call = [sys.executable, "-c", code, *map(str, arguments)]
    done = subprocess.run(call, capture_output=True, text=True, check=True)
    line = next(line for line in done.stderr.splitlines() if line.startswith("LOADED"))
    return set(line.split()[1:])


def test_profile_json(tmp_path: Path) -> None:
    code, out, _ = day0("profile", make_tiny_llama(tmp_path), "--json", "--context", 100, "--concurrency", 2)
    value: dict[str, Any] = json.loads(out)
    assert code == 0
    assert set(value) >= {"architecture", "parameters", "context_length", "kv_cache", "checkpoint", "warnings"}
    cache = value["kv_cache"]
    assert cache["bytes_at_context"] == 2 * 100 * cache["bytes_per_token"]


def test_profile_for_people_names_what_fails(tmp_path: Path) -> None:
    root = make_tiny_llama(tmp_path)
    path = root / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "intermediate_size": 96}))
    code, out, err = day0("profile", root)
    assert code in (1, 2)
    assert "model.layers.0.mlp.gate_proj.weight" in (out + err).replace("\n", "").replace(" ", "")


def test_plan_json() -> None:
    code, out, _ = day0("plan", LLAMA_8B, "--target", "h100", "--json", "--concurrency", 4)
    value: dict[str, Any] = json.loads(out)
    assert code == 0
    assert list(value)[:7] == [
        "feasible", "minimum_devices", "chosen", "alternatives", "rejected", "max_context", "engine_args",
    ]  # fmt: skip
    assert set(value["engines"]) == {"vllm", "sglang"}
    assert len(value["alternatives"]) == 4
    assert set(value["chosen"]) >= {"tp", "pp", "ep", "dp", "devices", "per_device", "stages"}
    assert set(value["chosen"]["per_device"]) >= {
        "weights", "kv_cache", "activations", "overhead", "total", "capacity",
    }  # fmt: skip


def test_plan_of_a_checkpoint_with_its_quantisation(tmp_path: Path) -> None:
    root = make_published("deepseek_v3.1", tmp_path, experts=8)
    code, out, _ = day0("plan", root, "--target", "h200", "--json", "--context", 4096, "--tp", 4, "--ep", 4)
    value: dict[str, Any] = json.loads(out)
    assert code == 0
    assert (value["weight_dtype"], value["convert_to"]) == ("fp8_block", None)
    assert value["chosen"]["ep"] == 4


def test_plan_for_people(tmp_path: Path) -> None:
    code, out, _ = day0("plan", DATA / "configs/Qwen__Qwen3-VL-2B-Instruct.json", "--target", "h100", "--tp", 16)
    assert code == 0
    words = " ".join(out.split())
    for said in ("vision", "divided over tp 16", "vllm", "--tensor-parallel-size 16", "sglang", "not checked"):
        assert said in words


def test_plan_that_does_not_fit_exits_1_and_says_why() -> None:
    code, out, _ = day0("plan", LLAMA_405B, "--target", "h100", "--devices", 4)
    assert code == 1
    assert "does not fit on 4 devices" in out


def test_a_plan_is_saved_for_review_and_planned_again(tmp_path: Path) -> None:
    file = tmp_path / "plan.yaml"
    assert day0("plan", LLAMA_8B, "--target", "h100", "--concurrency", 4, "--context", 4096, "--save", file)[0] == 0
    code, out, _ = day0("plan", LLAMA_8B, "--load", file)
    assert code == 0
    assert "the same plan as in the file" in out


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("profile", LLAMA_8B, "--kv-dtype", "int3"), "int3"),
        (("plan", LLAMA_8B, "--target", "h10"), "did you mean 'h100'"),
        (("plan", LLAMA_8B), "--target"),
        (("plan", LLAMA_8B, "--target", "h100", "--tp", "0"), "--tp"),
        (("plan", LLAMA_8B, "--target", "h100", "--objective", "speed"), "--objective"),
        (("plan", LLAMA_8B, "--load", "/nowhere.yaml"), "cannot be read"),
        (("plan", LLAMA_405B, "--target", "h100", "--devices", "1", "--save", "/tmp/none.yaml"), "nothing to save"),
    ],
)
def test_wrong_usage_exits_2_in_one_sentence(arguments: tuple[object, ...], said: str) -> None:
    code, out, err = day0(*arguments)
    assert (code, out) == (2, "")
    assert said in err
    assert "Traceback" not in err


def test_the_commands_stay_light() -> None:
    assert loaded("plan", LLAMA_8B, "--target", "h100").isdisjoint(HEAVY)
    assert loaded("profile", LLAMA_8B, "--json").isdisjoint(HEAVY)


def test_help_imports_next_to_nothing() -> None:
    for name in ("profile", "plan"):
        assert loaded(name, "--help").isdisjoint({*HEAVY, "pydantic", "rich", "yaml"})
