"""What smoke asks and what it accepts: the content of a file in `configs/suites/`."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field, model_validator

from day0.artifacts.base import Frozen, Settings
from day0.config import named_config
from day0.home import configs


class Message(Frozen):
    """One turn of a conversation."""

    role: Literal["system", "user", "assistant"]
    content: str


class Prompt(Frozen):
    """One thing to ask: plain `text` for the completions endpoint, or `messages` for the chat template."""

    name: str = Field(min_length=1)
    text: str | None = None
    messages: tuple[Message, ...] | None = None
    generate: int = Field(default=0, ge=0)
    """How many tokens to generate greedily; 0: the prompt is only scored."""
    stream: bool = False
    """Ask a second time as a stream, and a third time as it was, and compare."""
    multilingual: bool = False
    """The answer may mix scripts."""

    @model_validator(mode="after")
    def _one_kind(self) -> Prompt:
        if (self.text is None) == (self.messages is None):
            raise ValueError("a prompt has either text or messages")
        if not (self.text or self.messages):
            raise ValueError("a prompt must not be empty")
        if self.stream and not self.generate:
            raise ValueError("stream needs generate > 0")
        return self


class Thresholds(Frozen):
    """What is accepted. One that is absent makes its check `inconclusive`, never `pass`."""

    ratio: float | None = None
    median_ratio: float | None = None
    prompt_ratio: float | None = None
    decode_ratio: float | None = None
    mean_error: float | None = None
    float32_mean_error: float | None = None
    p99_error: float | None = None
    top1_agreement: float | None = None
    greedy_agreement: float | None = None
    near_tie: float | None = None
    min_positions: int | None = None


class RepetitionLimits(Frozen):
    """When a repetition is a loop. All counts are in tokens."""

    repeats: int = Field(ge=2)
    tokens: int = Field(ge=2)
    ended_tokens: int = Field(ge=2)
    window: int = Field(ge=8)
    distinct: float = Field(gt=0, lt=1)


class SmokeSettings(Settings):
    """A smoke suite."""

    working_dtype: Literal["bfloat16", "float16"]
    chat_template: Literal["required", "optional"]
    request_timeout: float = Field(gt=0)
    concurrency: int = Field(ge=1)
    exact: bool = True
    """Compare once more with the engine started anew at float32."""
    thresholds: Thresholds
    repetition: RepetitionLimits | None = None
    leaks: tuple[str, ...] | None = None
    """Regular expressions of control and template tokens that must not be in what a user reads."""
    prompts: tuple[Prompt, ...] = Field(min_length=1)

    @model_validator(mode="after")
    def _names_differ(self) -> SmokeSettings:
        names = [p.name for p in self.prompts]
        if twice := sorted({n for n in names if names.count(n) > 1}):
            raise ValueError(f"prompt name used twice: {', '.join(twice)}")
        return self

    def thresholds_json(self) -> dict[str, Any]:
        """Thresholds and repetition limits, as the report quotes them."""
        limits = self.repetition.to_json() if self.repetition else None
        return {**self.thresholds.to_json(), "repetition": limits}


def load_settings(suite: str = "smoke") -> SmokeSettings:
    """The suite `configs/suites/<suite>.yaml`.

    Raises:
        InputError: there is none, or it is malformed.
    """
    return named_config(configs() / "suites", suite, SmokeSettings)
