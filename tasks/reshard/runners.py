"""Who takes a source's shards: this process, or a task runner of Prefect's. Imports Prefect only for the latter."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from day0.errors import InputError
from tasks.reshard.writer import FanOut

if TYPE_CHECKING:
    from tasks.reshard.fanout import Runner

LOCAL = "local"
RUNNERS = (LOCAL, "threads", "dask", "ray")


def fan_out_by(runner: str, address: str | None) -> FanOut | None:
    """What `write_files` takes for a runner's name; None for threads of this process.

    Args:
        address: of a running cluster; without it one on this machine.

    Raises:
        InputError: there is no such runner, or it is not installed.
    """
    if runner == LOCAL:
        return None
    if runner not in RUNNERS:
        raise InputError(f"DAY0_RUNNER is {runner!r}; it must be {', '.join(RUNNERS[:-1])} or {RUNNERS[-1]}")
    from tasks.reshard.fanout import fan_out_over

    return fan_out_over(cast("Runner", runner), address)
