"""The files that start the engine again: they say what was run, whatever the names and paths are."""

from __future__ import annotations

import json
import re
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from tasks.recipe import launch
from tests.recipe.fixtures import HOSTILE, with_kernels
from tests.recipe.fixtures import launch as spec

NAMES = ["org/small", HOSTILE]
text = st.text(st.characters(exclude_categories=["Cs", "Cc"]), min_size=1, max_size=40)


def run_script(script: str, folder: Path, **env: str) -> dict[str, Any]:
    """Run a launch script whose engine only tells its arguments and variables."""
    python = folder / "environment of it" / "bin" / "python"
    python.parent.mkdir(parents=True, exist_ok=True)
    tell = "print(json.dumps({'argv': sys.argv[1:], 'env': dict(os.environ)}))"
    python.write_text(f"#!{sys.executable}\nimport json, os, sys\n{tell}\n")
    python.chmod(python.stat().st_mode | stat.S_IXUSR)
    path = folder / "launch.sh"
    path.write_text(script)
    given = {"PATH": "/usr/bin:/bin", "ENVIRONMENT": str(python.parent.parent), **env}
    done = subprocess.run(["sh", str(path)], env=given, capture_output=True, text=True, check=True)
    told: dict[str, Any] = json.loads(done.stdout)
    return told


@pytest.mark.parametrize("name", NAMES)
def test_the_script_runs_the_recorded_command_word_for_word(tmp_path: Path, name: str) -> None:
    recorded = spec(model_path=f"/models/{name}", name=name)
    told = run_script(launch.launch_script(recorded, 8000), tmp_path)
    assert told["argv"] == [word.replace("{port}", "8000") for word in recorded.command[1:]]
    assert told["env"]["NOTE"] == "a b"
    assert not Path("/tmp/day0-pwned").exists()


def test_the_script_takes_other_paths_and_ports(tmp_path: Path) -> None:
    told = run_script(launch.launch_script(spec(), 8000), tmp_path, MODEL_DIR="/else where", PORT="9001")
    assert told["argv"][told["argv"].index("--model") + 1] == "/else where"
    assert told["argv"][told["argv"].index("--port") + 1] == "9001"


def test_a_docker_run_has_the_fences(tmp_path: Path) -> None:
    docker = tmp_path / "docker"
    docker.write_text(f"#!{sys.executable}\nimport json, sys\nprint(json.dumps(sys.argv[1:]))\n")
    docker.chmod(0o755)
    path = tmp_path / "launch.sh"
    recorded = spec("docker", model_path="/models/a b", name=HOSTILE)
    path.write_text(launch.launch_script(recorded, 8000))
    env = {"PATH": f"{tmp_path}:/usr/bin:/bin"}
    words = json.loads(subprocess.run(["sh", str(path)], env=env, capture_output=True, text=True, check=True).stdout)
    assert words[0] == "run"
    for fence in ("--read-only", "ALL", "no-new-privileges", "10001:10001", str(4 << 30), "127.0.0.1:8000:8000"):
        assert fence in words
    assert "type=bind,source=/models/a b,target=/model,readonly" in words
    assert words[words.index(recorded.environment) + 1 :] == list(recorded.command)


def test_no_secret_is_written() -> None:
    recorded = spec()
    for written in (
        launch.launch_script(recorded, 8000),
        launch.launch_script(spec("docker"), 8000),
        launch.compose_file(recorded, 8000),
        launch.kubernetes_manifests(recorded, 8000),
        launch.engine_arguments(recorded),
    ):
        assert "hf_secret" not in written
        assert "HF_TOKEN" not in written


@settings(deadline=None, max_examples=30)
@given(text, text)
def test_compose_means_what_was_run_for_any_name_and_path(name: str, path: str) -> None:
    recorded = spec(model_path=f"/models/{path}", name=name)
    written = launch.compose_file(recorded, 8000)
    document = yaml.safe_load(written)
    engine = document["services"]["engine"]
    for word in [*engine["command"], *engine["environment"].values(), document["x-model-dir"]]:
        assert re.fullmatch(r"([^$]|\$\$)*", word, re.DOTALL), "compose would replace this variable"
    assert [word.replace("$$", "$") for word in engine["command"]] == launch.container_command(recorded)
    assert engine["volumes"][0]["source"].replace("$$", "$") == f"/models/{path}"
    assert engine["healthcheck"]["test"][-1].replace("$$", "$") == name


