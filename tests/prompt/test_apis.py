"""What of each API's bodies becomes content, beyond chat and completions."""

import json
import struct
from typing import Any

import pytest

from extproc.prefix import block_keys
from extproc.prompt import APIS, MAX_SEGMENTS, Prompt, Segment, read

CHAT, ANTHROPIC, RESPONSES = "/v1/chat/completions", "/v1/messages", "/v1/responses"
EMBEDDINGS, SCORE, GENERATE = "/v1/embeddings", "/v1/rerank", "/inference/v1/generate"


def prompt_of(path: str, /, **fields: object) -> Prompt:
    """Read a whole body with these fields."""
    prompt = read(path, json.dumps(fields).encode(), True)
    assert prompt is not None
    return prompt


def content_of(path: str, /, **fields: object) -> list[Segment]:
    return prompt_of(path, **fields).content


def message(role: str, text: str) -> Segment:
    return Segment(b"text/message/" + role.encode(), text.encode(), True)


def prompt_text(text: str) -> Segment:
    return Segment(b"text/prompt", text.encode(), True)


def input_text(text: str) -> Segment:
    return Segment(b"text/input", text.encode(), True)


def ids(*tokens: int) -> Segment:
    return Segment(b"tokens", struct.pack(f"<{len(tokens)}q", *tokens), True)


def user(content: object) -> dict[str, object]:
    return {"role": "user", "content": content}


def result(content: object, call: str = "call_1") -> dict[str, object]:
    return {"type": "tool_result", "tool_use_id": call, "content": content}


# One conversation has one chain, whatever the API it comes by.


def test_a_conversation_has_one_chain_by_whatever_api_it_comes() -> None:
    talk: list[dict[str, object]] = [user("Hello"), {"role": "assistant", "content": "Hi"}, user("How?")]
    by_chat = prompt_of(CHAT, model="m", messages=[{"role": "system", "content": "Be brief."}, *talk])
    others = [
        prompt_of(ANTHROPIC, model="m", system="Be brief.", messages=talk, max_tokens=9),
        prompt_of(ANTHROPIC, model="m", messages=talk, system=[{"type": "text", "text": "Be brief."}]),
        prompt_of("/v1/messages/count_tokens", model="m", system="Be brief.", messages=talk),
        prompt_of(RESPONSES, model="m", instructions="Be brief.", input=talk),
        prompt_of("/v1/responses/input_tokens", input=talk, instructions="Be brief.", model="m"),
        prompt_of("/api/chat", model="m", messages=[{"role": "system", "content": "Be brief."}, *talk]),
        prompt_of("", model="m", inputs=[{"role": "system", "content": "Be brief."}, *talk]),
        prompt_of("", model="m", inputs=[[{"role": "system", "content": "Be brief."}, *talk]]),
    ]
    assert [block_keys(other) for other in others] == [block_keys(by_chat)] * len(others)


def test_the_result_of_a_tool_is_one_content_by_whatever_api_it_comes() -> None:
    by_chat = content_of(CHAT, messages=[{"role": "tool", "tool_call_id": "call_1", "content": "62 F"}])
    output = {"type": "function_call_output", "call_id": "call_1", "output": "62 F"}
    assert content_of(ANTHROPIC, messages=[user([result("62 F")])]) == by_chat
    assert content_of(ANTHROPIC, messages=[user([result([{"type": "text", "text": "62 F"}])])]) == by_chat
    assert content_of(RESPONSES, input=[output]) == by_chat


def test_one_text_to_complete_is_one_content_by_whatever_api_it_comes() -> None:
    expected = [prompt_text("Once")]
    assert content_of("/v1/completions", prompt="Once") == expected
    assert content_of("/v1/complete", prompt="Once") == expected
    assert content_of("/generate", prompt="Once") == expected
    assert content_of("/generate", inputs="Once", parameters={"max_new_tokens": 5}) == expected
    assert content_of("/invocations", inputs="Once") == expected
    assert content_of("/predictions/model", inputs={"text": "Once"}) == expected
    assert content_of("/v2/models/ensemble/generate_stream", text_input="Once", max_tokens=5) == expected
    assert content_of("/generate", text="Once", sampling_params={"temperature": 0}) == expected
    tensor = {"name": "text_input", "shape": [1, 1], "datatype": "BYTES", "data": ["Once"]}
    steps = {"name": "max_tokens", "shape": [1, 1], "datatype": "INT32", "data": [5]}
    assert content_of("/v2/models/ensemble/infer", inputs=[steps, tensor]) == expected


def test_one_list_of_token_ids_is_one_content_by_whatever_api_it_comes() -> None:
    expected = [ids(11, 22, 33)]
    assert content_of("/v1/completions", prompt=[11, 22, 33]) == expected
    assert content_of(GENERATE, token_ids=[11, 22, 33], sampling_params={}) == expected
    assert content_of("/generate", input_ids=[11, 22, 33], sampling_params={}) == expected
    assert content_of(EMBEDDINGS, input=[[11, 22, 33]]) == expected


