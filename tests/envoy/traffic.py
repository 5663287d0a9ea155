"""Prompts, and what came back."""

from __future__ import annotations

import asyncio
import hashlib
import random
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

import orjson

from tests.envoy.client import Body, Client

CHAT = "/v1/chat/completions"
_WORDS = ("ash", "birch", "cedar", "elm", "fir", "hazel", "larch", "maple", "oak", "pine", "rowan", "yew")

A = TypeVar("A")
B = TypeVar("B")


def text(seed: int, size: int) -> str:
    """`size` characters of words, the same for the same seed."""
    draw = random.Random(seed)
    return " ".join(draw.choices(_WORDS, k=size // 4 + 1))[:size]


def chat(user: str, *, system: str = "", **fields: Any) -> bytes:
    """The body of a chat request; one token is answered unless `fields` say otherwise."""
    messages = [{"role": "user", "content": user}]
    if system:
        messages.insert(0, {"role": "system", "content": system})
    return orjson.dumps({"model": "m", "messages": messages, "max_tokens": 1, **fields})


@dataclass(frozen=True, slots=True)
class Reply:
    """A whole response."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def engine(self) -> str:
        """The engine that served."""
        return self.headers["x-simulated-engine"]

    @property
    def sha256(self) -> str:
        """Digest of the request's body as it reached the engine."""
        return self.headers["x-request-body-sha256"]


async def ask(
    client: Client,
    body: Body,
    path: str = CHAT,
    *,
    method: str = "POST",
    headers: Mapping[str, str] | None = None,
) -> Reply:
    """Send a request and read the whole response."""
    headers = {"content-type": "application/json", **(headers or {})}
    async with client.open(method, path, body, headers) as response:
        return Reply(response.status, response.headers, await response.read())


async def in_parallel(things: Iterable[A], limit: int, each: Callable[[A], Awaitable[B]]) -> list[B]:
    """`each` for all `things`, in their order, at most `limit` of them at once."""
    gate = asyncio.Semaphore(limit)

    async def one(thing: A) -> B:
        async with gate:
            return await each(thing)

    return list(await asyncio.gather(*(one(thing) for thing in things)))


def digest(body: bytes) -> str:
    """As the engines report it."""
    return hashlib.sha256(body).hexdigest()
