"""Endpoints in a YAML file that is watched: a list of `ip:port`, or a mapping with that list under
`endpoints`. One may be written `{address: ip:port, cold: true}`, which says that its node is not prepared;
false says that it is.

The file may be written in place, replaced by rename, or be a symbolic link whose target is swapped, as
Kubernetes does with mounted ConfigMaps. A file that cannot be read or understood changes nothing: the
endpoints known before stay.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import aclosing
from pathlib import Path
from typing import Any

import structlog

from extproc import strict_yaml
from extproc.address import parse_endpoint, parse_endpoints
from extproc.pool.discovery.found import Found, NodeCache, OnChange
from extproc.watch import moments

OnError = Callable[[ValueError], None]

REREAD_SECONDS = 1.0
"""The file is read again this often though nothing was seen: not every file system reports every change."""

MAX_BYTES = 4 * 1024 * 1024
"""A larger file is refused: 4 MiB holds some 100,000 endpoints, and a path may lead to anything."""

_log = structlog.get_logger(__name__)


def read(path: Path) -> Found:
    """The endpoints in the file at `path`.

    Raises ValueError that names the file and what is wrong: not there, not YAML, another shape, a bad
    address, or empty. An empty file is a file half written; no endpoints at all is written `[]`.
    """
    return _listed(path, _content(path))


def _content(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            data = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise ValueError(f"{path}: {error.strerror or error}") from error
    if len(data) > MAX_BYTES:
        raise ValueError(f"{path}: larger than {MAX_BYTES} bytes")
    return data


def _listed(path: Path, content: bytes) -> Found:
    try:
        document = strict_yaml.read(content.decode()).value
    except (strict_yaml.YamlError, UnicodeDecodeError) as error:
        raise ValueError(f"{path}: not YAML: {error}") from error
    if isinstance(document, dict) and document.keys() == {"endpoints"}:
        document = document["endpoints"]
    if document is None:
        raise ValueError(f"{path}: empty; write [] for no endpoints")
    if not isinstance(document, list):
        raise ValueError(f"{path}: expected a list of ip:port, alone or under the only key 'endpoints'")
    try:
        addresses = parse_endpoints(map(_address, document))
        node_caches = {
            parse_endpoint(entry["address"]): said
            for entry in document
            if isinstance(entry, dict) and (said := _node_cache(entry)) != "unknown"
        }
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None
    return Found(addresses, node_caches)


def _address(entry: Any) -> Any:
    if isinstance(entry, dict):
        if "address" not in entry:
            raise ValueError(f"endpoint {entry!r}: must be ip:port, or {{address: ip:port, cold: true}}")
        return entry["address"]
    return entry


def _node_cache(entry: dict[str, Any]) -> NodeCache:
    """What an entry says of its node. Raises ValueError where it says anything else than it may."""
    unknown = [key for key in entry if key not in ("address", "cold")]
    if unknown:
        raise ValueError(f"{entry['address']}: unknown key {unknown[0]!r}: expected address and cold")
    if "cold" not in entry:
        return "unknown"
    cold = entry["cold"]
    if not isinstance(cold, bool):
        raise ValueError(f"{entry['address']}: cold: {cold!r}: must be true or false")
    return "cold" if cold else "warm"


async def watch(path: Path, on_change: OnChange, on_error: OnError | None = None) -> None:
    """Call `on_change` with the endpoints now and whenever they change, until cancelled.

    A file that is missing at the start is an error like any other: `on_change` is not called until there is
    a good one. `on_error` gets the ValueError of `read`, which is also logged; once, until it reads
    otherwise.
    """
    known: Found | None = None
    complaint = ""
    seen: bytes | None = None
    async with aclosing(moments(path, REREAD_SECONDS)) as looks:
        async for _ in looks:
            try:
                before, seen = seen, None
                content = await asyncio.to_thread(_content, path)
                seen = content
                # Reading YAML takes a second for some thousand endpoints.
                if content == before:
                    continue
                listed = await asyncio.to_thread(_listed, path, content)
            except ValueError as error:
                if str(error) != complaint:
                    complaint = str(error)
                    _log.warning(
                        "endpoints file not taken",
                        path=str(path),
                        error=complaint,
                        kept=known and known.addresses,
                    )
                    if on_error is not None:
                        on_error(error)
            else:
                complaint = ""
                if listed != known:
                    known = listed
                    on_change(listed)
