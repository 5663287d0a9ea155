"""Stacks of a real Envoy, the router and simulated engines.

An Envoy takes a second to start and keeps no state that matters here, so one of each kind is started and
shared by all tests; the router and the engines, which do keep state, are new for each test at the same
addresses.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

import pytest

from extproc.envoy_config import Exchange, Options
from extproc.simulation.http import Settings, SimulatedEngine, engines
from extproc.simulation.presets import PRESETS
from tests.envoy.client import Http
from tests.envoy.gateway import Gateway
from tests.envoy.process import HOST, free_address
from tests.envoy.router import Router

# Fast enough that the tests wait for the gateway and not for the model.
FAST = Settings(spec=replace(PRESETS["demo"], prefill_overhead_s=0.0005, blocks=1_000_000), speed=50)


@pytest.fixture(params=["two-message", "one-message"])
def exchange(request: pytest.FixtureRequest) -> Exchange:
    """How Envoy sends a request to the router."""
    exchange: Exchange = request.param
    return exchange


@pytest.fixture(params=["HTTP/1.1", "HTTP/2"])
def http(request: pytest.FixtureRequest) -> Http:
    """What the client speaks."""
    http: Http = request.param
    return http


@dataclass(frozen=True, slots=True)
class Stack:
    """Clients' side first: Envoy, its routers, the engines."""

    gateway: Gateway
    routers: list[Router]
    engines: list[SimulatedEngine]

    @property
    def url(self) -> str:
        return self.gateway.url

    @property
    def router(self) -> Router:
        """The router, where there is one."""
        (router,) = self.routers
        return router


class Stacks(Protocol):
    """Makes a stack for one test."""

    def __call__(
        self,
        exchange: Exchange = "two-message",
        *,
        engines: int = 4,
        routers: int = 1,
        sockets: bool = False,
        selects: str | None = None,
        settings: Settings = FAST,
        pool: dict[str, Any] | None = None,
        router: dict[str, Any] | None = None,
        **options: Any,
    ) -> AbstractAsyncContextManager[Stack]:
        """`sockets`: routers listen on Unix sockets. `selects`: the pool Envoy asks for. `settings` are the
        engines', `pool` and `router` keys of the router's file, `options` Envoy's."""


_Gateways = Callable[..., Gateway]


@pytest.fixture(scope="session")
def gateways(tmp_path_factory: pytest.TempPathFactory) -> Iterator[_Gateways]:
    """One Envoy for each set of options."""
    running: dict[tuple[object, ...], Gateway] = {}

    def gateway(engines: int, routers: int, sockets: bool, **options: Any) -> Gateway:
        key = (engines, routers, sockets, *sorted(options.items(), key=str))
        if key not in running:
            directory = tmp_path_factory.mktemp("envoy")
            running[key] = Gateway(
                Options(
                    endpoints=tuple(free_address() for _ in range(engines)),
                    routers=tuple(
                        f"unix:{directory}/{n}.sock" if sockets else free_address() for n in range(routers)
                    ),
                    listen=free_address(),
                    plain_listen=free_address(),
                    admin=free_address(),
                    # Both processes share two cores with the clients and the engines.
                    **{"message_timeout": 5.0, **options},
                ),
                directory,
            )
        return running[key]

    yield gateway
    for started in running.values():
        started.process.kill()


@pytest.fixture
def stacks(gateways: _Gateways, tmp_path: Path, request: pytest.FixtureRequest) -> Stacks:
    """Stacks for this test; what the processes wrote is shown when it fails."""

    @asynccontextmanager
    async def stack(
        exchange: Exchange = "two-message",
        *,
        engines: int = 4,
        routers: int = 1,
        sockets: bool = False,
        selects: str | None = None,
        settings: Settings = FAST,
        pool: dict[str, Any] | None = None,
        router: dict[str, Any] | None = None,
        **options: Any,
    ) -> AsyncIterator[Stack]:
        gateway = gateways(engines, routers, sockets, exchange=exchange, pool=selects, **options)
        async with AsyncExitStack() as cleanup:
            started = await cleanup.enter_async_context(_engines(gateway, replace(settings, host=HOST)))
            made = [
                Router(
                    listen,
                    tmp_path / f"router-{index}",
                    {
                        "name": "llm",
                        "endpoints": {"static": [engine.address for engine in started]},
                        **(pool or {}),
                    },
                    **(router or {}),
                )
                for index, listen in enumerate(gateway.options.routers)
            ]
            for one in made:
                cleanup.callback(_show, request.node, one)
                cleanup.callback(one.kill)
            await asyncio.gather(gateway.ready(), *(one.start() for one in made))
            if len(made) > 1:
                # A single one is asked whatever its health; of several only those found healthy.
                await gateway.sees_routers(len(made))
            yield Stack(gateway, made, started)

    return stack


@contextlib.asynccontextmanager
async def _engines(gateway: Gateway, settings: Settings) -> AsyncIterator[list[SimulatedEngine]]:
    ports = [int(address.rpartition(":")[2]) for address in gateway.options.endpoints]
    async with engines(ports, settings) as started:
        yield started


def _show(node: pytest.Item, router: Router) -> None:
    node.add_report_section("call", "extproc serve", router.log_tail())
