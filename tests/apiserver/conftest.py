"""One API server for all tests, and a namespace for each."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from tests.apiserver import cluster
from tests.apiserver.cluster import ADMIN, ApiServer, Namespace

_numbers = itertools.count(1)


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApiServer]:
    if reason := cluster.missing():
        pytest.skip(reason)
    running = ApiServer(tmp_path_factory.mktemp("apiserver"))

    async def start() -> None:
        await running.ready()
        await cluster.define(running)

    try:
        asyncio.run(start())
        yield running
    finally:
        running.kill()


@pytest.fixture
async def namespace(server: ApiServer) -> AsyncIterator[Namespace]:
    async with cluster.admin(server) as client:
        made = Namespace(f"test-{next(_numbers)}", client)
        await made.core.create_namespace({"metadata": {"name": made.name}})
        yield made


@pytest.fixture
def kubeconfig(server: ApiServer, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The API server's, as its administrator, in the environment."""
    path = server.kubeconfig(ADMIN)
    monkeypatch.setenv("KUBECONFIG", str(path))
    return path
