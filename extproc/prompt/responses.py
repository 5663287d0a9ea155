"""OpenAI responses and the count of their tokens.

Source: OpenAI's API reference, "Create a model response"; vLLM serves the same, with `instructions` as the
first message and `input` as the messages after it.

Items of `input` with a role are messages, and so is the output of a function, of the role `tool`. Other items
(calls, reasoning) enter as `item/<type>` with the digest of their JSON, without UNRENDERED. What a response
continues on the server (`conversation`, `previous_response_id`) is not in the body: its id stands for it, as
`state/<field>`, so that requests that continue the same go to the same engine.
"""

from typing import Any

from extproc.prompt import messages
from extproc.prompt.body import last_key
from extproc.prompt.canonical import digest
from extproc.prompt.content import MAX_SEGMENTS, Api, Segment

UNRENDERED = ("cache_control", "id", "status")
"""Fields of an item that no engine renders, and that some clients send back and others leave out."""

_STATE = ("conversation", "previous_response_id", "prompt")
_OUTPUTS = ("function_call_output", "custom_tool_call_output")
_INPUT_PARTS = ("text", "image_url")
"""Types of what is embedded or moderated, which no item of a response has."""

_MARKS = (
    *(*_STATE, "include", "instructions", "max_output_tokens", "parallel_tool_calls", "reasoning"),
    *("service_tier", "store", "stream", "text", "tools"),
)
"""Fields that tell a response whose input is a text from what is embedded."""


def _recognise(fields: dict[str, Any]) -> bool:
    found = fields.get("input")
    if isinstance(found, list) and found and isinstance(found[0], dict):
        return "role" in found[0] or found[0].get("type", "text") not in _INPUT_PARTS
    return isinstance(found, str) and any(name in fields for name in _MARKS)


def _content(fields: dict[str, Any], truncated: bool) -> list[Segment]:
    chain: list[Segment] = []
    last = last_key(fields) if truncated else None
    for name in _STATE:
        if name == last:
            return chain
        if fields.get(name):
            chain.append(Segment(b"state/" + name.encode(), digest(_named(fields[name])), True))
    instructions = fields.get("instructions")
    if isinstance(instructions, str) and instructions:
        add = messages.add_cut if last == "instructions" else messages.add
        add(chain, {"role": "system", "content": instructions})
    if last == "instructions":
        return chain
    cut = last == "input"
    found = fields.get("input")
    if isinstance(found, str):
        found = [{"role": "user", "content": found}]
    if isinstance(found, list) and found:
        for item in found[:-1] if cut else found:
            if len(chain) >= MAX_SEGMENTS:
                break
            _add(chain, item)
        if cut:
            _add_cut(chain, found[-1])
    return chain[:MAX_SEGMENTS]


def _named(state: object) -> object:
    """A conversation is named by its id or by an object that holds it."""
    return state["id"] if isinstance(state, dict) and list(state) == ["id"] else state


def _add(chain: list[Segment], item: object) -> None:
    if isinstance(item, str):
        messages.add(chain, {"role": "user", "content": item})
    elif isinstance(item, dict) and "role" in item:
        messages.add(chain, item)
    elif isinstance(item, dict) and item.get("type") in _OUTPUTS:
        messages.add(chain, _output(item))
    elif isinstance(item, dict) and item:
        kind = item.get("type")
        tag = b"item/" + kind.encode() if isinstance(kind, str) else b"item/"
        kept = {key: value for key, value in item.items() if value is not None and key not in UNRENDERED}
        chain.append(Segment(tag, digest(kept), True))


def _add_cut(chain: list[Segment], item: object) -> None:
    if isinstance(item, str):
        messages.add_cut(chain, {"role": "user", "content": item})
    elif isinstance(item, dict) and "role" in item:
        messages.add_cut(chain, item)
    elif isinstance(item, dict) and item.get("type") in _OUTPUTS and last_key(item) != "type":
        messages.add_cut(chain, _output(item))


def _output(item: dict[str, Any]) -> dict[str, Any]:
    """Return the output of a function as the message of the tool, its fields in the order of the item."""
    message: dict[str, Any] = {"role": "tool"}
    for name, value in item.items():
        if name == "output":
            message["content"] = value
        elif name == "call_id":
            message["tool_call_id"] = value
    return message


API = Api(
    "responses",
    ("/responses", "/responses/input_tokens", "/responses/compact"),
    _recognise,
    _content,
    opening=(*_STATE, "instructions"),
)
"""OpenAI's /v1/responses, /v1/responses/input_tokens and /v1/responses/compact."""
