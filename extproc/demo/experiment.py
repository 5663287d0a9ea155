"""The same arrivals under each strategy, and what they came to."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

import aiohttp

from extproc.demo import figures, load
from extproc.demo.figures import Page
from extproc.demo.load import Outcome
from extproc.demo.stack import STRATEGIES, Stack, StackError
from extproc.demo.traffic import Arrival, Traffic, probe_body

WARM_UP_REQUESTS = 16
"""Requests before the first measured run, so that connections and code are warm for all strategies."""
PROBES = 600
PROBE_BYTES = 8192
PROBE_STATUS = 400
"""Probes ask for no token, which an engine refuses at once: what is timed is the way there and back."""
SETTLE_TIMEOUT_S = 30.0
EVEN_WITHIN = 0.15
"""An engine's share may differ by this from even, relative to even."""

UNDECIDED_LIMIT = 0.05
"""Share of requests that may pass without the router (Envoy waits half a second for it) before a run says
nothing of it."""

T = TypeVar("T")


class Progress(Protocol):
    """Told how far the experiment is."""

    def begin(self, name: str, requests: int) -> None:
        """A phase with so many requests begins."""

    def advance(self, outcome: Outcome | None = None) -> None:
        """One request of the phase is complete."""

    def end(self, result: str) -> None:
        """The phase is over."""


@dataclass(frozen=True, slots=True)
class Run:
    """One strategy's run."""

    strategy: str
    outcomes: list[Outcome]
    summary: dict[str, Any]
    """The figures of `report.json`."""


@dataclass(frozen=True, slots=True)
class Result:
    """What the whole experiment measured."""

    runs: list[Run]
    probes_ms: dict[str, list[float]]
    """Round trips in milliseconds, `with_router` and `without_router`."""
    router: dict[str, float]
    """Figures from the router's own metrics."""


async def guarded(stack: Stack, work: Awaitable[T]) -> T:
    """Return what `work` returns, or raise `StackError` as soon as a process ends."""
    working = asyncio.ensure_future(work)
    watching = asyncio.create_task(stack.watch())
    try:
        await asyncio.wait((working, watching), return_when=asyncio.FIRST_COMPLETED)
        if working.done() and working.exception() is not None:
            # Often because a process has just ended, which says more than the refused connection does.
            await asyncio.wait((watching,), timeout=0.5)
        if watching.done():
            watching.result()
        return working.result()
    finally:
        for task in (working, watching):
            task.cancel()
        await asyncio.gather(working, watching, return_exceptions=True)


async def run(stack: Stack, traffic: Traffic, progress: Progress) -> Result:
    """Replay `traffic` under every strategy, caches emptied before each, then measure what the router adds.

    Raises `StackError` if a process ends, does not settle, or the router did not decide the requests.
    """
    async with load.session() as client:
        warm_up = [
            Arrival(0.01 * i, arrival.source, arrival.body)
            for i, arrival in enumerate(traffic.arrivals[:WARM_UP_REQUESTS])
        ]
        await load.replay(client, stack.gateway, warm_up)
        runs = [
            await _run_strategy(client, stack, strategy, traffic.arrivals, progress)
            for strategy in STRATEGIES
        ]
        await _idle(client, stack)
        progress.begin("added latency", PROBES)
        before = await figures.scrape(client, stack.metrics)
        probes = await _probe(client, stack, progress)
        after = await figures.scrape(client, stack.metrics)
    picks = figures.grown(before, after, "extproc_pick_seconds_count")
    seconds = figures.grown(before, after, "extproc_pick_seconds_sum")
    router = {"pick_ms_mean": round(1000 * seconds / picks, 3)} if picks else {}
    progress.end("")
    return Result(runs, probes, router)


async def _run_strategy(
    client: aiohttp.ClientSession,
    stack: Stack,
    strategy: str,
    arrivals: Sequence[Arrival],
    progress: Progress,
) -> Run:
    await _switch(client, stack, strategy)
    await _idle(client, stack)
    for address in stack.engines.values():
        async with client.post(f"http://{address}/reset_prefix_cache") as reply:
            if reply.status != 200:
                raise StackError(f"the engine at {address} did not empty its cache")
    before = await _pages(client, stack)
    progress.begin(strategy, len(arrivals))
    outcomes = await load.replay(client, stack.gateway, arrivals, progress.advance)
    after = await _pages(client, stack)
    summary = summarise(outcomes, before, after)
    if summary["undecided"] > UNDECIDED_LIMIT * len(arrivals):
        raise StackError(
            f"Envoy sent {summary['undecided']} of {len(arrivals)} requests on without the router under "
            f"{strategy}: this machine is too slow for the load, lower --rate"
        )
    progress.end(f"TTFT p50 {summary['ttft_ms'].get('p50', 0):.0f} ms, hit rate {summary['hit_rate']:.1%}")
    return Run(strategy, outcomes, summary)


async def _switch(client: aiohttp.ClientSession, stack: Stack, strategy: str) -> None:
    """Have the running router take over another strategy."""
    loaded = f"strategy: {strategy}\n" in stack.config.read_text()
    if loaded:
        return
    before = await figures.scrape(client, stack.metrics)
    stack.write_config(strategy)

    async def taken() -> bool:
        now = await figures.scrape(client, stack.metrics)
        return figures.grown(before, now, "extproc_config_reloads_total") > 0

    await _settle(taken, "the router did not take over the changed configuration")


