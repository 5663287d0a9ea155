"""The words of this room: segments of content, what a read body is, and what a file for one API exports.

The content chain is what an engine's chat template renders, in order, as typed segments. A tag says what its
data is; `extproc.prefix` hashes both. The first bytes of a tag also say how its length is counted: see TEXT,
TOKENS and RAW.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

from extproc.prompt.scope import TEMPLATE, Scope

TEXT = b"text"
"""Tags of message text begin with this; data is UTF-8 and its length is counted in characters."""

TOKENS = b"tokens"
"""Tag of token ids: data is signed 8-byte little-endian integers, its length is counted in ids."""

RAW = b"raw"
"""Tag of a body that no API reads: its length is counted in bytes."""

MAX_SEGMENTS = 1024
"""Segments that are kept of a body, so that millions of empty messages cost no more than a thousand.

Nothing is lost by it: each closed segment ends in a block key, and no more block keys than this are used.
"""


class Segment(NamedTuple):
    """A typed piece of content.

    `tag` says what `data` is (kind, and the role where a message starts) and enters the chain before it.
    `closed` is False where the body was cut inside `data`, or may have been.
    """

    tag: bytes
    data: bytes
    closed: bool


class Prompt(NamedTuple):
    """A request body as routing sees it: the API's name, the isolation scope, and the content in order."""

    api: str
    scope: Scope
    content: list[Segment]


class Api(NamedTuple):
    """One API: the file that implements it exports this as `API`.

    `paths` are the ends of request paths that name it. `recognise` tells from the body's fields whether it
    has the API's shape, for paths that name none. `content` turns the fields into at most MAX_SEGMENTS
    segments; its second argument is True where the body was cut, so that the value of the last field may be
    incomplete. Both take whatever JSON holds and never raise.

    `opening` names the fields whose content comes before the rest, wherever they stand in the body: a body
    cut before one of them has the chain of one without it, and its scope is partial. `template` names the
    fields that are rendered beside the content and enter the scope.
    """

    name: str
    paths: tuple[str, ...]
    recognise: Callable[[dict[str, Any]], bool]
    content: Callable[[dict[str, Any], bool], list[Segment]]
    opening: tuple[str, ...] = ()
    template: tuple[str, ...] = TEMPLATE
