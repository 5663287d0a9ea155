"""Requests without a body and plain responses of HTTP/1.1, over urllib3's pools and connections.

http.client writes a request header by header and reads the header of a response by the parser of e-mail; with
what urllib3 makes of both that takes 0.3 ms of processor time, more than it takes to receive a small file.
Here a request is one string, and the usual header of a response is split at its ends of lines. Whatever is
not as usual is left to http.client. Connections, TLS, time-outs and errors stay urllib3's.
"""

from __future__ import annotations

import http.client
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import urllib3
from urllib3.connection import HTTPConnection, HTTPSConnection

_HEAD_END = b"\r\n\r\n"
# RFC 9112, sections 4 and 5; RFC 9110, section 5.6.2. A 204 or 304 has no body, whatever length it says.
_PLAIN = re.compile(
    r"HTTP/1\.1 (?!204|304)([2-5][0-9][0-9])(?: ([^\r\n]*))?((?:\r\n[!#$%&'*+.^_`|~0-9A-Za-z-]+:[^\r\n]*)*)"
)
_FOLD = re.compile(r"[ \t]*\r?\n[ \t]+")
"""Between the lines of a field's value (RFC 9112, section 5.2)."""
_CONTROL = re.compile(r"[\x00-\x20\x7f]")
"""What the target of a request has none of (RFC 9112, section 3)."""


class _Response(http.client.HTTPResponse):
    """A response whose header is read at once where it came at once and is plain."""

    def begin(self) -> None:
        """Read the header."""
        came = self.fp.peek()
        end = came.find(_HEAD_END)
        head = _plain(came[:end].decode("iso-8859-1")) if end >= 0 else None
        if head is None:
            super().begin()
            return
        self.fp.read(end + len(_HEAD_END))
        self.status, self.reason, headers = head
        self.code, self.version = self.status, 11
        self.headers = self.msg = headers  # type: ignore[assignment]
        self.chunked, self.will_close = False, self._check_close()  # type: ignore[attr-defined]
        self.length = 0 if self._method == "HEAD" else int(headers["Content-Length"])  # type: ignore[attr-defined]


def _plain(text: str) -> tuple[int, str, urllib3.HTTPHeaderDict] | None:
    """Status, reason and fields of the header of a response whose body has a length, and no encoding of its
    own; None for any other."""
    found = _PLAIN.fullmatch(text)
    if found is None:
        return None
    lines = (line.partition(":") for line in found[3].split("\r\n")[1:])
    fields = urllib3.HTTPHeaderDict((name, value.strip(" \t")) for name, _, value in lines)
    length = fields.get("Content-Length", "")
    if not (length.isascii() and length.isdecimal()) or "Transfer-Encoding" in fields:
        return None
    return int(found[1]), found[2] or "", fields


class _Exchange(HTTPConnection if TYPE_CHECKING else object):  # type: ignore[misc]
    """How a connection of urllib3 sends a request and reads the response."""

    _method = ""
    _sent = b""
    _used = False
    """Whether the connection brought a response before."""

    def request(self, method: str, url: str, body: Any = None, headers: Any = None, **_: Any) -> None:
        """Send a request without a body; `url` is its target.

        Raises:
            ValueError: something is in it that must not be.
            OSError, urllib3.exceptions.HTTPError: it cannot be sent.
        """
        if body is not None:
            raise ValueError("a request with a body")
        self._method, self._sent = method, _request(method, url, self._host(), headers or {})
        self._send()

    def getresponse(self) -> urllib3.HTTPResponse:
        """The response to it, before its body is read.

        A server may close an idle connection just when it is used again; then the request is sent once more
        over a new one (RFC 9112, section 9.3.1).
        """
        try:
            below = self._answer()
        except ConnectionResetError:  # http.client's RemoteDisconnected is one
            if not self._used:
                raise
            self.close()
            self._send()
            below = self._answer()
        self._used = True
        if below.will_close:
            # As http.client does it: the response has the socket until its end, another request another one.
            self.close()
        fields: Any = below.headers
        if not isinstance(fields, urllib3.HTTPHeaderDict):
            fields = urllib3.HTTPHeaderDict((name, _FOLD.sub(" ", value)) for name, value in fields.items())
        return urllib3.HTTPResponse(
            body=below,
            headers=fields,
            status=below.status,
            version=below.version,
            reason=below.reason,
            preload_content=False,
            decode_content=False,
            original_response=below,
            request_method=self._method,
        )

    def close(self) -> None:
        """Close it; the next request opens another one."""
        super().close()
        self._used = False

    def _send(self) -> None:
        if self.sock is None:
            self.connect()
        self.sock.settimeout(self.timeout)
        self.sock.sendall(self._sent)

    def _answer(self) -> http.client.HTTPResponse:
        self.sock.settimeout(self.timeout)
        below = _Response(self.sock, method=self._method)
        below.begin()
        return below

    def _host(self) -> str:
        """RFC 9110, section 7.2."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == self.default_port else f"{host}:{self.port}"


def _request(method: str, target: str, host: str, headers: Mapping[str, str]) -> bytes:
    lines = [f"{method} {target} HTTP/1.1", f"Host: {host}"]
    lines += [f"{name}: {value}" for name, value in headers.items()]
    text = "\r\n".join((*lines, "", ""))
    if _CONTROL.search(target) or text.count("\n") != len(lines) + 1 or text.count("\r") != len(lines) + 1:
        raise ValueError("a control character in a request")
    return text.encode("iso-8859-1")


class _Connection(_Exchange, HTTPConnection):  # type: ignore[misc]
    pass


class _SecureConnection(_Exchange, HTTPSConnection):  # type: ignore[misc]
    pass


class _Pool(urllib3.HTTPConnectionPool):
    ConnectionCls = _Connection


class _SecurePool(urllib3.HTTPSConnectionPool):
    ConnectionCls = _SecureConnection


def pools(connections: int, authorities: str | None) -> urllib3.PoolManager:
    """Connections straight to servers, of which so many are kept for each.

    `authorities` is a file of certificates to trust; None for those of the system.
    """
    manager = urllib3.PoolManager(maxsize=connections, ca_certs=authorities)
    manager.pool_classes_by_scheme = {"http": _Pool, "https": _SecurePool}
    return manager