TEXTS_AND_IDS: list[tuple[str, dict[str, Any]]] = [
    ("/v1/completions", {"prompt": [49, 50]}),
    ("/v1/completions", {"prompt": "12"}),
    ("/v1/completions", {"prompt": ["1", "2"]}),
    (EMBEDDINGS, {"input": "12"}),
    (CHAT, {"messages": [user("12")]}),
    (CHAT, {"messages": [{"role": "tokens", "content": "12"}]}),
    (RESPONSES, {"input": "12", "instructions": "12"}),
    (SCORE, {"query": "1", "documents": ["2"]}),
    ("/anything", {"other": "12"}),
]


def test_texts_token_ids_and_messages_never_share_a_key() -> None:
    keys = [block_keys(prompt_of(path, **fields)).keys for path, fields in TEXTS_AND_IDS]
    assert all(keys)
    assert len(set().union(*keys)) == sum(map(len, keys))


@pytest.mark.parametrize("api", APIS, ids=lambda api: api.name)
@pytest.mark.parametrize(
    "scope",
    [
        {"model": "n"},
        {"cache_salt": "s"},
        {"extra_key": "s"},
        {"nvext": {"cache_salt": "s"}},
        {"lora_path": "fr"},
        {"parameters": {"adapter_id": "fr"}},
        {"chat_template_kwargs": {"thinking": True}},
    ],
    ids=str,
)
def test_other_model_salt_adapter_or_template_share_no_key(api: Any, scope: dict[str, object]) -> None:
    fields: dict[str, object] = {
        "model": "m",
        "messages": [user("hi")],
        "prompt": "hi",
        "input": "hi",
        "inputs": "hi",
        "text_input": "hi",
        "token_ids": [1],
        "query": "hi",
        "documents": ["a"],
    }
    path = api.paths[0] if api.paths else ""
    one, other = prompt_of(path, **fields), prompt_of(path, **{**fields, **scope})
    assert one.content == other.content
    assert not set(block_keys(one).keys) & set(block_keys(other).keys)


# Anthropic


def test_system_text_comes_first_wherever_it_stands_in_the_body() -> None:
    expected = [message("system", "Be brief."), message("user", "hi")]
    assert content_of(ANTHROPIC, system="Be brief.", messages=[user("hi")]) == expected
    assert content_of(ANTHROPIC, messages=[user("hi")], system="Be brief.") == expected


@pytest.mark.parametrize(
    "system", [None, "", [], [{"type": "text", "text": "x-anthropic-billing-header: 1"}]]
)
def test_no_system_text_is_no_message(system: object) -> None:
    assert content_of(ANTHROPIC, system=system, messages=[user("hi")]) == [message("user", "hi")]


def test_a_billing_block_that_changes_with_every_request_is_left_out() -> None:
    def with_billing(number: str) -> list[Segment]:
        billing = {"type": "text", "text": f"x-anthropic-billing-header: cc_version=2.1; cch={number};"}
        return content_of(ANTHROPIC, system=[billing, {"type": "text", "text": "Be brief."}], messages=[])

    assert with_billing("74943") == with_billing("eb6c6") == [message("system", "Be brief.")]


def test_cache_marks_on_system_text_tools_and_results_do_not_matter() -> None:
    mark: dict[str, object] = {"cache_control": {"type": "ephemeral"}}

    def marked(marks: dict[str, object]) -> Prompt:
        return prompt_of(
            ANTHROPIC,
            system=[{"type": "text", "text": "Be brief.", **marks}],
            tools=[{"name": "weather", "input_schema": {}, **marks}],
            messages=[user([{**result([{"type": "text", "text": "62 F", **marks}]), **marks}])],
        )

    assert marked(mark) == marked({})


def test_results_of_tools_are_messages_and_what_the_user_says_beside_them_is_another() -> None:
    text = {"type": "text", "text": "And now?"}
    assert content_of(ANTHROPIC, messages=[user([result("a"), result("b", "call_2"), text])]) == [
        message("tool", "a"),
        Segment(b"fields", b'{"tool_call_id":"call_1"}', True),
        message("tool", "b"),
        Segment(b"fields", b'{"tool_call_id":"call_2"}', True),
        message("user", "And now?"),
    ]


def test_an_image_in_the_result_of_a_tool_enters_by_digest() -> None:
    image = {"type": "image", "source": {"type": "base64", "data": "A" * 5000}}
    segments = content_of(ANTHROPIC, messages=[user([result([image])])])
    assert [segment.tag for segment in segments] == [b"text/message/tool", b"part/image", b"fields"]
    assert len(segments[1].data) == 16


def test_where_system_text_may_follow_the_cut_the_scope_is_partial() -> None:
    scope = '"model":"m","lora_path":"a","cache_salt":"s","tools":[1],'
    unknown = read(ANTHROPIC, f'{{{scope}"messages":[{{"role":"user","content":"h'.encode(), False)
    known = read(ANTHROPIC, f'{{{scope}"system":"x","messages":[{{"role":"user","content":"h'.encode(), False)
    assert unknown is not None
    assert known is not None
    assert unknown.scope.partial
    assert not known.scope.partial


# Responses


