"""Messages as segments of content: the reading that every API with roles shares.

What an API calls its messages is put into the form of OpenAI's chat completions first, as the engines' own
front ends do, so that a conversation has one chain by whatever API it comes.

Each message is one or more segments, whatever the order of its fields in the body:

1. `text/message/<role>` with the text of the content, or of its first part where that is text, or nothing;
2. one segment for each further part: `text/part` with text, or `part/<type>` with the digest of its JSON;
3. `fields`: the other fields that the template renders, as canonical JSON.

A string and a list with one text part are the same content; absent, null, and empty are too. A `tool_result`
part (Anthropic) is a message of its own with the role `tool`.

Of a message that the cut may have hit, only what the whole message is sure to begin with counts: nothing
before its role is known, then content as far as it was seen, and nothing after it. So the chain of a cut
body is the beginning of the chain of the whole body, except where a key occurs twice in one object: the
last one wins, as in the engines, and a body cut before or inside it may give another chain.

Source: OpenAI's API reference, "Create chat completion"; Anthropic's, "Create a Message"; and what vLLM's and
SGLang's chat templates are given.
"""

from typing import Any

from extproc.prompt.body import last_key
from extproc.prompt.canonical import canonical, digest
from extproc.prompt.content import MAX_SEGMENTS, TEXT, Segment

RENDERED = ("function_call", "name", "reasoning", "reasoning_content", "tool_call_id", "tool_calls", "tools")
"""Fields of a message, besides role and content, that chat templates render.

Others are left out: to share a key wrongly makes one prediction poorer, while a field that no engine looks at
(ids, timestamps, annotations, cache_control) would cost the hits of every turn after it. `images` (Ollama) is
rendered too, and enters by digest.
"""

_START = TEXT + b"/message/"
_PART = TEXT + b"/part"
_TEXT_TYPES = ("text", "input_text", "output_text")

_new = tuple.__new__
"""Makes a named tuple in half the time of its constructor, which is much of the time of a short message."""

_STARTS = {
    role: _START + role.encode() for role in ("system", "developer", "user", "assistant", "tool", "function")
}
"""Tags of the usual roles, made once. It never grows: a role may be text of a prompt."""


def add_all(chain: list[Segment], messages: object, cut: bool) -> None:
    """Add a list of messages up to MAX_SEGMENTS segments; `cut` says that the last may be incomplete.

    What is no list, and what in it is no object, adds nothing.
    """
    if not isinstance(messages, list) or not messages:
        return
    for message in messages[:-1] if cut else messages:
        if len(chain) >= MAX_SEGMENTS:
            break
        if isinstance(message, dict):
            add(chain, message)
    if cut and isinstance(messages[-1], dict):
        add_cut(chain, messages[-1])
    del chain[MAX_SEGMENTS:]


def add(chain: list[Segment], message: dict[str, Any]) -> None:
    """Add a message that was seen whole."""
    try:
        usual = (_STARTS[message["role"]], message["content"].encode(), True)
    except (AttributeError, KeyError, TypeError):
        _add_content(chain, _start(message.get("role")), message.get("content"))
        _add_fields(chain, message)
        return
    chain.append(_new(Segment, usual))
    if len(message) > 2:
        _add_fields(chain, message)


def add_cut(chain: list[Segment], message: dict[str, Any]) -> None:
    """Add what is certain of a message that the cut may have hit."""
    last = last_key(message)
    if "role" not in message or last == "role" or "content" not in message:
        return
    tag, content = _start(message["role"]), message["content"]
    if last == "content":
        _add_cut_content(chain, tag, content)
    else:
        _add_content(chain, tag, content)


def _start(role: object) -> bytes:
    return _START + role.encode() if isinstance(role, str) else _START


def _add_content(chain: list[Segment], tag: bytes, content: object) -> None:
    if isinstance(content, str):
        chain.append(Segment(tag, content.encode(), True))
    elif isinstance(content, list):
        if content:
            _add_parts(chain, tag, content)
        else:
            chain.append(Segment(tag, b"", True))
    elif content is None:
        chain.append(Segment(tag, b"", True))
    else:
        _add_part(chain, tag, content)


def _add_cut_content(chain: list[Segment], tag: bytes, content: object) -> None:
    if isinstance(content, str):
        chain.append(Segment(tag, content.encode(), False))
        return
    if not isinstance(content, list) or not content:
        return
    tag, part = _add_parts(chain, tag, content[:-1]), content[-1]
    if isinstance(part, str):
        chain.append(Segment(tag, part.encode(), False))
    elif isinstance(part, dict) and last_key(part) != "type":
        text = _text(part)
        if text is not None:
            chain.append(Segment(tag, text.encode(), last_key(part) != "text"))
        elif part.get("type") == "tool_result":
            add_cut(chain, _result(part))


def _add_parts(chain: list[Segment], tag: bytes, parts: list[Any]) -> bytes:
    """Add the parts of a message that starts with this tag; return the tag of a text that would follow."""
    start = tag
    for part in parts[:MAX_SEGMENTS]:
        if isinstance(part, dict) and part.get("type") == "tool_result":
            add(chain, _result(part))
            tag = start
        else:
            _add_part(chain, tag, part)
            tag = _PART
    return tag


def _add_part(chain: list[Segment], tag: bytes, part: object) -> None:
    text = _text(part)
    if text is not None:
        chain.append(Segment(tag, text.encode(), True))
        return
    if tag is not _PART:  # every message starts with its role, whatever its first part is
        chain.append(Segment(tag, b"", True))
    kind: object = None
    if isinstance(part, dict):
        kind = part.get("type")
        part = {key: value for key, value in part.items() if value is not None and key != "cache_control"}
    chain.append(Segment(b"part/" + kind.encode() if isinstance(kind, str) else b"part/", digest(part), True))


def _text(part: object) -> str | None:
    """Return the text of a part that is text, else None."""
    if isinstance(part, str):
        return part
    if isinstance(part, dict) and part.get("type") in _TEXT_TYPES:
        text = part.get("text")
        if isinstance(text, str):
            return text
    return None


def _result(part: dict[str, Any]) -> dict[str, Any]:
    """Return a `tool_result` part as the message of the tool, with its fields in the order of the part."""
    message: dict[str, Any] = {"role": "tool"}
    for name, value in part.items():
        if name not in ("type", "role", "name"):
            message["tool_call_id" if name == "tool_use_id" else name] = value
    return message


def _add_fields(chain: list[Segment], message: dict[str, Any]) -> None:
    rendered = {name: message[name] for name in RENDERED if message.get(name)}
    if message.get("images"):
        rendered["images"] = digest(message["images"]).hex()
    if rendered:
        chain.append(Segment(b"fields", canonical(rendered), True))
