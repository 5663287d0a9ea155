"""An InferencePool behind Istio, with the router as its picker, at its start before each story."""

from __future__ import annotations

from collections.abc import AsyncIterator, Generator, Iterator

import pytest
import pytest_asyncio

from e2e.cluster import engine, kind
from e2e.cluster.command import ClusterError
from e2e.conformance import addresses, istio, picked
from e2e.scenarios import load
from e2e.scenarios.load import Client
from tests.envoy.process import eventually

TIMEOUT = 300
"""Seconds for one story."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Each story has this time."""
    for item in items:
        item.add_marker(pytest.mark.timeout(TIMEOUT))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """A failure comes with what the namespace looked like."""
    report = yield
    if report.failed and engine.answers() and kind.runs():
        for words in (
            ("get", "pods,inferencepool,gateway,httproute", "--output=wide"),
            ("get", "events", "--sort-by=.lastTimestamp"),
            ("logs", f"--selector={picked.ROUTER}", "--tail=40"),
        ):
            try:
                said = kind.kubectl(f"--namespace={picked.NAMESPACE}", *words, seconds=20)
            except ClusterError as error:
                said = str(error)
            report.sections.append((f"kubectl {' '.join(words)}", said[-6000:]))
    return report


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
