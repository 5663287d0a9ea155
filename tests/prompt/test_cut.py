"""A gateway may send only the first part of a body: its keys are then the first of the whole body's keys."""

import json
import random
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from extproc.prefix import block_keys
from extproc.prompt import APIS, Scope, Segment, read
from extproc.prompt.body import parse

BODIES = Path(__file__).parent.parent / "data" / "bodies"
CHAT, COMPLETIONS, ANTHROPIC = "/v1/chat/completions", "/v1/completions", "/v1/messages"
RESPONSES = "/v1/responses"


def content_keys(path: str, body: bytes, complete: bool, limit: int | None = None) -> list[int]:
    """Return the keys of a body's content alone: a cut body may not show its scope."""
    prompt = read(path, body, complete)
    return [] if prompt is None else block_keys(prompt._replace(scope=Scope()), limit).keys


def content_of(body: bytes) -> list[Segment]:
    prompt = read(CHAT, body, False)
    assert prompt is not None
    return prompt.content


def check_every_cut(path: str, body: bytes, cuts: range | list[int]) -> None:
    """Check that what a cut body has as keys is the beginning of what the whole has.

    A field that opens the content (`system`) and comes after the cut is not known there: the rest is keyed
    as if the whole had none, and the scope is partial.
    """
    whole = read(path, body, True)
    assert whole is not None
    keys = block_keys(whole).keys
    content = content_keys(path, body, True)
    for cut in cuts:
        seen = read(path, body[:cut], False)
        if seen is None or seen.api != whole.api:
            assert cut < 2, "only a body that shows no object yet is not read as its API"
            continue
        where = f"cut at {cut}: ...{body[max(0, cut - 40) : cut]!r}"
        found = block_keys(seen._replace(scope=Scope())).keys
        unopened = content_keys(path, without_opening(path, body, body[:cut]), True)
        assert found in (content[: len(found)], unopened[: len(found)]), where
        assert found == content[: len(found)] or seen.scope.partial, where
        if seen.scope._replace(partial=False) == whole.scope and found == content[: len(found)]:
            assert block_keys(seen).keys == keys[: len(found)], where


def without_opening(path: str, body: bytes, seen: bytes) -> bytes:
    """Return the body without those opening fields that its cut beginning does not show."""
    opening = next((api.opening for api in APIS if path.endswith(api.paths)), ())
    parsed = parse(seen)
    shown = parsed.fields if parsed is not None else {}
    fields = json.loads(body)
    return json.dumps(
        {name: value for name, value in fields.items() if name not in opening or name in shown}
    ).encode()


REAL = [
    *(
        (CHAT, f"chat-{name}.json")
        for name in (
            *("one-message", "tool-calls", "audio", "thinking-parts", "pretty-tools-last", "tools-first"),
            *("image", "cache-salt", "raw-utf8", "surrogate-pairs", "nvext-salt"),
        )
    ),
    *((COMPLETIONS, f"completions-{name}.json") for name in ("token-ids", "token-lists", "list-of-text")),
    *(
        (ANTHROPIC, f"anthropic-{name}.json")
        for name in (
            "u-escapes",
            "tool-results",
            "tool-search",
            "thinking",
            "compaction",
            "system",
            "document",
        )
    ),
    *(
        (RESPONSES, f"responses-{name}.json")
        for name in ("tool-use", "continued", "functions", "image", "web-search")
    ),
    ("/v1/embeddings", "embeddings-batch.json"),
    ("/v1/moderations", "embeddings-moderation.json"),
    ("/score", "score-batch.json"),
    ("/api/chat", "ollama-chat.json"),
    ("/inference/v1/generate", "generate-token-ids.json"),
]


@pytest.mark.parametrize(("path", "name"), REAL, ids=lambda value: Path(value).stem)
def test_a_real_body_cut_at_any_byte_has_the_first_of_the_whole_bodys_keys(path: str, name: str) -> None:
    body = (BODIES / name).read_bytes()
    check_every_cut(path, body, range(len(body) + 1))
    assert content_keys(path, body, False) == content_keys(path, body, True)


@pytest.mark.parametrize(
    "name", ["anthropic-u-escapes.json", "chat-tools-first.json", "chat-pretty-tools-last.json"]
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
    st.fixed_dictionaries(
        {"type": st.just("tool_result"), "tool_use_id": texts},
        optional={
            "content": texts | st.lists(st.fixed_dictionaries({"type": st.just("text"), "text": texts}))
        },
    ),
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


items = st.one_of(
    messages,
    texts,
    st.fixed_dictionaries({"type": st.just("function_call_output"), "call_id": texts, "output": texts}),
    st.fixed_dictionaries({"type": st.just("function_call"), "arguments": texts, "id": texts}),
    st.fixed_dictionaries({"type": st.just("reasoning"), "summary": st.lists(parts, max_size=2)}),
)
systems = st.one_of(
    texts,
    st.lists(
        st.fixed_dictionaries(
            {
                "type": st.just("text"),
                "text": texts | st.sampled_from(["x-anthropic-billing-header: 1", "x-anthropic", ""]),
            }
        ),
        max_size=3,
    ),
)
fields_of = st.fixed_dictionaries(
    {
        "model": st.just("m"),
        "tools": st.lists(texts, max_size=2),
        "messages": st.lists(messages, max_size=5),
        "prompt": prompts,
        "n": st.just(12),
    },
    optional={
        "system": systems,
        "input": st.one_of(texts, st.lists(items, max_size=5), prompts),
        "inputs": st.one_of(prompts, st.lists(messages, max_size=3)),
        "instructions": texts,
        "previous_response_id": texts,
        "query": texts,
        "documents": st.lists(texts, max_size=3),
        "token_ids": st.lists(st.integers(0, 200_000), max_size=60),
        "images": st.lists(texts, max_size=2),
    },
)
PATHS = [
    *(CHAT, COMPLETIONS, ANTHROPIC, RESPONSES, "/v1/embeddings", "/rerank", "/inference/v1/generate"),
    *("/api/chat", "/api/generate"),
]


@given(
    fields=fields_of,
    path=st.sampled_from(PATHS),
    seed=st.integers(0, 2**32),
    style=st.fixed_dictionaries({"ensure_ascii": st.booleans(), "indent": st.sampled_from([None, 2])}),
)
def test_whatever_the_order_of_its_fields_a_cut_body_has_the_first_of_the_whole_bodys_keys(
    fields: dict[str, object], path: str, seed: int, style: dict[str, object]
) -> None:
    order = random.Random(seed)
    body = json.dumps(shuffled(fields, order), **style).encode()  # type: ignore[arg-type]
    cuts = sorted(order.randrange(len(body)) for _ in range(40))
    check_every_cut(path, body, cuts)


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


def test_a_system_prompt_counts_only_where_its_path_says_that_it_is_one() -> None:
    system = b'{"system":"' + b"Be brief. " * 50 + b'",'
    body = system + b'"messages":[{"role":"user","content":"hi"}]}'
    check_every_cut("/api/chat", body, range(len(body) + 1))
    assert content_keys("/api/chat", system, False) == []
    assert content_keys("/api/generate", system, False) != []


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
