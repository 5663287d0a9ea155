"""HTTP as every source over it needs it: ranged GETs, what can go wrong, and waiting before another try.

urllib3 reads a range with less processor time than httpx or obstore; docs/sources.md has the figures. No
redirect is followed and nothing retried below this module.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from email.utils import parsedate_to_datetime
from typing import TypeVar
from urllib.parse import urljoin, urlsplit
from urllib.request import getproxies, proxy_bypass

import tenacity
import urllib3

from cacheprep import __version__
from cacheprep.failures import Failure, Reason
from cacheprep.listing import File
from cacheprep.sources.http1 import pools

_SMALL_BYTES = 256 << 10
"""Of a body that is read to its end rather than a connection closed."""
MAX_REDIRECTS = 5
MAX_CONNECTIONS = 256
"""Kept open for the next range; more may be open at once."""
REDIRECTS = frozenset({301, 302, 303, 307, 308})
_TRANSIENT = frozenset({408, 421, 425, 429})
_ATTEMPTS = 5
_LONGEST_WAIT_S = 60.0
_NEVER = urllib3.Retry(False, redirect=False)
_T = TypeVar("_T")


class Web:
    """A pool of connections, shared by threads."""

    def __init__(self, timeout_s: float, authorities: str | None = None) -> None:
        """`authorities` is a file of certificates to trust; None for those of the system."""
        self._timeout = urllib3.Timeout(connect=timeout_s, read=timeout_s)
        self._authorities = authorities
        self._direct = pools(MAX_CONNECTIONS, self._authorities)
        self._proxied: dict[str, urllib3.PoolManager] = {}
        self._pools: dict[tuple[str, str], tuple[urllib3.HTTPConnectionPool, bool]] = {}
        """By origin; and whether a proxy that passes requests on is between. Finding that out anew takes as
        long as the rest of a request."""

    @contextmanager
    def get(
        self, url: str, headers: Mapping[str, str], what: str, *, method: str = "GET"
    ) -> Iterator[urllib3.BaseHTTPResponse]:
        """The response to one request, whatever its status, before its body is read.

        `what` names in messages what is asked for. The connection is kept if the body was read to its end,
        else closed. Raises Failure(SourceUnavailable) where no response comes.
        """
        sent = {"Accept-Encoding": "identity", "User-Agent": f"warmroute/{__version__}", **headers}
        try:
            pool, passed_on = self._pool(*origin(url))
            response = pool.urlopen(
                method,
                url if passed_on else _target(url),
                headers=sent,
                timeout=self._timeout,
                retries=_NEVER,
                redirect=False,
                assert_same_host=False,
                preload_content=False,
                decode_content=False,
            )
        except (urllib3.exceptions.HTTPError, OSError, ValueError) as error:
            raise unavailable(what, url, error) from error
        try:
            yield response
        finally:
            small = response.status in REDIRECTS and (response.length_remaining or 0) <= _SMALL_BYTES
            if small or (response.length_remaining == 0 and not response.closed):
                # Also where there is no body: the connection counts as busy until its end was read.
                response.drain_conn()
            if response.length_remaining == 0:
                response.release_conn()
            else:
                response.close()

    @contextmanager
    def get_following(
        self, url: str, headers: Mapping[str, str], what: str, *, method: str = "GET"
    ) -> Iterator[urllib3.BaseHTTPResponse]:
        """As `get`, and follows redirects; another origin does not get the Authorization header."""
        sent = dict(headers)
        for _ in range(MAX_REDIRECTS + 1):
            with self.get(url, sent, what, method=method) as response:
                if response.status not in REDIRECTS:
                    yield response
                    return
                then = redirected(url, response, what)
            if origin(then) != origin(url):
                sent.pop("Authorization", None)
            url = then
        raise Failure(Reason.SOURCE_UNAVAILABLE, f"{what}: more than {MAX_REDIRECTS} redirects")

    def close(self) -> None:
        """Close the connections that are idle."""
        for pool, _ in self._pools.values():
            pool.close()
        self._pools.clear()
        for manager in (self._direct, *self._proxied.values()):
            manager.clear()

    def _pool(self, scheme: str, host: str) -> tuple[urllib3.HTTPConnectionPool, bool]:
        """The connections to an origin, and whether the whole URL is sent over them."""
        found = self._pools.get((scheme, host))
        if found is None:
            proxy = getproxies().get(scheme)
            manager = self._direct
            if proxy and not proxy_bypass(host):
                if proxy not in self._proxied:
                    self._proxied[proxy] = urllib3.ProxyManager(
                        proxy, maxsize=MAX_CONNECTIONS, ca_certs=self._authorities
                    )
                manager = self._proxied[proxy]
            # RFC 9112, section 3.2.2; to https a tunnel is made (CONNECT).
            passed_on = manager is not self._direct and scheme == "http"
            found = manager.connection_from_url(f"{scheme}://{host}"), passed_on
            self._pools[scheme, host] = found
        return found


def origin(url: str) -> tuple[str, str]:
    """Scheme and host with port: who gets to see what is sent."""
    parts = urlsplit(url)
    return parts.scheme, parts.netloc


def _target(url: str) -> str:
    """What a server is asked for (RFC 9112, section 3.2.1)."""
    parts = urlsplit(url)
    return (parts.path or "/") + (f"?{parts.query}" if parts.query else "")


def redirected(url: str, response: urllib3.BaseHTTPResponse, what: str) -> str:
    """Where a response sends the client. Raises Failure(SourceUnavailable) if that is no HTTP URL."""
    then = urljoin(url, response.headers.get("Location", ""))
    if urlsplit(then).scheme not in ("http", "https") or (
        url.startswith("https:") and then.startswith("http:")
    ):
        raise Failure(
            Reason.SOURCE_UNAVAILABLE, f"{what}: redirected to {shown(then)}, which is not followed"
        )
    return then


def shown(url: str) -> str:
    """A URL without its query, which may be a signature."""
    return f"{url.partition('?')[0]!a:.300}"


def range_header(start: int, end: int) -> dict[str, str]:
    """The header that asks for bytes [start, end)."""
    return {"Range": f"bytes={start}-{end - 1}"}  # RFC 9110, section 14.1.2: the last position is included


def check_range(response: urllib3.BaseHTTPResponse, file: File, start: int, end: int) -> None:
    """That the body will be bytes [start, end) of a file of the listed size.

    Raises Failure: SourceChanged for another size, SourceUnavailable for another range than asked,
    InvalidRequest for a server that does not serve ranges, and what `failure` says for an error status.
    """
    what = f"file {file.name!a}"
    encoding = response.headers.get("Content-Encoding", "identity")
    if response.status in (200, 206) and encoding != "identity":
        raise Failure(
            Reason.INVALID_REQUEST, f"{what}: comes in Content-Encoding {encoding!a:.40}; serve it as it is"
        )
    if response.status == 206:
        said = response.headers.get("Content-Range", "")
        if said == f"bytes {start}-{end - 1}/{file.size}":
            return
        total = said.rpartition("/")[2]
        if total.isdecimal() and int(total) != file.size:
            raise Failure(
                Reason.SOURCE_CHANGED, f"{what}: was {file.size} bytes, is {total}; list the source anew"
            )
        asked = f"bytes {start}-{end - 1}/{file.size}"
        raise Failure(Reason.SOURCE_UNAVAILABLE, f"{what}: asked for {asked}, got {said!a:.100}")
    if response.status == 200:
        length = response.headers.get("Content-Length", "")
        if length.isdecimal() and int(length) != file.size:
            raise Failure(
                Reason.SOURCE_CHANGED, f"{what}: was {file.size} bytes, is {length}; list the source anew"
            )
        if (start, end) != (0, file.size):
            raise without_ranges(what)
        return
    raise failure(response.status, response.headers, what, listed=True)


def without_ranges(what: str) -> Failure:
    """A server that answers a range with the whole."""
    return Failure(
        Reason.INVALID_REQUEST,
        f"{what}: the server does not serve ranges (RFC 9110, section 14); put the files behind one that"
        " does, such as nginx, or into S3",
    )


def text(response: urllib3.BaseHTTPResponse, most: int, what: str) -> bytes:
    """A whole body of at most `most` bytes. Raises Failure: InvalidRequest if longer, SourceUnavailable."""
    try:
        content = response.read(most + 1, decode_content=False)
    except (urllib3.exceptions.HTTPError, OSError, ValueError) as error:
        raise unavailable(what, "", error) from error
    if len(content) > most:
        raise Failure(Reason.INVALID_REQUEST, f"{what}: longer than the {most} bytes that are read")
    return content


def failure(
    status: int, headers: Mapping[str, str], what: str, *, listed: bool = False, said: str = ""
) -> Failure:
    """The reason that a status other than success stands for.

    `listed` says that the thing was there when it was listed: gone or another, it has changed. `said` is
    what the server adds.
    """
    tail = f": {said!a:.300}" if said else ""
    if status in (401, 403, 407):
        return Failure(
            Reason.ACCESS_DENIED, f"{what}: HTTP {status}{tail}; give credentials that may read it"
        )
    if status in (404, 410, 412, 416) and listed:
        return Failure(
            Reason.SOURCE_CHANGED, f"{what}: HTTP {status}, not what was listed; list the source anew"
        )
    if status in _TRANSIENT or status >= 500 or status in REDIRECTS:
        return Failure(Reason.SOURCE_UNAVAILABLE, f"{what}: HTTP {status}{tail}", retry_after_s(headers))
    return Failure(Reason.INVALID_REQUEST, f"{what}: HTTP {status}{tail}; check the URL")


def retry_after_s(headers: Mapping[str, str]) -> float | None:
    """Seconds to wait by `Retry-After` (RFC 9110, section 10.2.3), a date counted from the response's own.

    The Hub says it by `RateLimit` instead: t seconds until more than r are allowed
    (draft-ietf-httpapi-ratelimit-headers, section 4).
    """
    limit = re.search(r";r=0;t=(\d{1,6})", headers.get("RateLimit", "").replace(" ", ""))
    value = headers.get("Retry-After", limit[1] if limit else "").strip()
    if value.isdecimal() and len(value) < 10:
        return float(value)
    try:
        until = parsedate_to_datetime(value) - parsedate_to_datetime(headers.get("Date", ""))
    except (TypeError, ValueError):
        return None
    return max(0.0, until.total_seconds())


def unavailable(what: str, url: str, error: Exception) -> Failure:
    """No response, or not the whole of one."""
    at = f" at {shown('://'.join(origin(url)))}" if url else ""
    return Failure(Reason.SOURCE_UNAVAILABLE, f"{what}: {broken(error)}{at}")


def broken(error: BaseException) -> str:
    """What happened to a connection, without the URL, which may be signed."""
    # urllib3 takes a connection that was refused for one that timed out, too.
    timed_out = isinstance(error, urllib3.exceptions.TimeoutError | TimeoutError)
    if timed_out and not isinstance(error, urllib3.exceptions.NewConnectionError):
        return "no byte in time"
    if isinstance(error, urllib3.exceptions.ProtocolError):
        return f"the connection broke off ({error.args[0] if error.args else error})"
    cause = error.__cause__ or error
    said = cause.strerror if isinstance(cause, OSError) else None
    return said or type(cause).__name__


def patiently(call: Callable[[], _T], sleep: Callable[[float], None] = time.sleep) -> _T:
    """`call()`, again after a wait where it raises SourceUnavailable, five times at most.

    Waits about half a second first and twice as long each time, or as long as Retry-After says (a minute at
    most).
    """
    return (_RETRYING if sleep is time.sleep else _RETRYING.copy(sleep=sleep))(call)


def _transient(error: BaseException) -> bool:
    return isinstance(error, Failure) and error.reason is Reason.SOURCE_UNAVAILABLE


_WAITING = tenacity.wait_random_exponential(multiplier=0.5, max=8)


def _pause_s(state: tenacity.RetryCallState) -> float:
    error = state.outcome.exception() if state.outcome else None
    asked = error.retry_after_s if isinstance(error, Failure) else None
    return _WAITING(state) if asked is None else min(asked, _LONGEST_WAIT_S)


_RETRYING = tenacity.Retrying(
    stop=tenacity.stop_after_attempt(_ATTEMPTS),
    wait=_pause_s,
    retry=tenacity.retry_if_exception(_transient),
    sleep=time.sleep,
    reraise=True,
)
