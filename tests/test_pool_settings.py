"""Settings of pools that are kept beside the configuration file. With a real API server: tests/apiserver."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable

import pytest
from prometheus_client import CollectorRegistry
from structlog.testing import capture_logs
from structlog.typing import EventDict

from extproc.config import Config, ConfigMapConfig, parse
from extproc.metrics import SettingsMetrics
from extproc.pool_settings import MOST_CHARACTERS, Data, PoolSettings

ENDPOINTS = "endpoints: {static: ['10.0.0.1:80']}"


def pool(name: str, *, strategy: str = "RANDOM", settings: str = "") -> str:
    beside = f"settingsFrom: {{configMap: {{name: {settings}}}}}, " if settings else ""
    return f"{{name: {name}, match: {{route: {name}}}, strategy: {strategy}, {beside}{ENDPOINTS}}}"


def file(*pools: str) -> Config:
    return parse(f"pools: [{', '.join(pools)}]", "f.yaml")


class Router:
    """What runs, and a Kubernetes in which tests say what ConfigMaps hold."""

    def __init__(self, config: Config) -> None:
        self.running: list[Config] = []
        self.followed: dict[tuple[str, str], Callable[[Data], None]] = {}
        self.fault: Exception | None = None
        self.registry = CollectorRegistry()
        self.settings = PoolSettings(config, self.apply, SettingsMetrics(self.registry), self.watch)

    def apply(self, config: Config) -> None:
        if self.fault is not None:
            raise self.fault
        self.running.append(config)

    async def watch(self, pool: str, source: ConfigMapConfig, tell: Callable[[Data], None]) -> None:
        self.followed[pool, source.name] = tell
        try:
            await asyncio.Event().wait()
        finally:
            del self.followed[pool, source.name]

    async def use(self, config: Config) -> None:
        """The file says this, and what follows from it has happened."""
        self.settings.use(config)
        for _ in range(3):
            await asyncio.sleep(0)

    def strategies(self) -> list[str]:
        return [pool.strategy.value for pool in self.running[-1].pools]

    def says(self, pool: str, data: Data, name: str = "llama-routing") -> list[EventDict]:
        """A ConfigMap holds this now; what is logged about it."""
        with capture_logs() as logged:
            self.followed[pool, name](data)
        return logged

    def metric(self, name: str, **labels: str) -> float | None:
        return self.registry.get_sample_value(f"extproc_pool_settings_{name}", labels)

    def reloads(self, pool: str = "llama") -> tuple[float | None, float | None]:
        """Successes and failures."""
        return (
            self.metric("reloads_total", pool=pool, result="success"),
            self.metric("reloads_total", pool=pool, result="failure"),
        )


LLAMA = pool("llama", settings="llama-routing")


@pytest.fixture
async def router() -> AsyncIterator[Router]:
    made = Router(file(LLAMA, pool("other")))
    await made.use(file(LLAMA, pool("other")))
    try:
        yield made
    finally:
        await made.settings.stop()


def yaml(text: str) -> dict[str, str]:
    return {"settings.yaml": text}


async def test_until_something_is_known_of_them_the_file_runs(router: Router) -> None:
    assert router.strategies() == ["RANDOM", "RANDOM"]
    assert router.says("llama", None) == []
    assert len(router.running) == 1


async def test_they_run_as_soon_as_they_are_there_for_their_pool_alone(router: Router) -> None:
    (event,) = router.says("llama", yaml("strategy: PREFIX_AWARE"))
    assert (event["log_level"], event["event"], event["pool"]) == ("info", "settings reloaded", "llama")
    assert router.strategies() == ["PREFIX_AWARE", "RANDOM"]
    assert router.reloads() == (1, None)
    assert router.metric("last_reload_successful", pool="llama") == 1


async def test_what_they_say_no_more_is_as_in_the_file(router: Router) -> None:
    router.says("llama", yaml("strategy: PREFIX_AWARE\nconcurrencyThreshold: 7"))
    router.says("llama", yaml("concurrencyThreshold: 7"))
    assert router.strategies() == ["RANDOM", "RANDOM"]
    assert router.running[-1].pools[0].concurrency_threshold == 7


async def test_a_config_map_that_is_deleted_leaves_the_file_as_it_is(router: Router) -> None:
    before = router.running[-1]
    router.says("llama", yaml("strategy: PREFIX_AWARE"))
    router.says("llama", None)
    assert router.running[-1] == before


async def test_the_same_again_is_not_applied_again(router: Router) -> None:
    router.says("llama", yaml("strategy: PREFIX_AWARE"))
    assert router.says("llama", {**yaml("strategy: PREFIX_AWARE # comment"), "notes": "x"}) == []
    assert len(router.running) == 2
    assert router.reloads() == (1, None)


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (
            yaml("strategy: RANDON"),
            "ConfigMap llama-routing[settings.yaml]:1: strategy: is the text 'RANDON'",
        ),
        (yaml("endpoints: {static: ['10.6.6.6:80']}"), "stands in the router's own configuration alone"),
        ({"setting.yaml": ""}, "has no key 'settings.yaml'; its keys are setting.yaml"),
        ({}, "ConfigMap llama-routing: has no key 'settings.yaml'; it has none"),
        (yaml("#" * (MOST_CHARACTERS + 1)), "is longer than 16384 characters"),
    ],
)
async def test_bad_ones_keep_those_before_and_say_why_once(
    router: Router, data: dict[str, str], said: str
) -> None:
    router.says("llama", yaml("strategy: PREFIX_AWARE"))
    (event,) = router.says("llama", data)
    assert (event["log_level"], event["pool"]) == ("error", "llama")
    assert said in event["reason"]
    assert router.says("llama", data) == []
    assert router.strategies() == ["PREFIX_AWARE", "RANDOM"]
    assert router.reloads() == (1, 1)
    assert router.metric("last_reload_successful", pool="llama") == 0


async def test_a_mistake_that_is_taken_back_clears_the_alarm(router: Router) -> None:
    router.says("llama", yaml("strategy: PREFIX_AWARE"))
    router.says("llama", yaml("strategy: RANDON"))
    (event,) = router.says("llama", yaml("strategy: PREFIX_AWARE"))
    assert event["event"] == "settings reloaded"
    assert router.metric("last_reload_successful", pool="llama") == 1
    assert len(router.running) == 2


async def test_bad_ones_do_not_stop_the_file_or_another_pool(router: Router) -> None:
    changed = file(LLAMA, pool("other", settings="other-routing"))
    await router.use(changed)
    router.says("llama", yaml("strategy: RANDON"))
    router.says("other", yaml("strategy: PREFIX_AWARE"), name="other-routing")
    assert router.strategies() == ["RANDOM", "PREFIX_AWARE"]
    await router.use(file(pool("llama", strategy="LEAST_OUTSTANDING_REQUESTS", settings="llama-routing")))
    assert router.strategies() == ["LEAST_OUTSTANDING_REQUESTS"]


async def test_they_stay_laid_over_a_file_that_changes(router: Router) -> None:
    router.says("llama", yaml("strategy: PREFIX_AWARE"))
    await router.use(file(LLAMA, pool("other", strategy="LEAST_OUTSTANDING_REQUESTS")))
    assert router.strategies() == ["PREFIX_AWARE", "LEAST_OUTSTANDING_REQUESTS"]


async def test_a_pool_that_names_another_config_map_leaves_the_first_at_once(router: Router) -> None:
    router.says("llama", yaml("strategy: PREFIX_AWARE"))
    await router.use(file(pool("llama", settings="second"), pool("other")))
    assert router.strategies() == ["RANDOM", "RANDOM"]
    assert set(router.followed) == {("llama", "second")}
    await router.use(file(pool("llama"), pool("other")))
    assert router.followed == {}
    assert router.metric("last_reload_successful", pool="llama") is None


async def test_what_cannot_be_applied_changes_nothing_and_is_said(router: Router) -> None:
    router.fault = OSError("no room")
    (event,) = router.says("llama", yaml("strategy: PREFIX_AWARE"))
    assert event["reason"] == "OSError: no room"
    router.fault = None
    router.says("llama", yaml("strategy: PREFIX_AWARE"))
    assert router.strategies() == ["PREFIX_AWARE", "RANDOM"]
