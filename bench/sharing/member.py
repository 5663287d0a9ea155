"""One replica in a process of its own: `python -m bench.sharing.member JSON`.

It makes picks at a steady rate and shares them, or makes them and shares nothing, for comparison. It prints a
line when all peers are connected, begins at the line that it reads then, and prints what it measured.
"""

from __future__ import annotations

import asyncio
import random
import sys
import time
from collections.abc import Iterator
from itertools import cycle
from typing import Any

import orjson
from prometheus_client import CollectorRegistry

from bench.sharing.prompts import prompts, reading_seconds
from extproc import logs
from extproc.config import LogConfig, SharingConfig
from extproc.picker import Picked
from extproc.pool.pool import Pool
from extproc.prefix import BlockKeys
from extproc.routing import build
from extproc.routing.prefix_aware import PrefixAware
from extproc.sharing.memory import Memory, PoolMemory
from extproc.sharing.metrics import SharingMetrics
from extproc.sharing.replica import Replica

ENDPOINTS = [f"10.0.0.{number}:8000" for number in range(1, 9)]
TICK_S = 0.01


class Forgetful:
    """A memory that keeps nothing: what sharing costs by itself."""

    addresses = tuple(ENDPOINTS)

    def learn(self, keys: BlockKeys, address: str) -> float:
        return 0.0

    def heard(self, address: str, tokens: float, at: float) -> None:
        pass

    def known(self, limit: int) -> Iterator[tuple[list[int], list[int], str]]:
        return iter(())


def memory(learns: bool) -> Memory:
    """That of PREFIX_AWARE, or one that keeps nothing."""
    if not learns:
        return Forgetful()
    pool, strategy = Pool("llama"), build("PREFIX_AWARE")
    pool.set_endpoints(ENDPOINTS)
    assert isinstance(strategy, PrefixAware)
    return PoolMemory(pool, strategy)


async def main(given: dict[str, Any]) -> None:
    """Run as told by the keys listen, peers, others, shares, learns, kind, seed, rate and seconds."""
    logs.set_up(LogConfig(level="warning"))
    registry = CollectorRegistry()
    memories = {"llama": memory(given["learns"])}
    replica = Replica(
        SharingConfig.model_validate({"listen": given["listen"], "peers": given["peers"]}),
        lambda: memories,
        SharingMetrics(registry),
        None,
        draw=random.Random(),
    )
    chains = cycle(prompts(given["kind"], 2000, given["seed"]))
    draw = random.Random(given["seed"])
    if given["shares"]:
        await replica.start()
        while replica.peers < given["others"]:  # noqa: ASYNC110  no event says so
            await asyncio.sleep(0.05)
    print("ready", flush=True)
    await asyncio.to_thread(sys.stdin.readline)

    turns = _watched_turns()
    before = _counts(registry)
    cpu, began = time.process_time(), time.monotonic()
    told, due = 0, 0.0
    while (now := time.monotonic()) < began + given["seconds"]:
        due = given["rate"] * (now - began)
        while told < due:
            pick = Picked("llama", next(chains), draw.choice(ENDPOINTS), time.monotonic(), 8192)
            if given["shares"]:
                replica.tell(pick)
            told += 1
        await asyncio.sleep(TICK_S)
    took = time.process_time() - cpu
    counts = {name: after - before[name] for name, after in _counts(registry).items()}
    print(
        orjson.dumps(
            {
                "cpu_s": took,
                "seconds": time.monotonic() - began,
                "told": told,
                "reading_s": reading_seconds(given["kind"]),
                "turn_p999_ms": 1000 * sorted(turns)[int(0.999 * len(turns))],
                **counts,
            }
        ).decode(),
        flush=True,
    )
    await asyncio.to_thread(sys.stdin.readline)
    await replica.stop()


def _watched_turns() -> list[float]:
    """CPU seconds of each turn of the event loop from now on: for so long nothing else gets its turn."""
    turns: list[float] = []
    run = asyncio.Handle._run

    def timed(handle: asyncio.Handle) -> None:
        began = time.thread_time()
        run(handle)
        turns.append(time.thread_time() - began)

    asyncio.Handle._run = timed  # type: ignore[method-assign, assignment]
    return turns


def _counts(registry: CollectorRegistry) -> dict[str, float]:
    def of(name: str, **labels: str) -> float:
        return registry.get_sample_value(f"extproc_sharing_{name}", labels) or 0.0

    return {
        "sent_bytes": of("sent_bytes_total"),
        "received_bytes": of("received_bytes_total"),
        "sent_picks": of("sent_picks_total"),
        "heard_picks": of("heard_picks_total", pool="llama"),
        "lag_s": of("lag_seconds_sum"),
        "batches": of("lag_seconds_count"),
    }


if __name__ == "__main__":
    asyncio.run(main(orjson.loads(sys.argv[1])))
