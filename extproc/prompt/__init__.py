"""Request bodies of LLM APIs: from a body, or its first part, to a content chain and an isolation scope.

This room knows the APIs and nothing of endpoints. Each API is one file here; adding one is adding a file
and its line in APIS.
"""

from typing import Any

from extproc.prompt import chat, completions, raw
from extproc.prompt.body import parse
from extproc.prompt.content import MAX_SEGMENTS, RAW, TEXT, TOKENS, Api, Prompt, Segment
from extproc.prompt.scope import Scope, read_scope

__all__ = ["APIS", "MAX_SEGMENTS", "RAW", "TEXT", "TOKENS", "Api", "Prompt", "Scope", "Segment", "read"]

APIS: tuple[Api, ...] = (chat.API, completions.API)
"""Every API that is read; the first that claims a path, else the first that recognises the body's shape."""


def read(path: str, body: bytes, complete: bool) -> Prompt | None:
    """Return what routing needs of a request body, or None where it should be routed by load. Never raises.

    `path` is the request's path and may carry a query. `body` is the body or as much of its beginning as
    the gateway sent, and `complete` is the gateway's word that nothing follows. Where the body is JSON that
    word is not needed: the JSON shows whether it was cut.

    The API is chosen by the path, else by the body's shape. Anything else is keyed by its raw bytes.
    """
    parsed = parse(body)
    if parsed is None:
        return raw.read(body, Scope(), complete)
    fields, truncated = parsed
    scope = read_scope(fields, truncated)
    api = _choose(path, fields)
    if api is None:
        return raw.read(body, scope, not truncated)
    return Prompt(api.name, scope, api.content(fields, truncated))


def _choose(path: str, fields: dict[str, Any]) -> Api | None:
    path = path.partition("?")[0].rstrip("/")
    for api in APIS:
        if path.endswith(api.paths):
            return api
    for api in APIS:
        if api.recognise(fields):
            return api
    return None
