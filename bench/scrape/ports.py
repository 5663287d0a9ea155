"""`python -m bench.scrape.ports BUSY IDLE COUNT`: the metrics ports of many engines, in one process.

Prints its port and listens on every loopback address. The first COUNT addresses, from 127.0.0.1 on, answer
with the file BUSY, the others with IDLE, both at next to no cost: rendering is measured apart.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

_HEAD = (
    b"HTTP/1.1 200 OK\r\ncontent-type: text/plain; version=0.0.4; charset=utf-8\r\ncontent-length: %d\r\n\r\n"
)
_PER_NET = 250


def address(index: int, port: int) -> str:
    """The endpoint with this index."""
    return f"127.0.{index // _PER_NET}.{index % _PER_NET + 1}:{port}"


def _index(host: str) -> int:
    _, _, net, last = host.split(".")
    return int(net) * _PER_NET + int(last) - 1


class _Port(asyncio.Protocol):
    def __init__(self, busy: bytes, idle: bytes, count: int) -> None:
        self._busy, self._idle, self._count = busy, idle, count
        self._buffer = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        index = _index(transport.get_extra_info("sockname")[0])
        self._answer = self._busy if index < self._count else self._idle

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        while b"\r\n\r\n" in self._buffer:
            self._buffer = self._buffer.partition(b"\r\n\r\n")[2]
            self._transport.write(self._answer)


async def _serve(busy: bytes, idle: bytes, count: int) -> None:
    loop = asyncio.get_running_loop()
    pages = [_HEAD % len(page) + page for page in (busy, idle)]
    server = await loop.create_server(lambda: _Port(pages[0], pages[1], count), "0.0.0.0", 0, backlog=2048)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(_serve(Path(sys.argv[1]).read_bytes(), Path(sys.argv[2]).read_bytes(), int(sys.argv[3])))
