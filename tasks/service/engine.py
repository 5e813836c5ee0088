"""An engine as configs/engines/NAME.yaml describes it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator, Field, PositiveFloat, field_validator

from day0.architecture.attention.kinds import KINDS
from day0.artifacts.base import Frozen
from day0.config import named_config
from day0.errors import InputError
from day0.home import configs, images


def _compiles(pattern: str) -> str:
    try:
        re.compile(pattern)
    except re.error as error:
        raise ValueError(f"not a regular expression: {error}") from error
    return pattern


Pattern = Annotated[str, AfterValidator(_compiles)]


class ForAttention(Frozen):
    """Arguments for models that have an attention of one of the kinds of day0/architecture/attention/."""

    kinds: Annotated[tuple[str, ...], Field(min_length=1)]
    arguments: Annotated[tuple[str, ...], Field(min_length=1)]

    @field_validator("kinds")
    @classmethod
    def _known(cls, kinds: tuple[str, ...]) -> tuple[str, ...]:
        if wrong := next((kind for kind in kinds if kind not in KINDS), None):
            raise ValueError(f"{wrong!r} is no kind of attention; there are {', '.join(KINDS)}")
        return kinds


class EngineConfig(Frozen):
    """How one engine is started, and how its log is read."""

    description: str
    image: Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9._-]*$")]
    """Folder under images/."""
    distribution: str
    """The package in the folder's lock file whose version is the engine's."""
    module: str
    """`python -m MODULE` is the OpenAI-compatible server."""
    arguments: tuple[str, ...] = ()
    """Given on every start."""
    for_attention: tuple[ForAttention, ...] = ()
    options: dict[str, str]
    """A plan's neutral argument → the engine's option."""
    refused: dict[str, str] = Field(default_factory=dict)
    """A plan's neutral argument that the engine must not be given → why. Others without an option are refused too."""
    kernel_plugin: bool = False
    """It loads plugins as vLLM does (the entry points `vllm.general_plugins`): it can be given accepted kernels."""
    sharded_load_format: str
    """`--load-format` of what the reshard stage wrote."""
    env: dict[str, str] = Field(default_factory=dict)
    ready_timeout: PositiveFloat
    """Seconds from launch to the first completion's answer."""
    stop_grace: PositiveFloat
    """Seconds between SIGTERM and SIGKILL."""
    log_prefix: Pattern
    """What the engine's logger puts before a line."""
    generic_errors: tuple[Pattern, ...] = ()
    """Error lines that only say that another process failed."""

    @property
    def folder(self) -> Path:
        """The folder under images/ that the environment is made from.

        Raises:
            InputError: it is not there.
        """
        folder = images() / self.image
        if not (folder / "requirements.lock").is_file():
            raise InputError(
                f"{folder} has no requirements.lock: the engine's `image` must name a folder under images/"
            )
        return folder

    @property
    def version(self) -> str:
        """The engine's version, as the lock file pins it.

        Raises:
            InputError: the lock file does not pin the distribution.
        """
        lock = self.folder / "requirements.lock"
        pin = re.compile(rf"^{re.escape(self.distribution)}==([^\s;\\]+)", re.IGNORECASE)
        for line in lock.read_text(encoding="utf-8").splitlines():
            if match := pin.match(line):
                return match.group(1)
        raise InputError(
            f"{lock} does not pin {self.distribution!r}: the engine's `distribution` must be a package there"
        )


def load_engine(name: str) -> EngineConfig:
    """The engine `configs/engines/name.yaml`.

    Raises:
        InputError: there is none by that name, or its file is malformed.
    """
    return named_config(configs() / "engines", name, EngineConfig)
