"""Settings of pools that are kept in Kubernetes beside the configuration file, and laid over it.

They change while requests flow, as the file does. What cannot be used changes nothing, and stops neither the
file nor another pool from changing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from functools import partial
from importlib import import_module
from typing import Any

import structlog

from extproc.config import Config, ConfigError, ConfigMapConfig, Problem, with_settings
from extproc.metrics import SettingsMetrics
from extproc.pool.discovery.metrics import DiscoveryMetrics

MOST_CHARACTERS = 16 * 1024
"""A longer text is refused: reading YAML holds requests up, and all keys together take a few hundred."""

Data = Mapping[str, str] | None
"""What a ConfigMap holds; None: there is no such ConfigMap."""

Watch = Callable[[str, ConfigMapConfig, Callable[[Data], None]], Coroutine[Any, Any, None]]
"""Given a pool's name, its ConfigMap and whom to tell: tells now and after every change, until cancelled."""

_log = structlog.get_logger(__name__)


class PoolSettings:
    """Stands between what follows the file and what runs the configuration.

    `file` is what the file says at first. `apply` gets each new configuration: the file's, with the settings
    of each pool laid over it. `watch` follows one ConfigMap until it is cancelled.
    """

    def __init__(
        self,
        file: Config,
        apply: Callable[[Config], None],
        metrics: SettingsMetrics,
        watch: Watch,
    ) -> None:
        self._apply = apply
        self._metrics = metrics
        self._watch = watch
        self._file = file
        self._running: Config | None = None
        self._texts: dict[str, str] = {}
        """What was taken last, by pool."""
        self._complaints: dict[str, str] = {}
        """Why what is there now was not taken, by pool."""
        self._following: dict[str, tuple[ConfigMapConfig, asyncio.Task[None]]] = {}

    def use(self, config: Config) -> None:
        """This is what the file says now. Raises what `apply` raises; then the one before stays."""
        wanted = {pool.name: pool.settings_from.config_map for pool in config.pools if pool.settings_from}
        texts = {
            name: text
            for name, text in self._texts.items()
            if name in wanted and wanted[name] == self._following[name][0]
        }
        self._run(config, texts)
        self._follow(wanted)

    async def stop(self) -> None:
        """Follow nothing any more."""
        tasks = [task for _, task in self._following.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _run(self, config: Config, texts: dict[str, str]) -> bool:
        """Whether anything changed. Raises ConfigError, and what `apply` raises."""
        pools = tuple(
            with_settings(pool, texts[pool.name], pool.settings_from.config_map.title)
            if pool.settings_from is not None and pool.name in texts
            else pool
            for pool in config.pools
        )
        running = config.model_copy(update={"pools": pools})
        changed = running != self._running
        if changed:
            self._apply(running)
        self._file, self._texts, self._running = config, texts, running
        return changed

    def _follow(self, wanted: Mapping[str, ConfigMapConfig]) -> None:
        for name, (source, task) in tuple(self._following.items()):
            if wanted.get(name) != source:
                task.cancel()
                del self._following[name]
                self._complaints.pop(name, None)
                self._metrics.gone(name)
        for name, source in wanted.items():
            if name not in self._following:
                watching = self._watch(name, source, partial(self._learnt, name, source))
                self._following[name] = source, asyncio.create_task(watching, name=f"settings of {name}")

    def _learnt(self, pool: str, source: ConfigMapConfig, data: Data) -> None:
        """This is what the ConfigMap holds now."""
        others = {name: text for name, text in self._texts.items() if name != pool}
        try:
            texts = others if data is None else {**others, pool: _text(source, data)}
            changed = self._run(self._file, texts)
        except Exception as error:
            known = isinstance(error, ConfigError)
            self._refuse(pool, str(error) if known else f"{type(error).__name__}: {error}")
            return
        if changed or pool in self._complaints:
            self._complaints.pop(pool, None)
            self._metrics.reloaded(pool)
            _log.info("settings reloaded", pool=pool, config_map=source.name, present=data is not None)

    def _refuse(self, pool: str, reason: str) -> None:
        if self._complaints.get(pool) == reason:
            return
        self._complaints[pool] = reason
        self._metrics.refused(pool)
        _log.error("settings not taken; those before run on", pool=pool, reason=reason)


def in_kubernetes(discovery: DiscoveryMetrics) -> Watch:
    """Follows ConfigMaps through the API, and counts how that goes."""

    async def watch(pool: str, source: ConfigMapConfig, tell: Callable[[Data], None]) -> None:
        # Kubernetes' client library takes a second to load, during which requests go on.
        config_map = await asyncio.to_thread(import_module, "extproc.pool.discovery.config_map")
        with discovery.of(pool) as observer:
            await config_map.watch(source, tell, observer=observer)

    return watch


def _text(source: ConfigMapConfig, data: Mapping[str, str]) -> str:
    """The settings in what a ConfigMap holds. Raises ConfigError if they are not there or too long."""
    if source.key not in data:
        there = f"its keys are {', '.join(sorted(data))}" if data else "it has none"
        said = f"has no key {source.key!r}; {there}"
    elif len(data[source.key]) > MOST_CHARACTERS:
        said = f"is longer than {MOST_CHARACTERS} characters"
    else:
        return data[source.key]
    raise ConfigError(f"ConfigMap {source.name}", [Problem("", None, None, said)])
