"""What keeps equal content apart, and what does not."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from extproc.prompt import Scope, read

PATH = "/v1/chat/completions"
TOOLS = [{"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}]


def scope_of(**fields: object) -> Scope:
    """Return the scope of a whole chat body with these fields after its messages."""
    return scope_of_bytes(json.dumps({"messages": [{"role": "user", "content": "hi"}], **fields}).encode())


def scope_of_bytes(body: bytes, complete: bool = True) -> Scope:
    prompt = read(PATH, body, complete)
    assert prompt is not None
    return prompt.scope


def test_model_adapter_and_salt_are_read() -> None:
    scope = scope_of(model="llama", lora_path="fr", cache_salt="tenant-1")
    assert (scope.model, scope.adapter, scope.salt, scope.partial) == ("llama", "fr", "tenant-1", False)


def test_each_field_that_is_meant_to_isolate_does() -> None:
    salts = [
        scope_of(),
        scope_of(cache_salt="s"),
        scope_of(cache_salt="t"),
        scope_of(extra_key="s"),
        scope_of(cache_salt="s", extra_key="s"),
        scope_of(cache_salt=["s", "t"]),
        scope_of(nvext={"cache_salt": "u"}),
    ]
    assert len({scope.digest() for scope in salts}) == len(salts)
    assert scope_of(nvext={"cache_salt": "s"}) == scope_of(cache_salt="s")


def test_tgi_names_the_adapter_among_its_parameters() -> None:
    assert scope_of(parameters={"adapter_id": "fr"}) == scope_of(adapter_id="fr")
    assert scope_of(parameters={"adapter_id": 5, "top_p": 1}) != scope_of(parameters={"top_p": 1})


def test_an_adapter_may_be_an_object() -> None:
    assert scope_of(lora_request={"name": "fr", "id": 1}) == scope_of(lora_request={"id": 1, "name": "fr"})
    assert scope_of(lora_request={"name": "fr"}) != scope_of(lora_request={"name": "de"})


@pytest.mark.parametrize(
    "field", ["tools", "functions", "documents", "chat_template", "chat_template_kwargs"]
)
def test_what_the_template_renders_beside_the_messages_separates(field: str) -> None:
    digests = {
        scope_of().digest(),
        scope_of(**{field: TOOLS}).digest(),
        scope_of(**{field: TOOLS * 2}).digest(),
    }
    assert len(digests) == 3


def test_tools_and_functions_of_the_same_value_are_different() -> None:
    assert scope_of(tools=TOOLS).digest() != scope_of(functions=TOOLS).digest()


@pytest.mark.parametrize("field", ["tool_choice", "response_format", "temperature", "user", "stream", "seed"])
def test_what_only_steers_decoding_does_not_separate(field: str) -> None:
    assert scope_of(**{field: "x"}) == scope_of()


def test_the_order_of_keys_in_tools_does_not_matter() -> None:
    backwards = [dict(reversed(TOOLS[0].items()))]
    assert list(backwards[0]) != list(TOOLS[0])
    assert scope_of(tools=backwards) == scope_of(tools=TOOLS)


@pytest.mark.parametrize("nothing", [None, "", [], {}, 0, False], ids=str)
def test_null_and_empty_fields_are_absent(nothing: object) -> None:
    fields = ("model", "cache_salt", "adapter", "tools", "chat_template_kwargs")
    assert scope_of(**dict.fromkeys(fields, nothing)) == Scope()


@pytest.mark.parametrize("wrong", [5, 1.5, True, [5], {"a": 1}], ids=str)
def test_a_model_or_salt_that_is_no_text_is_absent(wrong: object) -> None:
    assert scope_of(model=wrong, cache_salt=wrong) == Scope()


def test_a_field_after_the_cut_is_absent_and_the_scope_partial() -> None:
    assert scope_of_bytes(b'{"model":"llama","messages":[{"role":"user","content":"h') == Scope(
        "llama", partial=True
    )


def test_a_field_that_the_cut_hit_is_absent() -> None:
    assert scope_of_bytes(b'{"messages":[],"model":"lla') == Scope(partial=True)
    assert scope_of_bytes(b'{"model":"m","tools":[{"type":"function"},{"ty') == Scope("m", partial=True)


def test_a_scope_seen_whole_before_the_cut_is_not_partial() -> None:
    body = {"model": "m", "adapter": "a", "cache_salt": "s", "tools": TOOLS, "messages": [{"role": "user"}]}
    assert scope_of_bytes(json.dumps(body).encode()[:-4]) == scope_of_bytes(json.dumps(body).encode())


def test_whether_a_body_was_cut_is_told_by_the_json_and_not_by_the_gateway() -> None:
    whole = b'{"model":"m","messages":[]}'
    assert not scope_of_bytes(whole, complete=False).partial
    assert scope_of_bytes(whole[:-1], complete=True).partial


def test_a_partial_scope_has_the_digest_of_what_was_seen() -> None:
    assert Scope("m", partial=True).digest() == Scope("m").digest()


scopes = st.builds(Scope, *[st.text("ab \0", max_size=3)] * 3, st.binary(max_size=3))


@given(scopes, scopes)
def test_scopes_share_a_digest_only_if_they_are_equal(one: Scope, other: Scope) -> None:
    assert (one.digest() == other.digest()) == (one == other)
    assert 0 <= one.digest() < 2**64


def test_every_router_computes_the_same_digest() -> None:
    """Replicas agree without talking, whatever their process, machine and release: this number stays."""
    assert Scope("m", "a", "s", b"t").digest() == 0x4E01043E4177071A
