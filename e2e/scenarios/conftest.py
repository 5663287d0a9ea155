"""The cluster of `make e2e-up`, with everything back at its start before each scenario."""

from __future__ import annotations

from collections.abc import AsyncIterator, Generator

import pytest
import pytest_asyncio

from e2e import evidence
from e2e.cluster import engine, kind
from e2e.scenarios import load, stack
from e2e.scenarios.load import Client
from tests.envoy.process import eventually

TIMEOUT = 300
"""Seconds for one scenario."""


EVIDENCE = (
    ("get", "pods", "--all-namespaces", "--output=wide"),
    ("get", "events", "--namespace=llm", "--sort-by=.lastTimestamp"),
    ("logs", "--namespace=warmroute", "--selector=app.kubernetes.io/name=extproc", "--tail=40"),
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        item.add_marker(pytest.mark.timeout(TIMEOUT))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """A failure comes with what the cluster looked like."""
    return evidence.attach((yield), EVIDENCE)


@pytest.fixture(scope="session")
def made() -> list[stack.Json]:
    """The objects of the stack."""
    if not (engine.answers() and kind.runs()):
        pytest.fail("there is no cluster: run `make e2e-up`")
    return stack.objects()


@pytest_asyncio.fixture
async def gateway(made: list[stack.Json]) -> AsyncIterator[Client]:
    """Three engines and two routers behind the gateway, which pins."""
    await stack.settle(made)
    async with load.client(kind.gateway_address()) as asking:

        async def pins() -> bool:
            return (await asking.ask(9999)).pinned

        await eventually(pins, "requests are pinned", 60)
        yield asking
