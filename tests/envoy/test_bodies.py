"""Every body reaches the engine as it was sent, and where the router said."""

from __future__ import annotations

import asyncio
import random
from contextlib import AsyncExitStack
from dataclasses import replace
from itertools import pairwise, product

import aiohttp
import orjson
from aiohttp import web

from extproc.envoy_config import Exchange
from tests.envoy.client import Http, client
from tests.envoy.conftest import FAST, Stack, Stacks
from tests.envoy.process import HOST
from tests.envoy.traffic import ask, chat, digest, text

MIB = 1024 * 1024
LIMIT = 64 * 1024
# Any path the engines do not know: they answer 404 and say which bytes came.
ECHO = "/anything"


async def test_large_prompts_pass_unchanged(stacks: Stacks, exchange: Exchange, http: Http) -> None:
    # Two million tokens are read in a moment.
    engines = replace(FAST, speed=2000)
    async with stacks(exchange, settings=engines) as stack, client(stack.url, http) as gateway:
        for size in (MIB, 8 * MIB):
            body = chat(text(size, 32 * 1024) * (size // (32 * 1024)))
            for sent in (body, _pieces(body, MIB // 2)):
                reply = await ask(gateway, sent)
                assert (reply.status, reply.sha256) == (200, digest(body))
        await _all_served_by_first_choice(stack, 4)


async def test_no_length_around_the_limit_is_lost(stacks: Stacks, exchange: Exchange, http: Http) -> None:
    async with stacks(exchange, body_limit=LIMIT) as stack, client(stack.url, http) as gateway:
        sizes = [edge + more for edge in _edges(stack) for more in (-1, 0, 1)]
        for size in sizes:
            body = random.Random(size).randbytes(size)
            for sent in (body, [body[:-40], body[-40:]], [body, b""]):
                assert (await ask(gateway, sent, ECHO)).sha256 == digest(body), size
        await _all_served_by_first_choice(stack, len(sizes) * 3)


async def test_a_body_that_ends_in_the_read_that_passes_the_limit_is_not_lost(
    stacks: Stacks, exchange: Exchange
) -> None:
    """Its last bytes and its end in one segment, after the router has answered the headers. Envoy 1.40 in
    BUFFERED_PARTIAL drops that end."""
    async with stacks(exchange, body_limit=LIMIT) as stack:
        for framing, edge, beyond in product(("content-length", "chunked"), _edges(stack), (1, 1000)):
            body = random.Random(beyond).randbytes(edge + beyond)
            answer = await asyncio.wait_for(_in_two_segments(stack, body, edge - 10, framing), 10)
            assert f"x-request-body-sha256: {digest(body)}".encode() in answer.lower()


async def _in_two_segments(stack: Stack, body: bytes, split: int, framing: str) -> bytes:
    host, _, port = stack.gateway.options.listen.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))

    def segment(part: bytes, last: bool) -> bytes:
        if framing == "content-length":
            return part
        return b"%x\r\n%b\r\n%b" % (len(part), part, b"0\r\n\r\n" if last else b"")

    length = f"content-length: {len(body)}" if framing == "content-length" else "transfer-encoding: chunked"
    head = f"POST {ECHO} HTTP/1.1\r\nhost: test\r\nconnection: close\r\n{length}\r\n\r\n".encode()
    try:
        for sent in (head, segment(body[:split], False), segment(body[split:], True)):
            writer.write(sent)
            await writer.drain()
            await asyncio.sleep(0.02)
        return await reader.read()
    finally:
        writer.close()


def _edges(stack: Stack) -> list[int]:
    """Lengths at which a body changes its route, or passes what is buffered of it."""
    options = stack.gateway.options
    return [options.body_limit, options.body_limit + options.read_ahead, options.whole_limit]


async def test_what_is_no_prompt_passes_too(stacks: Stacks, exchange: Exchange, http: Http) -> None:
    async with stacks(exchange) as stack, client(stack.url, http) as gateway:
        noise = random.Random(1).randbytes(100_000)
        for body in (noise, b"", b"{", b'{"messages": 7}', "ü".encode("latin-1")):
            for sent in (body, [body]):
                reply = await ask(gateway, sent, ECHO)
                assert (reply.status, reply.sha256) == (404, digest(body))
        models = await ask(gateway, None, "/v1/models", method="GET")
        assert (models.status, models.sha256) == (200, digest(b""))
        await _all_served_by_first_choice(stack, 11)


async def test_equal_beginnings_of_long_bodies_meet_on_one_engine(stacks: Stacks, exchange: Exchange) -> None:
    """Longer than the limit: keyed by the first part."""
    async with stacks(exchange, body_limit=LIMIT) as stack, client(stack.url, "HTTP/1.1") as gateway:
        for seed in range(4):
            shared = text(seed, stack.gateway.options.whole_limit)
            served = {(await ask(gateway, chat(shared + text(end, 50_000)))).engine for end in range(3)}
            assert len(served) == 1
        prompts = await stack.router.samples("extproc_prompts_total")
        assert {kind: number for kind, number in prompts.items() if number} == {("chat", "partial"): 12}


async def test_a_conversation_that_grows_past_the_limit_moves_once_at_most(
    stacks: Stacks, exchange: Exchange
) -> None:
    async with stacks(exchange, body_limit=LIMIT) as stack, client(stack.url, "HTTP/1.1") as gateway:
        for seed in range(4):
            messages: list[dict[str, str]] = []
            engines = []
            while (
                sum(len(message["content"]) for message in messages) < 2 * stack.gateway.options.whole_limit
            ):
                messages.append({"role": "user", "content": text(100 * seed + len(messages), LIMIT // 3)})
                body = orjson.dumps({"model": "m", "messages": messages, "max_tokens": 1})
                engines.append((await ask(gateway, body)).engine)
                messages.append({"role": "assistant", "content": "Go on."})
            assert sum(before != after for before, after in pairwise(engines)) <= 1
        prompts = await stack.router.samples("extproc_prompts_total")
        assert prompts[("chat", "partial")] > 4
        assert prompts[("chat", "complete")] > 4


async def test_a_body_of_unknown_length_beyond_what_the_router_takes_is_refused(
    stacks: Stacks, exchange: Exchange
) -> None:
    """Envoy must hold such a body back, so there is an end to it; with content-length any size passes."""
    async with (
        stacks(
            exchange, router={"maxMessageBytes": 3 * MIB}, max_message_bytes=3 * MIB, body_limit=MIB
        ) as stack,
        client(stack.url, "HTTP/2") as gateway,
    ):
        # So much longer that Envoy cannot have read its end when it finds it too long.
        body = random.Random(1).randbytes(12 * MIB)
        assert (await ask(gateway, _pieces(body, MIB), ECHO)).status == 413
        assert (await ask(gateway, body, ECHO)).sha256 == digest(body)


async def test_a_websocket_is_opened(stacks: Stacks, exchange: Exchange) -> None:
    async def echo(request: web.Request) -> web.WebSocketResponse:
        socket = web.WebSocketResponse()
        await socket.prepare(request)
        async for message in socket:
            await socket.send_str(f"echo {message.data}")
        return socket

    async with stacks(exchange) as stack, AsyncExitStack() as cleanup:
        for engine in stack.engines:
            await engine.stop()
            app = web.Application()
            app.router.add_get("/v1/realtime", echo)
            runner = web.AppRunner(app, shutdown_timeout=0.1)
            await runner.setup()
            cleanup.push_async_callback(runner.cleanup)
            await web.TCPSite(runner, HOST, engine.port).start()
        async with (
            aiohttp.ClientSession() as session,
            session.ws_connect(f"{stack.url}/v1/realtime") as socket,
        ):
            await socket.send_str("hello")
            assert await socket.receive_str(timeout=5) == "echo hello"
        await _all_served_by_first_choice(stack, 1)


def _pieces(body: bytes, size: int) -> list[bytes]:
    return [body[start : start + size] for start in range(0, len(body), size)]


async def _all_served_by_first_choice(stack: Stack, requests: int) -> None:
    served = await stack.router.samples("extproc_served_total")
    assert {outcome: number for (outcome, _), number in served.items() if number} == {
        "first_choice": requests
    }
