"""Engines that Envoy looks up by name, while the router is told of them in another way and may be ahead."""

from __future__ import annotations

import asyncio
import ipaddress
import itertools
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import yaml

from extproc.envoy_config import Options
from extproc.simulation.http import SimulatedEngine
from tests.envoy.client import client
from tests.envoy.conftest import FAST
from tests.envoy.gateway import Gateway
from tests.envoy.process import HOST, eventually, free_address
from tests.envoy.router import Router
from tests.envoy.traffic import ask, chat, text

OTHER_HOST = str(ipaddress.IPv4Address(int(ipaddress.IPv4Address(HOST)) ^ (64 << 16)))
NAME = "engines.test"
TTL = 30
"""Seconds, as CoreDNS says in a cluster of kubeadm: Envoy has to ask again nonetheless."""


class Names(asyncio.DatagramProtocol):
    """A DNS server that answers every question for IPv4 addresses with `addresses` (RFC 1035)."""

    def __init__(self, *addresses: str) -> None:
        self.addresses = addresses
        self._transport: asyncio.DatagramTransport | None = None

    def connection_made(self, transport: Any) -> None:
        self._transport = transport

    def datagram_received(self, data: bytes, addr: Any) -> None:
        assert self._transport is not None
        question = data[12 : data.index(b"\0", 12) + 5]
        wants_ipv4 = question.endswith(b"\0\1\0\1")
        records = [
            b"\xc0\x0c" + struct.pack(">HHIH", 1, 1, TTL, 4) + ipaddress.IPv4Address(one).packed
            for one in (self.addresses if wants_ipv4 else ())
        ]
        header = data[:2] + struct.pack(">HHHHH", 0x8180, 1, len(records), 0, 0)
        self._transport.sendto(header + question + b"".join(records), addr)


@asynccontextmanager
async def served(names: Names) -> AsyncIterator[str]:
    address = free_address()
    host, _, port = address.rpartition(":")
    transport, _ = await asyncio.get_running_loop().create_datagram_endpoint(
        lambda: names, local_addr=(host, int(port))
    )
    try:
        yield address
    finally:
        transport.close()


def resolved_at(server: str, tree: dict[str, Any]) -> None:
    """Have Envoy ask this DNS server, which in a cluster is the cluster's own."""
    host, _, port = server.rpartition(":")
    (engines,) = [one for one in tree["static_resources"]["clusters"] if one["name"] == "engines"]
    engines["cluster_type"]["typed_config"]["typed_dns_resolver_config"] = {
        "name": "envoy.network.dns_resolver.cares",
        "typed_config": {
            "@type": "type.googleapis.com/envoy.extensions.network.dns_resolver.cares.v3"
            ".CaresDnsResolverConfig",
            "resolvers": [{"socket_address": {"address": host, "port_value": int(port)}}],
            "dns_resolver_options": {"no_default_search_domain": True},
        },
    }


async def test_a_pick_that_envoy_has_not_looked_up_yet_falls_back_and_is_counted(tmp_path: Path) -> None:
    port = int(free_address().rpartition(":")[2])
    first, second = (SimulatedEngine(host, port, replace(FAST, host=host)) for host in (HOST, OTHER_HOST))
    names = Names(HOST)
    file = tmp_path / "endpoints.yaml"
    file.write_text(yaml.safe_dump([first.address]))
    prompts = itertools.count()
    async with served(names) as server:
        options = Options(
            endpoints_dns=f"{NAME}:{port}",
            routers=(free_address(),),
            listen=free_address(),
            plain_listen=free_address(),
            admin=free_address(),
            message_timeout=5.0,
        )
        router = Router(
            options.routers[0],
            tmp_path / "router",
            {"name": "llm", "endpoints": {"file": str(file)}, "slowStart": False},
        )
        await asyncio.gather(first.start(), second.start(), router.start())
        gateway = Gateway(options, tmp_path, lambda tree: resolved_at(server, tree))
        try:
            await gateway.ready()
            async with client(gateway.url, "HTTP/1.1") as requests:

                async def serves() -> str:
                    reply = await ask(requests, chat(text(next(prompts), 2000)))
                    assert reply.status == 200
                    return reply.engine

                async def hosts() -> int:
                    return await gateway.stat("cluster.engines.membership_total")

                async def passed_over() -> float:
                    outcomes = await router.samples("extproc_served_total")
                    return outcomes.get(("untried", "llm"), 0)

                assert await serves() == HOST
                assert await passed_over() == 0

                # The router learns of the second engine; Envoy cannot know it yet.
                file.write_text(yaml.safe_dump([first.address, second.address]))

                async def fell_back() -> bool:
                    assert await serves() == HOST
                    return await passed_over() > 0

                await eventually(fell_back, "the router picks the engine that Envoy does not know")
                assert await hosts() == 1

                names.addresses = (HOST, OTHER_HOST)

                async def joined() -> bool:
                    return await serves() == OTHER_HOST

                await eventually(joined, "Envoy has looked the second engine up, and it serves", 30)

                # The first leaves the name and the router's list, as a pod that is told to stop does.
                names.addresses = (OTHER_HOST,)
                file.write_text(yaml.safe_dump([second.address]))

                async def left() -> bool:
                    return await hosts() == 1

                await eventually(left, "Envoy has noticed that the first engine left", 5)
                assert {await serves() for _ in range(5)} == {OTHER_HOST}
        finally:
            gateway.process.kill()
            router.kill()
            await asyncio.gather(first.stop(), second.stop())
