from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from flows.cli import COMMANDS
from tests.models.tiny import make_tiny_llama

HEAVY = ("torch", "transformers", "prefect", "numpy", "sqlalchemy", "docker", "huggingface_hub", "pydantic", "rich")


def day0(*arguments: str, **env: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "flows.cli", *arguments]
    return subprocess.run(command, capture_output=True, text=True, env=os.environ | env, check=False)


@pytest.mark.parametrize("name", COMMANDS)
def test_help_imports_nothing_heavy(name: str) -> None:
    script = f"""
import sys
from flows.cli import main
try:
    main(["{name}", "--help"])
except SystemExit as end:
    assert end.code == 0
print([m for m in {HEAVY!r} if m in sys.modules], file=sys.stderr)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert "--json" in done.stdout
    assert done.stderr.strip() == "[]"


def test_an_unknown_command_is_wrong_usage() -> None:
    assert day0("adopt").returncode == 2


@pytest.mark.parametrize(
    ("arguments", "exit_code", "message"),
    [
        (("show", "nothing"), 2, "no run named 'nothing'"),
        (("rerun", "nothing"), 2, "no run named 'nothing'"),
        (("profile", "/nowhere"), 2, "/nowhere"),
        (("verify", "/nowhere"), 2, "/nowhere"),
        (("stop", "nothing"), 2, "nothing"),
        (("smoke", "--endpoint", "http://127.0.0.1:1", "--model", "MODEL"), 4, "127.0.0.1:1"),
        (("bench", "--endpoint", "http://127.0.0.1:1", "--model", "MODEL"), 4, "127.0.0.1:1"),
    ],
)
def test_an_error_is_one_sentence_and_one_document(
    arguments: tuple[str, ...], exit_code: int, message: str, tmp_path: Path
) -> None:
    model = str(make_tiny_llama(tmp_path / "model"))
    done = day0(*(model if a == "MODEL" else a for a in arguments), "--json")
    assert done.returncode == exit_code, done.stderr
    assert message in done.stderr
    assert "Traceback" not in done.stderr
    assert json.loads(done.stdout)["exit_code"] == exit_code


def test_status_of_a_new_home_is_empty(tmp_path: Path) -> None:
    done = day0("status", "--json", DAY0_HOME=str(tmp_path))
    assert json.loads(done.stdout) == {"adaptations": []}


def test_doctor_names_what_is_there_with_remedies(tmp_path: Path) -> None:
    done = day0("doctor", "--json", DAY0_HOME=str(tmp_path), DOCKER_HOST="tcp://127.0.0.1:1")
    found = {finding["what"]: finding for finding in json.loads(done.stdout)["findings"]}
    assert found["ledger"]["present"]
    assert not found["Docker"]["present"]
    assert found["Docker"]["remedy"]


def test_doctor_fails_when_the_home_cannot_be_used(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    done = day0("doctor", "--json", DAY0_HOME=str(tmp_path / "file" / "home"))
    assert done.returncode == 4
    assert "Traceback" not in done.stderr
