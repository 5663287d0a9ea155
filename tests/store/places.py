"""What a model is fetched from: the tests' own origin, and real servers behind a proxy that spoils responses.

A place has what the tests need of an `Origin`: its URL and options for the command line, faults by request,
and how many bytes of content it sent.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol
from urllib.parse import unquote

from cacheprep.listing import Listing
from cacheprep.sources import Source, SourceOptions, source_of
from tests.sources.fault_proxy import Fault, FaultProxy
from tests.sources.hub import Hub, Repository
from tests.sources.servers import nginx, s3_client, sha256sums, versitygw
from tests.store.origin import Origin, Request

KINDS = ("origin", "s3", "hub", "http")
MODEL = "model"
_REPOSITORY = "meta/llama"
_RANGE = re.compile(rb"^[A-Z]+ ([^ ?]+).*?\r\nrange: bytes=(\d+)-(\d+)\r\n", re.IGNORECASE | re.DOTALL)


class Place(Protocol):
    """Where a model is."""

    fault: Callable[[Request], Fault | None]
    """What is done to the response to a request."""

    @property
    def url(self) -> str: ...

    @property
    def options(self) -> tuple[str, ...]: ...

    @property
    def total_sent(self) -> int: ...

    def forget(self) -> None:
        """Count from zero."""

    def listing(self) -> Listing:
        """What is there now."""

    def source(self) -> Source:
        """What reads from it, in this process."""

    def replace(self, name: str) -> None:
        """Put another version in a file's place."""


class Proxied:
    """A real server behind a `FaultProxy`. Requests for a first byte, which ask for sizes, do not count."""

    def __init__(
        self,
        proxy: FaultProxy,
        url: str,
        options: dict[str, str],
        name: Callable[[str], str],
        replace: Callable[[str], None],
    ) -> None:
        """`options` are those of the source; `name` makes the path of a request a file's name."""
        self.url = url
        self.options = tuple(f"--{option.replace('_', '-')}={value}" for option, value in options.items())
        self.fault: Callable[[Request], Fault | None] = lambda _: None
        self.replace = replace
        self._source_options = SourceOptions(timeout_s=5, **options)  # type: ignore[arg-type]
        self._name = name
        self._lock = threading.Lock()
        self._requests = self.total_sent = 0
        proxy.choose, proxy.passed = self._choose, self._passed

    def forget(self) -> None:
        """Count from zero."""
        with self._lock:
            self._requests = self.total_sent = 0

    def source(self) -> Source:
        """What reads from it, in this process."""
        return source_of(self.url, self._source_options)

    def listing(self) -> Listing:
        """What is there now."""
        source = self.source()
        try:
            return source.resolve()
        finally:
            source.close()

    def _choose(self, head: bytes) -> Fault | None:
        found = _content(head)
        if found is None:
            return None
        path, start, end = found
        with self._lock:
            self._requests += 1
            request = Request(self._requests, self._name(path), start, end)
        return self.fault(request)

    def _passed(self, head: bytes, count: int) -> None:
        if _content(head) is not None:
            with self._lock:
                self.total_sent += count


def _content(head: bytes) -> tuple[str, int, int] | None:
    """Path, start and end of a request for content."""
    match = _RANGE.match(head)
    if match is None or match[3] == b"0":
        return None
    return unquote(match[1].decode()), int(match[2]), int(match[3]) + 1


@contextmanager
def opening(kind: str, model: Path, directory: Path) -> Iterator[Place]:
    """A place of one of `KINDS` with a copy of a model, in a directory of its own."""
    copy = directory / "www" / MODEL
    shutil.copytree(model, copy)
    with _OPEN[kind](copy, directory) as place:
        yield place


@contextmanager
def _origin(model: Path, directory: Path) -> Iterator[Place]:
    with Origin(model) as origin:
        yield origin


@contextmanager
def _s3(model: Path, directory: Path) -> Iterator[Place]:
    bucket = "weights"
    with versitygw(directory / "s3") as gateway, FaultProxy.before(gateway) as proxy:
        client = s3_client(gateway)
        client.create_bucket(Bucket=bucket)

        def put(name: str, content: bytes) -> None:
            key = f"{MODEL}/{name}"
            client.put_object(Bucket=bucket, Key=key, Body=content, ChecksumAlgorithm="SHA256")

        for name, content in _files(model).items():
            put(name, content)
        yield Proxied(
            proxy,
            f"s3://{bucket}/{MODEL}/",
            {"endpoint_url": proxy.url},
            lambda path: path.removeprefix(f"/{bucket}/{MODEL}/"),
            lambda name: put(name, bytes(len(_files(model)[name]))),
        )


@contextmanager
def _hub(model: Path, directory: Path) -> Iterator[Place]:
    with Hub.running() as hub, FaultProxy.before(hub.cdn) as proxy:
        hub.cdn = proxy.url
        repository = hub.repositories[_REPOSITORY] = Repository()
        repository.commit(_files(model))

        def remove(name: str) -> None:
            # A commit does not change; what can happen is that it is gone.
            del repository.commits[repository.branches["main"]][name]

        names = {hashlib.sha256(content).hexdigest(): name for name, content in _files(model).items()}
        yield Proxied(
            proxy,
            f"hf://{_REPOSITORY}",
            {"hub_endpoint": hub.url},
            lambda path: names[path.removeprefix("/")],
            remove,
        )


@contextmanager
def _http(model: Path, directory: Path) -> Iterator[Place]:
    (model / "SHA256SUMS").write_text(sha256sums(_files(model)))

    def replace(name: str) -> None:
        path = model / name
        path.write_bytes(bytes(path.stat().st_size))
        os.utime(path, (1, 1_900_000_000))

    with nginx(directory) as server, FaultProxy.before(server) as proxy:
        yield Proxied(
            proxy, f"{proxy.url}/{MODEL}", {}, lambda path: path.removeprefix(f"/{MODEL}/"), replace
        )


_OPEN = {"origin": _origin, "s3": _s3, "hub": _hub, "http": _http}


def _files(model: Path) -> dict[str, bytes]:
    return {str(path.relative_to(model)): path.read_bytes() for path in model.rglob("*") if path.is_file()}
