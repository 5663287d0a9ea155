"""Engines' metrics ports for tests: real servers on loopback that answer as a test wants."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

Answer = Callable[["MetricsPort", asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


def page(running: int = 0, waiting: int = 0) -> bytes:
    """A small page of a vLLM engine."""
    return (
        b'vllm:num_requests_running{engine="0"} %d.0\nvllm:num_requests_waiting{engine="0"} %d.0\n'
        b'vllm:kv_cache_usage_perc{engine="0"} 0.5\n' % (running, waiting)
    )


def answering(body: bytes, status: str = "200 OK", headers: str = "") -> Answer:
    """Answers every request with this."""
    head = f"HTTP/1.1 {status}\r\ncontent-type: text/plain\r\ncontent-length: {len(body)}\r\n{headers}\r\n"

    async def answer(port: MetricsPort, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(head.encode() + body)
        await writer.drain()

    return answer


def sending(*parts: bytes, seconds: float = 0.0) -> Answer:
    """Sends these bytes, `seconds` apart, and closes the connection."""

    async def answer(port: MetricsPort, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for part in parts:
            writer.write(part)
            await writer.drain()
            await asyncio.sleep(seconds)
        writer.close()

    return answer


async def hanging(port: MetricsPort, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Takes the request and never answers; ends when the client does."""
    await reader.read()
    writer.close()


class MetricsPort:
    """What an engine's metrics port was asked, and how it answers from the next request on."""

    def __init__(self, answer: Answer) -> None:
        self.answer = answer
        self.address = ""
        self.requests: list[str] = []
        """The head of each, as it came."""
        self.connections = 0
        """Ever opened."""
        self.open = 0
        self.under_way = 0
        self.most_under_way = 0
        """Requests that were answered at the same time, from the same client address."""
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    def asked(self, name: str) -> list[str]:
        """The values of a header in all requests."""
        lines = [line for head in self.requests for line in head.split("\r\n")]
        return [line.partition(": ")[2] for line in lines if line.lower().startswith(name + ": ")]

    @property
    def paths(self) -> set[str]:
        return {head.split(" ")[1] for head in self.requests}

    async def start(
        self, host: str = "127.0.0.1", port: int = 0, trust: ssl.SSLContext | None = None
    ) -> None:
        if self.address and not port:
            host, _, was = self.address.rpartition(":")
            port = int(was)
        self._server = await asyncio.start_server(self._serve, host, port, ssl=trust, backlog=1024)
        self.address = "{}:{}".format(*self._server.sockets[0].getsockname()[:2])

    async def stop(self) -> None:
        """Stop listening and cut every connection; `start` listens on the same port again."""
        if self._server is not None:
            self._server.close()
            self._server = None
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        self.connections += 1
        self.open += 1
        try:
            while not writer.is_closing():
                head = await reader.readuntil(b"\r\n\r\n")
                self.requests.append(head.decode())
                self.under_way += 1
                self.most_under_way = max(self.most_under_way, self.under_way)
                try:
                    await self.answer(self, reader, writer)
                finally:
                    self.under_way -= 1
        except (asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError, ssl.SSLError):
            pass
        finally:
            self.open -= 1
            self._tasks.discard(task)
            writer.close()


@asynccontextmanager
async def metrics_port(
    answer: Answer, host: str = "127.0.0.1", trust: ssl.SSLContext | None = None
) -> AsyncIterator[MetricsPort]:
    port = MetricsPort(answer)
    await port.start(host, trust=trust)
    try:
        yield port
    finally:
        await port.stop()


async def until(condition: Callable[[], object], seconds: float = 10.0) -> None:
    """Wait until something holds; TimeoutError if it does not in time."""
    async with asyncio.timeout(seconds):
        while not condition():  # noqa: ASYNC110 - what is waited for has no event
            await asyncio.sleep(0.005)