async def _idle(client: aiohttp.ClientSession, stack: Stack) -> None:
    """Wait until nothing is in flight any more."""

    async def idle() -> bool:
        pages = [await figures.scrape(client, address) for address in stack.engines.values()]
        busy = sum(
            figures.total(page, f"vllm:num_requests_{state}")
            for page in pages
            for state in ("running", "waiting")
        )
        return not busy and not figures.total(await figures.scrape(client, stack.metrics), "extproc_streams")

    await _settle(idle, "the engines did not become idle")


async def _settle(reached: Callable[[], Awaitable[bool]], failure: str) -> None:
    try:
        async with asyncio.timeout(SETTLE_TIMEOUT_S):
            while not await reached():  # noqa: ASYNC110 - another process decides
                await asyncio.sleep(0.1)
    except TimeoutError:
        raise StackError(f"{failure} within {SETTLE_TIMEOUT_S:.0f} s") from None


async def _pages(client: aiohttp.ClientSession, stack: Stack) -> dict[str, Page]:
    names = {**stack.engines, "router": stack.metrics}
    pages = await asyncio.gather(*(figures.scrape(client, address) for address in names.values()))
    return dict(zip(names, pages, strict=True))


def summarise(outcomes: Sequence[Outcome], before: dict[str, Page], after: dict[str, Page]) -> dict[str, Any]:
    """Return the figures of one run, from its outcomes and the pages of `router` and every engine before and
    after.

    Times in milliseconds, rates and shares as fractions.
    """
    engines = [name for name in before if name != "router"]
    good = [outcome for outcome in outcomes if outcome.done is not None]

    def grown(name: str, engine: str) -> float:
        return figures.grown(before[engine], after[engine], name)

    queried = sum(grown("vllm:prefix_cache_queries_total", engine) for engine in engines)
    hit = sum(grown("vllm:prefix_cache_hits_total", engine) for engine in engines)
    served = Counter(outcome.engine for outcome in good)
    share = {engine: served[engine] / len(good) if good else 0.0 for engine in engines}
    busy = [
        grown("simulation:prefill_busy_seconds_total", engine)
        / max(grown("simulation:clock_seconds_total", engine), 1e-9)
        for engine in engines
    ]
    # Utilisation is of the time in which requests arrive, not of the tail in which the last are answered.
    last_due = max((outcome.due for outcome in outcomes), default=0.0)
    last_done = max((outcome.done or 0.0 for outcome in good), default=0.0)
    stretch = max(last_done / last_due, 1.0) if last_due else 1.0
    named = {
        dict(series.labels)["reason"] for series in after["router"] if series.name == "extproc_requests_total"
    }
    reasons = {
        reason: figures.grown(before["router"], after["router"], "extproc_requests_total", reason=reason)
        for reason in named
    }
    decided = sum(count for reason, count in reasons.items() if reason != "unpinned")
    uneven = max((abs(part * len(engines) - 1) for part in share.values()), default=0.0)
    return {
        "ttft_ms": figures.percentiles(
            [1000 * outcome.ttft for outcome in good if outcome.ttft is not None], 50, 95, 99
        ),
        "hit_rate": hit / queried if queried else 0.0,
        "requests_per_s": len(good) / last_done if last_done else 0.0,
        "output_tokens_per_s": sum(outcome.output_tokens for outcome in good) / last_done
        if last_done
        else 0.0,
        "share": share,
        "failed": len(outcomes) - len(good),
        "requests": len(outcomes),
        "share_furthest_from_even": uneven,
        "prefill_utilisation": dict(zip(engines, (min(1.0, part * stretch) for part in busy), strict=True)),
        "picks": {reason: int(count) for reason, count in sorted(reasons.items()) if count},
        "undecided": max(0, len(outcomes) - int(decided)),
        "client_lag_ms": figures.percentiles([1000 * outcome.lag for outcome in outcomes], 50, 99),
        "engine_lag_ms_mean": 1000
        * sum(grown("simulation:event_lag_seconds_sum", engine) for engine in engines)
        / max(1.0, sum(grown("simulation:event_lag_seconds_count", engine) for engine in engines)),
        "errors": dict(Counter(outcome.error for outcome in outcomes if outcome.error)),
    }


async def _probe(client: aiohttp.ClientSession, stack: Stack, progress: Progress) -> dict[str, list[float]]:
    bodies = [probe_body(PROBE_BYTES, number) for number in range(PROBES)]
    addresses = (stack.gateway, stack.plain)
    await load.time_alternating(client, addresses, bodies[:20], PROBE_STATUS)
    times: list[list[float]] = [[], []]
    for start in range(0, PROBES, 20):
        part = bodies[start : start + 20]
        found = await load.time_alternating(client, addresses, part, PROBE_STATUS)
        for known, new in zip(times, found, strict=True):
            known += [1000 * seconds for seconds in new]
        for _ in part:
            progress.advance()
    return {"with_router": times[0], "without_router": times[1]}
