"""The operator in the cluster of `make e2e-up`, sources beside it, and a namespace for each story."""

from __future__ import annotations

import itertools
import os
from collections.abc import AsyncIterator, Generator, Iterator
from pathlib import Path

import pytest
import pytest_asyncio

from e2e import evidence
from e2e.cluster import engine, kind
from e2e.operator import installation, sources
from e2e.operator.sources import ObjectStore
from e2e.operator.tenant import Tenant
from extproc.pool.discovery.kubernetes import connected
from tests.sources.hub import Hub

TIMEOUT, LONG_TIMEOUT = 300, 900
"""Seconds for one story, and for one that is `long`."""

_numbers = itertools.count(1)


EVIDENCE = (
    ("get", "warmroute,jobs,pods", "--all-namespaces", "--output=wide"),
    ("get", "events", "--all-namespaces", "--sort-by=.lastTimestamp"),
    (
        "logs",
        f"--namespace={installation.OPERATOR}",
        f"--selector={installation.CONTROLLER}",
        "--tail=60",
    ),
    ("logs", f"--namespace={installation.AGENTS}", f"--selector={installation.AGENT}", "--tail=15"),
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        long = item.get_closest_marker("long") is not None
        item.add_marker(pytest.mark.timeout(LONG_TIMEOUT if long else TIMEOUT))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """A failure comes with what the cluster looked like."""
    return evidence.attach((yield), EVIDENCE)


@pytest.fixture(scope="session")
def installed() -> None:
    """The operator of this code."""
    if not (engine.answers() and kind.runs()):
        pytest.fail("there is no cluster: run `make e2e-up`")
    installation.install()


@pytest.fixture(scope="session")
def store(tmp_path_factory: pytest.TempPathFactory, installed: None) -> Iterator[ObjectStore]:
    """An S3 server that the nodes' pods reach."""
    with sources.object_store(tmp_path_factory.mktemp("store") / "versitygw") as running:
        yield running


@pytest.fixture
def s3(store: ObjectStore) -> ObjectStore:
    """The same, as fast as it can be, and there."""
    store.relay.rate, store.relay.gone = None, False
    return store


@pytest.fixture(scope="session")
def hub(installed: None) -> Iterator[Hub]:
    """A Hub that the nodes' pods reach."""
    with sources.hub() as running:
        yield running


@pytest.fixture
def space(request: pytest.FixtureRequest) -> str:
    """A name for a namespace that nothing had before."""
    stem = Path(request.path).stem.removeprefix("test_").replace("_", "-")
    return f"{stem[:30]}-{os.getpid()}-{next(_numbers)}"


@pytest_asyncio.fixture
async def tenant(installed: None, space: str, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Tenant]:
    """A namespace for one story. After it nothing of it may be left."""
    monkeypatch.setenv("KUBECONFIG", str(kind.kubeconfig()))
    async with connected() as cluster:
        made = Tenant(cluster, space)
        await made.move_in()
        try:
            yield made
        finally:
            await made.move_out()
