"""Nothing a client sends chooses an engine or weakens the route."""

from __future__ import annotations

import secrets
from collections import Counter
from pathlib import Path

import grpc
import pytest
from envoy.service.ext_proc.v3.external_processor_pb2 import ProcessingRequest

from extproc.envoy_config import Exchange
from extproc.server import SERVICE
from extproc.simulation.http import Settings
from tests.envoy.client import BrokenError, Http, client
from tests.envoy.conftest import Stack, Stacks
from tests.envoy.load import many_names
from tests.envoy.process import eventually
from tests.envoy.traffic import ask, chat, in_parallel, text
from tests.prompt.test_canary import bodies

PIN = "x-gateway-destination-endpoint"
# What engines say of themselves comes when it comes, and moves picks and adds metrics.
BLIND = {"engineMetrics": False}


async def test_a_forged_pin_changes_nothing(stacks: Stacks, exchange: Exchange, http: Http) -> None:
    prompts = [chat(text(seed, 1000)) for seed in range(8)]
    async with stacks(exchange, pool=BLIND) as stack, client(stack.url, http) as gateway:
        honest = [(await ask(gateway, prompt)).engine for prompt in prompts]
        targets = [engine.address for engine in stack.engines]
        forged = [
            *({name: target} for name in (PIN, PIN.title()) for target in targets),
            {PIN: ",".join(reversed(targets))},
            {PIN: str(stack.gateway.options.admin)},
            {f"{PIN}-subset": targets[0], f"{PIN}-served": targets[0]},
        ]
        for headers in forged:
            served = [
                (await ask(gateway, prompt, headers=_named(headers, http))).engine for prompt in prompts
            ]
            assert served == honest, headers
        models = [
            (await ask(gateway, None, "/v1/models", method="GET", headers={PIN: targets[0]})).engine
            for _ in range(20)
        ]
        assert len(set(models)) > 1


async def test_a_forged_pin_changes_nothing_while_the_router_is_gone(
    stacks: Stacks, exchange: Exchange
) -> None:
    async with stacks(exchange) as stack, client(stack.url, "HTTP/1.1") as gateway:
        stack.router.kill()
        target = stack.engines[0].address
        replies = [await ask(gateway, chat(text(1, 100)), headers={PIN: target}) for _ in range(40)]
        assert {reply.status for reply in replies} == {200}
        assert max(Counter(reply.engine for reply in replies).values()) < 30


async def test_a_client_cannot_shorten_time_outs_or_turn_off_retries(
    stacks: Stacks, exchange: Exchange
) -> None:
    orders = {
        "x-envoy-upstream-rq-timeout-ms": "1",
        "x-envoy-upstream-rq-per-try-timeout-ms": "1",
        "x-envoy-expected-rq-timeout-ms": "1",
        "x-envoy-max-retries": "0",
        "x-envoy-retry-on": "5xx",
    }
    async with (
        stacks(exchange, settings=Settings(speed=1)) as stack,
        client(stack.url, "HTTP/1.1") as gateway,
    ):
        await stack.engines[0].stop()
        slow = [chat(text(seed, 1000), max_tokens=3, ignore_eos=True) for seed in range(12)]
        assert {(await ask(gateway, body, headers=orders)).status for body in slow} == {200}


async def test_a_client_cannot_name_the_pool(stacks: Stacks, exchange: Exchange, http: Http) -> None:
    """Only the gateway's gRPC metadata does, under the same name."""
    async with (
        stacks(exchange, pool={"match": {"metadata": "blue"}}) as stack,
        client(stack.url, http) as gateway,
    ):
        for name in ("x-warmroute-pool", "X-Warmroute-Pool", "grpc-metadata-x-warmroute-pool"):
            await ask(gateway, chat(text(1, 100)), headers=_named({name: "blue"}, http))
        requests = await stack.router.samples("extproc_requests_total")
        assert {key: number for key, number in requests.items() if number} == {("", "", "unpinned", ""): 3}


