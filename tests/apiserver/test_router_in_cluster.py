"""`extproc serve` with endpoints and settings in a real API server, as one process from start to end."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import grpc
import httpx
import yaml
from grpc_health.v1 import health_pb2, health_pb2_grpc
from prometheus_client.parser import text_string_to_metric_families

from tests.apiserver.cluster import ADMIN, ApiServer, Link, Namespace, endpoint
from tests.envoy.process import Process, eventually, free_address
from tests.test_epp import ask, pinned, request

SECOND = timedelta(seconds=1)
"""Within which a change reaches routing."""


class Router:
    """A running router, asked as a gateway asks it."""

    def __init__(self, directory: Path, namespace: str) -> None:
        self.listen, self._health, self._metrics = (free_address() for _ in range(3))
        self.config = directory / "extproc.yaml"
        self.log = directory / "log"
        source = {"name": "llama-routing", "namespace": namespace}
        service = {"name": "llama", "namespace": namespace, "port": "http"}
        pool = {
            "name": "llama",
            "strategy": "RANDOM",
            "engineMetrics": False,
            "endpoints": {"service": service},
            "settingsFrom": {"configMap": source},
        }
        self.config.write_text(
            yaml.safe_dump(
                {
                    "listen": self.listen,
                    "health": self._health,
                    "metrics": self._metrics,
                    "log": {"format": "json"},
                    "pools": [pool],
                }
            )
        )

    def said(self) -> list[dict[str, Any]]:
        """The lines of its log."""
        return [json.loads(line) for line in self.log.read_text().splitlines()]

    async def ready(self) -> bool:
        async with grpc.aio.insecure_channel(self._health) as channel:
            check = health_pb2.HealthCheckRequest(service="readiness")
            try:
                answer = await health_pb2_grpc.HealthStub(channel).Check(check, timeout=5)
            except grpc.aio.AioRpcError:
                return False
        return bool(answer.status == health_pb2.HealthCheckResponse.SERVING)

    async def ask(self) -> Any:
        """The answer to one request."""

        def once() -> Any:
            with grpc.insecure_channel(self.listen) as channel:
                return ask(channel, request())[0]

        return await asyncio.to_thread(once)

    async def pin(self) -> set[str]:
        """The endpoints that one request may go to."""
        return set(pinned(await self.ask()))

    async def metric(self, name: str, **labels: str) -> float:
        """A metric summed over the series with these labels; 0 if there is none, also before it is served."""
        async with httpx.AsyncClient(trust_env=False) as client:
            try:
                page = (await client.get(f"http://{self._metrics}/metrics")).text
            except httpx.TransportError:
                return 0.0
        return sum(
            sample.value
            for family in text_string_to_metric_families(page)
            for sample in family.samples
            if sample.name == f"extproc_{name}" and labels.items() <= sample.labels.items()
        )


@asynccontextmanager
async def serving(namespace: Namespace, kubeconfig: Path, directory: Path) -> AsyncIterator[Router]:
    router = Router(directory, namespace.name)
    command = [sys.executable, "-m", "extproc", "serve", "--config", str(router.config)]
    with Process("extproc serve", command, router.log, {"KUBECONFIG": str(kubeconfig)}) as process:

        async def listens() -> bool:
            return await router.metric("build_info") == 1

        await eventually(listens, "the router runs", 60, process=process)
        yield router


async def test_a_router_started_while_the_api_server_is_away_refuses_nothing_and_then_follows_its_service(
    namespace: Namespace, server: ApiServer, tmp_path: Path
) -> None:
    link = Link(server.address)
    await namespace.slice("a", endpoint("10.0.0.1", "a"))
    async with serving(namespace, server.kubeconfig(ADMIN, link.address), tmp_path) as router:

        async def tried() -> bool:
            return await router.metric("kubernetes_failures_total", resource="endpointslices") > 0

        await eventually(tried, "it has looked for its Service", 60)
        assert await router.metric("kubernetes_watching", resource="endpointslices") == 0
        assert not (await router.ask()).HasField("immediate_response")
        assert await router.metric("requests_total", reason="unpinned", pool="llama") == 1
        assert not await router.ready()

        await link.open()
        await eventually(router.ready, "it knows its Service", 60)
        assert await router.pin() == {"10.0.0.1:8000"}
        assert await router.metric("kubernetes_watching", resource="endpointslices", pool="llama") == 1

        await namespace.slice("a", endpoint("10.0.0.1", "a"), endpoint("10.0.0.2", "b"))

        async def both() -> bool:
            return await router.pin() == {"10.0.0.1:8000", "10.0.0.2:8000"}

        await eventually(both, "the new endpoint is picked")

        await link.cut()
        await namespace.slice("a", endpoint("10.0.0.2", "b"))

        async def noticed() -> bool:
            return await router.metric("kubernetes_watching", resource="endpointslices") == 0

        await eventually(noticed, "it is known that the API server is away")
        assert await both()
        assert await router.ready()
        await link.open()

        async def one() -> bool:
            return await router.pin() == {"10.0.0.2:8000"}

        await eventually(one, "what was missed is learnt", 60)

        await namespace.slice("a", endpoint("10.0.0.2", "b", ready=False))

        async def refused() -> bool:
            answer = await router.ask()
            return bool(answer.immediate_response.status.code == 503)

        await eventually(refused, "a Service without a ready endpoint is answered 503")
        assert await router.ready()
        await link.cut()


async def test_settings_and_warm_nodes_are_live_within_a_second_and_bad_settings_change_nothing(
    namespace: Namespace, server: ApiServer, tmp_path: Path
) -> None:
    await namespace.slice("a", endpoint("10.0.0.1", "a"))
    await namespace.slice(
        "w", endpoint("10.0.0.1", "a"), service="llama-warm", manager="cacheprep.warmroute.dev"
    )
    async with serving(namespace, server.kubeconfig(ADMIN), tmp_path) as router:
        await eventually(router.ready, "it knows its Service", 60)

        async def picks_by(strategy: str) -> bool:
            before = await router.metric("requests_total", strategy=strategy, node_cache="warm")
            await router.pin()
            return await router.metric("requests_total", strategy=strategy, node_cache="warm") == before + 1

        assert await picks_by("RANDOM")
        about = {"pool": "llama", "endpoint": "10.0.0.1:8000", "pod": "a", "node": "node-of-a"}
        assert await router.metric("endpoint_info", **about, zone="zone-a", node_cache="warm") == 1

        written = datetime.now(UTC)
        await namespace.config_map({"settings.yaml": "strategy: LEAST_OUTSTANDING_REQUESTS"})
        await eventually(lambda: picks_by("LEAST_OUTSTANDING_REQUESTS"), "settings run")
        (line,) = (line for line in router.said() if line["event"] == "settings reloaded")
        assert datetime.fromisoformat(line["timestamp"]) - written < SECOND

        await namespace.config_map({"settings.yaml": "strategy: LEAST_OUTSTANDIN"})

        async def refused() -> bool:
            return await router.metric("pool_settings_reloads_total", pool="llama", result="failure") == 1

        await eventually(refused, "bad settings are counted")
        assert await router.metric("pool_settings_last_reload_successful", pool="llama") == 0
        assert "did you mean LEAST_OUTSTANDING_REQUESTS?" in router.said()[-1]["reason"]
        assert await picks_by("LEAST_OUTSTANDING_REQUESTS")

        await namespace.delete_config_map()
        await eventually(lambda: picks_by("RANDOM"), "without them the file runs")
        assert await router.metric("pool_settings_last_reload_successful", pool="llama") == 1


async def test_a_pool_that_is_moved_to_kubernetes_and_back_keeps_its_endpoints_in_between(
    namespace: Namespace, server: ApiServer, tmp_path: Path
) -> None:
    await namespace.slice("a", endpoint("10.0.0.1"))
    async with serving(namespace, server.kubeconfig(ADMIN), tmp_path) as router:
        await eventually(router.ready, "it knows its Service", 60)
        written = yaml.safe_load(router.config.read_text())
        in_kubernetes = written["pools"][0]["endpoints"]
        for endpoints, wanted in (
            ({"static": ["10.0.0.9:8000"]}, "10.0.0.9:8000"),
            (in_kubernetes, "10.0.0.1:8000"),
        ):
            written["pools"][0]["endpoints"] = endpoints
            router.config.write_text(yaml.safe_dump(written))

            async def moved(wanted: str = wanted) -> bool:
                return await router.pin() == {wanted}

            await eventually(moved, f"{wanted} is picked", 30)
