"""Routers as users run them, `extproc serve` with `sharing`, and requests as a gateway sends them."""

from __future__ import annotations

import asyncio
import re
import ssl
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import httpx
import orjson
from envoy.service.ext_proc.v3.external_processor_pb2 import ProcessingRequest, ProcessingResponse

from extproc.server import SERVICE
from tests.certificates import Authority, Mounted
from tests.envoy.process import eventually, free_address
from tests.envoy.router import Router

POOL = {
    "name": "llama",
    "endpoints": {"static": ["10.0.0.1:8000", "10.0.0.2:8000"]},
    "engineMetrics": False,
}


class Routers:
    """Some routers with one list of peers."""

    def __init__(
        self, directory: Path, number: int, tls: dict[str, Any] | None = None, plaintext: bool = False
    ) -> None:
        peers = [free_address() for _ in range(number)]
        settings: dict[str, Any] = {"drainTimeout": "1s", **({"tls": tls} if tls else {})}
        self.all = [
            Router(
                free_address(),
                directory / str(index),
                POOL,
                sharing={"listen": address, "peers": peers, "plaintext": plaintext},
                **settings,
            )
            for index, address in enumerate(peers)
        ]


@asynccontextmanager
async def routers(
    directory: Path, number: int, tls: dict[str, Any] | None = None, *, plaintext: bool = False
) -> AsyncIterator[list[Router]]:
    """So many routers, all connected."""
    made = Routers(directory, number, tls, plaintext).all
    async with AsyncExitStack() as stack:
        for router in made:
            stack.callback(router.kill)
        await asyncio.gather(*(router.start() for router in made))
        for router in made:
            await has(router, 'peers{state="connected"}', number - 1)
        yield made


async def value(router: Router, sample: str) -> float:
    name, labels = re.fullmatch(r'(\w+)(?:\{\w+="(\w+)"\})?', sample).groups()  # type: ignore[union-attr]
    found = await router.samples(f"extproc_sharing_{name}")
    return found.get((labels,) if labels else (), 0.0)


async def has(router: Router, sample: str, wanted: float, *, or_more: bool = False) -> None:
    async def holds() -> bool:
        try:
            found = await value(router, sample)
            return found == wanted or (or_more and found > wanted)
        except httpx.TransportError:
            return False

    await eventually(holds, f"{router.listen} says {sample} {wanted:g}", 30, process=router.process)


async def send(
    router: Router, text: str, secret: grpc.ChannelCredentials | None = None, name: str = "router.example"
) -> str:
    """One chat request through a router, by TLS with `secret`, for which its certificate has this name.
    Returns the endpoints that it names."""
    message = ProcessingRequest()
    message.request_headers.headers.headers.add(key=":path", raw_value=b"/v1/chat/completions")
    body = ProcessingRequest()
    chat = {"model": "llama", "messages": [{"role": "user", "content": text}]}
    body.request_body.body = orjson.dumps(chat)
    body.request_body.end_of_stream = True
    options = [("grpc.use_local_subchannel_pool", 1), ("grpc.ssl_target_name_override", name)]
    if secret is None:
        channel = grpc.aio.insecure_channel(router.listen, options)
    else:
        channel = grpc.aio.secure_channel(router.listen, secret, options)
    async with channel:
        call = channel.stream_stream(
            f"/{SERVICE}/Process",
            request_serializer=ProcessingRequest.SerializeToString,
            response_deserializer=ProcessingResponse.FromString,
        )()
        await call.write(message)
        await call.write(body)
        answers = [await call.read()]
        while not answers[-1].HasField("request_body"):
            answers.append(await call.read())
        await call.done_writing()
    return str(answers[-1])


async def test_what_one_router_picks_the_others_hear(tmp_path: Path) -> None:
    async with routers(tmp_path, 3) as (a, b, c):
        for number in range(5):
            await send(a, f"{number} pieces of gold")
        await has(a, "sent_picks_total", 10)
        for router in (b, c):
            await has(router, 'heard_picks_total{pool="llama"}', 5)
            assert await value(router, "sent_picks_total") == 0
        assert await value(a, 'heard_picks_total{pool="llama"}') == 0


async def test_a_router_that_is_killed_is_noticed_and_learns_from_another_when_it_is_back(
    tmp_path: Path,
) -> None:
    async with routers(tmp_path, 2) as (a, b):
        for number in range(5):
            await send(a, f"{number} pieces of gold")
        await has(b, 'heard_picks_total{pool="llama"}', 5)
        b.kill()
        await has(a, 'peers{state="unreachable"}', 1)
        assert "10.0.0." in await send(a, "the other one is dead")
        await b.start()
        await has(a, 'peers{state="connected"}', 1)
        # One that `a` had heard back when both had just started counts twice.
        await has(b, "warm_up_picks_total", 6, or_more=True)
        await send(b, "3 pieces of gold")
        found = await b.samples("extproc_requests_total")
        assert {labels[2]: count for labels, count in found.items() if count} == {"prefix": 1}


async def test_routers_with_certificates_share_and_a_stranger_hears_nothing(tmp_path: Path) -> None:
    authority = Authority()
    pair = authority.issue(["router.example"])
    files = Mounted(tmp_path / "certificates", pair, authority.pem)
    tls = {"cert": str(files.cert), "key": str(files.key), "clientCa": str(files.ca)}
    async with routers(tmp_path, 2, tls) as (a, b):
        await send(a, "gold", grpc.ssl_channel_credentials(authority.pem, pair.key, pair.certificate))
        await has(b, 'heard_picks_total{pool="llama"}', 1)
        assert "plaintext" not in a.log_tail()


async def test_routers_whose_certificates_are_self_signed_share_in_plaintext_by_choice(
    tmp_path: Path,
) -> None:
    async with routers(tmp_path, 2, {"selfSigned": True}, plaintext=True) as (a, b):
        host, port = a.listen.rsplit(":", 1)
        shown = await asyncio.to_thread(ssl.get_server_certificate, (host, int(port)), timeout=20)
        await send(a, "gold", grpc.ssl_channel_credentials(shown.encode()), "localhost")
        await has(b, 'heard_picks_total{pool="llama"}', 1)
        assert "plaintext" not in a.log_tail()


async def test_a_sharing_address_in_use_ends_the_router_and_is_named(tmp_path: Path) -> None:
    async with routers(tmp_path, 1):
        config = (tmp_path / "0" / "extproc.yaml").read_text()
        taken = re.findall(r"127[.0-9]+:\d+", config.partition("sharing:")[2])[0]
        others = re.sub(r"^(listen|metrics): .*$", lambda m: f"{m[1]}: {free_address()}", config, flags=re.M)
        (tmp_path / "second.yaml").write_text(others)
        command = [sys.executable, "-m", "extproc", "serve", "--config", str(tmp_path / "second.yaml")]
        ended = await asyncio.to_thread(
            subprocess.run, command, capture_output=True, text=True, timeout=60, check=False
        )
    assert ended.returncode == 1
    assert f"sharing cannot listen on {taken}" in ended.stderr
    assert "Traceback" not in ended.stderr
