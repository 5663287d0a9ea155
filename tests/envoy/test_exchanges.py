"""Whatever a gateway sends of a request, every byte of it passes, and its pin holds where it can.

Each test is one walk over many setups in one Envoy; tests/soak walks over all of them.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import random
import signal
import socket
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from itertools import product
from typing import NamedTuple

import pytest

from extproc.messages import BodyMode
from tests.envoy.any_exchange import (
    HASTY_SECONDS,
    AnyExchange,
    AnyStack,
    any_stack,
    new_router,
    open_streams,
    responses_begin,
)
from tests.envoy.client import BrokenError, Http
from tests.envoy.echo import FLOOD, TRAILER
from tests.envoy.exact import Answer, Pieces, send, slowly, upgraded
from tests.envoy.process import eventually
from tests.envoy.router import Router
from tests.envoy.traffic import CHAT, chat, digest, in_parallel, text
from tests.gateway_model import Setup, every_setup

HTTPS: tuple[Http, ...] = ("HTTP/1.1", "HTTP/2")
FULL = BodyMode.FULL_DUPLEX_STREAMED
BUFFERED = (BodyMode.BUFFERED, BodyMode.BUFFERED_PARTIAL)

EVERY = every_setup()
# Every request body mode meets every response body mode, and everything else meets both.
SOME = EVERY[::23]
BY_BODY = [
    Setup(request_headers, mode, request_trailers=mode is FULL, without_waiting=not waiting)
    for request_headers, mode, waiting in product((True, False), BodyMode, (True, False))
]
BOTH_WAYS = [Setup(True, FULL, True, response_body=FULL, without_waiting=flag) for flag in (True, False)]
FIXED = [Setup(True, mode, mode is FULL, allow_override=False) for mode in BodyMode]
MIB = 1 << 20
TWO_MESSAGES = Setup(True, BodyMode.BUFFERED_PARTIAL)
STREAMED_RESPONSE = replace(TWO_MESSAGES, response_body=BodyMode.STREAMED)
# As Envoy Gateway leaves it where only the request is asked for.
BARE = [replace(setup, response_trailers=False) for setup in BY_BODY if setup.request_headers]


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AnyExchange]:
    setups = [*SOME, *BY_BODY, *BOTH_WAYS, *FIXED, STREAMED_RESPONSE, *BARE]
    started = AnyExchange(setups, tmp_path_factory.mktemp("any-exchange"))
    yield started
    started.process.kill()


@pytest.fixture(scope="module")
def router(gateway: AnyExchange, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Router]:
    shared = new_router(gateway, tmp_path_factory.mktemp("any-exchange-router"))
    yield shared
    shared.kill()


@pytest.fixture
async def stack(gateway: AnyExchange, router: Router) -> AsyncIterator[AnyStack]:
    """Nothing may be left over when a test ends, and nothing in it may have been out of place."""
    async with any_stack(gateway, router) as started:
        yield started
        await started.leaves_nothing()


class Shape(NamedTuple):
    """What a client sends."""

    pieces: tuple[bytes, ...] | None
    trailers: bool = False
    pause: float = 0.0

    @property
    def body(self) -> bytes:
        return b"".join(self.pieces or ())


NOISE = random.Random(1).randbytes(300_000)
SHAPES = {
    "GET": Shape(None),
    "small": Shape((chat("hello"),)),
    "pieces": Shape(tuple(NOISE[at : at + 9000] for at in range(0, 54_000, 9000)), pause=0.002),
    "large": Shape((NOISE,)),
    "trailers": Shape((b"abc" * 100, b"def"), trailers=True),
    "trailers alone": Shape((), trailers=True),
}


async def pass_through(
    stack: AnyStack, setup: Setup, shape: Shape, client: Http, upstream: Http
) -> list[str]:
    """What is wrong with what came through; empty if all of it is right."""
    pieces: Pieces | None = shape.pieces
    if shape.pieces is not None and shape.pause:
        pieces = slowly(shape.pieces, shape.pause)
    try:
        answer = await asyncio.wait_for(
            send(
                stack.gateway.listener(setup),
                client,
                "GET" if shape.pieces is None else "POST",
                stack.gateway.path(setup, upstream, "v1/chat/completions"),
                headers={"te": "trailers"},
                pieces=pieces,
                trailers={TRAILER: "yes"} if shape.trailers else None,
            ),
            30,
        )
    except (BrokenError, TimeoutError) as error:
        return [f"{type(error).__name__} {error}"]
    return wrong(answer, shape)


def wrong(answer: Answer, shape: Shape) -> list[str]:
    if answer.status != 200:
        return [f"status {answer.status}"]
    faults = []
    if answer.headers["x-request-body-sha256"] != digest(shape.body):
        faults.append(f"{answer.headers['x-request-body-bytes']} bytes of {len(shape.body)} at the engine")
    if answer.body != shape.body:
        faults.append(f"{len(answer.body)} bytes of {len(shape.body)} at the client")
    if shape.trailers and answer.headers.get("x-request-trailer") != "yes":
        faults.append("no trailers at the engine")
    if shape.trailers and answer.trailers.get(TRAILER) != "yes":
        faults.append("no trailers at the client")
    return faults


async def walk(
    stack: AnyStack, setups: Sequence[Setup], combinations: Sequence[tuple[str, Http, Http]]
) -> None:
    """Every setup with every combination of shape, client's and engine's version of HTTP."""

    async def one(case: tuple[Setup, tuple[str, Http, Http]]) -> str:
        setup, (shape, client, upstream) = case
        faults = await pass_through(stack, setup, SHAPES[shape], client, upstream)
        return f"{shape} {client} to {upstream}, {setup}: {', '.join(faults)}" if faults else ""

    faults = [fault for fault in await in_parallel(product(setups, combinations), 8, one) if fault]
    assert not faults, f"{len(faults)} faults:\n" + "\n".join(faults[:40])


async def test_every_byte_and_trailer_passes_in_every_setup(stack: AnyStack) -> None:
    await walk(
        stack,
        [*SOME, *BY_BODY, *BOTH_WAYS],
        [
            ("GET", "HTTP/2", "HTTP/1.1"),
            ("pieces", "HTTP/1.1", "HTTP/1.1"),
            ("large", "HTTP/2", "HTTP/2"),
            ("trailers", "HTTP/2", "HTTP/2"),
            ("trailers", "HTTP/1.1", "HTTP/1.1"),
            ("trailers alone", "HTTP/2", "HTTP/2"),
        ],
    )
    spurious = await stack.gateway.stats(r"ext_proc\.any\.(spurious_msgs_received|message_timeouts)$")
    assert set(spurious.values()) <= {0}


async def test_several_megabytes_pass_both_ways_in_every_mode(stack: AnyStack) -> None:
    """Longer than what Envoy buffers, which it refuses to where it has to hold all of it."""
    body = NOISE * 20
    modes = (BodyMode.NONE, BodyMode.STREAMED, BodyMode.BUFFERED_PARTIAL, FULL)
    for setup in (*BOTH_WAYS, *(s for s in BY_BODY if s.request_headers and s.request_body in modes)):
        answer = await asyncio.wait_for(
            send(
                stack.gateway.listener(setup),
                "HTTP/2",
                "POST",
                stack.gateway.path(setup, "HTTP/2", "v1/chat/completions"),
                pieces=[body],
            ),
            60,
        )
        assert wrong(answer, Shape((body,))) == [], setup


async def test_equal_prompts_meet_on_one_engine_wherever_the_router_reads_them(stack: AnyStack) -> None:
    keyed = [
        setup
        for setup in BY_BODY
        if setup.request_headers and setup.request_body in (*BUFFERED, BodyMode.STREAMED, FULL)
    ]
    prompts = [chat(text(seed, 3000)) for seed in range(6)]
    for setup in keyed:
        for prompt in prompts:
            served = set()
            for client in HTTPS:
                answer = await send(
                    stack.gateway.listener(setup),
                    client,
                    "POST",
                    stack.gateway.path(setup, "HTTP/2", CHAT[1:]),
                    headers={"content-length": str(len(prompt))},
                    pieces=[prompt],
                )
                served.add(answer.headers["x-simulated-engine"])
            assert len(served) == 1, setup
    assert set(await stack.served()) == {"first_choice"}


async def test_every_pin_holds_where_the_request_headers_are_sent(stack: AnyStack) -> None:
    shapes: list[tuple[str, Http, Http]] = [(shape, "HTTP/2", "HTTP/2") for shape in SHAPES]
    await walk(stack, [setup for setup in BY_BODY if setup.request_headers], shapes)
    assert set(await stack.served()) == {"first_choice"}


async def test_a_pin_that_comes_too_late_makes_no_endpoint_suspect(stack: AnyStack) -> None:
    """Headers skipped: Envoy has chosen before the body is read. Nothing is wrong with the first choice."""
    setups = [s for s in BY_BODY if not s.request_headers and s.request_body in (BodyMode.STREAMED, FULL)]
    await walk(stack, setups * 6, [("small", "HTTP/2", "HTTP/2"), ("pieces", "HTTP/1.1", "HTTP/1.1")])
    assert await stack.router.metric("extproc_endpoint_suspect") == 0
    assert (await stack.served())["untried"] > 0


async def test_a_connection_is_upgraded_in_every_setup(stack: AnyStack) -> None:
    """A websocket's bytes flow both ways, over HTTP/1.1 and by the extended CONNECT of HTTP/2."""
    setups = [setup for setup in (*BY_BODY, *FIXED, *SOME) if _heard_of(setup)]

    async def one(case: tuple[Setup, Http]) -> str:
        setup, client = case
        path = stack.gateway.path(setup, "HTTP/1.1", "v1/realtime")
        try:
            async with asyncio.timeout(10), upgraded(stack.gateway.listener(setup), client, path) as tunnel:
                for said in (b"hello", NOISE[:40_000], b"bye"):
                    await tunnel.write(said)
                    assert await tunnel.read_exactly(len(said)) == said
        except (BrokenError, TimeoutError, AssertionError, asyncio.IncompleteReadError) as error:
            return f"{client}, {setup}: {type(error).__name__} {error}"
        return ""

    faults = [fault for fault in await in_parallel(product(setups, HTTPS), 24, one) if fault]
    assert not faults, f"{len(faults)} faults:\n" + "\n".join(faults[:40])


