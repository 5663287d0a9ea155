"""Request bodies of LLM APIs: from a body, or its first part, to a content chain and an isolation scope.

This room knows the APIs and nothing of endpoints. Each API is one file here; adding one is adding a file
and its lines in APIS and _SHAPES.
"""

from typing import Any

from extproc.prompt import (
    anthropic,
    chat,
    completions,
    embeddings,
    ollama,
    raw,
    responses,
    score,
    tgi,
    tokens,
    triton,
)
from extproc.prompt.body import parse
from extproc.prompt.content import MAX_SEGMENTS, RAW, TEXT, TOKENS, Api, Prompt, Segment
from extproc.prompt.encoding import decode
from extproc.prompt.scope import Scope, read_scope

__all__ = [
    "APIS",
    "MAX_DECODED_BYTES",
    "MAX_SEGMENTS",
    "RAW",
    "TEXT",
    "TOKENS",
    "Api",
    "Prompt",
    "Scope",
    "Segment",
    "read",
]

APIS: tuple[Api, ...] = (
    chat.API,
    completions.API,
    anthropic.API,
    responses.API,
    embeddings.API,
    score.API,
    ollama.CHAT,
    ollama.GENERATE,
    tokens.API,
    tgi.API,
    triton.API,
)
"""Every API that is read, in the order in which paths are compared."""

_SHAPES = (
    ollama.CHAT,
    ollama.GENERATE,
    anthropic.API,
    chat.API,
    completions.API,
    score.API,
    responses.API,
    embeddings.API,
    tgi.API,
    triton.API,
    tokens.API,
)
"""The same in the order in which shapes are compared: the more particular first."""

MAX_DECODED_BYTES = 1024 * 1024
"""How much of a compressed body is decoded and read. It is then a body cut there."""


def read(path: str, body: bytes, complete: bool, content_encoding: str = "") -> Prompt | None:
    """Return what routing needs of a request body, or None where it should be routed by load. Never raises.

    `path` is the request's path and may carry a query. `body` is the body or as much of its beginning as
    the gateway sent, and `complete` is the gateway's word that nothing follows. Where the body is JSON that
    word is not needed: the JSON shows whether it was cut. `content_encoding` is the value of that header; a
    body in an encoding that is not known, or not in the one it names, is routed by load.

    The API is chosen by the path, else by the body's shape. Anything else is keyed by its raw bytes.
    """
    if content_encoding:
        decoded = decode(body, content_encoding, MAX_DECODED_BYTES)
        if decoded is None:
            return None
        complete = complete and len(decoded) < MAX_DECODED_BYTES
        body = decoded
    parsed = parse(body)
    if parsed is None:
        return raw.read(body, Scope(), complete)
    fields, truncated = parsed
    api = _choose(path, fields)
    if api is None:
        return raw.read(body, read_scope(fields, truncated), not truncated)
    scope = read_scope(fields, truncated, api.template)
    if truncated and not scope.partial and not fields.keys() >= set(api.opening):
        scope = scope._replace(partial=True)
    return Prompt(api.name, scope, api.content(fields, truncated))


def _choose(path: str, fields: dict[str, Any]) -> Api | None:
    path = path.partition("?")[0].rstrip("/")
    for api in APIS:
        if path.endswith(api.paths):
            return api
    for api in _SHAPES:
        if api.recognise(fields):
            return api
    return None
