"""How long a body may be behind a gateway that sets the listener's limits alone, as Envoy Gateway does.

The limits are those of manifests/gateways/envoy-gateway, and the exchange is the one that it asks for.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import yaml

from extproc.config import load
from extproc.doctor.inventory import quantity
from extproc.envoy_config import Options
from extproc.simulation.http import SimulatedEngine
from tests.envoy.client import Http, client
from tests.envoy.conftest import FAST
from tests.envoy.gateway import Gateway
from tests.envoy.process import HOST, free_address
from tests.envoy.router import Router
from tests.envoy.traffic import ask, chat

MANIFESTS = Path(__file__).parents[2] / "manifests"
CLIENTS = yaml.safe_load((MANIFESTS / "gateways/envoy-gateway/client-traffic-policy.yaml").read_text())[
    "spec"
]
BUFFER = quantity(CLIENTS["connection"]["bufferLimit"]) or 0
WINDOW = quantity(CLIENTS["http2"]["initialStreamWindowSize"]) or 0
MESSAGE = load(MANIFESTS / "base/router/extproc.yaml").max_message_bytes


def listening(tree: dict[str, Any], window: int) -> None:
    """One route without a limit of its own, and bodies BUFFERED."""
    listener = tree["static_resources"]["listeners"][0]
    listener["per_connection_buffer_limit_bytes"] = BUFFER
    manager = listener["filter_chains"][0]["filters"][0]["typed_config"]
    manager["http2_protocol_options"] = {"initial_stream_window_size": window}
    (host,) = manager["route_config"]["virtual_hosts"]
    route = host["routes"][-1]
    del route["request_body_buffer_limit"], route["typed_per_filter_config"]
    host["routes"] = [route]
    ext_proc = manager["http_filters"][0]["typed_config"]
    ext_proc["processing_mode"] = {
        "request_header_mode": "SEND",
        "request_body_mode": "BUFFERED",
        "response_header_mode": "SEND",
    }


@asynccontextmanager
async def gateway(directory: Path, window: int = WINDOW) -> AsyncIterator[tuple[Gateway, Router]]:
    endpoint = free_address()
    engine = SimulatedEngine("engine", int(endpoint.rpartition(":")[2]), replace(FAST, host=HOST))
    options = Options(
        endpoints=(endpoint,),
        routers=(free_address(),),
        listen=free_address(),
        plain_listen=free_address(),
        admin=free_address(),
        message_timeout=20.0,
    )
    pool = {"name": "llm", "endpoints": {"static": [endpoint]}}
    router = Router(options.routers[0], directory / "router", pool, maxMessageBytes=MESSAGE)
    await asyncio.gather(engine.start(), router.start())
    envoy = Gateway(options, directory, lambda tree: listening(tree, window))
    try:
        await envoy.ready()
        yield envoy, router
    finally:
        envoy.process.kill()
        router.kill()
        await engine.stop()


async def test_a_body_within_the_buffer_reaches_the_router_whole_and_a_longer_one_is_refused(
    http: Http, tmp_path: Path
) -> None:
    fits, longer = chat("x" * (BUFFER - 100_000)), chat("x" * (BUFFER + 100_000))
    twice = chat("x" * 2 * BUFFER)
    async with gateway(tmp_path) as (envoy, router), client(envoy.url, http) as requests:
        assert (await ask(requests, fits)).status == 200
        assert await router.metric("extproc_body_bytes_total") == len(fits)
        for body in (longer, twice):
            async with client(envoy.url, http) as another:
                assert (await ask(another, body)).status == 413
        # No message was too large for the router.
        assert await router.metric("extproc_stream_errors_total") == 0
        assert await envoy.stat("http.clients.ext_proc.extproc.streams_failed") == 0


async def test_by_http_2_no_more_is_held_than_the_stream_s_window(tmp_path: Path) -> None:
    body = chat("x" * 200_000)
    async with gateway(tmp_path, window=65_536) as (envoy, _):
        async with client(envoy.url, "HTTP/2") as requests:
            assert (await ask(requests, body)).status == 413
        async with client(envoy.url, "HTTP/1.1") as requests:
            assert (await ask(requests, body)).status == 200
