"""The router's discovery of one Service, and what each change of it costs."""

from __future__ import annotations

import asyncio
import random
import statistics
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import NamedTuple

import orjson
from prometheus_client import CollectorRegistry

from bench.discovery.writer import PORT, SERVICE, SLICE
from extproc.config import parse
from extproc.messages import Origin
from extproc.metrics import Metrics
from extproc.picker import Pick, Picker
from extproc.pools import Pools
from extproc.stream import Question

_BODY = b'{"model": "llama", "messages": [{"role": "user", "content": "What is the capital of France?"}]}'


class Cost(NamedTuple):
    """What changes cost the router, for a Service of so many endpoints."""

    endpoints: int
    start_seconds: float
    """From nothing to all endpoints known."""
    seconds: list[float]
    """From the moment when a changed slice is sent to the API server, to routing."""
    cpu_ms: float
    """Of the router for one changed slice, all of it: reading, merging, taking over, the next pick."""
    held_ms: float
    """Longest time for which one change kept the router from answering; the median over all."""
    pick_ms: float
    """The first pick after a change, which is when a strategy takes over new endpoints; the median."""
    burst_seconds: float
    """From the last of all slices written at once, to routing."""
    burst_cpu_ms: float
    burst_steps: int
    """In so many steps all these changes were taken over."""


class Writer:
    """The process that writes EndpointSlices."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    async def write(self, slices: list[int], round_: int) -> tuple[float, float]:
        """When the first was sent, and when the last was written."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(orjson.dumps({"slices": slices, "round": round_}) + b"\n")
        sent, written = (await self._process.stdout.readline()).split()
        return float(sent), float(written)


@asynccontextmanager
async def writing(namespace: str) -> AsyncIterator[Writer]:
    """A writer to the API server of KUBECONFIG."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "bench.discovery.writer", namespace),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    try:
        yield Writer(process)
    finally:
        process.kill()
        await process.wait()


class Router:
    """What of a router takes part: pools, discovery and picker as in `extproc.run`."""

    def __init__(self, namespace: str) -> None:
        numbers = Metrics(CollectorRegistry())
        self._picker = Picker(numbers, time.monotonic, random.Random(1))
        self._changed = asyncio.Event()
        self._pools = Pools(self._picker, numbers, self._learnt)
        self._steps: list[float] = []
        self.picks: list[float] = []
        service = f"{{name: {SERVICE}, namespace: {namespace}, port: {PORT}}}"
        text = f"pools: [{{name: {SERVICE}, engineMetrics: false, endpoints: {{service: {service}}}}}]"
        self._pools.apply(parse(text, "bench").pools)

    @property
    def steps(self) -> int:
        return len(self._steps)

    @property
    def endpoints(self) -> int:
        (state,) = self._pools.states()
        return len(state.endpoints)

    def _learnt(self) -> None:
        self._steps.append(time.monotonic())
        began = time.perf_counter()
        pick = self._picker.pick(Question(Origin("/v1/chat/completions", "", "", None), _BODY, True), "")
        self.picks.append(time.perf_counter() - began)
        if isinstance(pick, Pick):
            pick.release()
        self._changed.set()

    async def quiet(self, after: float, seconds: float) -> float:
        """Wait until nothing changes for so long after `after`; when the last change reached routing."""
        while True:
            self._changed.clear()
            try:
                async with asyncio.timeout(seconds):
                    await self._changed.wait()
            except TimeoutError:
                if self._steps and self._steps[-1] > after:
                    return self._steps[-1]

    async def stop(self) -> None:
        await self._pools.stop()


async def measure(namespace: str, slices: int, changes: int) -> Cost:
    """Fill a Service of so many slices of 100 endpoints, change one at a time, then all at once."""
    every = list(range(slices))
    async with writing(namespace) as writer:
        await writer.write(every, 0)
        began = time.monotonic()
        router = Router(namespace)
        start = await router.quiet(began, 1.0) - began
        assert router.endpoints == slices * (SLICE - 1)
        late = _Lateness(asyncio.get_running_loop())
        router.picks.clear()
        idle = await _cpu(asyncio.sleep(changes * 0.5)) / changes
        seconds, held = [], []
        before = time.process_time()
        for round_ in range(1, changes + 1):
            late.most = 0.0
            sent, _ = await writer.write([round_ % slices], round_)
            seconds.append(await router.quiet(sent, 0.5) - sent)
            held.append(late.most)
        cpu = (time.process_time() - before) / changes - idle
        late.stop()
        picks = list(router.picks)
        steps, before = router.steps, time.process_time()
        sent, written = await writer.write(every, changes + 1)
        burst = max(0.0, await router.quiet(sent, 1.0) - written)
        burst_cpu = time.process_time() - before
        burst_steps = router.steps - steps
        await router.stop()
    return Cost(
        slices * SLICE,
        start,
        seconds,
        1000 * cpu,
        1000 * statistics.median(held),
        1000 * statistics.median(picks),
        burst,
        1000 * burst_cpu,
        burst_steps,
    )


async def _cpu(awaited: object) -> float:
    """Seconds of CPU of this process while that is waited for."""
    before = time.process_time()
    await awaited  # type: ignore[misc]
    return time.process_time() - before


class _Lateness:
    """How late a timer rings that should ring each 2 ms: as long as the event loop answered nobody."""

    EVERY = 0.002

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.most = 0.0
        """Seconds, since somebody set it back. What else runs on the machine adds to it."""
        self._loop = loop
        self._due = loop.time() + self.EVERY
        self._timer = loop.call_at(self._due, self._ring)

    def _ring(self) -> None:
        now = self._loop.time()
        self.most = max(self.most, now - self._due)
        self._due = now + self.EVERY
        self._timer = self._loop.call_at(self._due, self._ring)

    def stop(self) -> None:
        self._timer.cancel()
