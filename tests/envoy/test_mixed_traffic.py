"""A minute of everything at once. Ten are in `make soak`."""

from __future__ import annotations

import pytest

from extproc.simulation.http import Settings
from tests.envoy.client import client
from tests.envoy.conftest import Stacks
from tests.envoy.mixed import mixed_traffic


@pytest.mark.timeout(300)
async def test_a_minute_of_mixed_traffic_fails_no_request_and_leaves_nothing_behind(stacks: Stacks) -> None:
    async with stacks(settings=Settings(speed=20)) as stack, client(stack.url, "HTTP/1.1") as gateway:
        left = await mixed_traffic(stack, gateway, 60)
        print(f"\n{left.requests} requests; memory +{left.grown / 1024:.0f} KiB in the second half")
        assert left.requests > 1000
        assert left.failed == []
        assert left.grown < 8 << 20
        assert left.descriptors <= 4
        assert await stack.router.metric("extproc_stream_errors_total") == 0
