"""What of an OpenAI chat body becomes content, and that the way it is written does not matter."""

import json
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from extproc.prompt import MAX_SEGMENTS, Prompt, Segment, read

PATH = "/v1/chat/completions"

WEATHER_CALL = {
    "id": "call_1",
    "type": "function",
    "function": {"name": "weather", "arguments": '{"city":"Ulm"}'},
}


def prompt_of(body: object) -> Prompt:
    """Read a body that is whole."""
    prompt = read(PATH, body if isinstance(body, bytes) else json.dumps(body).encode(), True)
    assert prompt is not None
    return prompt


def content_of(*messages: object) -> list[Segment]:
    """Return the content of a conversation."""
    return prompt_of({"messages": messages}).content


def user(content: object, **fields: object) -> dict[str, object]:
    return {"role": "user", "content": content, **fields}


def test_each_message_enters_with_its_role_and_text_in_order() -> None:
    assert content_of({"role": "system", "content": "Be brief."}, user("Grüße")) == [
        Segment(b"text/message/system", b"Be brief.", True),
        Segment(b"text/message/user", "Grüße".encode(), True),
    ]


def test_a_string_and_a_list_with_one_text_part_are_the_same_content() -> None:
    assert content_of(user("hi")) == content_of(user([{"type": "text", "text": "hi"}]))
    assert content_of(user("hi")) == content_of(user(["hi"]))


@pytest.mark.parametrize("message", [{"role": "user"}, user(None), user(""), user([])], ids=str)
def test_absent_null_and_empty_content_are_the_same(message: dict[str, object]) -> None:
    assert content_of(message) == [Segment(b"text/message/user", b"", True)]


def test_two_messages_differ_from_one_message_of_two_parts() -> None:
    assert content_of(user("a"), user("b")) != content_of(user(["a", "b"]))


def test_an_image_enters_by_a_digest_tagged_with_its_type() -> None:
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64," + "A" * 5000}}
    start, part = content_of(user([image]))
    assert start == Segment(b"text/message/user", b"", True)
    assert part.tag == b"part/image_url"
    assert len(part.data) == 16
    other = {"type": "image_url", "image_url": {"url": "data:image/png;base64," + "A" * 4999 + "B"}}
    assert content_of(user([other])) != content_of(user([image]))


def test_cache_control_marks_do_not_change_the_content() -> None:
    image: dict[str, object] = {"type": "image_url", "image_url": {"url": "http://images.test/1"}}
    parts: list[dict[str, object]] = [{"type": "text", "text": "hi"}, image]
    marked = [{**part, "cache_control": {"type": "ephemeral"}} for part in parts]
    assert content_of(user(parts)) == content_of(user(marked))


def test_tool_calls_enter_after_the_text_in_canonical_form() -> None:
    segments = content_of({"tool_calls": [WEATHER_CALL], "content": None, "role": "assistant"})
    assert [segment.tag for segment in segments] == [b"text/message/assistant", b"fields"]
    backwards = dict(reversed(WEATHER_CALL.items()))
    assert segments == content_of({"role": "assistant", "tool_calls": [backwards]})
    assert segments != content_of({"role": "assistant", "tool_calls": [{**WEATHER_CALL, "id": "call_2"}]})


@pytest.mark.parametrize("field", ["name", "tool_call_id", "function_call", "reasoning", "reasoning_content"])
def test_fields_that_a_chat_template_renders_are_content(field: str) -> None:
    assert content_of(user("hi", **{field: "x"})) != content_of(user("hi"))


@pytest.mark.parametrize("field", ["annotations", "refusal", "id", "cache_control", "created_at"])
def test_fields_that_no_chat_template_renders_are_not(field: str) -> None:
    assert content_of(user("hi", **{field: "x"})) == content_of(user("hi"))


def test_null_and_empty_fields_count_as_absent() -> None:
    assert content_of(user("hi", tool_calls=None, function_call=None, name="")) == content_of(user("hi"))


def test_the_last_of_duplicate_keys_wins_as_in_the_engines() -> None:
    twice = b'{"messages":[{"role":"user","content":"a"}],"messages":[{"role":"user","content":"b"}]}'
    assert prompt_of(twice).content == content_of(user("b"))


@pytest.mark.parametrize(
    "messages",
    [
        5,
        None,
        {},
        "text",
        [],
        [5, None, "text", [], True],
    ],
    ids=str,
)
def test_messages_of_a_wrong_type_have_no_content(messages: object) -> None:
    assert prompt_of({"messages": messages}).content == []


@pytest.mark.parametrize(
    "content", [{}, {"type": 5}, 5, 1.5, True, [None, 5, [], {"type": None}], 10**80], ids=str
)
@pytest.mark.parametrize("role", [None, 5, [], "user"], ids=str)
def test_roles_and_content_of_a_wrong_type_are_still_told_apart(role: object, content: object) -> None:
    segments = content_of({"role": role, "content": content})
    assert segments[0].tag == (b"text/message/user" if role == "user" else b"text/message/")
    assert segments != content_of({"role": role, "content": "text"})


def test_a_message_without_a_role_still_counts() -> None:
    assert content_of({"content": "hi"}) == [Segment(b"text/message/", b"hi", True)]


def test_no_more_segments_are_kept_than_can_have_keys() -> None:
    assert len(content_of(*[user("")] * 5000)) == MAX_SEGMENTS
    assert len(content_of(user(["a"] * 5000))) == MAX_SEGMENTS
    assert content_of(*[user("")] * 5000) == content_of(*[user("")] * 6000)


# One conversation, written by many clients.

texts = st.text(
    alphabet=st.one_of(st.characters(codec="utf-8"), st.sampled_from('"\\/\n\t é家👋')), max_size=20
)
values = st.one_of(st.none(), st.booleans(), st.integers(), texts)
nested = st.recursive(
    values,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=6,
)
messages = st.lists(
    st.fixed_dictionaries(
        {"role": st.sampled_from(["system", "user", "assistant", "tool"])},
        optional={
            "content": texts,
            "name": texts,
            "tool_calls": st.lists(st.fixed_dictionaries({"function": nested, "id": texts}), max_size=2),
        },
    ),
    max_size=4,
)
tools = st.lists(st.dictionaries(texts, nested, max_size=3), max_size=2)


def write(value: object, client: random.Random) -> str:
    """Write a value as some client might: any order of keys, any blanks, any escapes."""

    def padded(text: str) -> str:
        return client.choice(["", "", " ", "\n  "]) + text + client.choice(["", "", " ", "\r\n\t"])

    if isinstance(value, dict):
        items = [f"{padded(write(key, client))}:{padded(write(item, client))}" for key, item in value.items()]
        client.shuffle(items)
        return f"{{{','.join(items) or padded('')}}}"
    if isinstance(value, list):
        return f"[{','.join(padded(write(item, client)) for item in value)}]"
    return json.dumps(value, ensure_ascii=client.random() < 0.5)


def in_parts(message: dict[str, object]) -> dict[str, object]:
    """Return the message with its text as a list of one part."""
    if "content" not in message:
        return message
    return {**message, "content": [{"type": "text", "text": message["content"]}]}


@given(conversation=messages, tools=tools, seed=st.integers(0, 2**32))
def test_how_a_client_writes_a_conversation_does_not_change_its_content_or_scope(
    conversation: list[dict[str, object]], tools: list[object], seed: int
) -> None:
    plain = {"model": "m", "messages": conversation, "tools": tools}
    other = {**plain, "messages": [in_parts(message) for message in conversation]}
    assert prompt_of(write(other, random.Random(seed)).encode()) == prompt_of(plain)
