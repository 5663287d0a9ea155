"""Requests that bring token ids, or text beside them, as engines take from their own front ends.

Source: vLLM's /inference/v1/generate (`token_ids`) and /detokenize (`tokens`); SGLang's /generate
(`input_ids` or `text`).
"""

from typing import Any

from extproc.prompt import texts
from extproc.prompt.body import last_key
from extproc.prompt.content import Api, Segment

_IDS = ("token_ids", "input_ids", "prompt_token_ids", "tokens", "text")


def _recognise(fields: dict[str, Any]) -> bool:
    return texts.first_of(fields, _IDS[:-1]) is not None or ("text" in fields and "sampling_params" in fields)


def _content(fields: dict[str, Any], truncated: bool) -> list[Segment]:
    chain: list[Segment] = []
    name = texts.first_of(fields, _IDS)
    if name is not None:
        texts.add(chain, texts.PROMPT, fields[name], truncated and last_key(fields) == name)
    return chain


API = Api("generate", ("/inference/v1/generate", "/detokenize"), _recognise, _content)
"""vLLM's /inference/v1/generate, and SGLang's /generate by its shape."""
