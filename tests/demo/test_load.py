"""The load client: open loop, times from when a request was due, failures told apart."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace

import aiohttp
import pytest
import pytest_asyncio

from extproc.demo import load
from extproc.demo.traffic import Arrival, probe_body, traffic
from extproc.simulation.http import Settings, SimulatedEngine, engines
from extproc.simulation.presets import PRESETS


@pytest_asyncio.fixture
async def engine() -> AsyncIterator[SimulatedEngine]:
    async with engines(1, Settings(replace(PRESETS["demo"], prefill_overhead_s=0.001), speed=20)) as (one,):
        yield one


async def test_outcomes_say_when_and_by_whom_and_agree_with_the_engines_counters(
    engine: SimulatedEngine,
) -> None:
    arrivals = traffic(5, 6, 1).arrivals[:20]
    arrivals = [arrival._replace(at=0.02 * number) for number, arrival in enumerate(arrivals)]
    seen: list[load.Outcome] = []
    async with load.session() as client:
        outcomes = await load.replay(client, engine.address, arrivals, seen.append)
    assert len(seen) == len(outcomes) == 20
    for outcome in outcomes:
        assert outcome.error == ""
        assert outcome.engine == "engine-1"
        assert outcome.first_token is not None
        assert outcome.done is not None
        assert outcome.due <= outcome.sent <= outcome.first_token <= outcome.done
    counters = engine.engine.counters
    assert sum(outcome.cached_tokens for outcome in outcomes) == counters.hit_tokens
    assert sum(outcome.prompt_tokens for outcome in outcomes) == counters.queried_tokens
    assert sum(outcome.output_tokens for outcome in outcomes) == counters.generated_tokens


async def test_requests_are_sent_when_due_though_earlier_ones_are_unanswered() -> None:
    async with engines(1, Settings(replace(PRESETS["demo"], prefill_overhead_s=0.5))) as (slow,):
        arrivals = [arrival._replace(at=0.0) for arrival in traffic(5, 6, 1).arrivals[:5]]
        async with load.session() as client:
            work = asyncio.create_task(load.replay(client, slow.address, arrivals))
            async with asyncio.timeout(5):
                while slow.engine.running + slow.engine.waiting < 5:  # noqa: ASYNC110
                    await asyncio.sleep(0.01)
            assert slow.engine.counters.finished == 0
            work.cancel()
            await asyncio.gather(work, return_exceptions=True)


async def test_refusals_and_cut_answers_are_failures_and_stop_nothing() -> None:
    spec = replace(PRESETS["demo"], prefill_overhead_s=0.001)
    async with engines(1, Settings(spec)) as (engine,):
        good = traffic(5, 6, 1).arrivals[0]
        refused = Arrival(0, "mooncake", b"not json")
        async with load.session() as client:
            outcomes = await load.replay(client, engine.address, [refused, good._replace(at=0.0)])
        assert [outcome.error for outcome in outcomes] == ["status 400", ""]

        slow = good._replace(at=0.0, body=good.body.replace(b'"max_tokens":', b'"max_tokens":9000,"n":'))
        async with load.session() as client:
            work = asyncio.create_task(load.replay(client, engine.address, [slow]))
            async with asyncio.timeout(5):
                while not engine.engine.running:  # noqa: ASYNC110
                    await asyncio.sleep(0.01)
            await engine.stop()
            (outcome,) = await work
        assert outcome.error != ""
        assert outcome.done is None


async def test_probes_alternate_and_another_status_is_an_error(engine: SimulatedEngine) -> None:
    bodies = [probe_body(8192, number) for number in range(5)]
    async with load.session() as client:
        times = await load.time_alternating(client, [engine.address, engine.address], bodies, 400)
        assert [len(found) for found in times] == [5, 5]
        with pytest.raises(aiohttp.ClientError, match="answered 400, not 200"):
            await load.time_alternating(client, [engine.address], bodies, 200)
