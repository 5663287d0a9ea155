"""From bytes to the fields of a JSON object, also where the body was cut.

Parsing is pydantic's (the Rust library jiter): several times faster than json, and able to return what it saw
of a document that ends anywhere. It refuses lone surrogates, nesting beyond 200 and integers beyond 4,300
digits. Its string cache stays off: no text of a prompt may outlive the request.
"""

from typing import Any, NamedTuple

from pydantic_core import from_json

_BOM = b"\xef\xbb\xbf"
_BLANK = b" \t\r\n"


class Parsed(NamedTuple):
    """A body's top-level fields in the order of the body, and whether the body ended before its JSON did.

    Where `truncated`, the value of the last field may be incomplete, and a number or string in it cut short.
    """

    fields: dict[str, Any]
    truncated: bool


def parse(body: bytes) -> Parsed | None:
    """Return the fields of a JSON object, or None where the body is no such thing. Never raises.

    Whether the body was cut is told from the JSON alone. The gateway's word is not enough: an HTTP/2 request
    that ends with trailers is whole without being marked so, and a client may send half an object. What
    follows a whole object (which no engine accepts) makes it count as cut.
    """
    if body.startswith(_BOM):
        body = body[len(_BOM) :]
    if not body.lstrip(_BLANK).startswith(b"{"):
        return None
    # A whole object ends with a brace, so other bodies need no first attempt.
    if body.rstrip(_BLANK).endswith(b"}"):
        try:
            value = from_json(body, cache_strings="none")
        except ValueError:
            pass
        else:
            return Parsed(value, truncated=False) if isinstance(value, dict) else None
    try:
        value = from_json(body, cache_strings="none", allow_partial="trailing-strings")
    except ValueError:
        return None
    return Parsed(value, truncated=True) if isinstance(value, dict) else None


def last_key(fields: dict[str, Any]) -> str | None:
    """Return the key that was read last, which is the one that a cut may have hit; None where there is none.

    A key that occurs twice keeps its first place, so a cut inside its second value goes unnoticed.
    """
    return next(reversed(fields), None)
