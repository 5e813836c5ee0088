"""How a model writes tool calls and reasoning, told by its chat template: configs/chat-formats.yaml."""

from __future__ import annotations

import functools
from typing import Annotated

from pydantic import Field

from day0.artifacts.base import Frozen
from day0.config import load_config
from day0.home import configs

Mark = Annotated[str, Field(min_length=1)]


class Format(Frozen):
    """One way of writing. All of `marks` are in the template, none of `but`."""

    name: str
    marks: Annotated[tuple[Mark, ...], Field(min_length=1)]
    but: tuple[Mark, ...] = ()
    vllm: str | None = None
    """The engine's parser."""

    def fits(self, template: str) -> bool:
        return all(mark in template for mark in self.marks) and not any(mark in template for mark in self.but)


class ChatFormats(Frozen):
    """The file."""

    tools: tuple[Format, ...]
    reasoning: tuple[Format, ...]


@functools.lru_cache(maxsize=1)
def chat_formats() -> ChatFormats:
    """The known formats."""
    return load_config(configs() / "chat-formats.yaml", ChatFormats)


def tool_format(template: str) -> Format | None:
    """How tool calls are written; None where the template has no tools, or writes them in no known way."""
    if "tool" not in template:
        return None
    return next((known for known in chat_formats().tools if known.fits(template)), None)


def reasoning_format(template: str) -> Format | None:
    """How reasoning is marked; None where it is not, or in no known way."""
    return next((known for known in chat_formats().reasoning if known.fits(template)), None)
