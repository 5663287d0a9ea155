"""A changed configuration file is taken over while requests flow; one that cannot be used changes nothing."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing, asynccontextmanager, suppress
from pathlib import Path

import pytest
import watchfiles.main
from prometheus_client import CollectorRegistry
from structlog.testing import capture_logs
from structlog.typing import EventDict

from extproc.config import Config, load
from extproc.metrics import ConfigMetrics
from extproc.reload import Reloader
from extproc.watch import moments

LONG_ENOUGH = 20.0
"""Seconds after which a test gives up; none waits so long when all is well."""


def text(threshold: int = 16, **top: str) -> str:
    head = "".join(f"{key}: {value}\n" for key, value in top.items())
    return (
        f"{head}pools:\n- name: a\n  concurrencyThreshold: {threshold}\n"
        '  endpoints: {static: ["127.0.0.1:8001"]}\n'
    )


def threshold(config: Config) -> int:
    return config.pools[0].concurrency_threshold


class Router:
    """What runs: notes what is applied to it, and fails to if told so."""

    def __init__(self, path: Path, content: str = text()) -> None:
        path.write_text(content)
        self.path = path
        self.applied: list[Config] = []
        self.fault: Exception | None = None
        self.registry = CollectorRegistry()
        self.now = 1000.0
        self.reloader = Reloader(
            path, load(path), self.apply, ConfigMetrics(self.registry), clock=lambda: self.now
        )

    def apply(self, config: Config) -> None:
        if self.fault is not None:
            raise self.fault
        self.applied.append(config)

    async def after(self, content: str, asked: bool = False) -> list[EventDict]:
        """Write this into the file and look at it; what is logged about it."""
        self.path.write_text(content)
        return await self.look(asked)

    async def look(self, asked: bool = False) -> list[EventDict]:
        with capture_logs() as logged:
            await self.reloader.look(asked)
        return logged

    def metric(self, name: str, **labels: str) -> float | None:
        return self.registry.get_sample_value(f"extproc_config_{name}", labels)

    def reloads(self) -> tuple[float | None, float | None]:
        """Successes and failures."""
        return (
            self.metric("reloads_total", result="success"),
            self.metric("reloads_total", result="failure"),
        )


@pytest.fixture
def router(tmp_path: Path) -> Router:
    return Router(tmp_path / "warmroute.yaml")


async def test_at_start_the_configuration_counts_as_taken(router: Router) -> None:
    assert router.reloads() == (0, 0)
    assert router.metric("last_reload_successful") == 1
    assert router.metric("last_reload_success_timestamp_seconds") == 1000.0


async def test_a_changed_file_is_applied(router: Router) -> None:
    router.now = 2000.0
    (event,) = await router.after(text(17))
    assert [threshold(config) for config in router.applied] == [17]
    assert threshold(router.reloader.running) == 17
    assert (event["log_level"], event["event"]) == ("info", "configuration reloaded")
    assert router.reloads() == (1, 0)
    assert router.metric("last_reload_success_timestamp_seconds") == 2000.0


async def test_unchanged_content_is_not_applied_again(router: Router) -> None:
    assert await router.look() == []
    assert await router.after(f"# a comment\n{text()}") == []
    assert router.applied == []
    assert router.reloads() == (0, 0)


async def test_who_asks_is_answered_though_nothing_changed(router: Router) -> None:
    (event,) = await router.look(asked=True)
    assert (event["event"], event["changed"]) == ("configuration reloaded", False)
    assert router.applied == []
    assert router.reloads() == (1, 0)


@pytest.mark.parametrize("bad", ["", "pools: [", text(5000), "strategy: RANDOM\n" + text()])
async def test_a_bad_file_keeps_what_runs_and_says_why(router: Router, bad: str) -> None:
    before = router.reloader.running
    (event,) = await router.after(bad)
    assert router.applied == []
    assert router.reloader.running is before
    assert event["log_level"] == "error"
    assert str(router.path) in event["reason"]
    assert router.reloads() == (0, 1)
    assert router.metric("last_reload_successful") == 0
    assert router.metric("last_reload_success_timestamp_seconds") == 1000.0


async def test_a_file_that_is_gone_keeps_what_runs(router: Router) -> None:
    router.path.unlink()
    (event,) = await router.look()
    assert "no such file" in event["reason"]
    assert router.reloads() == (0, 1)
    assert await router.after(text()) != []
    assert router.metric("last_reload_successful") == 1
    assert router.applied == []


async def test_a_bad_file_is_complained_of_once_and_again_when_asked(router: Router) -> None:
    await router.after(text(5000))
    assert await router.look() == []
    assert router.reloads() == (0, 1)
    assert len(await router.look(asked=True)) == 1
    assert router.reloads() == (0, 2)
    assert len(await router.after(text(6000))) == 1


async def test_taking_a_mistake_back_clears_the_alarm(router: Router) -> None:
    await router.after(text(5000))
    (event,) = await router.after(text())
    assert event["event"] == "configuration reloaded"
    assert router.metric("last_reload_successful") == 1
    assert router.applied == []


async def test_what_cannot_be_applied_does_not_run_and_is_tried_again(router: Router) -> None:
    router.fault = OSError("no room")
    (event,) = await router.after(text(17))
    assert event["reason"] == "OSError: no room"
    assert threshold(router.reloader.running) == 16
    assert router.metric("last_reload_successful") == 0
    assert await router.look() == []
    router.fault = None
    await router.look()
    assert threshold(router.reloader.running) == 17
    assert router.metric("last_reload_successful") == 1


async def test_a_key_that_needs_a_restart_keeps_its_value_and_the_rest_is_applied(router: Router) -> None:
    warning, reloaded = await router.after(text(17, listen="127.0.0.1:1", drainTimeout="3s"))
    assert (warning["log_level"], warning["key"]) == ("warning", "listen")
    assert reloaded["event"] == "configuration reloaded"
    (config,) = router.applied
    assert (str(config.listen), config.drain_timeout, threshold(config)) == ("127.0.0.1:9002", 3.0, 17)
    assert router.metric("restart_required") == 1
    await router.after(text(17))
    assert router.metric("restart_required") == 0


async def test_a_change_of_nothing_else_warns_and_applies_nothing(router: Router) -> None:
    warnings = await router.after(text(metrics="null", maxMessageBytes="1000000"))
    assert [event["key"] for event in warnings] == ["metrics", "maxMessageBytes"]
    assert router.applied == []


class Following:
    """A reloader that follows its file, and the thresholds that it applied."""

    def __init__(self, path: Path) -> None:
        self.applied: asyncio.Queue[int] = asyncio.Queue()
        self.registry = CollectorRegistry()
        self.reloader = Reloader(path, load(path), self.apply, ConfigMetrics(self.registry))

    def apply(self, config: Config) -> None:
        self.applied.put_nowait(threshold(config))

    async def next(self) -> int:
        return await asyncio.wait_for(self.applied.get(), LONG_ENOUGH)


@asynccontextmanager
async def following(path: Path) -> AsyncIterator[Following]:
    it = Following(path)
    task = asyncio.create_task(it.reloader.run())
    try:
        yield it
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await asyncio.wait_for(task, LONG_ENOUGH)


def write(path: Path, content: str) -> None:
    path.write_text(content)


def replace(path: Path, content: str) -> None:
    """As editors and deployment tools do: a new file under the old name."""
    new = path.with_name("new")
    new.write_text(content)
    new.replace(path)


def swap(path: Path, content: str) -> None:
    """As the kubelet does with a ConfigMap: path -> ..data/name, and ..data -> another directory at once."""
    version = path.parent / f"..{len(list(path.parent.iterdir()))}"
    version.mkdir()
    (version / path.name).write_text(content)
    link = path.parent / "..data_tmp"
    link.symlink_to(version.name)
    link.replace(path.parent / "..data")
    if not path.is_symlink():
        path.symlink_to(f"..data/{path.name}")


Change = Callable[[Path, str], None]
changes = pytest.mark.parametrize("change", [write, replace, swap])


@changes
async def test_a_running_reloader_follows_its_file(tmp_path: Path, change: Change) -> None:
    path = tmp_path / "warmroute.yaml"
    change(path, text())
    async with following(path) as it:
        change(path, text(17))
        assert await it.next() == 17
        change(path, text(5000))
        change(path, text(18))
        assert await it.next() == 18


async def test_sighup_is_answered_at_once(tmp_path: Path) -> None:
    path = tmp_path / "warmroute.yaml"
    write(path, text())
    async with following(path) as it:
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGHUP, it.reloader.trigger)
        try:
            write(path, text(17))
            os.kill(os.getpid(), signal.SIGHUP)
            assert await it.next() == 17
        finally:
            loop.remove_signal_handler(signal.SIGHUP)


@changes
async def test_a_change_is_noticed_long_before_the_next_regular_look(tmp_path: Path, change: Change) -> None:
    path = tmp_path / "warmroute.yaml"
    change(path, text())
    async with aclosing(moments(path, every_seconds=3600)) as signs:
        await anext(signs)
        sign = asyncio.ensure_future(anext(signs))
        try:
            # Again until noticed: nobody says when the watch has begun.
            async with asyncio.timeout(LONG_ENOUGH):
                while not sign.done():
                    change(path, text())
                    await asyncio.wait({sign}, timeout=0.1)
        finally:
            sign.cancel()
            await asyncio.gather(sign, return_exceptions=True)


async def test_without_any_sign_there_is_a_regular_look(tmp_path: Path) -> None:
    async with aclosing(moments(tmp_path / "f.yaml", every_seconds=0.01)) as signs:
        for _ in range(3):
            await asyncio.wait_for(anext(signs), LONG_ENOUGH)


async def test_a_directory_may_come_later(tmp_path: Path) -> None:
    path = tmp_path / "later" / "f.yaml"
    async with aclosing(moments(path, every_seconds=0.01)) as signs:
        await anext(signs)
        await asyncio.wait_for(anext(signs), LONG_ENOUGH)
        path.parent.mkdir()
        for _ in range(3):
            await asyncio.wait_for(anext(signs), LONG_ENOUGH)


async def test_a_file_that_cannot_be_watched_is_read_now_and_then(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OSError("OS file watch limit reached")

    monkeypatch.setattr(watchfiles.main, "RustNotify", refuse)
    with capture_logs() as logged:
        async with aclosing(moments(tmp_path / "f.yaml", every_seconds=0.01)) as signs:
            for _ in range(3):
                await asyncio.wait_for(anext(signs), LONG_ENOUGH)
    assert [event["log_level"] for event in logged] == ["warning"]


async def test_a_watcher_that_fails_by_its_own_fault_is_done_without(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise RuntimeError("error in underlying watcher")

    monkeypatch.setattr(watchfiles.main, "RustNotify", fail)
    async with aclosing(moments(tmp_path / "f.yaml", every_seconds=0.01)) as signs:
        for _ in range(3):
            await asyncio.wait_for(anext(signs), LONG_ENOUGH)


async def test_a_place_that_cannot_be_told_is_looked_at_now_and_then(tmp_path: Path) -> None:
    loop = tmp_path / "loop"
    loop.symlink_to(loop)
    for path in (loop, loop / "f.yaml", tmp_path / ("x" * 300) / "f.yaml"):
        async with aclosing(moments(path, every_seconds=0.01)) as signs:
            for _ in range(3):
                await asyncio.wait_for(anext(signs), LONG_ENOUGH)
