"""Ollama's own chat and generate.

Source: Ollama's API documentation, "Generate a chat completion" and "Generate a completion".
"""

from typing import Any

from extproc.prompt import messages, texts
from extproc.prompt.body import last_key
from extproc.prompt.content import Api, Segment


def _recognise(fields: dict[str, Any]) -> bool:
    return "keep_alive" in fields and ("messages" in fields or "prompt" in fields)


def _content(fields: dict[str, Any], truncated: bool) -> list[Segment]:
    chain: list[Segment] = []
    last = last_key(fields) if truncated else None
    if texts.first_of(fields, ("messages", "prompt")) == "messages":
        messages.add_all(chain, fields.get("messages"), last == "messages")
        return chain
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


API = Api("ollama", ("/api/chat", "/api/generate"), _recognise, _content, opening=("system",))
"""Ollama's /api/chat and /api/generate."""
