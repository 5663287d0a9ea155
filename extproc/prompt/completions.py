"""OpenAI completions: a prompt that is text, token ids, or a list of either; Anthropic's text completions.

Source: OpenAI's API reference, "Create completion"; vLLM and SGLang take the same four forms. Anthropic's
API reference, "Create a Text Completion".
"""

from typing import Any

from extproc.prompt import texts
from extproc.prompt.body import last_key
from extproc.prompt.content import Api, Segment


def _recognise(fields: dict[str, Any]) -> bool:
    return "prompt" in fields


def _content(fields: dict[str, Any], truncated: bool) -> list[Segment]:
    prompt = fields.get("prompt")
    chain: list[Segment] = []
    if not isinstance(prompt, dict):
        texts.add(chain, texts.PROMPT, prompt, truncated and last_key(fields) == "prompt")
    return chain


API = Api("completions", ("/completions", "/v1/complete"), _recognise, _content)
"""OpenAI's /v1/completions, Anthropic's /v1/complete, and vLLM's own /generate by its shape."""
