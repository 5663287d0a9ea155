"""The body of an HTTP response, read into the reader's memory."""

from __future__ import annotations

import http.client
from collections.abc import Callable
from typing import Any

import urllib3

from cacheprep.failures import Failure, Reason
from cacheprep.listing import Digest
from cacheprep.sources.web import unavailable

STEP_BYTES = 256 << 10
"""Read at a time. As many must come before the watchdog of a connection hears of any."""


class ResponseBody:
    """`count` bytes of a response's body. Bytes beyond are not read."""

    def __init__(
        self,
        response: urllib3.BaseHTTPResponse,
        count: int,
        what: str,
        digests: tuple[Digest, ...] = (),
    ) -> None:
        """`what` names in messages what is read; `digests` are those that came with it, see `Body`."""
        self.digests = digests
        self._response, self._count, self._what = response, count, what
        self._read = 0
        self._fill = _fill_of(response)

    def readinto(self, buffer: memoryview, /) -> int:
        """The next bytes; see `Body`.

        Raises Failure(SourceUnavailable) if the body ends before its time, breaks off or stalls.
        """
        left = self._count - self._read
        if not left:
            return 0
        try:
            came = self._fill(buffer[: min(left, STEP_BYTES)])
        except (urllib3.exceptions.HTTPError, http.client.HTTPException, OSError, ValueError) as error:
            what = f"{self._what}, after {self._read} of {self._count} bytes"
            raise unavailable(what, "", error) from error
        if not came:
            raise Failure(
                Reason.SOURCE_UNAVAILABLE,
                f"{self._what}: the body ended after {self._read} of {self._count} bytes",
            )
        self._read += came
        return came


def _fill_of(response: urllib3.BaseHTTPResponse) -> Callable[[memoryview], int]:
    """What fills a buffer from the body as it comes from the network.

    urllib3's own `readinto` reads into a new object and copies from there, which takes half as much processor
    time again as reading. The response of http.client below it (the one that urllib3 was constructed with, as
    `original_response`) reads into the buffer itself; urllib3 is told how much is left then, since that says
    whether the connection can be used again.
    """
    below: Any = getattr(response, "_original_response", None)
    if not isinstance(below, http.client.HTTPResponse) or below.chunked:
        return response.readinto

    def fill(buffer: memoryview) -> int:
        came = below.readinto(buffer)
        if response.length_remaining is not None:
            response.length_remaining -= came
        return came

    return fill
