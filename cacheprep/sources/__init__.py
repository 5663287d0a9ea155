"""Where weights come from: each source lists what it holds, and opens ranges of exactly that.

One file per source. Adding one: a class that fits `Source`, and its scheme in `_SCHEMES`.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from importlib import import_module

from cacheprep.failures import Failure, Reason
from cacheprep.sources.options import SourceOptions
from cacheprep.sources.source import Source

__all__ = ["Source", "SourceOptions", "refuse_credentials", "source_of"]

_CREDENTIALS = re.compile(r"([a-z][a-z0-9+.-]*)://[^/]*:[^/@]*@", re.IGNORECASE)

_SCHEMES = {
    "s3": ("s3", "S3Source"),
    "hf": ("huggingface", "HuggingFaceSource"),
    "file": ("files", "FilesSource"),
    "http": ("http", "HttpSource"),
    "https": ("http", "HttpSource"),
    "jumpstart": ("jumpstart", "JumpStartSource"),
}
"""Scheme to module and class; a module is imported when its scheme is used, for SDKs load slowly."""


def refuse_credentials(url: str) -> None:
    """Raises Failure(InvalidRequest), which does not show them, if a URL holds a password."""
    found = _CREDENTIALS.match(url)
    if found is not None:
        raise Failure(
            Reason.INVALID_REQUEST,
            f"source {found[1]}://...@...: leave the credentials out of the URL; docs/sources.md says where"
            " each source takes them from",
        )


def source_of(url: str, options: SourceOptions) -> Source:
    """The source that a URL names. Touches neither network nor disk.

    `s3://bucket/prefix`, `hf://owner/repository[@revision]`, `file:///path` or `/path`,
    `http(s)://host/path`, `jumpstart://model-id[@version]`. Raises Failure(InvalidRequest) for anything else.
    """
    refuse_credentials(url)
    scheme = "file" if url.startswith("/") else url.partition("://")[0].lower()
    if "://" not in url and not url.startswith("/"):
        scheme = ""
    if scheme not in _SCHEMES or not url.isprintable():
        known = ", ".join(f"{one}://" for one in _SCHEMES)
        path = "; a relative path is not taken, write it from / on" if "://" not in url else ""
        raise Failure(
            Reason.INVALID_REQUEST,
            f"source {url!a:.200}: begin with one of {known}, or / for a mounted file system{path}",
        )
    module, name = _SCHEMES[scheme]
    made: Callable[[str, SourceOptions], Source] = getattr(import_module(f"cacheprep.sources.{module}"), name)
    return made(url, options)
