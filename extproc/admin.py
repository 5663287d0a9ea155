"""Questions that a person has to a running router, over HTTP on a loopback address. See docs/explain.md.

GET / says what this is; POST /explain takes a request's body and answers what would become of it, as JSON in
the form of `extproc.explanation.Explanation`. Parameters: `path` (the request's), `pool` (its name),
`route` (name of the gateway's), `subset` (endpoints, separated by commas), `incomplete=1` (the body was cut),
`show_text=1`. Its `Content-Encoding` is that of the request explained.

It runs in the event loop, so that it sees what a pick sees; nothing that is asked changes anything. Bodies
are read one at a time.
"""

from __future__ import annotations

import asyncio
import ipaddress
from collections.abc import Awaitable, Callable
from urllib.parse import urlsplit

import orjson
import structlog
from aiohttp import web

from extproc import __version__
from extproc.address import Address, subset_of
from extproc.explain import MAX_BODY_BYTES, Asked, ExplainError
from extproc.explanation import Explanation
from extproc.listening import sockets_of

READ_SECONDS = 10.0
"""A body that takes longer to come is not waited for: others wait for their turn."""
IDLE_SECONDS = 10.0
"""A connection on which nothing is asked for so long is closed."""
STOP_SECONDS = 0.5
"""Longest time that open connections are waited for at the end."""

_GREETING = (
    f"extproc {__version__}: POST a request's body to /explain to see where it would go and why"
    " (?path=, pool=, route=, subset=,"
    " incomplete=1, show_text=1).\n"
)
_PARAMETERS = ("path", "pool", "route", "subset", "incomplete", "show_text")
_SWITCHES = {"": False, "0": False, "1": True}

_log = structlog.get_logger(__name__)


class Admin:
    """The server; `explain` answers for the router that runs."""

    def __init__(self, explain: Callable[[Asked], Explanation]) -> None:
        self._explain = explain
        self._turn = asyncio.Lock()
        application = web.Application(client_max_size=MAX_BODY_BYTES, middlewares=[_called_by_loopback_name])
        application.router.add_get("/", _greet)
        application.router.add_post("/explain", self._answer)
        self._runner = web.AppRunner(
            application,
            access_log=None,
            auto_decompress=False,
            keepalive_timeout=IDLE_SECONDS,
            shutdown_timeout=STOP_SECONDS,
        )

    async def start(self, address: Address) -> Address:
        """Listen; returns the address with the port that the kernel chose where 0 was asked for.

        Raises OSError whose text names the address and what is wrong; `stop` is to be called then too.
        """
        try:
            (one,) = sockets_of(address)
        except OSError as error:
            raise OSError(f"admin cannot listen on {error}") from error
        await self._runner.setup()
        site = web.TCPSite(self._runner, one.host, one.port)
        try:
            await site.start()
        except OSError as error:
            raise OSError(f"admin cannot listen on {one}: {error.strerror}") from error
        return address._replace(port=self._runner.addresses[0][1])

    async def stop(self) -> None:
        """Close the port and every connection."""
        await self._runner.cleanup()

    async def _answer(self, request: web.Request) -> web.Response:
        unknown = [name for name in request.query if name not in _PARAMETERS]
        if unknown:
            return _refused(400, f"unknown parameter {unknown[0]!r}; there are: {', '.join(_PARAMETERS)}")
        switches = [_SWITCHES.get(request.query.get(name, "")) for name in ("incomplete", "show_text")]
        incomplete, show_text = switches
        if incomplete is None or show_text is None:
            return _refused(400, "incomplete and show_text are 1 or 0")
        async with self._turn:
            try:
                async with asyncio.timeout(READ_SECONDS):
                    body = await request.read()
            except TimeoutError:
                return _refused(408, f"the body did not come within {READ_SECONDS:g} seconds")
            except web.HTTPRequestEntityTooLarge:
                return _refused(413, f"the body has more than {MAX_BODY_BYTES} bytes")
            subset = request.query.get("subset")
            asked = Asked(
                body,
                request.query.get("path", ""),
                not incomplete,
                request.headers.get("Content-Encoding", ""),
                request.query.get("pool"),
                show_text,
                request.query.get("route"),
                None if subset is None else subset_of([subset]),
            )
            try:
                explained = self._explain(asked)
            except ExplainError as error:
                return _refused(404, str(error))
            except Exception as error:
                # Neither in the log nor in the answer: an exception's text may hold the body's.
                _log.error("a request cannot be explained", error=type(error).__name__)
                return _refused(500, f"{type(error).__name__} while explaining: this is a defect")
            return web.Response(body=orjson.dumps(explained), content_type="application/json")


async def _greet(_request: web.Request) -> web.Response:
    return web.Response(text=_GREETING)


@web.middleware
async def _called_by_loopback_name(
    request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
) -> web.StreamResponse:
    """Refuses what a browser sends on behalf of a page whose name was made to point to this machine."""
    try:
        name = urlsplit(f"//{request.host}").hostname or ""
        known = name == "localhost" or ipaddress.ip_address(name).is_loopback
    except ValueError:
        known = False
    if not known:
        return _refused(421, "call this by a loopback address or as localhost")
    return await handler(request)


def _refused(status: int, error: str) -> web.Response:
    body = orjson.dumps({"error": error})
    return web.Response(status=status, body=body, content_type="application/json")
