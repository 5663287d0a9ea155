"""Sends requests at their times, whatever the answers do (open loop), and times the answers.

Time to first token counts from the time at which a request was *due*: a client that falls behind must not
hide it (coordinated omission). By how much it fell behind is kept as `lag`.
"""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from time import perf_counter

import aiohttp
import orjson

from extproc.demo.traffic import Arrival

PATH = "/v1/chat/completions"
ANSWER_TIMEOUT_S = 60.0
"""A request without a complete answer after this long has failed."""


@dataclass(slots=True)
class Outcome:
    """What became of one request. Times in seconds since the start of the run."""

    due: float
    source: str
    sent: float = 0.0
    first_token: float | None = None
    done: float | None = None
    """When the whole answer was here; None if the request failed."""
    engine: str = ""
    """Engine that says it answered."""
    prompt_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    error: str = ""
    """Why it failed; empty if it did not."""

    @property
    def lag(self) -> float:
        """Seconds by which the client sent it late."""
        return self.sent - self.due

    @property
    def ttft(self) -> float | None:
        """Seconds from when it was due to its first token."""
        return None if self.first_token is None else self.first_token - self.due


def session() -> aiohttp.ClientSession:
    """Return a client session with as many connections as it takes."""
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0),
        timeout=aiohttp.ClientTimeout(total=ANSWER_TIMEOUT_S),
        headers={"content-type": "application/json"},
    )


async def replay(
    client: aiohttp.ClientSession,
    gateway: str,
    arrivals: Sequence[Arrival],
    progress: Callable[[Outcome], None] = lambda outcome: None,
) -> list[Outcome]:
    """Send `arrivals` (in order of time) to `gateway` (`ip:port`) and return their outcomes in the same
    order.

    `progress` is called with each outcome as it is complete. Returns when all are.
    """
    outcomes = [Outcome(arrival.at, arrival.source) for arrival in arrivals]
    url = f"http://{gateway}{PATH}"
    gc.collect()
    gc.disable()  # a collection would be a pause in every answer that is in flight
    try:
        start = perf_counter()
        async with asyncio.TaskGroup() as tasks:
            for arrival, outcome in zip(arrivals, outcomes, strict=True):
                await asyncio.sleep(arrival.at - (perf_counter() - start))
                tasks.create_task(_send(client, url, arrival.body, outcome, start, progress))
    finally:
        gc.enable()
    return outcomes


async def _send(
    client: aiohttp.ClientSession,
    url: str,
    body: bytes,
    outcome: Outcome,
    start: float,
    progress: Callable[[Outcome], None],
) -> None:
    outcome.sent = perf_counter() - start
    tail = b""
    try:
        async with client.post(url, data=body) as reply:
            outcome.engine = reply.headers.get("x-simulated-engine", "")
            if reply.status != 200:
                outcome.error = f"status {reply.status}"
                return
            async for piece in reply.content.iter_any():
                if outcome.first_token is None and b'"content"' in piece:
                    outcome.first_token = perf_counter() - start
                tail = (tail + piece)[-2000:]
        _read_end(tail, outcome)
        if not outcome.error:
            outcome.done = perf_counter() - start
    except (aiohttp.ClientError, TimeoutError) as error:
        outcome.error = type(error).__name__
    finally:
        progress(outcome)


def _read_end(tail: bytes, outcome: Outcome) -> None:
    """Read the usage out of the last events, and whether the stream ended as it should."""
    events = [line.removeprefix(b"data: ") for line in tail.split(b"\n\n") if line]
    if len(events) < 2 or events[-1].strip() != b"[DONE]" or outcome.first_token is None:
        outcome.error = "the answer was cut"
        return
    try:
        usage = orjson.loads(events[-2])["usage"]
        outcome.prompt_tokens = usage["prompt_tokens"]
        outcome.cached_tokens = usage["prompt_tokens_details"]["cached_tokens"]
        outcome.output_tokens = usage["completion_tokens"]
    except (ValueError, LookupError):
        outcome.error = "the answer has no usage"


async def time_alternating(
    client: aiohttp.ClientSession, addresses: Sequence[str], bodies: Sequence[bytes], status: int
) -> list[list[float]]:
    """Post each body to each address in turn, one at a time, and return the seconds each took, by address.

    Alternating so that whatever else the machine does falls on all addresses alike. Raises
    `aiohttp.ClientError` for another status than `status`.
    """
    times: list[list[float]] = [[] for _ in addresses]
    for body in bodies:
        for address, found in zip(addresses, times, strict=True):
            began = perf_counter()
            async with client.post(f"http://{address}{PATH}", data=body) as reply:
                await reply.read()
                if reply.status != status:
                    raise aiohttp.ClientError(f"{address} answered {reply.status}, not {status}")
            found.append(perf_counter() - began)
    return times
