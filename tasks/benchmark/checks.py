"""What the benchmark's verdict rests on: complete requests, the prefix cache's true state, and numbers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from day0.artifacts.benchmark import Cell, Roofline
from day0.verdict import Check, Verdict
from tasks.benchmark.client import Result
from tasks.benchmark.load import CellRun
from tasks.benchmark.settings import BenchmarkSettings


def check_warm_up(results: Sequence[Result]) -> Check:
    faults = [result.fault for result in results if result.fault]
    if not results or faults:
        return Check(
            name="warm-up",
            verdict=Verdict.FAIL,
            reason=f"nothing was measured, for a warm-up request failed: {faults[0] if faults else 'none was sent'}",
        )
    return Check(name="warm-up", verdict=Verdict.PASS, reason=f"{len(results)} requests, not counted")


def check_cell(run: CellRun, cell: Cell, settings: BenchmarkSettings) -> list[Check]:
    """Whether all requests completed as asked, and whether the prefix cache was in the state that the cell claims."""
    name = f"concurrency {cell.concurrency}, {cell.prefix_cache}"
    complete = cell.completed == cell.requests
    requests = Check(
        name=f"requests: {name}",
        verdict=Verdict.PASS if complete else Verdict.FAIL,
        reason=f"{cell.completed} of {cell.requests} requests completed"
        + (f" with {settings.output_tokens} tokens each" if complete else f"; {cell.errors[0]}"),
        measured={"requests": cell.requests, "completed": cell.completed, "finish_reasons": cell.finish_reasons},
    )
    return [requests, _check_prefix_cache(f"prefix cache: {name}", run, cell, settings)]


def _check_prefix_cache(name: str, run: CellRun, cell: Cell, settings: BenchmarkSettings) -> Check:
    cache, warm = run.cache, run.prefix_cache == "warm"
    sent = sum(result.prompt_tokens for result in run.results)
    measured: dict[str, Any] = {"prompt_tokens_sent": sent, **(asdict(cache) if cache else {})}

    def check(verdict: Verdict, reason: str) -> Check:
        return Check(name=name, verdict=verdict, reason=reason, measured=measured)

    if cache is None:
        return check(Verdict.INCONCLUSIVE, "the server's /metrics does not tell how the prefix cache was used")
    if cache.queries < 0 or cache.hits < 0:
        return check(Verdict.INCONCLUSIVE, "the engine's counters went backwards: it was restarted meanwhile")
    if cache.queries == 0:
        if warm:
            return check(Verdict.SKIPPED, "the engine keeps no prefix cache (its counter did not move)")
        return check(Verdict.PASS, "the engine keeps no prefix cache, so nothing was served from it")
    if cache.queries > 1.01 * sent:
        return check(
            Verdict.INCONCLUSIVE,
            f"contaminated: the engine looked {cache.queries:g} tokens up, {sent} were sent: others used it too",
        )
    rate = cache.hits / cache.queries
    if not warm and rate > settings.cold_hit_limit:
        return check(
            Verdict.INCONCLUSIVE,
            f"contaminated: {rate:.1%} of the prompts' tokens came from the prefix cache of a cell that should be cold "
            f"(limit {settings.cold_hit_limit:.1%}); prompts were sent before, or a fixed seed was used twice",
        )
    least = settings.warm_hit_least * settings.shared_prefix_tokens / settings.input_tokens
    if warm and rate < least:
        return check(
            Verdict.INCONCLUSIVE,
            f"not warm: only {rate:.1%} of the prompts' tokens came from the prefix cache, {least:.1%} was due; "
            "is shared_prefix_tokens shorter than the engine's cache block?",
        )
    return check(Verdict.PASS, f"{rate:.1%} of the prompts' tokens came from the prefix cache")


def check_numbers(cells: Sequence[Cell], found: Roofline | None, settings: BenchmarkSettings) -> Check:
    """Whether every cell that was asked for has numbers. How good they are is for a baseline to say."""
    asked = len(settings.concurrency) * len(settings.prefix_cache)
    with_numbers = [c for c in cells if c.ttft and c.tpot and c.itl and c.e2e and c.output_tokens_per_second]
    if len(with_numbers) < asked:
        return Check(name="numbers", verdict=Verdict.FAIL, reason=f"{len(with_numbers)} of {asked} cells have numbers")
    best = max(c.output_tokens_per_second or 0.0 for c in cells)
    reason = f"{asked} cells measured, at most {best:.1f} output tokens/s"
    if found is None:
        return Check(
            name="numbers",
            verdict=Verdict.PASS,
            reason=f"{reason}; no roofline: no cold cell at concurrency 1, or the weights' element size is not known",
        )
    if found.share > 1:
        return Check(
            name="numbers",
            verdict=Verdict.INCONCLUSIVE,
            reason=f"{reason}; decoding at {found.share:.0%} of what the memory allows is not possible: either the "
            "bandwidth was measured on a busy or another machine, or the model's bytes are wrong",
            measured=found.to_json(),
        )
    return Check(
        name="numbers",
        verdict=Verdict.PASS,
        reason=f"{reason}; decode at {found.share:.0%} of what the memory allows",
        measured=found.to_json(),
    )
