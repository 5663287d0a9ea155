"""Bytes on the wire: connections lead through here and are counted."""

from __future__ import annotations

import asyncio


class Wire:
    """Forwards connections to `port` of this machine, and counts the bytes of both directions."""

    def __init__(self, port: int) -> None:
        self._port = port
        self.bytes = 0
        self.address = ""
        self._server: asyncio.Server | None = None
        self._connections: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._connected, "127.0.0.1", 0)
        self.address = f"127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    async def stop(self) -> None:
        if self._server is not None:
            self._server.close()
        for connection in self._connections:
            connection.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)

    def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._connections.append(asyncio.create_task(self._join(reader, writer)))

    async def _join(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        far: asyncio.StreamWriter | None = None
        try:
            onward, far = await asyncio.open_connection("127.0.0.1", self._port)
            await asyncio.gather(self._pump(reader, far), self._pump(onward, writer))
        finally:
            writer.transport.abort()
            if far is not None:
                far.transport.abort()

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(1 << 16):
            self.bytes += len(data)
            writer.write(data)
            await writer.drain()
        writer.transport.abort()
