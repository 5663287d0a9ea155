"""Triton's generate extension, as TensorRT-LLM and vLLM backends are called.

Source: Triton's documentation of its generate extension (/v2/models/<name>/generate and generate_stream), and
the ensemble of the TensorRT-LLM backend: the prompt is the field `text_input`.
"""

from typing import Any

from extproc.prompt import texts
from extproc.prompt.body import last_key
from extproc.prompt.content import Api, Segment


def _recognise(fields: dict[str, Any]) -> bool:
    return "text_input" in fields


def _content(fields: dict[str, Any], truncated: bool) -> list[Segment]:
    chain: list[Segment] = []
    texts.add(chain, texts.PROMPT, fields.get("text_input"), truncated and last_key(fields) == "text_input")
    return chain


API = Api("triton-generate", (), _recognise, _content)
"""By its shape: its paths are those of other APIs too."""
