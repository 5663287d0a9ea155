"""A request body as the router and as an engine see it, by their own code."""

from __future__ import annotations

from typing import Any

import orjson

from extproc import prompt
from extproc.prefix import BlockKeys, block_keys
from extproc.replay.arrival import TOKEN_BYTES, Arrival, engine_blocks
from extproc.replay.traces.lines import LineError
from extproc.simulation import tokens

CHAT = "/v1/chat/completions"


def arrival(
    at: float, path: str, body: dict[str, Any], output_tokens: int, block_tokens: int, session: int = 0
) -> Arrival:
    """A request to `path` with this body.

    The router's keys come from `extproc.prompt` and `extproc.prefix`. The engine's blocks come from the text
    that a chat template would give, or for an API that the engine model cannot render, from the router's
    keys. Raises `LineError` if the router finds no prompt in it.
    """
    raw = orjson.dumps(body)
    understood = prompt.read(path, raw, True)
    keys = BlockKeys([], []) if understood is None else block_keys(understood)
    if not keys.keys:
        raise LineError("body: no prompt in it")
    text = _rendered(body)
    if text is None:
        length = max(1, -(-keys.ends[-1] // TOKEN_BYTES))
        return Arrival(at, keys, engine_blocks(keys, block_tokens), length, output_tokens, session)
    seed = tokens.scope(str(body.get("model", "")), str(body.get("cache_salt", "")))
    chain = tokens.chain(text, seed, block_tokens)
    return Arrival(at, keys, chain.keys, max(1, chain.tokens), output_tokens, session)


def _rendered(body: dict[str, Any]) -> bytes | None:
    try:
        if "messages" in body:
            return tokens.render_chat(body["messages"], body.get("tools"))
        if "prompt" in body:
            return tokens.render_completion(body["prompt"])
    except (tokens.PromptError, TypeError):
        return None
    return None
