"""OpenAI chat completions.

Source: OpenAI's API reference, "Create chat completion". vLLM and SGLang take the same.
"""

from typing import Any

from extproc.prompt import messages
from extproc.prompt.body import last_key
from extproc.prompt.content import Api, Segment


def _recognise(fields: dict[str, Any]) -> bool:
    return "messages" in fields


def _content(fields: dict[str, Any], truncated: bool) -> list[Segment]:
    chain: list[Segment] = []
    messages.add_all(chain, fields.get("messages"), truncated and last_key(fields) == "messages")
    return chain


API = Api("chat", ("/chat/completions",), _recognise, _content)
"""OpenAI's /v1/chat/completions."""