async def test_large_headers_pass_or_are_refused_by_the_gateway_and_the_next_request_is_served(
    stacks: Stacks, exchange: Exchange, http: Http
) -> None:
    """Envoy's own limit is 60 KiB for all headers together."""
    async with stacks(exchange) as stack, client(stack.url, http) as gateway:
        body = chat(text(1, 1000))
        home = (await ask(gateway, body)).engine
        # The simulated engine takes 8 KiB in one line, as most servers do.
        many = {f"x-filler-{number}": "f" * 4000 for number in range(10)}
        assert (await ask(gateway, body, headers=many)).engine == home
        try:
            refused = (await ask(gateway, body, headers=many | {"x-more": "m" * 60_000})).status
        except BrokenError:  # HTTP/2 resets the stream
            refused = 431
        assert refused == 431
        assert (await ask(gateway, body, "/v1/chat/completions?" + "q" * 7000)).engine == home
        assert (await ask(gateway, body)).engine == home
        assert await stack.router.metric("extproc_stream_errors_total") == 0


async def test_no_text_of_a_request_is_in_any_log_metric_or_file(stacks: Stacks, tmp_path: Path) -> None:
    """At debug level, with the request log on, for every API, whole, cut, compressed and damaged; and for
    messages that are none."""
    canary = secrets.token_hex(16)
    log = tmp_path / "requests.jsonl"
    settings = {"log": {"level": "debug", "format": "json"}, "requestLog": {"path": str(log)}}
    async with stacks(router=settings) as stack, client(stack.url, "HTTP/1.1") as gateway:

        async def send(body: tuple[str, bytes, str]) -> int:
            path, data, encoding = body
            headers = {"x-canary": canary, **({"content-encoding": encoding} if encoding else {})}
            return (await ask(gateway, data, path or "/", headers=headers)).status

        sent = bodies(canary)
        await in_parallel(sent, 8, send)
        await in_parallel(
            [canary.encode(), b"\xff" + canary.encode()], 1, lambda data: _nonsense(stack, data)
        )
        await eventually(lambda: log.exists() and log.stat().st_size > 0, "requests are logged")
        page = await stack.router.page()
        assert await stack.router.metric("extproc_requests_total") >= len(sent)
        stack.router.drain()
        process = stack.router.process
        assert process is not None
        await process.exit_code(20)

    written = _files(tmp_path)
    assert any(b'"level":"debug"' in text or b'"level":"info"' in text for text in written.values())
    assert [path for path, text in written.items() if canary.encode() in text] == []
    assert canary not in page


async def test_what_clients_name_makes_no_new_time_series(stacks: Stacks) -> None:
    async with stacks(pool=BLIND) as stack, client(stack.url, "HTTP/2") as gateway:
        await many_names(gateway, 50)
        before = (await stack.router.page()).count("\n")
        await many_names(gateway, 400, first=1000)
        assert (await stack.router.page()).count("\n") == before


def _files(directory: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in directory.rglob("*") if path.is_file()}


async def _nonsense(stack: Stack, data: bytes) -> None:
    """Bytes that are no ext_proc message, straight to the router, alone and after one that is."""
    async with grpc.aio.insecure_channel(stack.router.listen) as channel:
        for first in (None, ProcessingRequest(request_headers={"end_of_stream": False})):
            call = channel.stream_stream(f"/{SERVICE}/Process")()
            if first is not None:
                await call.write(first.SerializeToString())
                await call.read()
            await call.write(data)
            with pytest.raises(grpc.aio.AioRpcError) as failed:
                await call.read()
            assert data.decode("latin-1")[1:] not in str(failed.value)


def _named(headers: dict[str, str], http: Http) -> dict[str, str]:
    """HTTP/2 knows lower-case names only (RFC 9113, section 8.2.1)."""
    return headers if http == "HTTP/1.1" else {name.lower(): value for name, value in headers.items()}
