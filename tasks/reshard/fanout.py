"""Source shards taken by Prefect's task runners: threads, a Dask cluster, a Ray cluster.

Every worker must see the source and the target folder under the same paths, and have day0 installed. What is written
is the same to the byte, whoever runs it. Besides task.py this is the one module of the stage that imports Prefect:
import it only where shards are to be taken elsewhere.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Sequence
from contextvars import Context, ContextVar
from dataclasses import dataclass
from typing import Any, Literal

from prefect import flow, task
from prefect.cache_policies import NO_CACHE
from prefect.futures import as_completed
from prefect.task_runners import TaskRunner, ThreadPoolTaskRunner

from day0 import deadline
from day0.deadline import Deadline
from day0.errors import InputError
from tasks.reshard.writer import FanOut

Runner = Literal["threads", "dask", "ray"]


def fan_out_over(runner: Runner, address: str | None = None, **options: Any) -> FanOut:
    """What `write_files` takes as `fan_out`. Prefect's server must be known (PREFECT_API_URL).

    Args:
        address: of a running cluster (Dask's scheduler, Ray's head); a cluster on this machine otherwise.
        options: the runner's own, such as max_workers (threads), cluster_kwargs (dask), init_kwargs (ray).

    Raises:
        InputError: the runner is not installed.
    """
    made = _task_runner(runner, {**options, "address": address} if address else options)

    def fan_out(function: Callable[[Any], Any], arguments: Sequence[Any], each: Callable[[Any], None]) -> None:
        if not arguments:
            return
        calls = _Calls(function, arguments, each, deadline.current())

        def run() -> None:
            _calls.set(calls)
            _shards.with_options(task_runner=made, name=f"reshard {function.__name__}")()

        # Prefect sends what surrounds a task to its worker: a stage's own task and flow would go along, by value.
        Context().run(run)

    return fan_out


@dataclass(frozen=True)
class _Calls:
    function: Callable[[Any], Any]
    arguments: Sequence[Any]
    each: Callable[[Any], None]
    limit: Deadline


#: Not parameters of the flow: Prefect sends those to every worker, and looks into every field of them for futures.
_calls: ContextVar[_Calls] = ContextVar("calls")


@flow(persist_result=False, validate_parameters=False)
def _shards() -> None:
    _collect()  # all of a flow's body is sent to Dask and Ray, by value: it only calls this, which has a name


def _collect() -> None:
    calls = _calls.get()
    limit = calls.limit
    futures = [_call.submit(pickle.dumps((calls.function, argument))) for argument in calls.arguments]
    try:
        for future in as_completed(futures, timeout=limit.remaining()):
            limit.check()
            calls.each(pickle.loads(future.result()))
    except TimeoutError:
        limit.check()
        raise


@task(name="reshard call", cache_policy=NO_CACHE, persist_result=False)
def _call(payload: bytes) -> bytes:
    function, argument = pickle.loads(payload)
    return pickle.dumps(function(argument))


def _task_runner(runner: Runner, options: dict[str, Any]) -> TaskRunner[Any]:
    made: TaskRunner[Any]
    try:
        if runner == "dask":
            from prefect_dask.task_runners import DaskTaskRunner

            made = DaskTaskRunner(**options)
        elif runner == "ray":
            from prefect_ray.task_runners import RayTaskRunner

            made = RayTaskRunner(**options)
        else:
            made = ThreadPoolTaskRunner(**options)
    except ImportError as error:
        raise InputError(f"the runner {runner!r} is not installed ({error}): pip install 'day0[{runner}]'") from error
    return made
