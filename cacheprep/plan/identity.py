"""Names of what the operator makes, derived from what it is for: the same thing always has the same name."""

from __future__ import annotations

import hashlib
import json
from typing import Any
from urllib.parse import urlsplit

from cacheprep.api import Endpoint
from cacheprep.api.caches import DataCacheSpec
from cacheprep.api.sources import CacheSource

STORE_DIRECTORY = "warmroute"
"""Below an operator's root; below it each namespace has a cache root of its own (`cacheprep.store`)."""


def checksum(content: Any, digits: int = 10) -> str:
    """Hex digits of the SHA-256 of JSON."""
    text = json.dumps(content, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:digits]


def store_path(root: str, namespace: str) -> str:
    """Where a namespace's cache root is on a node. Namespaces are DNS labels, and so never leave the root."""
    return f"{root}/{STORE_DIRECTORY}/{namespace}"


def cache_name(endpoint: Endpoint, spec: DataCacheSpec) -> str:
    """Of a ModelDataCacheConfig: what is said differently of source or place is another cache.

    A new listing of the same source, asked for after drift, is another cache as well.
    """
    said = spec.said()
    del said["endpointRef"]
    return f"{endpoint.name}-{checksum([said, endpoint.status.listing_requested])}"


def image_cache_name(image: str) -> str:
    """Of a ModelImageCache, by what an image reference means."""
    return f"image-{checksum(image_identity(image), 16)}"


def image_identity(image: str) -> str:
    """An image reference in its whole form. With a digest the tag means nothing.

    Registry, `library/` and `latest` are what is meant where nothing is said: distribution/reference,
    ParseNormalizedNamed.
    """
    name, at, digest = image.partition("@")
    first, slash, rest = name.partition("/")
    if not slash or not ("." in first or ":" in first or first == "localhost"):
        first, rest = "docker.io", name
    if first == "index.docker.io":
        first = "docker.io"
    repository, _, tag = rest.partition(":")
    if first == "docker.io" and "/" not in repository:
        repository = f"library/{repository}"
    return f"{first}/{repository}@{digest}" if at else f"{first}/{repository}:{tag or 'latest'}"


def origin(source: CacheSource, namespace: str) -> str:
    """Hash of the server that a source is read from, by which simultaneous downloads are counted."""
    if source.s3 is not None:
        said = ["s3", source.s3.endpoint_url, urlsplit(source.s3.uri).netloc]
    elif source.hugging_face is not None:
        said = ["hub", source.hugging_face.endpoint_url]
    elif source.http is not None:
        said = ["http", urlsplit(source.http.url).netloc]
    elif source.file_system is not None:
        said = ["claim", namespace, source.file_system.claim_name]
    elif source.jump_start is not None:
        said = ["jumpstart", source.jump_start.region, source.jump_start.bucket]
    else:
        said = []
    return checksum(said)


def spread(*names: str) -> float:
    """A number from 0 to 1, always the same for the same names: who goes first, and how long to wait."""
    return int(checksum(names, 8), 16) / 0xFFFFFFFF
