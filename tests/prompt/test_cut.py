"""A gateway may send only the first part of a body: its keys are then the first of the whole body's keys."""

import json
import random
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from extproc.prefix import block_keys
from extproc.prompt import Scope, Segment, read

BODIES = Path(__file__).parent.parent / "data" / "bodies"
CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"


def content_keys(path: str, body: bytes, complete: bool, limit: int | None = None) -> list[int]:
    """Return the keys of a body's content alone: a cut body may not show its scope."""
    prompt = read(path, body, complete)
    return [] if prompt is None else block_keys(prompt._replace(scope=Scope()), limit).keys


def content_of(body: bytes) -> list[Segment]:
    prompt = read(CHAT, body, False)
    assert prompt is not None
    return prompt.content


def check_every_cut(path: str, body: bytes, cuts: range | list[int]) -> None:
    whole = content_keys(path, body, True)
    for cut in cuts:
        keys = content_keys(path, body[:cut], False)
        assert keys == whole[: len(keys)], f"cut at {cut}: ...{body[max(0, cut - 40) : cut]!r}"


REAL = [
    *(
        (CHAT, name)
        for name in (
            "chat-one-message.json",
            "chat-tool-calls.json",
            "chat-audio.json",
            "chat-thinking-parts.json",
            "chat-u-escapes.json",
            "chat-pretty-tools-last.json",
            "chat-tools-first.json",
            "chat-image.json",
            "chat-cache-salt.json",
            "chat-raw-utf8.json",
            "chat-surrogate-pairs.json",
        )
    ),
    *(
        (COMPLETIONS, name)
        for name in (
            "completions-token-ids.json",
            "completions-token-lists.json",
            "completions-list-of-text.json",
        )
    ),
]


@pytest.mark.parametrize(("path", "name"), REAL, ids=lambda value: Path(value).stem)
def test_a_real_body_cut_at_any_byte_has_the_first_of_the_whole_bodys_keys(path: str, name: str) -> None:
    body = (BODIES / name).read_bytes()
    check_every_cut(path, body, range(len(body) + 1))
    assert content_keys(path, body, False) == content_keys(path, body, True)


