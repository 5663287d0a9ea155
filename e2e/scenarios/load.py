"""Conversations through the gateway, and what became of each request.

Bounded in number, at once and in time; all goes to the gateway's loopback address.
"""

from __future__ import annotations

import asyncio
import itertools
import random
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass

import aiohttp

from tests.envoy.process import eventually

PATIENCE = 30.0
"""Seconds after which a request has failed."""
TURNS = 8
"""Of one conversation under load."""
MOST_REQUESTS = 20_000
MOST_SECONDS = 240.0


@dataclass(slots=True)
class Outcome:
    """What became of one request. Times are the event loop's, in seconds."""

    conversation: int
    begun: float
    ended: float = float("inf")
    status: int = 0
    """0: none came."""
    engine: str = ""
    """The `ip:port` that replied."""
    pin: str = ""
    """The endpoints that the router named, first choice first; empty: the gateway chose by itself."""
    prompt_tokens: int = 0
    cached_tokens: int = 0
    """Of the prompt's, those that the engine had in its KV cache."""
    error: str = ""
    """What was said instead of a reply."""

    @property
    def served(self) -> bool:
        return self.status == 200 and not self.error

    @property
    def pinned(self) -> bool:
        """Whether the engine that replied is the router's first choice."""
        return bool(self.pin) and self.pin.split(",")[0] == self.engine


def document(number: int, characters: int = 4000) -> str:
    """A text of its own for each number: the prefix that the turns of a conversation share."""
    draw = random.Random(number)
    words = ("route", "cache", "prefix", "engine", "block", "token", "warm", "cold", "node", "pool")
    return f"{number} " + " ".join(draw.choices(words, k=characters // 6))


def body(conversation: int, turn: int) -> dict[str, object]:
    """One turn: the same document, another question."""
    messages = [
        {"role": "system", "content": document(conversation)},
        {"role": "user", "content": f"question {turn}"},
    ]
    return {"model": "simulated", "messages": messages, "max_tokens": 8, "ignore_eos": True}


class Client:
    """Asks the gateway at `address` (`ip:port`)."""

    def __init__(self, session: aiohttp.ClientSession, address: str) -> None:
        self._session = session
        self._address = address

    async def ask(
        self, conversation: int, turn: int = 0, headers: Mapping[str, str] | None = None
    ) -> Outcome:
        """One request, whatever becomes of it."""
        loop = asyncio.get_running_loop()
        outcome = Outcome(conversation, loop.time())
        try:
            async with self._session.post(
                f"http://{self._address}/v1/chat/completions", json=body(conversation, turn), headers=headers
            ) as reply:
                outcome.status = reply.status
                outcome.engine = reply.headers.get("x-simulated-engine", "")
                outcome.pin = reply.headers.get("x-request-pin", "")
                if reply.status != 200:
                    outcome.error = (await reply.text())[:300] or f"status {reply.status}"
                else:
                    usage = (await reply.json())["usage"]
                    outcome.prompt_tokens = usage["prompt_tokens"]
                    outcome.cached_tokens = usage["prompt_tokens_details"]["cached_tokens"]
        except (aiohttp.ClientError, TimeoutError) as error:
            outcome.error = repr(error)
        outcome.ended = loop.time()
        return outcome


@asynccontextmanager
async def client(address: str) -> AsyncIterator[Client]:
    """A client with connections of its own."""
    timeout = aiohttp.ClientTimeout(total=PATIENCE)
    async with aiohttp.ClientSession(timeout=timeout) as session:
        yield Client(session, address)


@asynccontextmanager
async def load(
    asking: Client, conversations: int = 24, at_once: int = 6, pause: float = 0.1
) -> AsyncIterator[list[Outcome]]:
    """Turns of `conversations` in a circle while the block runs, `at_once` of them, each followed by a pause
    in seconds; after `TURNS` a conversation is over and another begins. What has begun is seen through to its
    end."""
    loop = asyncio.get_running_loop()
    outcomes: list[Outcome] = []
    turns = (
        (number % conversations + conversations * generation, turn)
        for generation in itertools.count()
        for turn in range(TURNS)
        for number in range(conversations)
    )
    until = loop.time() + MOST_SECONDS
    stopping = False

    async def worker() -> None:
        while not stopping and len(outcomes) < MOST_REQUESTS and loop.time() < until:
            conversation, turn = next(turns)
            outcomes.append(await asking.ask(conversation, turn))
            await asyncio.sleep(pause)

    workers = [asyncio.create_task(worker()) for _ in range(at_once)]
    try:
        yield outcomes
    finally:
        stopping = True
        await asyncio.gather(*workers)


async def more(outcomes: Sequence[Outcome], number: int) -> None:
    """Wait until so many requests more have ended."""
    wanted = len(outcomes) + number
    await eventually(lambda: len(outcomes) >= wanted, f"{number} requests more have ended", 60)


class Changes:
    """The seconds in which something was being changed: what is promised of pins holds outside of them."""

    def __init__(self, settle: float = 3.0) -> None:
        """`settle` is how many seconds after a change it still counts as one."""
        self._settle = settle
        self._times: list[tuple[float, float]] = []

    @asynccontextmanager
    async def change(self) -> AsyncIterator[None]:
        """The block changes something, and ends when the change is complete."""
        loop = asyncio.get_running_loop()
        begun = loop.time()
        try:
            yield
        finally:
            self._times.append((begun, loop.time() + self._settle))

    def outside(self, outcomes: Iterable[Outcome]) -> list[Outcome]:
        """Those requests that were over before a change, or began after it."""
        return [
            outcome
            for outcome in outcomes
            if all(outcome.ended < begun or outcome.begun > over for begun, over in self._times)
        ]


def all_served(outcomes: Sequence[Outcome]) -> None:
    """Assert that no request failed."""
    failed = [outcome for outcome in outcomes if not outcome.served]
    assert not failed, f"{len(failed)} of {len(outcomes)} requests failed: {failed[:5]}"


def pinned(outcomes: Sequence[Outcome], least: float = 0.99) -> None:
    """Assert that the router's first choice replied to nearly all."""
    astray = [outcome for outcome in outcomes if not outcome.pinned]
    assert outcomes, "no request was made outside of the changes"
    share = 1 - len(astray) / len(outcomes)
    assert share >= least, f"{share:.1%} of {len(outcomes)} requests were pinned; not: {astray[:5]}"


def hit_rate(outcomes: Sequence[Outcome]) -> float:
    """Share of the prompts' tokens that the engines say they had in their KV caches."""
    return sum(one.cached_tokens for one in outcomes) / max(1, sum(one.prompt_tokens for one in outcomes))
