"""The whole measurement of one endpoint: warm-up, every cell, the memory's bandwidth, and the verdicts."""

from __future__ import annotations

import asyncio
import json
import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

import aiohttp

from day0 import deadline
from day0.artifacts.benchmark import BenchmarkReport, Cell
from day0.endpoint import Endpoint, EngineDied
from day0.errors import InputError, Unavailable
from day0.files import FileRef, atomic_write, file_ref
from day0.progress import report
from tasks.benchmark import bandwidth, machine, metrics
from tasks.benchmark.checks import check_cell, check_numbers, check_warm_up
from tasks.benchmark.client import Result
from tasks.benchmark.load import CellRun, Load
from tasks.benchmark.prompts import Prompts
from tasks.benchmark.roofline import DecodeBytes, roofline
from tasks.benchmark.settings import BenchmarkSettings

RECORDS = "requests.jsonl"


def run_benchmark(
    endpoint: Endpoint,
    token_ids: Sequence[int],
    settings: BenchmarkSettings,
    *,
    max_model_len: int | None = None,
    work: DecodeBytes | None = None,
    records: Path | None = None,
) -> BenchmarkReport:
    """Measure the server at `endpoint`.

    `token_ids` are what random prompts are made of (`prompts.usable_token_ids`); `max_model_len` is the engine's
    limit on prompt and answer together; `work` is what a decode step must read (None: no roofline, said by a check);
    into the folder `records` every request is written with its tokens' times.

    Raises:
        InputError: the prompts and answers asked for do not fit into `max_model_len`.
        Unavailable: no server answers at the endpoint.
        EngineDied: the engine ended during the measurement.
        StageTimeout, Cancelled: the stage's time was up; no request is left open.
    """
    needed = settings.input_tokens + settings.output_tokens
    if max_model_len is not None and needed > max_model_len:
        raise InputError(
            f"the benchmark needs {needed} tokens ({settings.input_tokens} in, {settings.output_tokens} out), "
            f"but the service has max_model_len {max_model_len}; serve a longer context or lower input_tokens"
        )
    seed = settings.seed if settings.seed is not None else random.SystemRandom().getrandbits(32)
    prompts = Prompts(token_ids, seed)
    started, load_before = datetime.now(UTC), machine.load_average()
    report("memory bandwidth")
    read_bandwidth = bandwidth.measure()
    engine_version, warm_up, runs = deadline.run_async(_measure(endpoint, prompts, settings))
    load_after = machine.load_average()
    files: tuple[FileRef, ...] = ()
    if records is not None:
        _write_records(records / RECORDS, runs)
        files = (file_ref(records, RECORDS),)
    cells = tuple(_cell(run) for run in runs)
    measured = _decode_tpot(cells)
    found = roofline(work, read_bandwidth, measured) if work and measured else None
    numbers = check_numbers(cells, found, settings)
    checks = [check for run, cell in zip(runs, cells, strict=True) for check in check_cell(run, cell, settings)]
    checks = [check_warm_up(warm_up), *checks]
    # A report's reason is that of its worst check that stands first: the summary if all is well, else the cause.
    checks = [numbers, *checks] if numbers.verdict.good else [*checks, numbers]
    return BenchmarkReport(
        checks=tuple(checks),
        files=files,
        formulas=metrics.FORMULAS,
        conditions={
            **settings.to_json(),
            "seed": seed,
            "tokens_counted_by": sorted({r.counted_by for run in runs for r in run.results if r.counted_by}),
            "load": "closed loop, greedy, ignore_eos, random token ids to /v1/completions, streamed",
            "client": f"day0 {version('day0')}, asyncio with aiohttp {aiohttp.__version__}",
            "engine_version": engine_version,
            "endpoint": endpoint.url,
            "model": endpoint.model,
            "date": started.isoformat(timespec="seconds"),
        },
        machine={
            **machine.describe(),
            "load_average_before": load_before,
            "load_average_after": load_after,
            "read_bandwidth": read_bandwidth,
        },
        cells=cells,
        roofline=found,
    )


