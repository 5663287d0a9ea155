"""A warm `ensure`, without loading anything: the marker is good, so the cache is ready.

It looks only at what says which cache is meant. If that is not ready, or not clear, `None` sends the
command line to the command proper, which reads all of it and says what is wrong with it. Imports nothing
slow.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping

from cacheprep.store.layout import KEY_LENGTH, STORE_LINE, Layout, is_key
from cacheprep.store.requests import recall
from cacheprep.store.use import ready, touch

ENVIRONMENT = ("AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3", "AWS_PROFILE", "AWS_REGION", "HF_ENDPOINT")
"""Variables that decide what a source's URL means; part of a request."""
_OURS = ("--to", "--key", "--listing")
_PROPER = frozenset(("--json", "--link", "--manifest", "--help", "-h"))
"""What only the command proper can answer."""


def warm(arguments: list[str]) -> str | None:
    """The directory to load, if the cache that is asked for is ready; None to look into it properly.

    Args:
        arguments: of the command line, after `ensure`.
    """
    given, rest = split(arguments)
    root = given.get("--to")
    if root is None or not _PROPER.isdisjoint(word.partition("=")[0] for word in rest):
        return None
    layout = Layout(os.path.realpath(root))
    key = _key(layout, given, rest)
    if key is None or not _is_store(layout) or not ready(layout, key):
        return None
    touch(layout, key)
    return layout.model(key)


def request_of(rest: Iterable[str], environment: Mapping[str, str], directory: str) -> bytes:
    """What a request is known by: arguments of `fetch` or `ensure` but for `_OURS`, environment, working
    directory.

    All arguments count, also those that change nothing: so a source may be asked once too often, and two
    requests are never taken for one.
    """
    parts = [part for part in rest if part not in ("--json", "--quiet")]
    # Relative paths mean something else elsewhere.
    parts.append(directory)
    parts += [f"{name}={environment.get(name, '')}" for name in ENVIRONMENT]
    return "\0".join(parts).encode("utf-8", "surrogateescape")


def split(arguments: list[str]) -> tuple[dict[str, str], list[str]]:
    """The options that this module reads, and everything else in its order."""
    given: dict[str, str] = {}
    rest = []
    left = iter(arguments)
    for argument in left:
        name, equals, value = argument.partition("=")
        if name in _OURS:
            given[name] = value if equals else next(left, "")
        else:
            rest.append(argument)
    return given, rest


def listing_key(path: str) -> str | None:
    """The key of a saved listing, if it was saved as it is hashed: then its bytes need not be read as
    JSON."""
    from hashlib import sha256

    try:
        with open(path, "rb") as file:
            return sha256(file.read().strip()).hexdigest()[:KEY_LENGTH]
    except OSError:
        return None


def _key(layout: Layout, given: Mapping[str, str], rest: list[str]) -> str | None:
    key, listing = given.get("--key"), given.get("--listing")
    if key is not None:
        return key if is_key(key) else None
    if listing is not None:
        return listing_key(listing)
    return recall(layout, request_of(rest, os.environ, os.getcwd()))


def _is_store(layout: Layout) -> bool:
    try:
        with open(layout.store_file, "rb", buffering=0) as file:
            return file.read(len(STORE_LINE) + 1) == STORE_LINE.encode()
    except OSError:
        return False
