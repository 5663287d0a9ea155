"""aiohttp in the place of the router's own HTTP client, to see what that one is worth."""

from __future__ import annotations

import ssl

import aiohttp
from yarl import URL

from extproc.pool.scraping.client import Response

_TIMEOUT = aiohttp.ClientTimeout(total=None, connect=None, sock_connect=None, sock_read=None)
_sessions: list[aiohttp.ClientSession] = []


class AiohttpPeer:
    """Has the methods of `extproc.pool.scraping.client.Peer`. All share one session, as aiohttp advises."""

    def __init__(
        self, host: str, port: int, tls: ssl.SSLContext | None = None, server_name: str | None = None
    ) -> None:
        self._url = URL(f"http://{host}:{port}/metrics", encoded=True)

    async def get(self, request: bytes, most: int) -> Response:
        if not _sessions:
            _sessions.append(
                aiohttp.ClientSession(
                    connector=aiohttp.TCPConnector(limit=0, use_dns_cache=False, keepalive_timeout=30.0),
                    cookie_jar=aiohttp.DummyCookieJar(),
                    headers={"accept": "text/plain", "accept-encoding": "identity"},
                    timeout=_TIMEOUT,  # the scraper has its own
                    read_bufsize=256 * 1024,
                )
            )
        async with _sessions[0].get(self._url, allow_redirects=False) as response:
            chunks = [chunk async for chunk in response.content.iter_any()]
            return Response(response.status, "", b"".join(chunks))

    def retire(self) -> None:
        pass


async def close() -> None:
    """Close the session."""
    while _sessions:
        await _sessions.pop().close()
