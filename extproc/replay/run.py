"""A trace through router replicas to engines, in virtual time.

For each arrival: the engines are brought up to that time, what they finished is told to the replica that had
picked it, and the next replica picks. Each `REPORT_S` seconds every replica reads every engine, and replicas
that share their picks hand over those of the time since. Engines that leave finish what they have; those that
join have empty caches. Nothing depends on the real clock: equal arguments give equal outcomes.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from extproc.pool.pool import InFlight, Pool
from extproc.pool.reports import EngineReport
from extproc.replay.arrival import Arrival, Trace
from extproc.replay.events import Change
from extproc.replay.policy import Make, Policy
from extproc.simulation.model import Engine, Kind, Request, TooLargeError
from extproc.simulation.presets import EngineSpec

REPORT_S = 1.0
"""Time between two readings of an engine's metrics, and between two deliveries of shared picks."""
PROGRESS_EVERY = 256
"""Requests between two calls of `progress`."""

_FIRST_TOKEN, _FINISHED = Kind.FIRST_TOKEN, Kind.FINISHED


@dataclass(frozen=True, slots=True)
class Fleet:
    """Engines and routers."""

    spec: EngineSpec
    engines: int = 7
    replicas: int = 1
    shared_picks: bool = False
    changes: Sequence[Change] = ()
    time_scale: float = 1.0
    """Seconds of the run per second of the trace: below 1 is more load."""
    max_output_tokens: int = 0
    """Longer answers are cut to this; 0: as recorded."""
    seed: int = 1
    """Decides which replica gets a request, and ties."""

    def __post_init__(self) -> None:
        for name, value, most in (("engines", self.engines, 1000), ("replicas", self.replicas, 100)):
            if not 1 <= value <= most:
                raise ValueError(f"{name} must be from 1 to {most}, not {value}")
        if not 0 < self.time_scale < 1e6:
            raise ValueError(f"time scale must be above 0 and below 1,000,000, not {self.time_scale}")


class Joined(NamedTuple):
    """An engine and the time for which it was in the pool, seconds."""

    name: str
    joined: float
    left: float


@dataclass(slots=True)
class Outcome:
    """What became of each request, index by index as in the trace, and of each engine."""

    at: NDArray[np.float64]
    """Arrival, seconds of the run."""
    engine: NDArray[np.int32]
    """Index of the engine that served it; -1: refused."""
    ttft: NDArray[np.float64]
    """Seconds from arrival to first token; NaN if refused."""
    total: NDArray[np.float64]
    """Seconds from arrival to last token; NaN if refused."""
    cached: NDArray[np.int64]
    """Prompt tokens found in the engine's cache."""
    prompt: NDArray[np.int64]
    """Prompt tokens."""
    engines: list[Joined] = field(default_factory=list)
    changes: Sequence[Change] = ()
    refused: int = 0
    """Requests that the policy refused or that no engine's cache can hold."""
    busy_s: float = 0.0
    """Seconds in which prefills ran, over all engines."""
    load_at: list[float] = field(default_factory=list)
    load: list[tuple[int, int]] = field(default_factory=list)
    """Requests on all engines, and on the busiest, at the times `load_at`."""


class _Unit:
    """One engine and who waits for what on it."""

    __slots__ = ("address", "engine", "index", "joined", "left", "name", "next_at")

    def __init__(self, index: int, spec: EngineSpec, joined: float) -> None:
        self.index = index
        self.name = f"engine-{index + 1}"
        self.address = f"10.{index >> 16}.{index >> 8 & 255}.{index & 255}:8000"
        self.engine = Engine(spec)
        self.next_at = float("inf")
        self.joined = joined
        self.left = float("inf")


class _Replica:
    """One router: its own pool, policy and randomness."""

    __slots__ = ("draw", "picks", "policy", "pool")

    def __init__(self, policy: Policy, seed: int) -> None:
        self.policy = policy
        self.pool = Pool("replay")
        policy.attach(self.pool)
        self.draw = random.Random(seed)
        self.picks: list[tuple[Arrival, str, float]] = []


def replay(trace: Trace, fleet: Fleet, make: Make, progress: Callable[[int], None] | None = None) -> Outcome:
    """Run the trace; `progress` is called now and then with the number of requests done since."""
    return _Run(trace, fleet, make).go(progress)


def _read(engine: Engine, now: float) -> EngineReport:
    counters = engine.counters
    return EngineReport(
        engine.running,
        engine.waiting,
        engine.kv_usage,
        counters.queried_tokens - counters.hit_tokens,
        counters.submitted - counters.cancelled - engine.waiting,
        engine.busy_until(now)[0],
        counters.queried_tokens,
        counters.hit_tokens,
    )


