"""What the benchmark stage is asked to do; the defaults lie in configs/suites/benchmark.yaml."""

from __future__ import annotations

from typing import Self

from pydantic import Field, PositiveFloat, PositiveInt, model_validator

from day0 import home
from day0.artifacts.base import Settings
from day0.artifacts.benchmark import PrefixCache
from day0.config import named_config


class BenchmarkSettings(Settings):
    """Loads to run: every concurrency with every state of the prefix cache."""

    concurrency: tuple[PositiveInt, ...] = Field(min_length=1)
    prefix_cache: tuple[PrefixCache, ...] = Field(min_length=1)
    input_tokens: PositiveInt
    output_tokens: int = Field(ge=2, description="TPOT needs a second token")
    requests_per_stream: PositiveInt
    warmup_requests: PositiveInt
    shared_prefix_tokens: PositiveInt
    cold_hit_limit: float = Field(ge=0, lt=1)
    warm_hit_least: float = Field(gt=0, le=1)
    request_timeout: PositiveFloat
    seed: int | None = None

    @property
    def mean_context(self) -> float:
        """Tokens in the cache at the middle of an answer."""
        return self.input_tokens + self.output_tokens / 2

    @model_validator(mode="after")
    def _prefix_is_shorter_than_prompt(self) -> Self:
        if self.shared_prefix_tokens >= self.input_tokens:
            raise ValueError(
                f"shared_prefix_tokens ({self.shared_prefix_tokens}) must be less than input_tokens "
                f"({self.input_tokens}): a prompt that is all prefix leaves nothing to prefill"
            )
        return self


def load_settings(name: str = "benchmark") -> BenchmarkSettings:
    """The suite `configs/suites/<name>.yaml`.

    Raises:
        InputError: there is no such suite, or it is malformed.
    """
    return named_config(home.configs() / "suites", name, BenchmarkSettings)
