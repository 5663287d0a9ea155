"""http(s): files below a URL, named by a manifest.

A manifest is what `sha256sum` prints (also with `--tag`), or a listing as `cacheprep sources resolve -o`
writes it, with names relative to the URL. Sizes and ETags are asked of the server when it is resolved.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from typing import ClassVar
from urllib.parse import quote, unquote, urljoin, urlsplit

import urllib3

from cacheprep.failures import Failure, Reason
from cacheprep.listing import MAX_JSON_BYTES, File, Listing
from cacheprep.sources.body import ResponseBody
from cacheprep.sources.http_manifest import UNKNOWN, read_manifest
from cacheprep.sources.options import SourceOptions
from cacheprep.sources.source import Body, Nothing
from cacheprep.sources.token import given_token
from cacheprep.sources.web import (
    Web,
    check_range,
    failure,
    origin,
    patiently,
    range_header,
    text,
    without_ranges,
)

MANIFEST = "SHA256SUMS"
_PROBES = 16
"""Files whose size is asked for at once."""


class HttpSource:
    """`http(s)://host/path`, a directory; files are at `path/NAME`."""

    TAKES: ClassVar[frozenset[str]] = frozenset({"manifest_url", "token_file", "token_env"})

    def __init__(self, url: str, options: SourceOptions) -> None:
        self.url = _directory(url)
        self._manifest_url = options.manifest_url or self.url + MANIFEST
        self._options = options
        self._web = Web(options.timeout_s)

    def resolve(self) -> Listing:
        """Read the manifest, and ask the server for size and ETag of each file in it."""
        manifest, revision = patiently(self._manifest)
        wanted = set(self._options.wanted(file.name for file in manifest))
        files = [file for file in manifest if file.name in wanted]
        # Names are checked before a request is made of one.
        Listing(self.url, revision, tuple(files))
        with ThreadPoolExecutor(_PROBES) as threads:
            probed = list(threads.map(lambda file: patiently(partial(self._probe, file)), files))
        return self._options.listing(self.url, revision, probed)

    @contextmanager
    def open(self, file: File, start: int, end: int) -> Iterator[Body]:
        """Bytes [start, end), on the condition that ETag or Last-Modified is still as listed."""
        if start >= end:
            yield Nothing()
            return
        headers = {**self._headers(self._url(file)), **range_header(start, end), **_condition(file.version)}
        with self._web.get_following(self._url(file), headers, f"file {file.name!a}") as response:
            check_range(response, file, start, end)
            found = _version(response)
            if file.version and found != file.version:
                raise Failure(
                    Reason.SOURCE_CHANGED,
                    f"file {file.name!a}: was {file.version}, is {found or 'without a version'}; list the"
                    " source anew",
                )
            yield ResponseBody(response, end - start, f"file {file.name!a}")

    def close(self) -> None:
        """Close connections."""
        self._web.close()

    def _manifest(self) -> tuple[list[File], str]:
        what = f"manifest_url {self._manifest_url!a:.300}"
        headers = self._headers(self._manifest_url)
        with self._web.get_following(self._manifest_url, headers, what) as response:
            if response.status in (404, 410):
                raise Failure(
                    Reason.INVALID_REQUEST,
                    f"{what}: HTTP {response.status}, there is no manifest; write one with sha256sum"
                    " (docs/sources.md), or say where it is with --manifest-url",
                )
            if response.status != 200:
                raise failure(response.status, response.headers, what)
            content = text(response, MAX_JSON_BYTES, what)
            return read_manifest(content, what), _version(response)

    def _probe(self, file: File) -> File:
        """The file with the size and version that the server has for it."""
        what = f"file {file.name!a}"
        url = self._url(file)
        with self._web.get_following(url, {**self._headers(url), **range_header(0, 1)}, what) as response:
            size = _size(response, what)
            if file.size not in (UNKNOWN, size):
                raise Failure(
                    Reason.SOURCE_CHANGED,
                    f"{what}: the manifest says {file.size} bytes, the server {size}; make the manifest anew",
                )
            return File(file.name, size, file.digests, _version(response))

    def _url(self, file: File) -> str:
        return self.url + quote(file.name)

    def _headers(self, url: str) -> dict[str, str]:
        # A manifest elsewhere is not shown the token of the files.
        token = given_token(self._options) if origin(url) == origin(self.url) else None
        return {"Authorization": f"Bearer {token}"} if token else {}


def _directory(url: str) -> str:
    try:
        parts = urlsplit(url)
        host, _ = parts.hostname, parts.port
    except ValueError:
        host = None
        parts = urlsplit("http://")
    problem = ""
    if not host:
        problem = "write https:// and a host"
    elif "@" in parts.netloc:
        raise Failure(
            Reason.INVALID_REQUEST,
            f"source {parts.scheme}://...@{host}: leave the credentials out; use --token-file",
        )
    elif parts.query or parts.fragment:
        problem = "leave out what follows ? or #"
    elif any(part in (".", "..") for part in unquote(parts.path).split("/")):
        problem = "leave out . and .."
    if problem:
        raise Failure(Reason.INVALID_REQUEST, f"source {url.partition('?')[0]!a:.300}: {problem}")
    path = quote(unquote(parts.path)).rstrip("/")
    return urljoin(f"{parts.scheme.lower()}://{parts.netloc.lower()}/", f"{path}/")


def _size(response: urllib3.BaseHTTPResponse, what: str) -> int:
    """Bytes of the whole file, from the response to a request for its first byte."""
    length = response.headers.get("Content-Length", "")
    total = response.headers.get("Content-Range", "").rpartition("/")[2]
    if response.status == 206 and total.isdecimal():
        return int(total)
    if (response.status == 200 and length == "0") or (response.status == 416 and total == "0"):
        return 0
    if response.status == 200:
        raise without_ranges(what)
    if response.status in (404, 410):
        raise Failure(
            Reason.INVALID_REQUEST,
            f"{what}: HTTP {response.status}, though the manifest names it; check the URL",
        )
    raise failure(response.status, response.headers, what)


def _version(response: urllib3.BaseHTTPResponse) -> str:
    """A strong ETag, else the time of modification, else nothing."""
    etag = response.headers.get("ETag", "")
    if etag.startswith('"') and len(etag) < 1024 and etag.isprintable():
        return f"etag={etag}"
    modified = response.headers.get("Last-Modified", "")
    return f"modified={modified}" if modified and len(modified) < 64 and modified.isprintable() else ""


def _condition(version: str) -> dict[str, str]:
    """The precondition (RFC 9110, section 13.1) under which a server answers with 412 for another version."""
    kind, _, value = version.partition("=")
    if kind == "etag":
        return {"If-Match": value}
    return {"If-Unmodified-Since": value} if kind == "modified" else {}
