"""The pools that are running: made from the configuration, fed by discovery, handed to the picker as targets.

A pool is known by its name. Over a reload it keeps its in-flight counts, its health and, unless the strategy
changed, what it learnt of prefixes; only what differs is made anew.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib import import_module
from typing import NamedTuple

import structlog

from extproc.config import EngineTlsConfig, PoolConfig
from extproc.config import Strategy as StrategyName
from extproc.metrics import Metrics, PoolState
from extproc.picker import Picker, Target
from extproc.pool.discovery import file
from extproc.pool.discovery.found import Found, OnChange, Place
from extproc.pool.discovery.metrics import DiscoveryMetrics
from extproc.pool.ease import SlowStart
from extproc.pool.pool import Pool
from extproc.pool.scraping.scraper import Scrapers, Settings
from extproc.routing import Strategy
from extproc.routing.prefix_aware import PrefixAware
from extproc.sharing.memory import Memory, PoolMemory
from extproc.strategy import made_of, strategy_of

_log = structlog.get_logger(__name__)


class _Running(NamedTuple):
    config: PoolConfig
    pool: Pool
    strategy: Strategy
    discovery: asyncio.Task[None] | None


class Pools:
    """Holds the running pools. Every method must be called in the event loop's thread but `states`."""

    def __init__(
        self,
        picker: Picker,
        metrics: Metrics,
        on_change: Callable[[], None],
        scrapers: Scrapers | None = None,
        discovery: DiscoveryMetrics | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`on_change` is called when endpoints, and so perhaps readiness, changed. Without `scrapers` no
        engine is asked for its load. `clock` gives monotonic seconds and is the picker's.
        """
        self._clock = clock
        self._scrapers = scrapers
        self._picker = picker
        self._metrics = metrics
        self._on_change = on_change
        self._running: dict[str, _Running] = {}
        self._memories: dict[str, Memory] = {}
        self._discovery = DiscoveryMetrics(metrics.registry) if discovery is None else discovery
        self._places: dict[str, Mapping[str, Place]] = {}

    @property
    def synced(self) -> bool:
        """Whether the endpoints of every pool have been learnt once."""
        return all(running.pool.synced for running in self._running.values())

    @property
    def some_synced(self) -> bool:
        """Whether the endpoints of any pool have been learnt."""
        return any(running.pool.synced for running in self._running.values())

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
                    running.config.endpoint_subset,
                )
                for running in self._running.values()
            ]
        )
        if self._scrapers is not None:
            self._scrapers.apply(
                {
                    running.pool: settings
                    for running in self._running.values()
                    if (settings := _scraping(running.config)) is not None
                }
            )
        self._memories = {
            name: PoolMemory(running.pool, running.strategy)
            for name, running in self._running.items()
            if isinstance(running.strategy, PrefixAware)
        }
        self._on_change()

    def memories(self) -> dict[str, Memory]:
        """The pools whose strategy learns, by name, for replicas that share their picks."""
        return self._memories

    def states(self) -> Iterator[PoolState]:
        """Each pool as it is now, for a scrape; safe from another thread."""
        for running in tuple(self._running.values()):
            pool = running.pool
            yield PoolState(
                pool.name,
                pool.synced,
                pool.addresses,
                pool.in_flight(),
                pool.suspects,
                pool.node_caches,
                self._places.get(pool.name, {}),
            )

    async def stop(self) -> None:
        """Stop discovery and reading engines; pools keep the endpoints they know."""
        if self._scrapers is not None:
            await self._scrapers.stop()
        tasks = [running.discovery for running in self._running.values() if running.discovery is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _run(self, config: PoolConfig, before: _Running | None) -> _Running:
        pool = before.pool if before else Pool(config.name)
        pool.use(_slow_start(config))
        if before is not None and made_of(before.config) == made_of(config):
            strategy = before.strategy
        else:
            strategy = strategy_of(config, before.strategy if before else None)
        if before is not None and _discovery(before.config) == _discovery(config):
            return _Running(config, pool, strategy, before.discovery)
        return _Running(config, pool, strategy, self._discover(pool, config))

    def _discover(self, pool: Pool, config: PoolConfig) -> asyncio.Task[None] | None:
        if config.endpoints.static is not None:
            pool.set_endpoints(config.endpoints.static, self._clock())
            self._places.pop(pool.name, None)
            return None

        def learnt(found: Found) -> None:
            _log.info(
                "endpoints changed",
                pool=pool.name,
                before=len(pool),
                after=len(found.addresses),
                cold=sum(said == "cold" for said in found.node_caches.values()),
            )
            pool.set_endpoints(found.addresses, self._clock(), found.node_caches)
            self._places[pool.name] = found.places
            self._on_change()

        return asyncio.create_task(self._follow(config, learnt), name=f"endpoints of {pool.name}")

    async def _follow(self, config: PoolConfig, learnt: OnChange) -> None:
        endpoints = config.endpoints
        if endpoints.file is not None:
            await file.watch(endpoints.file, learnt)
            return
        source = endpoints.service or endpoints.inference_pool or endpoints.pods
        assert source is not None  # noqa: S101  the configuration holds exactly one
        name = "service" if source is endpoints.service else "inference_pool"
        # Kubernetes' client library takes a second to load, during which requests go on.
        kubernetes = await asyncio.to_thread(import_module, f"extproc.pool.discovery.{name}")
        with self._discovery.of(config.name) as observer:
            await kubernetes.watch(source, learnt, node_cache=config.node_cache, observer=observer)


def _discovery(config: PoolConfig) -> tuple[object, ...]:
    """What of a pool's settings its discovery depends on."""
    return config.endpoints, config.node_cache


def _slow_start(config: PoolConfig) -> SlowStart:
    wanted = config.slow_start
    if wanted is None:
        return SlowStart(window=0.0, cold_window=0.0)
    return SlowStart(wanted.window, wanted.cold_window, wanted.least_share)


def _scraping(config: PoolConfig) -> Settings | None:
    """How the pool's engines are asked for their load; None: not at all."""
    asked = config.engine_metrics
    if asked is None or (config.strategy is StrategyName.RANDOM and config.shed is None):
        return None
    tls = asked.tls or EngineTlsConfig()
    return Settings(
        path=asked.path,
        port=asked.port,
        scheme=asked.scheme,
        interval=asked.interval,
        idle_interval=asked.idle_interval,
        timeout=asked.timeout,
        token_file=asked.token_file,
        ca_file=tls.ca,
        server_name=tls.server_name,
        verify=not tls.insecure_skip_verify,
    )
