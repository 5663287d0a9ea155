"""`inputs`: text-generation-inference, SageMaker's containers, and tensors of KServe.

Source: text-generation-inference's API (/, /generate, /generate_stream, and /invocations on SageMaker); DJL
Serving's (a list of texts); the conversations that SageMaker's JumpStart containers take; the Open Inference
Protocol, version 2, as Triton and KServe serve it, where `inputs` are named tensors, of which those of BYTES
hold text.
"""

from typing import Any

from extproc.prompt import messages, texts
from extproc.prompt.body import last_key
from extproc.prompt.content import Api, Segment


def _recognise(fields: dict[str, Any]) -> bool:
    return "inputs" in fields


def _content(fields: dict[str, Any], truncated: bool) -> list[Segment]:
    chain: list[Segment] = []
    inputs = fields.get("inputs")
    cut = truncated and last_key(fields) == "inputs"
    if isinstance(inputs, dict):  # Hugging Face's pipelines nest the text once more
        name = texts.first_of(inputs, ("text", "inputs", "prompt"))
        cut = cut and last_key(inputs) == name
        inputs = None if name is None else inputs[name]
    if isinstance(inputs, list) and inputs:
        first = inputs[0]
        if isinstance(first, list) and first and isinstance(first[0], dict):
            # Of several conversations the first: where the body is cut, nobody knows whether more follow.
            messages.add_all(chain, first, cut and len(inputs) == 1)
            return chain
        if isinstance(first, dict) and "role" in first:
            messages.add_all(chain, inputs, cut)
            return chain
        if isinstance(first, dict) and "datatype" in first:
            _add_tensors(chain, inputs[:-1] if cut else inputs)
            return chain
    texts.add(chain, texts.PROMPT, inputs, cut)
    return chain


def _add_tensors(chain: list[Segment], tensors: list[Any]) -> None:
    """Add the texts of tensors of BYTES. Others are settings of the call (temperature, max_tokens)."""
    for tensor in tensors:
        if isinstance(tensor, dict) and tensor.get("datatype") == "BYTES":
            texts.add(chain, texts.PROMPT, tensor.get("data"), False)


API = Api("inputs", (), _recognise, _content)
"""By its shape: its paths are those of other APIs too."""
