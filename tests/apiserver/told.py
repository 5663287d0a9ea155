"""What discovery says, to be waited for."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from extproc.config import InferencePoolConfig, PodsConfig, ServiceConfig
from extproc.pool.discovery import inference_pool, service
from extproc.pool.discovery.found import Found
from extproc.pool.discovery.observer import Trouble
from tests.envoy.process import eventually


class Told:
    """What discovery said, in order, and how it went with what it follows."""

    def __init__(self) -> None:
        self.found: list[Found] = []
        self.times: list[float] = []
        """Seconds of the loop's clock."""
        self.state: dict[str, str] = {}
        """By resource: `watching`, or the last trouble."""
        self.failures = 0

    @property
    def all(self) -> list[tuple[str, ...]]:
        """The endpoints, each time that anything changed."""
        return [one.addresses for one in self.found]

    async def until(self, *endpoints: str, seconds: float = 30) -> None:
        """Wait until exactly these are the endpoints."""
        wanted = tuple(sorted(endpoints))
        await eventually(
            lambda: bool(self.found) and self.found[-1].addresses == wanted,
            f"{wanted}, not {self.all}",
            seconds,
        )

    async def until_caches(self, **caches: str) -> None:
        """Wait until this is known of the nodes, by the last number of the address: `_1="warm"`."""
        wanted = {f"10.0.0.{key.lstrip('_')}:8000": value for key, value in caches.items()}
        await eventually(
            lambda: bool(self.found) and self.found[-1].node_caches == wanted,
            f"{wanted}, not {self.found[-1:]}",
            30,
        )

    async def until_failures(self, number: int) -> None:
        """Wait until so many attempts have failed."""
        await eventually(lambda: self.failures >= number, f"{number} attempts fail", 30)

    def learn(self, found: Found) -> None:
        self.found.append(found)
        self.times.append(asyncio.get_running_loop().time())

    def watching(self, resource: str) -> None:
        self.state[resource] = "watching"

    def failed(self, resource: str, trouble: Trouble) -> None:
        self.state[resource] = trouble
        self.failures += 1


@asynccontextmanager
async def watching(
    source: ServiceConfig | InferencePoolConfig | PodsConfig, *, node_cache: bool = False
) -> AsyncIterator[Told]:
    told = Told()
    follow = (
        service.watch(source, told.learn, node_cache=node_cache, observer=told)
        if isinstance(source, ServiceConfig)
        else inference_pool.watch(source, told.learn, node_cache=node_cache, observer=told)
    )
    task = asyncio.create_task(follow)
    try:
        yield told
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