def _heard_of(setup: Setup) -> bool:
    """Whether the router hears anything of an upgrade. If not, no router can stop Envoy from buffering it."""
    buffers = setup.request_body in BUFFERED or setup.response_body in BUFFERED
    return setup.request_headers or setup.response_headers or not buffers


async def test_an_upgraded_connection_counts_as_in_flight_while_it_is_open(stack: AnyStack) -> None:
    for setup in BY_BODY:
        # Where the gateway takes no override it has to go on alone.
        if not setup.request_headers or (setup.without_waiting and setup.request_body in BUFFERED):
            continue
        path = stack.gateway.path(setup, "HTTP/1.1", "v1/realtime")
        async with upgraded(stack.gateway.listener(setup), "HTTP/1.1", path) as tunnel:
            await tunnel.write(b"hello")
            assert await tunnel.read_exactly(5) == b"hello"
            assert await stack.router.metric("extproc_in_flight_requests") == 1, setup
        await stack.leaves_nothing()


async def test_a_tunnel_is_opened_by_connect(stack: AnyStack) -> None:
    host, _, port = stack.gateway.listener(BY_BODY[0]).rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    try:
        async with asyncio.timeout(10):
            writer.write(b"CONNECT engine:80 HTTP/1.1\r\nhost: engine:80\r\n\r\n")
            assert b" 200 " in (await reader.readuntil(b"\r\n\r\n")).splitlines()[0]
            writer.write(b"GET /inside HTTP/1.1\r\nhost: engine\r\n\r\n")
            assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 200")
    finally:
        writer.close()


