"""Every way in which Envoy can be set to ask the router, with every shape of request."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

import pytest

from extproc.messages import BodyMode
from tests.envoy.any_exchange import AnyExchange, any_stack, new_router, open_streams
from tests.envoy.router import Router
from tests.envoy.test_exchanges import BOTH_WAYS, HTTPS, SHAPES, walk
from tests.gateway_model import Setup, every_setup

TWO_MESSAGES = Setup(True, BodyMode.BUFFERED_PARTIAL)


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AnyExchange]:
    started = AnyExchange([*every_setup(), *BOTH_WAYS], tmp_path_factory.mktemp("any-exchange"))
    yield started
    started.process.kill()


@pytest.fixture(scope="module")
def router(gateway: AnyExchange, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Router]:
    shared = new_router(gateway, tmp_path_factory.mktemp("any-exchange-router"))
    yield shared
    shared.kill()


@pytest.mark.parametrize("shape", SHAPES)
async def test_every_byte_and_trailer_passes_in_every_setup_over_every_http(
    gateway: AnyExchange, router: Router, shape: str
) -> None:
    async with any_stack(gateway, router) as stack:
        await walk(stack, every_setup(), [(shape, *versions) for versions in product(HTTPS, HTTPS)])
        await stack.leaves_nothing()
        spurious = await stack.gateway.stats(r"ext_proc\.any\.(spurious_msgs_received|message_timeouts)$")
        assert set(spurious.values()) <= {0}


@pytest.mark.parametrize("setup", [TWO_MESSAGES, BOTH_WAYS[1]], ids=["two messages", "full duplex"])
async def test_five_thousand_responses_open_at_once(
    gateway: AnyExchange, router: Router, setup: Setup
) -> None:
    router.kill()
    async with any_stack(gateway, router) as stack:
        for turn in ("first", "again"):
            found = await open_streams(stack, setup, 5000)
            await stack.leaves_nothing()
            assert router.process is not None
            left = router.process.resident >> 20
            print(
                f"\n{setup}, {turn}: {found.bytes_each / 1000:.1f} KB each, {left} MiB afterwards;"
                f" a new request takes {found.latency_ratio:.2f} times as long as before"
            )
            assert found.bytes_each < 60_000