class _Run:
    def __init__(self, trace: Trace, fleet: Fleet, make: Make) -> None:
        self._trace = trace
        self._fleet = fleet
        self._draw = random.Random(fleet.seed)
        self._replicas = [_Replica(make(), fleet.seed * 1000 + number) for number in range(fleet.replicas)]
        self._shares = fleet.shared_picks and fleet.replicas > 1 and self._replicas[0].policy.hears_picks
        self._units: list[_Unit] = []
        self._in_pool: list[_Unit] = []
        self._by_address: dict[str, _Unit] = {}
        self._open: dict[int, tuple[_Replica, InFlight]] = {}
        self._reads = any(replica.policy.reads_reports for replica in self._replicas)
        count = len(trace.arrivals)
        # Lists while it runs: to set one number in an array costs several times as much.
        self._at: list[float] = (np.array([one.at for one in trace.arrivals]) * fleet.time_scale).tolist()
        self._engine = [-1] * count
        self._ttft = [math.nan] * count
        self._total = [math.nan] * count
        self._cached = [0] * count
        self._refused = 0
        self._load_at: list[float] = []
        self._load: list[tuple[int, int]] = []

    def go(self, progress: Callable[[int], None] | None) -> Outcome:
        fleet = self._fleet
        self._join(fleet.engines, 0.0)
        changes = sorted(fleet.changes, key=lambda change: change.at)
        next_report = REPORT_S
        most_output = fleet.max_output_tokens or 1 << 40
        for index, (arrival, at) in enumerate(zip(self._trace.arrivals, self._at, strict=True)):
            while changes and changes[0].at <= at:
                self._change(changes.pop(0))
            while next_report <= at:
                self._report(next_report)
                next_report += REPORT_S
            self._advance(at)
            self._route(index, arrival, at, most_output)
            if progress is not None and index % PROGRESS_EVERY == PROGRESS_EVERY - 1:
                progress(PROGRESS_EVERY)
        self._drain()
        if progress is not None:
            progress(len(self._trace.arrivals) % PROGRESS_EVERY)
        return Outcome(
            np.array(self._at),
            np.array(self._engine, dtype=np.int32),
            np.array(self._ttft),
            np.array(self._total),
            np.array(self._cached, dtype=np.int64),
            np.array([arrival.prompt_tokens for arrival in self._trace.arrivals], dtype=np.int64),
            [Joined(unit.name, unit.joined, unit.left) for unit in self._units],
            fleet.changes,
            self._refused,
            sum(unit.engine.counters.prefill_busy_s for unit in self._units),
            self._load_at,
            self._load,
        )

    def _route(self, index: int, arrival: Arrival, at: float, most_output: int) -> None:
        replicas = self._replicas
        replica = replicas[self._draw.randrange(len(replicas))] if len(replicas) > 1 else replicas[0]
        pool = replica.pool
        address = replica.policy.pick(arrival, pool.snapshot(at), at, replica.draw) if len(pool) else ""
        if not address:
            self._refused += 1
            return
        unit = self._by_address[address]
        output = min(arrival.output_tokens, most_output)
        token = pool.take(address, at, replica.policy.uncached)
        if self._shares:
            replica.picks.append((arrival, address, at))
        try:
            unit.engine.submit(Request(index, arrival.blocks, arrival.prompt_tokens, output), at)
        except TooLargeError:
            token.release(at, computed=False)
            replica.policy.ended(arrival, address, at)
            self._refused += 1
            return
        self._open[index] = (replica, token)
        self._engine[index] = unit.index
        unit.next_at = unit.engine.next_event()

    def _advance(self, now: float) -> None:
        for unit in self._units:
            if unit.next_at <= now:
                self._take_in(unit, now)

    def _take_in(self, unit: _Unit, now: float) -> None:
        for kind, at, request, _, cached in unit.engine.advance(now):
            index: int = request  # type: ignore[assignment]
            if kind is _FIRST_TOKEN:
                self._ttft[index] = at - self._at[index]
                self._cached[index] = cached
            elif kind is _FINISHED:
                self._total[index] = at - self._at[index]
                replica, token = self._open.pop(index)
                token.release(at)
                replica.policy.ended(self._trace.arrivals[index], unit.address, at)
        unit.next_at = unit.engine.next_event()

    def _report(self, now: float) -> None:
        self._advance(now)
        loads = [unit.engine.running + unit.engine.waiting for unit in self._in_pool]
        self._load_at.append(now)
        self._load.append((sum(loads), max(loads, default=0)))
        reports = [(unit.address, _read(unit.engine, now)) for unit in self._in_pool] if self._reads else []
        for replica in self._replicas:
            policy = replica.policy
            if policy.reads_reports:
                for address, report in reports:
                    replica.pool.report(address, report, now)
                    policy.reported(address, report, now)
        if self._shares:
            self._share(now)

    def _share(self, now: float) -> None:
        batches = []
        for replica in self._replicas:
            batches.append(replica.picks)
            replica.picks = []
        for to, replica in enumerate(self._replicas):
            for of, batch in enumerate(batches):
                if of != to and batch:
                    replica.policy.heard(batch, now)

    def _change(self, change: Change) -> None:
        self._advance(change.at)
        if change.add:
            self._join(change.add, change.at)
            return
        leaving = next((unit for unit in self._in_pool if unit.name == change.remove), None)
        if leaving is None:
            raise ValueError(f"{change.remove} cannot leave at {change.at:g} s: it is not there")
        leaving.left = change.at
        self._in_pool.remove(leaving)
        self._set_endpoints(change.at)

    def _join(self, count: int, now: float) -> None:
        for _ in range(count):
            unit = _Unit(len(self._units), self._fleet.spec, now)
            self._units.append(unit)
            self._in_pool.append(unit)
            self._by_address[unit.address] = unit
        self._set_endpoints(now)

    def _set_endpoints(self, now: float) -> None:
        addresses = [unit.address for unit in self._in_pool]
        for replica in self._replicas:
            replica.pool.set_endpoints(addresses, now)

    def _drain(self) -> None:
        for unit in self._units:
            while unit.next_at < float("inf"):
                self._take_in(unit, unit.next_at)
