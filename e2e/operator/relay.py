"""A TCP relay before a source: how fast it is, whether it answers, and how many bytes it gave."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import Iterator

CHUNK = 64 << 10
"""Bytes that are read at a time; a limit of the rate holds to within as much."""


class Relay:
    """Passes connections on to a server of this machine.

    `rate` limits what all connections together bring to clients, in bytes per second; None does not. `gone`
    refuses new connections and cuts those that are open. Both may be set at any time.
    """

    def __init__(self, host: str, target: tuple[str, int]) -> None:
        self.rate: float | None = None
        self.passed = 0
        """Bytes brought to clients so far, what is said of them included."""
        self._gone = False
        self._host, self._target = host, target
        self._loop = asyncio.new_event_loop()
        self._free_at = 0.0
        self._open: set[asyncio.StreamWriter] = set()
        self.port = 0

    @property
    def gone(self) -> bool:
        """Whether the source is away."""
        return self._gone

    @gone.setter
    def gone(self, gone: bool) -> None:
        self._gone = gone
        if gone:
            asyncio.run_coroutine_threadsafe(self._cut(), self._loop).result(10)

    @contextlib.contextmanager
    def running(self) -> Iterator[Relay]:
        """Relay in a thread while the block runs."""
        server = self._loop.run_until_complete(asyncio.start_server(self._serve, self._host, 0))
        self.port = server.sockets[0].getsockname()[1]
        thread = threading.Thread(target=self._loop.run_forever)
        thread.start()
        try:
            yield self
        finally:
            server.close()
            self.gone = True
            self._loop.call_soon_threadsafe(self._loop.stop)
            thread.join(10)
            self._loop.close()

    async def _cut(self) -> None:
        for writer in list(self._open):
            writer.transport.abort()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._gone:
            writer.transport.abort()
            return
        self._open.add(writer)
        try:
            there, back = await asyncio.open_connection(*self._target)
            self._open.add(back)
            try:
                await asyncio.gather(self._pass(reader, back), self._pass(there, writer, counted=True))
            finally:
                self._open.discard(back)
                back.transport.abort()
        except OSError:
            pass
        finally:
            self._open.discard(writer)
            writer.transport.abort()

    async def _pass(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, counted: bool = False
    ) -> None:
        while data := await reader.read(CHUNK):
            if counted:
                self.passed += len(data)
                await self._pace(len(data))
            writer.write(data)
            await writer.drain()
        if writer.can_write_eof():
            writer.write_eof()

    async def _pace(self, count: int) -> None:
        if self.rate is None:
            return
        now = time.monotonic()
        self._free_at = max(self._free_at, now) + count / self.rate
        await asyncio.sleep(self._free_at - now)