@settings(deadline=None, max_examples=30)
@given(text, text)
def test_kubernetes_means_what_was_run_for_any_name_and_path(name: str, path: str) -> None:
    recorded = spec(model_path=f"/models/{path}", name=name)
    deployment, service = yaml.safe_load_all(launch.kubernetes_manifests(recorded, 8000))
    pod = deployment["spec"]["template"]["spec"]
    container = pod["containers"][0]
    assert [word.replace("$$", "$") for word in container["args"]] == launch.container_command(recorded)
    assert container["readinessProbe"]["exec"]["command"][-1] == name
    assert pod["volumes"][0]["hostPath"]["path"] == f"/models/{path}"
    assert service["spec"]["selector"] == deployment["spec"]["selector"]["matchLabels"]


def test_kubernetes_has_the_fences_and_an_honest_readiness() -> None:
    deployment, _ = yaml.safe_load_all(launch.kubernetes_manifests(spec(), 8000))
    pod = deployment["spec"]["template"]["spec"]
    container = pod["containers"][0]
    assert container["securityContext"] == {
        "readOnlyRootFilesystem": True, "allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}
    }  # fmt: skip
    assert pod["securityContext"]["runAsNonRoot"]
    assert pod["automountServiceAccountToken"] is False
    assert container["resources"]["limits"]["memory"] == str(4 << 30)
    assert container["volumeMounts"][0]["readOnly"]
    for probe in ("startupProbe", "readinessProbe"):
        assert container[probe]["exec"]["command"] == ["python", "-c", launch.READY, "org/small"]
    assert "/v1/completions" in launch.READY


def test_the_readiness_check_is_python() -> None:
    compile(launch.READY, "READY", "exec")


def test_engine_arguments_are_those_of_the_command() -> None:
    assert yaml.safe_load(launch.engine_arguments(spec())) == {
        "served-model-name": "org/small", "load-format": "sharded_state", "max-model-len": 2048, "enforce-eager": True
    }  # fmt: skip


def test_a_container_runs_the_same_engine_on_its_own_address() -> None:
    command = launch.container_command(spec(model_path="/models/x"))
    assert command[command.index("--host") + 1] == "0.0.0.0"
    assert command[command.index("--port") + 1] == "8000"
    assert command[command.index("--model") + 1] == "/model"
    assert launch.container_command(spec("docker")) == list(spec("docker").command)


@pytest.mark.parametrize("folder", ["/store/kernels of it", f"/store/{HOSTILE}"])
def test_the_script_gives_the_engine_the_kernels_beside_it(tmp_path: Path, folder: str) -> None:
    recorded = with_kernels(spec(), folder)
    told = run_script(launch.launch_script(recorded, 8000), tmp_path)
    assert told["env"]["PYTHONPATH"] == f"/own:{tmp_path / 'kernels'}"
    assert told["argv"][-2:] == ["--ir-op-priority", '{"rms_norm": ["day0", "native"]}']
    elsewhere = run_script(launch.launch_script(recorded, 8000), tmp_path, KERNELS_DIR="/else where")
    assert elsewhere["env"]["PYTHONPATH"] == "/own:/else where"
    assert not Path("/tmp/day0-pwned").exists()


def test_containers_have_the_kernels_read_only_whatever_runtime_the_evidence_is_from(tmp_path: Path) -> None:
    for recorded in (with_kernels(spec()), with_kernels(spec("docker"))):
        engine = yaml.safe_load(launch.compose_file(recorded, 8000))["services"]["engine"]
        assert engine["volumes"][1] == {
            "type": "bind", "source": "./kernels", "target": "/kernels", "read_only": True
        }  # fmt: skip
        assert engine["environment"]["PYTHONPATH"] == "/own:/kernels"
        assert engine["command"][-2] == "--ir-op-priority"
        deployment, _ = yaml.safe_load_all(launch.kubernetes_manifests(recorded, 8000))
        pod = deployment["spec"]["template"]["spec"]
        assert {"name": "kernels", "mountPath": "/kernels", "readOnly": True} in pod["containers"][0]["volumeMounts"]
        assert {v["name"] for v in pod["volumes"]} == {"model", "kernels", "tmp", "shm"}
        assert {"name": "PYTHONPATH", "value": "/own:/kernels"} in pod["containers"][0]["env"]
    script = launch.launch_script(with_kernels(spec("docker")), 8000)
    assert '"type=bind,source=$KERNELS_DIR,target=/kernels,readonly"' in script
    assert "PYTHONPATH=/own:/kernels" in script


def test_without_kernels_nothing_speaks_of_them() -> None:
    for recorded in (spec(), spec("docker")):
        for written in (
            launch.launch_script(recorded, 8000),
            launch.compose_file(recorded, 8000),
            launch.kubernetes_manifests(recorded, 8000),
        ):
            assert "kernels" not in written.lower()
