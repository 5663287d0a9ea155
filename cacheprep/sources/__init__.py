"""Where weights come from: each source lists what it holds, and opens ranges of exactly that.

One file per source. Adding one: a class that fits `Source`, and its scheme in `_SCHEMES`.
"""

from __future__ import annotations

import re
from importlib import import_module
from typing import ClassVar, Protocol

from cacheprep.failures import Failure, Reason
from cacheprep.sources.options import OF_ALL, SourceOptions
from cacheprep.sources.source import Source

__all__ = ["Source", "SourceOptions", "refuse_credentials", "source_of", "source_of_listing"]

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


class _SourceClass(Protocol):
    TAKES: ClassVar[frozenset[str]]
    """Options that concern it besides those of all sources."""

    def __call__(self, url: str, options: SourceOptions, /) -> Source: ...


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
    `http(s)://host/path`, `jumpstart://model-id[@version]`. Raises Failure(InvalidRequest) for anything else,
    and for an option that sources of this kind have not.
    """
    made = _class(url)
    for name in sorted(options.given() - OF_ALL - made.TAKES):
        kind = "a path" if url.startswith("/") else url.partition("://")[0]
        said = ", ".join(sorted(made.TAKES)) or "nothing but what all have"
        raise Failure(
            Reason.INVALID_REQUEST,
            f"{name} {getattr(options, name)!a:.200}: {kind:.200} does not take it, but {said}: leave it out",
        )
    return made(url, options)


def source_of_listing(url: str, options: SourceOptions) -> Source:
    """The source from which a listing can be fetched. Raises Failure(InvalidRequest).

    It may be of another kind than the one that was listed, as with JumpStart: options of that are left aside.
    """
    return _class(url)(url, options)


def _class(url: str) -> _SourceClass:
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
    made: _SourceClass = getattr(import_module(f"cacheprep.sources.{module}"), name)
    return made