def test_an_input_that_is_a_text_is_what_the_user_says() -> None:
    assert content_of(RESPONSES, input="hi") == content_of(RESPONSES, input=[user("hi")])
    assert content_of(RESPONSES, input="hi") == content_of(
        RESPONSES, input=[{"type": "message", **user([{"type": "input_text", "text": "hi"}])}]
    )


def test_what_a_response_continues_keeps_its_requests_together_and_apart_from_others() -> None:
    first = content_of(RESPONSES, input="And then?", previous_response_id="resp_1")
    assert first[0].tag == b"state/previous_response_id"
    assert content_of(RESPONSES, input="Why?", previous_response_id="resp_1")[0] == first[0]
    assert content_of(RESPONSES, input="And then?", previous_response_id="resp_2")[0] != first[0]
    assert content_of(RESPONSES, input="And then?", previous_response_id=None) == first[1:]


def test_a_conversation_is_named_by_its_id_or_by_an_object_that_holds_it() -> None:
    assert content_of(RESPONSES, input="hi", conversation={"id": "conv_1"}) == content_of(
        RESPONSES, input="hi", conversation="conv_1"
    )


def test_ids_and_states_of_items_do_not_matter_and_all_else_does() -> None:
    call = {"type": "function_call", "call_id": "call_1", "name": "weather", "arguments": "{}"}
    plain = content_of(RESPONSES, input=[call])
    assert [segment.tag for segment in plain] == [b"item/function_call"]
    assert content_of(RESPONSES, input=[{**call, "id": "fc_1", "status": "completed"}]) == plain
    assert content_of(RESPONSES, input=[{**call, "arguments": "{1}"}]) != plain


# Inputs that are not continued


def test_inputs_to_embed_are_content_in_their_order() -> None:
    assert content_of(EMBEDDINGS, input=["a", "b"]) == [input_text("a"), input_text("b")]
    assert content_of("/pooling", messages=[user("hi")]) == [message("user", "hi")]
    assert content_of("/v1/embed", texts=["a"]) == [input_text("a")]
    assert content_of("/embed", inputs="a") == [input_text("a")]


def test_images_to_moderate_enter_by_digest() -> None:
    image = {"type": "image_url", "image_url": {"url": "http://images.test/1"}}
    text, part = content_of("/v1/moderations", input=[{"type": "text", "text": "a"}, image])
    assert text == input_text("a")
    assert (part.tag, len(part.data)) == (b"part/", 16)


@pytest.mark.parametrize(
    "fields",
    [
        {"text_1": "q", "text_2": ["a", "b"]},
        {"queries": "q", "documents": ["a", "b"]},
        {"query": "q", "documents": ["a", "b"]},
        {"documents": [{"text": "a"}, {"text": "b"}], "query": "q"},
        {"texts": ["a", "b"], "query": "q"},
    ],
    ids=str,
)
def test_a_query_comes_before_what_it_is_scored_against(fields: dict[str, object]) -> None:
    assert content_of(SCORE, **fields) == [input_text("q"), input_text("a"), input_text("b")]
    assert content_of("", **fields) == [input_text("q"), input_text("a"), input_text("b")]


def test_documents_to_score_are_content_and_no_part_of_the_scope() -> None:
    one, other = (prompt_of(SCORE, query="q" * 99, documents=[text]) for text in "ab")
    assert one.scope == other.scope
    assert block_keys(one).keys[0] == block_keys(other).keys[0]


# Ollama


def test_ollamas_generate_is_a_conversation_of_one_turn() -> None:
    assert content_of("/api/generate", system="Be brief.", prompt="hi") == [
        message("system", "Be brief."),
        message("user", "hi"),
    ]
    assert content_of("/api/generate", prompt="hi", images=["AAAA"]) == content_of(
        "/api/chat", messages=[{**user("hi"), "images": ["AAAA"]}]
    )


def test_images_beside_a_message_enter_by_digest() -> None:
    start, fields = content_of("/api/chat", messages=[{**user("hi"), "images": ["A" * 5000]}])
    assert start == message("user", "hi")
    assert len(fields.data) < 100
    other = content_of("/api/chat", messages=[{**user("hi"), "images": ["B" * 5000]}])
    assert other[1] != fields


# All


MANY: list[tuple[str, dict[str, Any]]] = [
    (ANTHROPIC, {"messages": [user([result("a")] * 3000)]}),
    (ANTHROPIC, {"system": [{"type": "text", "text": "a"}] * 5000, "messages": [user("a")]}),
    (RESPONSES, {"input": [{"type": "reasoning"}] * 5000}),
    (EMBEDDINGS, {"input": ["a"] * 5000}),
    (SCORE, {"query": "q", "documents": ["a"] * 5000}),
    ("", {"inputs": [["a"] * 5000] * 2}),
    ("", {"inputs": [{"datatype": "BYTES", "data": ["a"] * 900}] * 9}),
]


@pytest.mark.parametrize(("path", "fields"), MANY, ids=lambda value: str(value)[:30])
def test_no_more_segments_are_kept_than_can_have_keys(path: str, fields: dict[str, Any]) -> None:
    assert len(content_of(path, **fields)) == MAX_SEGMENTS
