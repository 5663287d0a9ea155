"""What health says while some pools know their endpoints and others do not."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from prometheus_client import CollectorRegistry

from extproc import run
from extproc.address import parse_address
from extproc.config import parse
from extproc.metrics import Metrics
from extproc.picker import Picker
from extproc.pools import Pools
from extproc.server import Server
from extproc.stream import Exchange

KNOWN = "{name: known, match: {route: a}, endpoints: {static: ['10.0.0.1:80']}}"
ABSENT = "{name: absent, match: {route: b}, endpoints: {file: absent.yaml}}"


class Router:
    """A server whose readiness follows its pools."""

    def __init__(self, pools: Pools, channel: grpc.aio.Channel, directory: Path) -> None:
        self._pools = pools
        self._stub = health_pb2_grpc.HealthStub(channel)
        self._directory = directory

    def configure(self, *pools: str) -> None:
        self._pools.apply(parse(f"pools: [{', '.join(pools)}]", "test", self._directory).pools)

    async def ready(self) -> bool:
        answer = await self._stub.Check(health_pb2.HealthCheckRequest(service="readiness"))
        return bool(answer.status == health_pb2.HealthCheckResponse.SERVING)

    async def becomes(self, ready: bool) -> None:
        async with asyncio.timeout(10):
            while await self.ready() is not ready:  # noqa: ASYNC110  health has no event here
                await asyncio.sleep(0.01)


@asynccontextmanager
async def following(directory: Path, *pools: str) -> AsyncIterator[Router]:
    metrics = Metrics(CollectorRegistry())
    changed = asyncio.Event()
    running = Pools(Picker(metrics, time.monotonic, random.Random(1)), metrics, changed.set)
    server = Server(
        lambda _metadata: Exchange(lambda _question: None, lambda: None),
        max_message_bytes=1 << 20,
        on_stream=lambda _change: None,
        on_error=lambda _kind: None,
    )
    (address,) = await server.start(parse_address("127.0.0.1:0"), None)
    async with grpc.aio.insecure_channel(str(address)) as channel:
        router = Router(running, channel, directory)
        router.configure(*pools)
        readiness = asyncio.create_task(run._follow_readiness(changed, running, server, None))
        try:
            yield router
        finally:
            readiness.cancel()
            await running.stop()
            await server.drain(0, 0)


async def test_all_pools_are_waited_for_at_first(tmp_path: Path) -> None:
    async with following(tmp_path, KNOWN, ABSENT) as router:
        assert not await router.ready()
        (tmp_path / "absent.yaml").write_text("- 10.0.0.2:80\n")
        await router.becomes(ready=True)


async def test_a_pool_that_never_comes_does_not_take_the_others_down(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run, "LATE_POOL_SECONDS", 0.2)
    async with following(tmp_path, KNOWN, ABSENT) as router:
        assert not await router.ready()
        await router.becomes(ready=True)


async def test_with_no_pool_known_it_is_never_ready(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "LATE_POOL_SECONDS", 0.05)
    async with following(tmp_path, ABSENT) as router:
        await asyncio.sleep(0.3)
        assert not await router.ready()


async def test_a_reload_that_adds_an_absent_pool_takes_nobody_down(tmp_path: Path) -> None:
    async with following(tmp_path, KNOWN) as router:
        await router.becomes(ready=True)
        router.configure(KNOWN, ABSENT)
        router.configure(KNOWN.replace("10.0.0.1", "10.0.0.3"), ABSENT)
        await asyncio.sleep(0.1)
        assert await router.ready()
        router.configure(ABSENT)
        await router.becomes(ready=False)
