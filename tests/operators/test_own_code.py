"""A release's own code, run in a container and nowhere else."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from click.testing import CliRunner

from day0.errors import EvidenceMissing
from flows.commands.operators import command
from tasks.operators.own_code import _copy_code, capture_by_code
from tasks.operators.records import CaptureRequest

OWN = Path(__file__).parents[1] / "data/own-code"


def test_code_is_copied_without_what_links_lead_to(tmp_path: Path) -> None:
    release, secret = tmp_path / "release", tmp_path / "secret.py"
    shutil.copytree(OWN, release)
    secret.write_text("key = 1")
    (release / "stolen.py").symlink_to(secret)
    (release / "weights.safetensors").write_bytes(b"x")
    (tmp_path / "code").mkdir()
    assert _copy_code(release, tmp_path / "code") == ["configuration_own.py", "modeling_own.py"]
    assert sorted(p.name for p in (tmp_path / "code").iterdir()) == [
        "config.json", "configuration_own.py", "modeling_own.py",
    ]  # fmt: skip


def test_a_release_without_code_has_none_to_run(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(EvidenceMissing, match="ships no code of its own"):
        capture_by_code(tmp_path, CaptureRequest(config={}, prompt=8, context=8, dispatch_key=None))


@pytest.mark.docker
@pytest.mark.reference
def test_a_model_that_only_its_own_code_knows(tmp_path: Path) -> None:
    without = CliRunner().invoke(command, [str(OWN), "--target", "cpu", "--json"])
    assert without.exit_code == 3
    assert "does not know the model type 'day0_own'" in json.loads(without.stdout)["reason"]

    asked = [str(OWN), "--target", "cpu", "--own-code", "--prompt", "8", "--context", "8", "--json"]
    result = CliRunner().invoke(command, asked)
    assert result.exit_code == 0, result.output
    report = json.loads(result.stdout)
    assert report["source"] == "code"
    operators = {o["name"]: o for o in report["phases"]["prefill"]["operators"]}
    # One layer was run, and it stands for all six.
    assert operators["aten::sin"]["calls"] == 6
    assert operators["aten::sin"]["status"] == "native"
    biases = 8 * (6 * (192 + 64) + 256)
    assert operators["aten::addmm"]["flops"] == 2 * 8 * 64 * (6 * 2 * 192 + 256) + biases
    assert "traced 1, repeated to 6 layers of the release's own code" in report["reason"]


@pytest.mark.docker
@pytest.mark.reference
def test_code_that_fails_is_named_and_its_operators_are_not_made_up(tmp_path: Path) -> None:
    release = tmp_path / "release"
    shutil.copytree(OWN, release)
    (release / "modeling_own.py").write_text("import os\nos.kill(os.getpid(), 9)\n")
    result = CliRunner().invoke(command, [str(release), "--target", "cpu", "--own-code", "--json"])
    assert result.exit_code == 3
    assert "could not be traced" in json.loads(result.stdout)["reason"]
