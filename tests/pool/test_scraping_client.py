"""The HTTP of a scrape: how responses end, and when a connection is used again."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

import pytest

from extproc.pool.scraping.client import NoConnectionError, NoResponseError, Peer
from tests.pool.engines import Answer, MetricsPort, answering, hanging, metrics_port, sending, until

REQUEST = b"GET /metrics HTTP/1.1\r\nhost: engine\r\n\r\n"
OK = b"HTTP/1.1 200 OK\r\ncontent-length: 3\r\n\r\nabc"


@contextlib.asynccontextmanager
async def asking(answer: Answer) -> AsyncIterator[tuple[Peer, MetricsPort]]:
    async with metrics_port(answer) as port:
        host, _, number = port.address.rpartition(":")
        peer = Peer(host, int(number))
        try:
            yield peer, port
        finally:
            peer.retire()


def keeping(*parts: bytes) -> Answer:
    """Sends these bytes and keeps the connection open."""

    async def answer(port: MetricsPort, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for part in parts:
            writer.write(part)
            await writer.drain()

    return answer


async def body(peer: Peer, most: int = 1_000_000) -> bytes | None:
    async with asyncio.timeout(10):
        response = await peer.get(REQUEST, most)
    assert response.status == 200
    return response.body


@pytest.mark.parametrize(
    "parts",
    [
        [OK],
        [OK[:20], OK[20:-2], OK[-2:]],
        [b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nlink: x\r\n\r\n", OK],
        [b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\na\r\n2\r\nbc\r\n0\r\n\r\n"],
        [
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n",
            b"content-encoding: gzip\r\n\r\n",
        ],
    ],
)
async def test_a_response_that_says_where_it_ends_leaves_the_connection_for_the_next(
    parts: list[bytes],
) -> None:
    async with asking(keeping(*parts)) as (peer, port):
        for _ in range(3):
            assert await body(peer) == b"abc"
        assert (len(port.requests), port.connections) == (3, 1)


async def test_a_page_larger_than_one_read_leaves_the_connection_for_the_next() -> None:
    async with asking(answering(b"x" * 900_000)) as (peer, port):
        for _ in range(3):
            assert await body(peer) == b"x" * 900_000
        assert port.connections == 1


@pytest.mark.parametrize(
    "head",
    [b"HTTP/1.1 200 OK\r\n\r\n", b"HTTP/1.0 200 OK\r\n\r\n", b"HTTP/1.1 200 OK\r\nconnection: close\r\n\r\n"],
)
async def test_a_response_that_ends_with_its_connection_is_taken_whole(head: bytes) -> None:
    async with asking(sending(head, b"abc")) as (peer, port):
        for _ in range(2):
            assert await body(peer) == b"abc"
        assert port.connections == 2


async def test_a_connection_that_is_to_be_closed_is_not_used_again() -> None:
    async with asking(answering(b"abc", headers="connection: close\r\n")) as (peer, port):
        for _ in range(2):
            assert await body(peer) == b"abc"
        assert port.connections == 2


@pytest.mark.parametrize("extra", [OK, b"HTTP/1.1 200 OK\r\n", b"garbage"])
async def test_what_nobody_asked_for_is_never_taken_for_the_next_response(extra: bytes) -> None:
    async with asking(keeping(OK + extra)) as (peer, port):
        for _ in range(3):
            with contextlib.suppress(NoResponseError):
                assert await body(peer) == b"abc"
        assert port.connections == 3


async def test_what_comes_while_the_connection_is_idle_closes_it() -> None:
    async def late(port: MetricsPort, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(OK)
        await asyncio.sleep(0.05)
        writer.write(OK.replace(b"abc", b"evil"))

    async with asking(late) as (peer, port):
        assert await body(peer) == b"abc"
        await until(lambda: port.open == 0)
        assert await body(peer) == b"abc"


@pytest.mark.parametrize("chunked", [False, True])
async def test_a_body_that_is_too_long_is_given_up_and_its_connection_too(chunked: bool) -> None:
    long = b"x" * 1000
    whole = b"HTTP/1.1 200 OK\r\ncontent-length: 1000\r\n\r\n" + long
    if chunked:
        whole = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n3e8\r\n" + long + b"\r\n0\r\n\r\n"
    async with asking(keeping(whole)) as (peer, port):
        assert await body(peer, most=999) is None
        assert await body(peer, most=1000) == long
        assert port.connections == 2


async def test_a_connection_that_was_closed_while_idle_is_opened_anew() -> None:
    async with asking(answering(b"abc")) as (peer, port):
        assert await body(peer) == b"abc"
        await port.stop()
        await port.start()
        assert await body(peer) == b"abc"


async def test_a_request_that_crosses_the_closing_of_its_connection_is_sent_again_once() -> None:
    async def second_time_closes(
        port: MetricsPort, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        if len(port.requests) % 2:
            await answering(b"abc")(port, reader, writer)
        else:
            writer.close()

    async with asking(second_time_closes) as (peer, port):
        for _ in range(3):
            assert await body(peer) == b"abc"
        assert len(port.requests) == 5

    async with asking(sending()) as (peer, port):
        with pytest.raises(NoResponseError, match="closed"):
            await body(peer)
        assert len(port.requests) == 1


@pytest.mark.parametrize(
    "parts",
    [
        [b"SSH-2.0-OpenSSH_9.6\r\n"],
        [b"HTTP/1.1 200 OK\r\ncontent-length: many\r\n\r\n"],
        [b"HTTP/1.1 200 OK\r\ncontent-length: 3\r\ncontent-length: 4\r\n\r\nabc"],
        [b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n"],
        [b"HTTP/1.1 101 Switching Protocols\r\nupgrade: h2c\r\nconnection: upgrade\r\n\r\n"],
        [b"\0" * 100],
    ],
)
async def test_what_is_not_http_is_refused(parts: list[bytes]) -> None:
    async with asking(keeping(*parts)) as (peer, _):
        with pytest.raises(NoResponseError):
            await body(peer)


async def test_nobody_there_is_told_from_no_response() -> None:
    async with asking(hanging) as (peer, port):
        await port.stop()
        with pytest.raises(NoConnectionError, match="Connection refused"):
            await body(peer)


async def test_a_request_that_is_cancelled_closes_its_connection() -> None:
    async with asking(hanging) as (peer, port):
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05):
                await peer.get(REQUEST, 100)
        await until(lambda: port.open == 0)
        port.answer = answering(b"abc")
        assert await body(peer) == b"abc"


async def test_a_retired_peer_closes_after_the_response_under_way() -> None:
    async def slow(port: MetricsPort, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await asyncio.sleep(0.05)
        await answering(b"abc")(port, reader, writer)

    async with asking(slow) as (peer, port):
        task = asyncio.create_task(body(peer))
        await until(lambda: port.under_way)
        peer.retire()
        assert await task == b"abc"
        await until(lambda: port.open == 0)
