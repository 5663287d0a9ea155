"""Ten minutes of everything at once."""

from __future__ import annotations

import pytest

from extproc.simulation.http import Settings
from tests.envoy.client import Http, client
from tests.envoy.conftest import Stacks
from tests.envoy.mixed import mixed_traffic

MOST_PER_REQUEST = 80.0
"""Bytes. A grpc.aio server with a handler that does nothing grows by some 30 for each stream; a leaked task,
stream or pick would be thousands, and a status that is never freed is 110."""


@pytest.mark.parametrize("http", ["HTTP/1.1", "HTTP/2"])
async def test_ten_minutes_of_mixed_traffic_leave_memory_and_descriptors_as_they_were(
    stacks: Stacks, http: Http
) -> None:
    async with stacks(settings=Settings(speed=20)) as stack, client(stack.url, http) as gateway:
        left = await mixed_traffic(stack, gateway, 600)
        each = left.slope * 600 / left.requests
        print(f"\n{left.requests} requests; memory {left.slope:+.0f} bytes/s, {each:+.1f} for each request")
        assert left.failed == []
        assert each < MOST_PER_REQUEST
        assert left.descriptors <= 4
        assert await stack.router.metric("extproc_stream_errors_total") == 0
