"""The pools that are running: made from the configuration, fed by discovery, handed to the picker as targets.

A pool is known by its name. Over a reload it keeps its in-flight counts, its health and, unless the strategy
changed, what it learnt of prefixes; only what differs is made anew.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import structlog

from extproc.config import EndpointsConfig, PoolConfig
from extproc.metrics import Metrics, PoolState
from extproc.picker import Picker, Target
from extproc.pool.discovery import file
from extproc.pool.pool import Pool
from extproc.routing import Balance, Strategy, build

_log = structlog.get_logger(__name__)


class _Running(NamedTuple):
    config: PoolConfig
    pool: Pool
    strategy: Strategy
    discovery: asyncio.Task[None] | None


class Pools:
    """Holds the running pools. Every method must be called in the event loop's thread but `states`."""

    def __init__(self, picker: Picker, metrics: Metrics, on_change: Callable[[], None]) -> None:
        """`on_change` is called when endpoints, and so perhaps readiness, changed."""
        self._picker = picker
        self._metrics = metrics
        self._on_change = on_change
        self._running: dict[str, _Running] = {}

    @property
    def synced(self) -> bool:
        """Whether the endpoints of every pool have been learnt once."""
        return all(running.pool.synced for running in self._running.values())

    def apply(self, configs: Sequence[PoolConfig]) -> None:
        """Run these pools from now on, in this order."""
        before = self._running
        self._running = {config.name: self._run(config, before.get(config.name)) for config in configs}
        kept = {id(running.discovery) for running in self._running.values()}
        for old in before.values():
            if old.discovery is not None and id(old.discovery) not in kept:
                old.discovery.cancel()
        self._picker.use(
            [
                Target(
                    running.pool,
                    running.strategy,
                    running.config.match,
                    self._metrics.pool(running.config.name, running.strategy.name),
                )
                for running in self._running.values()
            ]
        )
        self._on_change()

    def states(self) -> Iterator[PoolState]:
        """Each pool as it is now, for a scrape; safe from another thread."""
        for running in tuple(self._running.values()):
            pool = running.pool
            yield PoolState(pool.name, pool.synced, pool.addresses, pool.in_flight(), pool.suspects)

    async def stop(self) -> None:
        """Stop discovery; pools keep the endpoints they know."""
        tasks = [running.discovery for running in self._running.values() if running.discovery is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _run(self, config: PoolConfig, before: _Running | None) -> _Running:
        pool = before.pool if before else Pool(config.name)
        if before is not None and _routing(before.config) == _routing(config):
            strategy = before.strategy
        else:
            balance = config.balance
            strategy = build(
                config.strategy,
                prefix_length=config.prefix_length,
                concurrency_threshold=config.concurrency_threshold,
                balance=None if balance is None else Balance(balance.factor, balance.floor),
                max_in_flight=None if config.shed is None else config.shed.max_in_flight,
                before=before.strategy if before else None,
            )
        if before is not None and before.config.endpoints == config.endpoints:
            return _Running(config, pool, strategy, before.discovery)
        return _Running(config, pool, strategy, self._discover(pool, config.endpoints))

    def _discover(self, pool: Pool, endpoints: EndpointsConfig) -> asyncio.Task[None] | None:
        if endpoints.file is None:
            pool.set_endpoints(endpoints.static or ())
            return None

        def learnt(addresses: Sequence[str]) -> None:
            _log.info("endpoints changed", pool=pool.name, before=len(pool), after=len(addresses))
            pool.set_endpoints(addresses)
            self._on_change()

        return asyncio.create_task(file.watch(endpoints.file, learnt), name=f"endpoints of {pool.name}")


def _routing(config: PoolConfig) -> PoolConfig:
    """What a strategy is made of: the pool without where its endpoints and its requests come from."""
    return config.model_copy(update={"endpoints": None, "match": None})