async def _measure(
    endpoint: Endpoint, prompts: Prompts, settings: BenchmarkSettings
) -> tuple[str | None, list[Result], list[CellRun]]:
    """Engine version, warm-up, cells. No cell runs after a bad warm-up, or after a request that was lost to time."""
    # No pool limit: the load decides how many connections there are.
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0), trust_env=False) as session:
        engine_version = await _engine_version(session, endpoint)
        load = Load(session, endpoint, prompts, settings)
        warm_up = await load.warm_up()
        runs: list[CellRun] = []
        for state in settings.prefix_cache:
            for concurrency in settings.concurrency:
                before = runs[-1].results if runs else warm_up
                if any(result.fault for result in warm_up) or any(result.timed_out for result in before):
                    return engine_version, warm_up, runs
                runs.append(await load.cell(concurrency, state))
        return engine_version, warm_up, runs


async def _engine_version(session: aiohttp.ClientSession, endpoint: Endpoint) -> str | None:
    """What the server says at /version, or None; also the proof that somebody answers."""
    try:
        async with asyncio.timeout(30), session.get(f"{endpoint.url}/version") as response:
            body = json.loads(await response.text()) if response.status == 200 else {}
            return str(body["version"]) if isinstance(body, dict) and "version" in body else None
    except ValueError:
        return None
    except (aiohttp.ClientError, ConnectionError, TimeoutError) as error:
        if why := await asyncio.to_thread(endpoint.diagnose):
            raise EngineDied(f"engine died during benchmark: {why}") from error
        text = str(error) or "no answer within 30 s"
        raise Unavailable(f"no server answers at {endpoint.url}: {text}; start one with `day0 serve`") from error


def _cell(run: CellRun) -> Cell:
    """A cell's numbers, over its complete requests."""
    good = [result for result in run.results if result.fault is None]
    unsent = run.requests - len(run.results)
    errors = [f"request {i + 1}: {r.fault}" for i, r in enumerate(run.results) if r.fault is not None]
    if unsent:
        errors.append(f"{unsent} requests were not sent, because one before was lost to time")
    output = sum(len(result.arrivals) for result in good)
    begin = min((result.started for result in run.results), default=0.0)
    seconds = max((result.arrivals[-1] for result in good), default=begin) - begin
    cache = run.cache
    return Cell(
        concurrency=run.concurrency,
        prefix_cache=run.prefix_cache,
        requests=run.requests,
        completed=len(good),
        errors=tuple(errors),
        input_tokens=sum(result.prompt_tokens for result in good),
        output_tokens=output,
        seconds=seconds,
        ttft=metrics.summary([metrics.ttft(r.started, r.arrivals) for r in good]),
        tpot=metrics.summary([value for r in good if (value := metrics.tpot(r.started, r.arrivals)) is not None]),
        itl=metrics.summary([gap for r in good for gap in metrics.gaps(r.arrivals)]),
        e2e=metrics.summary([metrics.e2e(r.started, r.arrivals) for r in good]),
        output_tokens_per_second=output / seconds if seconds > 0 else None,
        prefix_cache_hit_rate=cache.hits / cache.queries if cache and cache.queries > 0 else None,
        finish_reasons=dict(Counter(r.finish_reason or "none" for r in run.results)),
    )


def _decode_tpot(cells: Sequence[Cell]) -> float | None:
    """Median TPOT at concurrency 1 with a cold cache: what the roofline is held against."""
    return next((c.tpot.p50 for c in cells if c.concurrency == 1 and c.prefix_cache == "cold" and c.tpot), None)


def _write_records(path: Path, runs: Sequence[CellRun]) -> None:
    """One JSON line a request: its cell, its result, times relative to the request's start."""
    with atomic_write(path) as file:
        for run in runs:
            begin = min((result.started for result in run.results), default=0.0)
            for result in run.results:
                record = {
                    "concurrency": run.concurrency,
                    "prefix_cache": run.prefix_cache,
                    "fault": result.fault,
                    **asdict(result),
                    "started": round(result.started - begin, 6),
                    "arrivals": [round(at - result.started, 6) for at in result.arrivals],
                }
                file.write(json.dumps(record).encode() + b"\n")
