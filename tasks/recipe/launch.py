"""The ways to start the engine again: a shell script, a compose file, Kubernetes manifests, and its arguments alone.

Paths of this machine stand once in each file, at its top. Values come from a model's name, a folder's path
and an engine's settings: none is trusted to be harmless, so the shell script quotes every word, and YAML is dumped
by the library, never pasted together.
"""

from __future__ import annotations

import re
import shlex
from typing import Any

import yaml

from day0.artifacts.service import LaunchSpec
from day0.engine_kernels import CONTAINER_KERNELS

CONTAINER_MODEL = "/model"
CONTAINER_PORT = 8000
#: The recipe's copy of the kernels that the engine was given.
KERNELS = "kernels"
USER = 10001
_SHM = "1gb"
_SECRET = re.compile(r"token|secret|passw|credential|api_?key|auth", re.IGNORECASE)
_ALIAS = "day0-model-dir-alias"

#: Readiness is an answered completion, for an engine whose core hangs still says that it is healthy.
READY = (
    "import json, sys, urllib.request as r; "
    f"q = r.Request('http://127.0.0.1:{CONTAINER_PORT}/v1/completions', "
    "json.dumps({'model': sys.argv[1], 'prompt': '1', 'max_tokens': 1}).encode(), "
    "{'Content-Type': 'application/json'}); "
    "a = json.load(r.build_opener(r.ProxyHandler({})).open(q, timeout=50)); "
    "sys.exit(a['usage']['completion_tokens'] != 1)"
)


def environment(launch: LaunchSpec) -> dict[str, str]:
    """The engine's variables, without any that could be a secret: those belong into the place where it runs."""
    return {name: value for name, value in launch.env.items() if not _SECRET.search(name)}


def container_environment(launch: LaunchSpec) -> dict[str, str]:
    """The variables inside a container, where the kernels lie elsewhere."""
    given = environment(launch)
    return {n: v.replace(launch.kernels, CONTAINER_KERNELS) if launch.kernels else v for n, v in given.items()}


def image(launch: LaunchSpec) -> str:
    """The image's id if that was run; else the tag of what day0 builds from the same folder of images/."""
    return launch.environment if launch.runtime == "docker" else f"day0/{launch.engine}:{launch.lock_digest[:16]}"


def container_command(launch: LaunchSpec) -> list[str]:
    """The engine's command line inside its container, whatever runtime the evidence was made in."""
    command = [CONTAINER_MODEL if word == launch.model_path else word for word in launch.command]
    for option, value in (("--host", "0.0.0.0"), ("--port", str(CONTAINER_PORT))):
        if option in command[:-1]:
            command[command.index(option) + 1] = value
    return command


def launch_script(launch: LaunchSpec, port: int) -> str:
    """A POSIX shell script that starts the engine as it was started: `process` its environment, `docker` its image."""
    head = [
        "#!/bin/sh",
        "# Starts the engine exactly as it was started for the evidence beside this file.",
        "# Set these to run it elsewhere; the values here are those that were used.",
        f"default_model_dir={shlex.quote(launch.model_path)}",
        f"default_environment={shlex.quote(launch.environment)}",
        'MODEL_DIR=${MODEL_DIR:-"$default_model_dir"}',
        'ENVIRONMENT=${ENVIRONMENT:-"$default_environment"}'
        + ("   # the image's id" if launch.runtime == "docker" else "   # the engine's virtual environment"),
        f"PORT=${{PORT:-{port}}}",
        *(
            [f'KERNELS_DIR=${{KERNELS_DIR:-"$(cd "$(dirname "$0")" && pwd)/{KERNELS}"}}   # accepted kernels']
            if launch.kernels
            else []
        ),
        "set -eu",
        "",
    ]
    body = _docker_run(launch) if launch.runtime == "docker" else _process(launch)
    return "\n".join([*head, *body, ""])


def _process(launch: LaunchSpec) -> list[str]:
    exports = [
        f"export {name}={_with_kernels(value, launch)}"
        for name, value in environment(launch).items()
        if name.isidentifier()
    ]
    words = ['"$ENVIRONMENT/bin/python"' if i == 0 and w == "python" else w for i, w in enumerate(launch.command)]
    shown = [word if i == 0 and word.startswith('"') else _word(word, launch) for i, word in enumerate(words)]
    return [*exports, "exec " + " \\\n  ".join(_pairs(shown))]