@pytest.mark.parametrize(
    "name", ["chat-u-escapes.json", "chat-tools-first.json", "chat-pretty-tools-last.json"]
)
def test_a_cut_body_keeps_most_of_the_keys_of_what_it_shows(name: str) -> None:
    body = (BODIES / name).read_bytes()
    whole = len(content_keys(CHAT, body, True))
    assert len(content_keys(CHAT, body[: len(body) * 9 // 10], False)) >= whole // 2


def shuffled(value: object, order: random.Random) -> object:
    """Return the value with the keys of every object in some order."""
    if isinstance(value, dict):
        items = [(key, shuffled(item, order)) for key, item in value.items()]
        order.shuffle(items)
        return dict(items)
    if isinstance(value, list):
        return [shuffled(item, order) for item in value]
    return value


texts = st.text(alphabet=st.sampled_from('ab"\\\n é家👋'), max_size=150)
parts = st.one_of(
    texts,
    st.fixed_dictionaries({"type": st.sampled_from(["text", "input_text"]), "text": texts}),
    st.fixed_dictionaries(
        {"type": st.just("text"), "text": texts, "cache_control": st.just({"type": "ephemeral"})}
    ),
    st.fixed_dictionaries({"type": st.just("image_url"), "image_url": st.fixed_dictionaries({"url": texts})}),
    st.fixed_dictionaries({"type": st.just("thinking"), "text": texts}),
    st.fixed_dictionaries({"text": texts}),
    st.integers(),
)
messages = st.fixed_dictionaries(
    {},
    optional={
        "role": st.sampled_from(["system", "user", "assistant", "tool", "to", 5, None]),
        "content": st.one_of(texts, texts, st.lists(parts, max_size=4), st.none(), st.integers(), parts),
        "name": texts,
        "annotations": st.just([]),
        "tool_calls": st.lists(
            st.fixed_dictionaries({"function": st.fixed_dictionaries({"arguments": texts})})
        ),
    },
)
prompts = st.one_of(
    texts,
    st.lists(texts, max_size=4),
    st.lists(st.integers(-5, 200_000), max_size=60),
    st.lists(st.lists(st.integers(0, 200_000), max_size=30), max_size=4),
    st.lists(st.one_of(texts, st.integers(0, 200), st.floats(), st.lists(st.integers(0, 99) | texts))),
)


@given(
    conversation=st.lists(messages, max_size=5),
    prompt=prompts,
    tools=st.lists(texts, max_size=2),
    seed=st.integers(0, 2**32),
    style=st.fixed_dictionaries({"ensure_ascii": st.booleans(), "indent": st.sampled_from([None, 2])}),
)
def test_whatever_the_order_of_its_fields_a_cut_body_has_the_first_of_the_whole_bodys_keys(
    conversation: list[object], prompt: object, tools: list[object], seed: int, style: dict[str, object]
) -> None:
    order = random.Random(seed)
    fields = {
        "model": "m",
        "tools": tools,
        "messages": conversation,
        "prompt": prompt,
        "stream": True,
        "n": 12,
    }
    body = json.dumps(shuffled(fields, order), **style).encode()  # type: ignore[arg-type]
    cuts = sorted(order.randrange(len(body)) for _ in range(40))
    check_every_cut(CHAT, body, cuts)
    check_every_cut(COMPLETIONS, body, cuts)


@given(
    text=st.text(alphabet=st.sampled_from('ab"\\ é家👋'), min_size=1, max_size=80), ascii_only=st.booleans()
)
def test_text_that_is_cut_inside_a_character_or_an_escape_is_open_there(text: str, ascii_only: bool) -> None:
    body = json.dumps({"messages": [{"role": "user", "content": text}]}, ensure_ascii=ascii_only).encode()
    for cut in range(body.index(b'"content"') + len(b'"content": "'), len(body) - len(b'"}]}')):
        (segment,) = content_of(body[:cut])
        assert text.encode().startswith(segment.data)
        assert not segment.closed
        segment.data.decode()


def test_a_message_counts_only_once_its_role_is_certain() -> None:
    assert content_of(b'{"messages":[{"content":"a long text","ro') == []
    assert content_of(b'{"messages":[{"content":"a long text","role":"us') == []
    assert content_of(b'{"messages":[{"content":"a long text","role":"user","name":"x') == [
        Segment(b"text/message/user", b"a long text", True)
    ]


def test_a_part_counts_only_once_its_type_is_certain() -> None:
    start = b'{"messages":[{"role":"user","content":[{"type":"text","text":"a"},'
    closed = Segment(b"text/message/user", b"a", True)
    assert content_of(start + b'{"text":"b') == [closed]
    assert content_of(start + b'{"text":"b","type":"text') == [closed]
    assert content_of(start + b'{"type":"text","text":"b') == [closed, Segment(b"text/part", b"b", False)]
    assert content_of(start + b'{"type":"text","text":"b","x":') == [
        closed,
        Segment(b"text/part", b"b", False),
    ]
    assert content_of(start + b'{"type":"text","text":"b","x":1') == [
        closed,
        Segment(b"text/part", b"b", True),
    ]
    assert content_of(start + b'{"type":"image_url","image_url":{"url":"http') == [closed]


def test_fields_after_the_content_of_a_cut_message_are_left_out() -> None:
    cut = b'{"messages":[{"role":"assistant","content":"a","tool_calls":[{"id":"1"},{"id'
    assert content_of(cut) == [Segment(b"text/message/assistant", b"a", True)]


def test_messages_before_a_cut_field_are_whole() -> None:
    messages = b'{"messages":[{"role":"user","content":"a"}],'
    assert content_of(messages + b'"tools":[{"type":"fun') == [Segment(b"text/message/user", b"a", True)]


def test_a_body_cut_beyond_the_limit_has_the_same_last_key_as_the_whole() -> None:
    body = json.dumps(
        {"messages": [{"role": "user", "content": "Grüße " * 500}]}
    ).encode()  # 16 bytes for 6 characters
    keys = content_keys(CHAT, body, True, limit=1024)
    for cut in range(body.index(b"Gr") + 1024 * 16 // 6 + 6, len(body), 97):
        assert content_keys(CHAT, body[:cut], False, limit=1024) == keys
