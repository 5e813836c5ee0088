"""Service: the record that an engine was started on the resharded files and answered a real request."""

from __future__ import annotations

from typing import Any, ClassVar, Literal

from day0.artifacts.base import Artifact, Frozen
from day0.artifacts.kernels import GivenKernel

Runtime = Literal["process", "docker"]


class LaunchSpec(Frozen):
    """All that is needed to start this engine again. Paths are absolute on this machine."""

    engine: str
    """Name of a file in configs/engines/, such as `vllm-cpu`."""
    engine_version: str
    runtime: Runtime
    environment: str
    """`process`: the environment's folder; `docker`: the image's id."""
    lock_digest: str
    """SHA-256 over the engine's folder in images/: what the environment was made from."""
    model_path: str
    served_model_name: str
    command: tuple[str, ...]
    """The engine's own command line, as run inside its environment (`{port}` stands for the port)."""
    env: dict[str, str]
    memory_bytes: int
    ready_timeout: float
    kernels: str | None = None
    """Folder of accepted kernels that the engine was given, on its PYTHONPATH (a container sees it elsewhere)."""
    given: tuple[GivenKernel, ...] = ()
    """Those in the folder that it uses."""


class FirstCompletion(Frozen):
    """The request that proved the service ready."""

    prompt: str
    text: str
    tokens: int
    seconds: float


class Service(Artifact):
    kind: ClassVar[str] = "service"

    launch: LaunchSpec
    ready_seconds: float
    """From launch to the first completion's answer."""
    first_completion: FirstCompletion
    load_format: str
    security: dict[str, Any]
    """Docker: the settings as `docker inspect` tells them; process: the user and the bound address."""
    max_model_len: int


class OfService(Artifact):
    """What a stage found out about a service."""

    launch: LaunchSpec | None = None
    """What it is of, where the engine ended in accepted kernels and went on without; None: the service as it was."""

    def with_kernels(self, summary: str) -> str:
        """The summary, and what the checks of kernels found."""
        return "; ".join((summary, *(check.reason for check in self.checks if check.name.startswith("kernels"))))