async def test_a_request_is_in_flight_until_its_response_has_ended(stack: AnyStack) -> None:
    """Also where the gateway was not told to send response trailers, without which Envoy may end the exchange
    as soon as the response has begun: the router asks for them."""
    for setup in [*BARE, *BY_BODY]:
        if not setup.request_headers or setup.without_waiting:
            continue
        for engine in stack.engines:
            engine.release.clear()
        before = stack.begun
        path = stack.gateway.path(setup, "HTTP/2", "v1/chat/completions?hold")
        answering = asyncio.create_task(
            send(stack.gateway.listener(setup), "HTTP/2", "POST", path, pieces=[chat("hello")])
        )

        await responses_begin(stack, before + 1)
        assert await stack.router.metric("extproc_in_flight_requests") == 1, setup
        for engine in stack.engines:
            engine.release.set()
        assert (await answering).status == 200
        await stack.leaves_nothing()


async def test_a_response_that_begins_before_its_request_has_ended_loses_nothing(stack: AnyStack) -> None:
    full = [setup for setup in EVERY if setup in SOME and FULL in (setup.request_body, setup.response_body)]
    setups = [setup for setup in (*BY_BODY, *full) if setup.request_body not in BUFFERED]

    async def one(setup: Setup) -> str:
        pieces = (NOISE[:100_000],) * 3
        answer = await asyncio.wait_for(
            send(
                stack.gateway.listener(setup),
                "HTTP/2",
                "POST",
                stack.gateway.path(setup, "HTTP/2", "v1/chat/completions?early"),
                pieces=slowly(pieces, 0.02),
            ),
            30,
        )
        return "" if answer.body == b"".join(pieces) else f"{setup}: {len(answer.body)} bytes"

    assert [fault for fault in await in_parallel(setups, 4, one) if fault] == []


