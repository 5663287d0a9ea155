"""OpenAI completions: a prompt that is text, token ids, or a list of either.

Source: OpenAI's API reference, "Create completion"; vLLM and SGLang take the same four forms.

Text enters as `text/prompt`, token ids as `tokens`, so that the ids 1, 2, 3 and the text "1, 2, 3" differ.
A list of prompts is one chain in its order, and a list of one is that one. Token ids end at the first value
that is no 64-bit integer. Of a list of ids that the cut may have hit, the last is left out: 34 may be 345.
"""

import struct
from typing import Any

from extproc.prompt.body import last_key
from extproc.prompt.content import MAX_SEGMENTS, TEXT, TOKENS, Api, Segment

_PROMPT = TEXT + b"/prompt"


def _recognise(fields: dict[str, Any]) -> bool:
    return "prompt" in fields


def _content(fields: dict[str, Any], truncated: bool) -> list[Segment]:
    prompt = fields.get("prompt")
    cut = truncated and last_key(fields) == "prompt"
    if isinstance(prompt, str):
        return [Segment(_PROMPT, prompt.encode(), not cut)]
    if not isinstance(prompt, list) or not prompt:
        return []
    if isinstance(prompt[0], int):
        return [_tokens(prompt, cut)]
    chain: list[Segment] = []
    last = len(prompt) - 1
    for index, item in enumerate(prompt):
        if len(chain) == MAX_SEGMENTS:
            break
        if isinstance(item, str):
            chain.append(Segment(_PROMPT, item.encode(), not (cut and index == last)))
        elif isinstance(item, list):
            chain.append(_tokens(item, cut and index == last))
    return chain


def _tokens(ids: list[Any], cut: bool) -> Segment:
    if cut:
        ids = ids[:-1]
    try:
        data = struct.pack(f"<{len(ids)}q", *ids)
    except struct.error:
        data = b"".join(map(struct.Struct("<q").pack, _leading_ids(ids)))
    return Segment(TOKENS, data, not cut)


def _leading_ids(ids: list[Any]) -> list[int]:
    for index, token in enumerate(ids):
        if not isinstance(token, int) or not -(1 << 63) <= token < 1 << 63:
            return ids[:index]
    return ids


API = Api("completions", ("/completions",), _recognise, _content)
"""OpenAI's /v1/completions."""
