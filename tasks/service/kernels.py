"""The launch of an engine with accepted kernels."""

from __future__ import annotations

import os
from pathlib import Path

from day0.artifacts.kernels import EnginePlugin
from day0.artifacts.service import LaunchSpec

CONTAINER_KERNELS = "/kernels"


def with_kernels(spec: LaunchSpec, plugin: EnginePlugin, folder: Path) -> LaunchSpec:
    """The launch with the kernels that lie in `folder`: arguments, and variables joined to the engine's own paths."""
    seen = CONTAINER_KERNELS if spec.runtime == "docker" else str(folder)
    env = dict(spec.env)
    for name, value in plugin.env.items():
        given = value.replace("{folder}", seen)
        env[name] = os.pathsep.join(filter(None, (env.get(name), given))) if name.endswith("PATH") else given
    return spec.model_copy(
        update={"command": (*spec.command, *plugin.arguments), "env": env, "kernels": str(folder)}
    )  # fmt: skip
