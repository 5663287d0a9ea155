"""Text into pseudo tokens and chained block keys, without a tokenizer.

A pseudo token is four bytes of UTF-8, about what byte-pair vocabularies average on English text; a prompt of
n bytes has ceil(n / 4) tokens. A block of 16 tokens is 64 bytes, and its key is xxh3-64 of those bytes seeded
with the key before it, so that equal keys mean equal prefixes. The first seed is a digest of what keeps
caches apart: model and `cache_salt`, as in vLLM (`vllm/v1/core/kv_cache_utils.py`). Hashing takes about 2 ms
for 400 KB.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, cast

import orjson
import xxhash

TOKEN_BYTES = 4
"""Bytes of UTF-8 per pseudo token."""

_digest = xxhash.xxh3_64_intdigest


class PromptError(ValueError):
    """A request body without a usable prompt; the text is fit for the 400 reply."""


class Chain(NamedTuple):
    """Block keys of a text, and what is needed to go on behind it."""

    keys: list[int]
    tokens: int
    last: int
    """The key, or first seed, that the next block is chained to."""
    rest: bytes
    """Bytes behind the last full block."""

    def output_keys(self, text: bytes, block_tokens: int) -> list[int]:
        """Return the keys of the full blocks that `text`, appended, completes."""
        return chain(self.rest + text, self.last, block_tokens).keys


def scope(model: str, salt: str = "") -> int:
    """Return the first seed of prompts for `model` (or adapter) with the request's `cache_salt`."""
    return _digest(f"{model}\0{salt}".encode(errors="surrogatepass"))


def chain(text: bytes, seed: int, block_tokens: int = 16) -> Chain:
    """Return the chained keys of the full blocks of `text` (UTF-8), the first chained to `seed`."""
    size = block_tokens * TOKEN_BYTES
    end = len(text) - len(text) % size
    keys = []
    key = seed
    for start in range(0, end, size):
        key = _digest(text[start : start + size], key)
        keys.append(key)
    return Chain(keys, -(-len(text) // TOKEN_BYTES), key, text[end:])


def render_chat(messages: object, tools: object = None) -> bytes:
    """Return the prompt of a chat as one text, tools first, as chat templates do.

    Ends with the header of the reply, so that a reply sent back in the next turn continues this prompt byte
    for byte. Raises `PromptError` if `messages` is not a non-empty list of messages.
    """
    if not isinstance(messages, list) or not messages:
        raise PromptError("messages must be a non-empty list")
    parts = []
    if tools:
        parts += [b"<|tools|>\n", orjson.dumps(tools), b"<|end|>\n"]
    for message in messages:
        if not isinstance(message, dict):
            raise PromptError("every message must be an object")
        parts += [b"<|", str(message.get("role", "")).encode(errors="replace"), b"|>\n"]
        parts += _content(message.get("content"))
        if calls := message.get("tool_calls"):
            parts.append(orjson.dumps(calls))
        parts.append(b"<|end|>\n")
    parts.append(b"<|assistant|>\n")
    return b"".join(parts)


def _content(content: object) -> list[bytes]:
    if content is None:
        return []
    if isinstance(content, str):
        return [content.encode(errors="replace")]
    if isinstance(content, list):
        return [
            part["text"].encode(errors="replace")
            if isinstance(part, dict) and isinstance(part.get("text"), str)
            else orjson.dumps(part)
            for part in content
        ]
    return [orjson.dumps(content)]


def render_completion(prompt: object) -> bytes:
    """Return a completion's prompt as bytes: text, or token ids of four bytes each.

    Raises `PromptError` for anything else.
    """
    if isinstance(prompt, str) and prompt:
        return prompt.encode(errors="replace")
    if isinstance(prompt, list) and prompt:
        if all(isinstance(token, int) and 0 <= token < 2**32 for token in prompt):
            return b"".join(token.to_bytes(TOKEN_BYTES, "little") for token in cast("Sequence[int]", prompt))
        if len(prompt) == 1:
            return render_completion(prompt[0])
        raise PromptError("this simulation takes one prompt per request")
    raise PromptError("prompt must be a non-empty text or list of token ids")
