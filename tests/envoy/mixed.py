"""Traffic of every kind at once, for as long as wanted, and what it leaves behind."""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import random
import time
from collections import Counter
from dataclasses import dataclass

import numpy as np
import orjson

from tests.envoy.client import BrokenError, Client
from tests.envoy.conftest import Stack
from tests.envoy.load import all_counts_are_back_to_zero, prompt
from tests.envoy.traffic import CHAT, ask, chat, text

CLIENTS = 12
PROMPTS = 50
"""Prompts come again, so that the router has met all of them after the first minutes."""
SAMPLES = 40


@dataclass(frozen=True, slots=True)
class Left:
    """What the traffic left behind in the router."""

    requests: int
    failed: list[str]
    """What was sent, and the status that came back, of each that was not served."""
    slope: float
    """Bytes of memory per second, by a line through the samples of the second half."""
    grown: int
    """Bytes of memory from the middle of the run to its end."""
    descriptors: int
    """File descriptors more at the end than at the middle, all clients gone."""


async def mixed_traffic(stack: Stack, gateway: Client, seconds: float) -> Left:
    """Conversations, completions, embeddings, compressed and cut bodies, junk, long ones, reads, and clients
    that leave, at random on `CLIENTS` connections."""
    failed: list[str] = []
    sent: Counter[str] = Counter()
    stopping = asyncio.Event()

    async def client_of(seed: int) -> None:
        draw = random.Random(seed)
        while not stopping.is_set():
            name = draw.choice(list(_KINDS))
            sent[name] += 1
            status = await _KINDS[name](gateway, draw)
            if status >= 500 or status == 0:
                failed.append(f"{name}: {status}")

    process = stack.router.process
    assert process is not None
    clients = [asyncio.create_task(client_of(seed)) for seed in range(CLIENTS)]
    at, resident = [], []
    began = time.monotonic()
    for number in range(1, SAMPLES + 1):
        await asyncio.sleep(max(0.0, began + seconds * number / SAMPLES - time.monotonic()))
        at.append(time.monotonic() - began)
        resident.append(process.resident)
        if number == SAMPLES // 2:
            files = await stack.router.metric("process_open_fds")
    stopping.set()
    await asyncio.gather(*clients)
    await all_counts_are_back_to_zero(stack)
    half = SAMPLES // 2
    slope = np.polyfit(at[half:], resident[half:], 1)[0]
    return Left(
        sent.total(),
        failed,
        float(slope),
        resident[-1] - resident[half - 1],
        int(await stack.router.metric("process_open_fds") - files),
    )


async def _conversation(gateway: Client, draw: random.Random) -> int:
    story = text(draw.randrange(PROMPTS), 400 * draw.randint(1, 6))
    body = chat(story, system="You are brief. " * 40, stream=draw.random() < 0.7, max_tokens=4)
    return (await ask(gateway, body)).status


async def _completion(gateway: Client, draw: random.Random) -> int:
    body = orjson.dumps({"model": "m", "prompt": text(draw.randrange(PROMPTS), 900), "max_tokens": 2})
    return (await ask(gateway, body, "/v1/completions")).status


async def _token_ids(gateway: Client, draw: random.Random) -> int:
    ids = random.Random(draw.randrange(PROMPTS)).choices(range(50_000), k=200)
    return (await ask(gateway, orjson.dumps({"model": "m", "input": ids}), "/v1/embeddings")).status


async def _compressed(gateway: Client, draw: random.Random) -> int:
    body = gzip.compress(chat(text(draw.randrange(PROMPTS), 4000)))
    return (await ask(gateway, body, headers={"content-encoding": "gzip"})).status


async def _junk(gateway: Client, draw: random.Random) -> int:
    bodies = (b"", b"{", draw.randbytes(300), b'{"messages": [' + b"[" * 400, b'{"messages": 5}', b"\xff" * 9)
    return (await ask(gateway, draw.choice(bodies))).status


async def _cut(gateway: Client, draw: random.Random) -> int:
    whole = chat(text(draw.randrange(PROMPTS), 3000))
    return (await ask(gateway, whole[: draw.randrange(len(whole))])).status


async def _long(gateway: Client, draw: random.Random) -> int:
    return (await ask(gateway, chat(text(draw.randrange(8), 300_000)))).status


async def _read(gateway: Client, draw: random.Random) -> int:
    return (await ask(gateway, None, draw.choice(("/v1/models", "/", "/health")), method="GET")).status


async def _left(gateway: Client, draw: random.Random) -> int:
    with contextlib.suppress(TimeoutError, BrokenError):
        async with (
            asyncio.timeout(draw.uniform(0, 0.1)),
            gateway.open("POST", CHAT, prompt(draw.randrange(PROMPTS))) as response,
        ):
            await response.read()
    return 200


_KINDS = {
    "conversation": _conversation,
    "completion": _completion,
    "token ids": _token_ids,
    "compressed": _compressed,
    "junk": _junk,
    "cut": _cut,
    "long": _long,
    "read": _read,
    "left": _left,
}