async def test_a_client_slower_than_the_message_time_out_is_served(stack: AnyStack) -> None:
    """The reply to the headers waits for the body, and Envoy for that reply no longer than it is told."""
    slow = [
        setup
        for setup in BY_BODY
        if setup.request_headers and (setup.without_waiting or setup.request_body is not BodyMode.STREAMED)
    ]

    async def one(setup: Setup) -> int:
        answer = await send(
            stack.gateway.listener(setup, hasty=True),
            "HTTP/2",
            "POST",
            stack.gateway.path(setup, "HTTP/2", "v1/chat/completions"),
            pieces=slowly([b'{"messages": ', b"[]}"], 1.5 * HASTY_SECONDS),
        )
        assert answer.body == b'{"messages": []}'
        return answer.status

    assert set(await in_parallel(slow, 20, one)) == {200}


async def test_a_client_that_waits_for_the_response_before_it_ends_its_request_is_served(
    stack: AnyStack,
) -> None:
    """As in a conversation over one HTTP/2 stream: nobody may wait for the end of such a body."""
    answered = asyncio.Event()

    async def conversation() -> AsyncIterator[bytes]:
        yield b"a question"
        await answered.wait()
        yield b" and another"

    for setup in (s for s in BY_BODY if s.request_headers and s.request_body in (BodyMode.STREAMED, FULL)):
        answered.clear()
        before = stack.begun
        path = stack.gateway.path(setup, "HTTP/2", "v1/chat/completions?early")
        sending = asyncio.create_task(
            send(stack.gateway.listener(setup), "HTTP/2", "POST", path, pieces=conversation())
        )
        await responses_begin(stack, before + 1)
        answered.set()
        assert (await sending).body == b"a question and another"


