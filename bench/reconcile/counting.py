"""A connection to the API server that counts what is asked."""

from __future__ import annotations

from collections import Counter
from typing import Any

import aiohttp

from extproc.pool.discovery.kubernetes import Cluster


class Counting(Cluster):
    """As the cluster that it is made of; `calls` has requests by verb."""

    def __init__(self, of: Cluster) -> None:
        super().__init__(of._client, of.namespace)
        self.calls: Counter[str] = Counter()

    async def _call(self, method: str, path: str, query: Any, *rest: Any) -> aiohttp.ClientResponse:
        watch = ("watch", "true") in query
        self.calls["WATCH" if watch else method] += 1
        return await super()._call(method, path, query, *rest)