def _docker_run(launch: LaunchSpec) -> list[str]:
    options = [
        "--rm", "--init", "--read-only", "--tmpfs /tmp:size=1g", f"--shm-size {_SHM}", "--cap-drop ALL",
        "--security-opt no-new-privileges", f"--user {USER}:{USER}", f"--memory {launch.memory_bytes}",
        f'--publish "127.0.0.1:$PORT:{CONTAINER_PORT}"',
        f'--mount "type=bind,source=$MODEL_DIR,target={CONTAINER_MODEL},readonly"',
        *([f'--mount "type=bind,source=$KERNELS_DIR,target={CONTAINER_KERNELS},readonly"'] if launch.kernels else []),
        *(f"--env {shlex.quote(f'{name}={value}')}" for name, value in container_environment(launch).items()),
        '"$ENVIRONMENT"',
    ]  # fmt: skip
    command = [shlex.quote(word) for word in container_command(launch)]
    return ["exec docker run " + " \\\n  ".join([*options, *_pairs(command)])]


def _with_kernels(value: str, launch: LaunchSpec) -> str:
    """A value quoted for the shell, with the folder of kernels as its variable."""
    if not launch.kernels or launch.kernels not in value:
        return shlex.quote(value)
    return '"$KERNELS_DIR"'.join(shlex.quote(part) if part else "" for part in value.split(launch.kernels))


def _word(word: str, launch: LaunchSpec) -> str:
    if word == launch.model_path:
        return '"$MODEL_DIR"'
    before, port, after = word.partition("{port}")
    return (
        f'{shlex.quote(before) if before else ""}"$PORT"{shlex.quote(after) if after else ""}'
        if port
        else shlex.quote(word)
    )


def _pairs(words: list[str]) -> list[str]:
    """An option and its value on one line."""
    lines: list[str] = []
    for word in words:
        if lines and lines[-1].startswith("-") and " " not in lines[-1] and not word.startswith("-"):
            lines[-1] += f" {word}"
        else:
            lines.append(word)
    return lines


def compose_file(launch: LaunchSpec, port: int) -> str:
    """compose.yaml with the security settings that day0's own docker runtime has."""
    literal = _compose_literal
    engine = {
        "image": literal(image(launch)),
        "command": [literal(word) for word in container_command(launch)],
        "environment": {name: literal(value) for name, value in container_environment(launch).items()},
        "init": True,
        "read_only": True,
        "tmpfs": ["/tmp:size=1g"],
        "shm_size": _SHM,
        "cap_drop": ["ALL"],
        "security_opt": ["no-new-privileges:true"],
        "user": f"{USER}:{USER}",
        "mem_limit": launch.memory_bytes,
        "ports": [f"127.0.0.1:{port}:{CONTAINER_PORT}"],
        "volumes": [
            {"type": "bind", "source": _ALIAS, "target": CONTAINER_MODEL, "read_only": True},
            *(
                [{"type": "bind", "source": f"./{KERNELS}", "target": CONTAINER_KERNELS, "read_only": True}]
                if launch.kernels
                else []
            ),
        ],
        "healthcheck": {
            "test": ["CMD", "python", "-c", READY, literal(launch.served_model_name)],
            "interval": "60s",
            "timeout": "55s",
            "retries": 3,
            "start_period": f"{launch.ready_timeout:.0f}s",
        },
        "restart": "on-failure",
    }
    body = yaml.safe_dump({"services": {"engine": engine}}, sort_keys=False, width=110, allow_unicode=True)
    return (
        "# The engine as a container: docker compose up --wait\n"
        "# The one path of this machine; the folder must be readable for the container's user.\n"
        f"x-model-dir: &model-dir {_scalar(_compose_literal(launch.model_path))}\n"
        f"{body.replace(_ALIAS, '*model-dir')}"
    )


def _compose_literal(text: str) -> str:
    """Compose replaces `$NAME` within values; a doubled dollar stands for itself."""
    return text.replace("$", "$$")