async def test_expect_100_continue_is_answered_before_the_body_in_every_mode(stack: AnyStack) -> None:
    for setup in BY_BODY:
        host, _, port = stack.gateway.listener(setup).rpartition(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        try:
            async with asyncio.timeout(10):
                path = stack.gateway.path(setup, "HTTP/1.1", "v1/chat/completions")
                writer.write(
                    f"POST /{path[1:]} HTTP/1.1\r\nhost: x\r\nexpect: 100-continue\r\n"
                    "content-length: 5\r\n\r\n".encode()
                )
                assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 100")
                writer.write(b"hello")
                head = await reader.readuntil(b"\r\n\r\n")
                assert hashlib.sha256(b"hello").hexdigest().encode() in head
        finally:
            writer.close()


@pytest.mark.parametrize("setup", [TWO_MESSAGES, BOTH_WAYS[1]], ids=["two messages", "full duplex"])
async def test_an_open_response_costs_the_router_little_memory(stack: AnyStack, setup: Setup) -> None:
    """Measured: 26 KB. The bound leaves room for what the allocator takes at once."""
    assert (await open_streams(stack, setup, 300)).bytes_each < 100_000


async def test_clients_that_do_not_read_fill_neither_the_router_nor_the_engine(stack: AnyStack) -> None:
    """A response far longer than all buffers waits at the engine, also where each byte of it passes the
    router."""
    process = stack.router.process
    assert process is not None
    for setup in (BOTH_WAYS[1], STREAMED_RESPONSE):
        path = stack.gateway.path(setup, "HTTP/2", "v1/chat/completions?flood")
        request = f"POST {path} HTTP/1.1\r\nhost: x\r\ncontent-length: 2\r\n\r\n{{}}".encode()
        before, begun = process.resident, stack.begun
        with contextlib.ExitStack() as clients:
            for _ in range(40):
                clients.enter_context(_unread(stack.gateway.listener(setup))).sendall(request)
            await responses_begin(stack, begun + 40)
            await asyncio.sleep(1)
            assert process.resident - before < 40 * MIB
            assert await stack.router.metric("extproc_streams") == 40
        await stack.leaves_nothing()


def _unread(address: str) -> socket.socket:
    """A connection that nobody reads from, and that takes little by itself."""
    connection = socket.socket()
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    host, _, port = address.rpartition(":")
    connection.connect((host, int(port)))
    return connection


async def test_a_gateway_that_stands_still_fills_no_queue_and_finds_its_streams_again(
    stack: AnyStack,
) -> None:
    process = stack.router.process
    assert process is not None
    setup = BOTH_WAYS[1]
    path = stack.gateway.path(setup, "HTTP/2", "v1/chat/completions?flood")
    flows = [
        asyncio.create_task(send(stack.gateway.listener(setup), "HTTP/2", "POST", path, pieces=[b"{}"]))
        for _ in range(4)
    ]
    await eventually(lambda: stack.begun > 0, "a response has begun")
    stack.gateway.process.signal(signal.SIGSTOP)
    try:
        await asyncio.sleep(0.5)
        before = process.resident
        await asyncio.sleep(1)
        assert process.resident - before < 4 * MIB
    finally:
        stack.gateway.process.signal(signal.SIGCONT)
    assert {len((await flow).body) for flow in flows} == {len(FLOOD)}


@asynccontextmanager
async def uploading(
    stack: AnyStack, setup: Setup
) -> AsyncIterator[tuple[asyncio.Task[Answer], asyncio.Event, bytes]]:
    """A request whose first half has come and whose second half waits for the event."""
    go_on = asyncio.Event()
    half = NOISE[:150_000]

    async def pieces() -> AsyncIterator[bytes]:
        yield half
        await go_on.wait()
        yield half

    path = stack.gateway.path(setup, "HTTP/2", "v1/chat/completions")
    sending = asyncio.create_task(
        send(stack.gateway.listener(setup), "HTTP/2", "POST", path, pieces=pieces())
    )
    try:
        yield sending, go_on, half * 2
    finally:
        sending.cancel()


@pytest.mark.parametrize("mode", [BodyMode.STREAMED, FULL], ids=lambda mode: mode.name)
async def test_a_router_drained_in_the_middle_of_an_upload_loses_no_byte_of_it(
    gateway: AnyExchange, router: Router, mode: BodyMode
) -> None:
    """Though Envoy fails closed. STREAMED goes on without the router, FULL_DUPLEX_STREAMED is waited for."""
    setup = Setup(True, mode, mode is FULL, without_waiting=True)
    async with any_stack(gateway, router) as stack, uploading(stack, setup) as (sending, go_on, body):

        async def picked() -> bool:
            return sum((await stack.counted("extproc_requests_total")).values()) == 1

        await eventually(picked, "it is picked")
        router.drain()
        process = router.process
        assert process is not None
        if mode is FULL:
            await asyncio.sleep(0.5)
            assert process.running
        else:
            assert await process.exit_code(15) == 0
        go_on.set()
        answer = await asyncio.wait_for(sending, 15)
        assert answer.body == body
        assert await process.exit_code(15) == 0


async def test_a_gateway_that_only_shows_requests_is_not_answered_and_counts_nothing(
    gateway: AnyExchange, router: Router
) -> None:
    setup = Setup(True, BodyMode.STREAMED)
    async with any_stack(gateway, router) as stack:
        for _ in range(3):
            answer = await send(
                stack.gateway.listener(setup, watching=True),
                "HTTP/2",
                "POST",
                stack.gateway.path(setup, "HTTP/2", "v1/chat/completions"),
                pieces=[chat("hello")],
            )
            assert answer.status == 200

        async def seen() -> bool:
            return sum((await stack.counted("extproc_unexpected_messages_total")).values()) >= 12

        await eventually(seen, "every message is counted as of no use")
        assert await stack.counted("extproc_requests_total") == {}
