"""An InferencePool behind Istio, with the router as its picker, at its start before each story."""

from __future__ import annotations

from collections.abc import AsyncIterator, Generator, Iterator

import pytest
import pytest_asyncio

from e2e import evidence
from e2e.cluster import engine, kind
from e2e.conformance import addresses, istio, picked
from e2e.scenarios import load
from e2e.scenarios.load import Client
from tests.envoy.process import eventually

TIMEOUT = 300
"""Seconds for one story."""


_HERE = f"--namespace={picked.NAMESPACE}"
EVIDENCE = (
    ("get", "pods,inferencepool,gateway,httproute", _HERE, "--output=wide"),
    ("get", "events", _HERE, "--sort-by=.lastTimestamp"),
    ("logs", _HERE, f"--selector={picked.LABEL['extproc']}", "--tail=40"),
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Each story has this time."""
    for item in items:
        item.add_marker(pytest.mark.timeout(TIMEOUT))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """A failure comes with what the namespace looked like."""
    return evidence.attach((yield), EVIDENCE)


@pytest.fixture(scope="session")
def installed() -> Iterator[None]:
    """Istio, and addresses for its gateways; at the end what the stories deployed is removed."""
    if not (engine.answers() and kind.runs()):
        pytest.fail("there is no cluster: run `make e2e-up`")
    istio.install()
    with addresses.given():
        yield
        picked.remove()


@pytest_asyncio.fixture
async def gateway(installed: None) -> AsyncIterator[Client]:
    """Three engines and two routers behind the gateway, which pins."""
    await picked.settle()
    async with load.client(picked.address()) as asking:

        async def pins() -> bool:
            return (await asking.ask(9999)).pinned

        await eventually(pins, "requests are pinned", 90)
        yield asking
