"""Clients and prompts, and what came back."""

from __future__ import annotations

import asyncio
import hashlib
import random
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

import httpx
import orjson

Http = Literal["HTTP/1.1", "HTTP/2"]
CHAT = "/v1/chat/completions"
_WORDS = ("ash", "birch", "cedar", "elm", "fir", "hazel", "larch", "maple", "oak", "pine", "rowan", "yew")

A = TypeVar("A")
B = TypeVar("B")


def client(url: str, http: Http, **options: Any) -> httpx.AsyncClient:
    """A client that speaks this version of HTTP and no other, and takes no proxy from the environment."""
    return httpx.AsyncClient(
        base_url=url,
        http1=http == "HTTP/1.1",
        http2=http == "HTTP/2",
        timeout=httpx.Timeout(30),
        limits=httpx.Limits(max_connections=None, max_keepalive_connections=None),
        trust_env=False,
        **options,
    )


def text(seed: int, size: int) -> str:
    """Some `size` characters of words, the same for the same seed."""
    draw = random.Random(seed)
    return " ".join(draw.choices(_WORDS, k=size // 5 + 1))[:size]


def chat(user: str, *, system: str = "", **fields: Any) -> bytes:
    """The body of a chat request; one token is answered unless `fields` say otherwise."""
    messages = [{"role": "user", "content": user}]
    if system:
        messages.insert(0, {"role": "system", "content": system})
    return orjson.dumps({"model": "m", "messages": messages, "max_tokens": 1, **fields})


@dataclass(frozen=True, slots=True)
class Reply:
    """What a request came back with."""

    status: int
    engine: str
    body: bytes
    headers: httpx.Headers

    @property
    def sha256(self) -> str:
        """Digest of the request's body as it reached the engine."""
        return str(self.headers["x-request-body-sha256"])


async def ask(http: httpx.AsyncClient, body: bytes, path: str = CHAT, **options: Any) -> Reply:
    """POST a body."""
    options["headers"] = {"content-type": "application/json", **options.get("headers", {})}
    return _reply(await http.post(path, content=body, **options))


def _reply(response: httpx.Response) -> Reply:
    return Reply(
        response.status_code,
        response.headers.get("x-simulated-engine", ""),
        response.content,
        response.headers,
    )


async def in_parallel(things: Iterable[A], limit: int, each: Callable[[A], Awaitable[B]]) -> list[B]:
    """`each` for all `things`, in their order, at most `limit` of them at once."""
    gate = asyncio.Semaphore(limit)

    async def one(thing: A) -> B:
        async with gate:
            return await each(thing)

    return list(await asyncio.gather(*(one(thing) for thing in things)))


def digest(body: bytes) -> str:
    return hashlib.sha256(body).hexdigest()
