"""Pseudo tokens: what counts as the same prefix."""

from __future__ import annotations

import time

import pytest

from extproc.simulation import tokens

SEED = tokens.scope("model")


def test_four_bytes_are_a_token_and_sixteen_tokens_a_block() -> None:
    chain = tokens.chain(b"x" * 130, SEED)
    assert chain.tokens == 33
    assert len(chain.keys) == 2
    assert chain.rest == b"xx"


def test_equal_prefixes_have_equal_keys_up_to_the_first_block_that_differs() -> None:
    one = tokens.chain(b"a" * 640 + b"b" * 64, SEED).keys
    two = tokens.chain(b"a" * 640 + b"c" * 64, SEED).keys
    assert one[:10] == two[:10]
    assert one[10] != two[10]


def test_a_block_has_another_key_behind_another_prefix() -> None:
    assert (
        tokens.chain(b"a" * 64 + b"z" * 64, SEED).keys[1] != tokens.chain(b"b" * 64 + b"z" * 64, SEED).keys[1]
    )


def test_model_and_salt_keep_caches_apart() -> None:
    seeds = {tokens.scope("m"), tokens.scope("m", "tenant"), tokens.scope("other"), tokens.scope("mtenant")}
    assert len(seeds) == 4


def test_keys_do_not_depend_on_the_process() -> None:
    assert tokens.chain(b"a" * 64, tokens.scope("m")).keys == [1102045055869598521]


def test_tools_come_first_and_a_reply_continues_the_prompt() -> None:
    messages = [{"role": "user", "content": "hi"}]
    prompt = tokens.render_chat(messages, [{"type": "function"}])
    assert prompt.startswith(b"<|tools|>\n")
    reply = {"role": "assistant", "content": "hello"}
    grown = tokens.render_chat(
        [*messages, reply, {"role": "user", "content": "more"}], [{"type": "function"}]
    )
    assert grown.startswith(prompt + b"hello")
    chain = tokens.chain(prompt, SEED)
    whole = tokens.chain(prompt + b"hello" * 50, SEED)
    assert chain.keys + chain.output_keys(b"hello" * 50, 16) == whole.keys


def test_text_parts_read_as_their_text() -> None:
    parts = [{"type": "text", "text": "he"}, {"type": "text", "text": "llo"}]
    assert tokens.render_chat([{"role": "user", "content": parts}]) == tokens.render_chat(
        [{"role": "user", "content": "hello"}]
    )


@pytest.mark.parametrize("messages", [None, [], "hi", [1]])
def test_a_chat_without_messages_is_refused(messages: object) -> None:
    with pytest.raises(tokens.PromptError):
        tokens.render_chat(messages)


def test_token_ids_take_one_token_each_and_do_not_read_as_text() -> None:
    assert tokens.chain(tokens.render_completion([1, 2, 3]), SEED).tokens == 3
    assert tokens.render_completion([[7, 8]]) == tokens.render_completion([7, 8])


@pytest.mark.parametrize("prompt", [None, "", [], ["a", "b"], {"a": 1}, [-1]])
def test_a_completion_without_one_prompt_is_refused(prompt: object) -> None:
    with pytest.raises(tokens.PromptError):
        tokens.render_completion(prompt)


def test_a_400_kb_prompt_takes_milliseconds() -> None:
    text = b"lorem ip" * 50_000
    began = time.process_time()
    tokens.chain(text, SEED)
    assert time.process_time() - began < 0.05
