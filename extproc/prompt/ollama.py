"""Ollama's own chat and generate.

Source: Ollama's API documentation, "Generate a chat completion" and "Generate a completion".
"""

from typing import Any

from extproc.prompt import messages
from extproc.prompt.body import last_key
from extproc.prompt.content import Api, Segment


def _is_chat(fields: dict[str, Any]) -> bool:
    return "keep_alive" in fields and "messages" in fields


def _chat(fields: dict[str, Any], truncated: bool) -> list[Segment]:
    chain: list[Segment] = []
    messages.add_all(chain, fields.get("messages"), truncated and last_key(fields) == "messages")
    return chain


def _is_generate(fields: dict[str, Any]) -> bool:
    return "keep_alive" in fields and "prompt" in fields


def _generate(fields: dict[str, Any], truncated: bool) -> list[Segment]:
    chain: list[Segment] = []
    last = last_key(fields) if truncated else None
    system, prompt = fields.get("system"), fields.get("prompt")
    if system and isinstance(system, str):
        add = messages.add_cut if last == "system" else messages.add
        add(chain, {"role": "system", "content": system})
    if last != "system" and isinstance(prompt, str):
        message = {"role": "user", "content": prompt, "images": fields.get("images")}
        if truncated:
            del message["images"]
        add = messages.add_cut if last == "prompt" else messages.add
        add(chain, message)
    return chain


CHAT = Api("ollama-chat", ("/api/chat",), _is_chat, _chat)
"""Ollama's /api/chat."""

GENERATE = Api("ollama-generate", ("/api/generate",), _is_generate, _generate, opening=("system",))
"""Ollama's /api/generate: a conversation of one turn."""
