"""Which rows there are: every trace, fleet and load that policies are compared on."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace as changed
from functools import lru_cache
from itertools import product
from pathlib import Path
from typing import Literal, NamedTuple

from extproc.replay.arrival import Trace
from extproc.replay.run import Fleet
from extproc.replay.traces import mooncake, taubench
from extproc.replay.worth import pooled
from extproc.simulation.presets import EngineSpec

DATA = Path(os.environ.get("WARMROUTE_TRACES", Path(__file__).parents[3] / "shared" / "data" / "traces"))
"""Folder of the traces, which are too large for this repository; docs/routing.md says where they are from."""
FILES = {
    "conversation": "mooncake_conversation_trace.jsonl",
    "synthetic": "mooncake_synthetic_trace.jsonl",
    "arxiv": "dynamo_mooncake_arxiv_slice_1000.jsonl",
    "tau-bench": "taubench_airline_gpt4o_sessions.jsonl",
}
TAU_COPIES = 4
"""Each tau-bench session comes so many times with other customers: alone they are too little traffic."""
TAU_BLOCK_TOKENS = 64

CAPACITY_TOKENS = {"scarce": 1 << 20, "ample": 10 << 20}
"""KV cache of an engine: 2,048 and 20,480 blocks of 512 tokens."""
TAU_CAPACITY_TOKENS = {"scarce": 1 << 18, "ample": 10 << 20}
"""All of tau-bench is 3 million tokens; scarce is a quarter of the others'."""

PREFILL_TOKENS_PER_S = 8000.0
PREFILL_OVERHEAD_S = 0.02
TAU_SLOWER = 4.0
"""Engines for tau-bench prefill so many times slower: its turns need so little that engines as fast as for
the other traces would work it off in less time than one session takes."""
STEP_S = 0.025
MAX_OUTPUT_TOKENS = 128
ENGINES = (4, 7, 16)
REPLICAS = (1, 8)
UTILISATIONS = (0.65, 0.85)

Half = Literal["first", "second"]
Capacity = Literal["scarce", "ample"]


class Row(NamedTuple):
    """One fleet under one load; every policy runs on it."""

    trace: str
    engines: int
    capacity: Capacity
    replicas: int
    shared_picks: bool
    utilisation: float
    half: Half

    def __str__(self) -> str:
        shared = " shared" if self.shared_picks else ""
        return (
            f"{self.trace} {self.half} N={self.engines} {self.capacity} R={self.replicas}{shared} "
            f"u={self.utilisation:g}"
        )


def rows(half: Half) -> Iterator[Row]:
    """All rows, those with shared picks included."""
    capacities: tuple[Capacity, ...] = ("scarce", "ample")
    for trace, engines, capacity, utilisation in product(FILES, ENGINES, capacities, UTILISATIONS):
        for replicas in REPLICAS:
            yield Row(trace, engines, capacity, replicas, False, utilisation, half)
        yield Row(trace, engines, capacity, max(REPLICAS), True, utilisation, half)


@lru_cache(maxsize=2)
def trace(name: str, half: Half) -> Trace:
    """Half of a trace's requests; of tau-bench half of the sessions, at times that do not matter yet."""
    path = DATA / FILES[name]
    if not path.exists():
        raise FileNotFoundError(f"{path} is missing: set WARMROUTE_TRACES to the folder of the traces")
    agents = name == "tau-bench"
    whole = taubench.read(path, TAU_BLOCK_TOKENS, TAU_COPIES) if agents else mooncake.read(path)
    if not agents:
        return whole.part(0.0, 0.5) if half == "first" else whole.part(0.5, 1.0)
    middle = max(arrival.session for arrival in whole.arrivals) // 2
    chosen = [arrival for arrival in whole.arrivals if (arrival.session > middle) == (half == "second")]
    return changed(whole, arrivals=chosen)


def slower(name: str) -> float:
    """How many times slower engines prefill for this trace."""
    return TAU_SLOWER if name == "tau-bench" else 1.0


def spec(row: Row, block_tokens: int) -> EngineSpec:
    """The engine: one prefill at a time that decoding does not slow, as if disaggregated."""
    tokens = (TAU_CAPACITY_TOKENS if row.trace == "tau-bench" else CAPACITY_TOKENS)[row.capacity]
    return EngineSpec(
        prefill_tokens_per_s=PREFILL_TOKENS_PER_S / slower(row.trace),
        prefill_overhead_s=PREFILL_OVERHEAD_S * slower(row.trace),
        step_s=STEP_S,
        step_per_request_s=0.0,
        blocks=tokens // block_tokens,
        block_tokens=block_tokens,
        chunk_tokens=0,
        source="8,000 tokens/s + 20 ms prefill, 25 ms per decode step",
    )


def load(row: Row) -> tuple[Trace, Fleet]:
    """The row's trace and fleet, with the time between requests chosen for the row's utilisation."""
    used = trace(row.trace, row.half)
    engine = spec(row, used.block_tokens)
    seconds = _least_work_s(row.trace, row.half, row.engines, engine.blocks) / (row.engines * row.utilisation)
    scale = 1.0
    if row.trace == "tau-bench":
        sessions = len({arrival.session for arrival in used.arrivals})
        used = changed(used, arrivals=taubench.timed(used.arrivals, seconds / sessions))
    else:
        scale = seconds / used.seconds
    return used, Fleet(
        engine,
        row.engines,
        row.replicas,
        row.shared_picks,
        time_scale=scale,
        max_output_tokens=MAX_OUTPUT_TOKENS,
    )


@lru_cache
def _least_work_s(name: str, half: Half, engines: int, blocks: int) -> float:
    """Seconds of prefill that are left if hits are those of one cache as large as all engines' together.

    Utilisation is meant by this measure, which no policy can change: policies that find less are busier.
    """
    used = trace(name, half)
    tokens = sum(arrival.prompt_tokens for arrival in used.arrivals) - pooled(used, engines * blocks)
    return slower(name) * (tokens / PREFILL_TOKENS_PER_S + PREFILL_OVERHEAD_S * len(used.arrivals))
