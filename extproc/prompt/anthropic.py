"""Anthropic messages and the count of their tokens.

Source: Anthropic's API reference, "Create a Message" and "Count tokens in a Message"; and how vLLM serves
them: `system` becomes the first message, and results of tools become messages of the role `tool`.

A block of system text that begins with BILLING is left out, as vLLM leaves it out: Claude Code puts one
first, with a number that is another in every request.
"""

from typing import Any

from extproc.prompt import messages
from extproc.prompt.body import last_key
from extproc.prompt.content import Api, Segment

BILLING = "x-anthropic-billing-header"
"""How a block of system text begins that no engine is shown."""


def _recognise(fields: dict[str, Any]) -> bool:
    return "messages" in fields and ("system" in fields or "anthropic_version" in fields)


def _content(fields: dict[str, Any], truncated: bool) -> list[Segment]:
    chain: list[Segment] = []
    last = last_key(fields) if truncated else None
    system = fields.get("system")
    if isinstance(system, list):
        system = _shown(system, last == "system")
    if system:
        add = messages.add_cut if last == "system" else messages.add
        add(chain, {"role": "system", "content": system})
    if last != "system":
        messages.add_all(chain, fields.get("messages"), last == "messages")
    return chain


def _shown(blocks: list[Any], cut: bool) -> list[Any]:
    """Return the blocks that an engine is shown; of a cut list, only those that it is sure to be shown."""
    shown = [block for block in blocks if not _text(block).startswith(BILLING)]
    if cut and shown and BILLING.startswith(_text(shown[-1])):
        shown.pop()
    return shown


def _text(block: object) -> str:
    text = block.get("text") if isinstance(block, dict) else None
    return text if isinstance(text, str) else ""


API = Api(
    "anthropic-messages",
    ("/v1/messages", "/messages/count_tokens"),
    _recognise,
    _content,
    opening=("system",),
)
"""Anthropic's /v1/messages and /v1/messages/count_tokens."""
