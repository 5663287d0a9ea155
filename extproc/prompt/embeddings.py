"""Embeddings, pooling, classification and moderation: an input that is read and not continued.

Source: OpenAI's API reference, "Create embeddings" and "Create moderation"; vLLM's documentation of pooling
models (/pooling, /classify, and `messages` in place of `input`); text-embeddings-inference (`inputs`);
Cohere's API reference, "Embed" (`texts`); Ollama's API documentation (`prompt`).

These engines keep a KV cache of prefixes too where the model is a decoder, and long instructions before each
input are usual.
"""

from typing import Any

from extproc.prompt import messages, texts
from extproc.prompt.body import last_key
from extproc.prompt.content import Api, Segment

_INPUTS = ("input", "inputs", "texts", "prompt", "messages")


def _recognise(fields: dict[str, Any]) -> bool:
    return "input" in fields or "texts" in fields


def _content(fields: dict[str, Any], truncated: bool) -> list[Segment]:
    chain: list[Segment] = []
    name = texts.first_of(fields, _INPUTS)
    if name is None:
        return chain
    cut = truncated and last_key(fields) == name
    if name == "messages":
        messages.add_all(chain, fields[name], cut)
    else:
        texts.add(chain, texts.INPUT, fields[name], cut)
    return chain


API = Api(
    "embeddings",
    ("/embeddings", "/embed", "/embed_sparse", "/embed_all", "/pooling", "/classify", "/moderations"),
    _recognise,
    _content,
)
"""OpenAI's /v1/embeddings and /v1/moderations, vLLM's /pooling and /classify, /embed of others."""