def kubernetes_manifests(launch: LaunchSpec, port: int) -> str:
    """A Deployment and its Service, with the same fences as the container that day0 runs."""
    name, labels = "day0-engine", {"app.kubernetes.io/name": "day0-engine"}
    volumes = {"model": (CONTAINER_MODEL, launch.model_path)}
    if launch.kernels:
        volumes["kernels"] = (CONTAINER_KERNELS, launch.kernels)
    probe = {"exec": {"command": ["python", "-c", READY, launch.served_model_name]}}
    container = {
        "name": "engine",
        "image": image(launch),
        "imagePullPolicy": "IfNotPresent",
        "args": [_kubernetes_literal(word) for word in container_command(launch)],
        "env": [{"name": n, "value": _kubernetes_literal(v)} for n, v in container_environment(launch).items()],
        "ports": [{"name": "http", "containerPort": CONTAINER_PORT}],
        "resources": {"requests": {"memory": str(launch.memory_bytes)}, "limits": {"memory": str(launch.memory_bytes)}},
        "securityContext": {
            "readOnlyRootFilesystem": True,
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"]},
        },
        # A completion must be answered before traffic comes, and to keep it. Only an engine that says itself
        # that it is dead is started again: a busy one answers slowly too.
        "startupProbe": {**probe, **_probing(10, 55, max(3, round(launch.ready_timeout / 10)))},
        "readinessProbe": {**probe, **_probing(60, 55, 3)},
        "livenessProbe": {"httpGet": {"path": "/health", "port": "http"}, **_probing(10, 5, 3)},
        "volumeMounts": [
            *({"name": n, "mountPath": target, "readOnly": True} for n, (target, _) in volumes.items()),
            {"name": "tmp", "mountPath": "/tmp"},
            {"name": "shm", "mountPath": "/dev/shm"},
        ],
    }  # fmt: skip
    pod = {
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "securityContext": {
            "runAsNonRoot": True, "runAsUser": USER, "runAsGroup": USER, "seccompProfile": {"type": "RuntimeDefault"}
        },
        "containers": [container],
        "volumes": [
            *({"name": n, "hostPath": {"path": path, "type": "Directory"}} for n, (_, path) in volumes.items()),
            {"name": "tmp", "emptyDir": {"sizeLimit": "1Gi"}},
            {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": "1Gi"}},
        ],
    }  # fmt: skip
    deployment = {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": name, "labels": labels},
        "spec": {
            "replicas": 1,
            "strategy": {"type": "Recreate"},
            "selector": {"matchLabels": labels},
            "template": {"metadata": {"labels": labels}, "spec": pod},
        },
    }
    service = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": name, "labels": labels},
        "spec": {"selector": labels, "ports": [{"name": "http", "port": port, "targetPort": "http"}]},
    }
    head = (
        "# kubectl apply -f kubernetes.yaml\n"
        "# The image must be where the nodes can pull it. The model folder is the volume `model` below, used here as\n"
        f"# {_scalar(launch.model_path)}: put a PersistentVolumeClaim with the same files in its place on a cluster.\n"
    )
    if launch.kernels:
        head += f"# The volume `kernels` has the files of the folder {KERNELS}/ beside this one.\n"
    documents = [yaml.safe_dump(d, sort_keys=False, width=110, allow_unicode=True) for d in (deployment, service)]
    return head + "---\n".join(documents)


def _probing(period: int, timeout: int, failures: int) -> dict[str, int]:
    return {"periodSeconds": period, "timeoutSeconds": timeout, "failureThreshold": failures}


def _kubernetes_literal(text: str) -> str:
    """Kubernetes replaces `$(NAME)` in arguments and variables (not in probes); a doubled dollar stands for one."""
    return text.replace("$", "$$")


def engine_arguments(launch: LaunchSpec) -> str:
    """The engine's own arguments as YAML, in the form that vLLM's `--config` reads; without host and port."""
    words = [word for word in launch.command if word != launch.model_path]
    arguments: dict[str, Any] = {}
    option: str | None = None
    for word in words:
        if word.startswith("--"):
            option = word.removeprefix("--")
            arguments[option] = True
        elif option is not None:
            arguments[option] = yaml.safe_load(word) if re.fullmatch(r"-?\d+(\.\d+)?", word) else word
            option = None
    for absent in ("host", "port", "model"):
        arguments.pop(absent, None)
    head = (
        f"# Arguments of {launch.engine} {launch.engine_version}. --model is the resharded folder, used here as\n"
        f"# {_scalar(launch.model_path)}\n"
    )
    return head + yaml.safe_dump(arguments, sort_keys=False, allow_unicode=True)


def _scalar(text: str) -> str:
    """A text as one double-quoted YAML scalar on one line."""
    dumped: str = yaml.safe_dump(text, default_style='"', width=1 << 20, allow_unicode=False)
    return dumped.strip()
