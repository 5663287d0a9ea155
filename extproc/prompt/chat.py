"""OpenAI chat completions.

Source: OpenAI's API reference, "Create chat completion", and what vLLM's and SGLang's chat templates are
given (`messages` with role, content and the fields of RENDERED).

Each message is one or more segments, whatever the order of its fields in the body:

1. `text/message/<role>` with the text of the content, or of its first part where that is text, or nothing;
2. one segment for each further part: `text/part` with text, or `part/<type>` with the digest of its JSON;
3. `fields`: the other fields that the template renders, as canonical JSON.

A string and a list with one text part are the same content; absent, null, and empty are too.

Of a message that the cut may have hit, only what the whole message is sure to begin with counts: nothing
before its role is known, then content as far as it was seen, and nothing after it. So the chain of a cut
body is the beginning of the chain of the whole body, except where a key occurs twice in one object: the
last one wins, as in the engines, and a body cut before or inside it may give another chain.
"""

from typing import Any

from extproc.prompt.body import last_key
from extproc.prompt.canonical import canonical, digest
from extproc.prompt.content import MAX_SEGMENTS, TEXT, Api, Segment

RENDERED = ("function_call", "name", "reasoning", "reasoning_content", "tool_call_id", "tool_calls", "tools")
"""Fields of a message, besides role and content, that chat templates render.

Others are left out: to share a key wrongly makes one prediction poorer, while a field that no engine looks at
(ids, timestamps, annotations, cache_control) would cost the hits of every turn after it.
"""

_START = TEXT + b"/message/"
_PART = TEXT + b"/part"
_TEXT_TYPES = ("text", "input_text", "output_text")


def _recognise(fields: dict[str, Any]) -> bool:
    return "messages" in fields


def _content(fields: dict[str, Any], truncated: bool) -> list[Segment]:
    messages = fields.get("messages")
    if not isinstance(messages, list) or not messages:
        return []
    chain: list[Segment] = []
    cut = truncated and last_key(fields) == "messages"
    for message in messages[:-1] if cut else messages:
        if len(chain) >= MAX_SEGMENTS:
            break
        if isinstance(message, dict):
            _add(chain, message)
    if cut and isinstance(messages[-1], dict):
        _add_cut(chain, messages[-1])
    return chain[:MAX_SEGMENTS]


def _add(chain: list[Segment], message: dict[str, Any]) -> None:
    """Add a message that was seen whole."""
    _add_content(chain, message)
    if len(message) > ("role" in message) + ("content" in message):
        rendered = {name: message[name] for name in RENDERED if message.get(name)}
        if rendered:
            chain.append(Segment(b"fields", canonical(rendered), True))


def _add_cut(chain: list[Segment], message: dict[str, Any]) -> None:
    """Add what is certain of a message that the cut may have hit."""
    last = last_key(message)
    if "role" not in message or last == "role" or "content" not in message:
        return
    if last != "content":
        _add_content(chain, message)
        return
    tag, content = _start(message), message["content"]
    if isinstance(content, str):
        chain.append(Segment(tag, content.encode(), False))
    elif isinstance(content, list) and content:
        part = content[-1]
        if len(content) > 1:
            _add_parts(chain, tag, content[:-1])
            tag = _PART
        if isinstance(part, str):
            chain.append(Segment(tag, part.encode(), False))
        elif isinstance(part, dict) and last_key(part) != "type":
            text = _text(part)
            if text is not None:
                chain.append(Segment(tag, text.encode(), last_key(part) != "text"))


def _start(message: dict[str, Any]) -> bytes:
    role = message.get("role")
    return _START + role.encode() if isinstance(role, str) else _START


def _add_content(chain: list[Segment], message: dict[str, Any]) -> None:
    tag, content = _start(message), message.get("content")
    if isinstance(content, str):
        chain.append(Segment(tag, content.encode(), True))
    elif isinstance(content, list):
        _add_parts(chain, tag, content)
    elif content is None:
        chain.append(Segment(tag, b"", True))
    else:
        _add_parts(chain, tag, [content])


def _add_parts(chain: list[Segment], tag: bytes, parts: list[Any]) -> None:
    """Add the parts of a message whose first segment has this tag."""
    first = parts[0] if parts else ""
    text = _text(first)
    if text is None:  # every message starts with its role, whatever its first part is
        chain.append(Segment(tag, b"", True))
        _add_other(chain, first)
    else:
        chain.append(Segment(tag, text.encode(), True))
    for part in parts[1:MAX_SEGMENTS]:
        text = _text(part)
        if text is None:
            _add_other(chain, part)
        else:
            chain.append(Segment(_PART, text.encode(), True))


def _text(part: object) -> str | None:
    """Return the text of a part that is text, else None."""
    if isinstance(part, str):
        return part
    if isinstance(part, dict) and part.get("type") in _TEXT_TYPES:
        text = part.get("text")
        if isinstance(text, str):
            return text
    return None


def _add_other(chain: list[Segment], part: object) -> None:
    kind: object = None
    if isinstance(part, dict):
        kind = part.get("type")
        part = {key: value for key, value in part.items() if value is not None and key != "cache_control"}
    tag = b"part/" + kind.encode() if isinstance(kind, str) else b"part/"
    chain.append(Segment(tag, digest(part), True))


API = Api("chat", ("/chat/completions",), _recognise, _content)
"""OpenAI's /v1/chat/completions."""
