"""What of an OpenAI completions body becomes content."""

import json
import struct

import pytest

from extproc.prompt import MAX_SEGMENTS, Segment, read

PATH = "/v1/completions"


def content_of(prompt: object) -> list[Segment]:
    """Return the content of a whole body with this prompt."""
    return content_of_bytes(json.dumps({"model": "m", "prompt": prompt}).encode())


def content_of_bytes(body: bytes) -> list[Segment]:
    found = read(PATH, body, True)
    assert found is not None
    assert found.api == "completions"
    return found.content


def ids(*tokens: int, closed: bool = True) -> Segment:
    return Segment(b"tokens", struct.pack(f"<{len(tokens)}q", *tokens), closed)


def text(data: str, closed: bool = True) -> Segment:
    return Segment(b"text/prompt", data.encode(), closed)


def test_each_form_of_prompt_is_content() -> None:
    assert content_of("Grüße") == [text("Grüße")]
    assert content_of(["a", "b"]) == [text("a"), text("b")]
    assert content_of([1, 2, 3]) == [ids(1, 2, 3)]
    assert content_of([[1, 2], [3]]) == [ids(1, 2), ids(3)]


def test_a_list_of_one_prompt_is_that_prompt() -> None:
    assert content_of(["a"]) == content_of("a")
    assert content_of([[1, 2]]) == content_of([1, 2])


def test_token_ids_and_text_are_never_the_same_content() -> None:
    forms = [
        content_of(prompt) for prompt in ([1, 2, 3], "1, 2, 3", "[1, 2, 3]", ["1", "2", "3"], [[1], [2], [3]])
    ]
    packed = content_of(ids(0x61, 0x62).data.decode())
    assert all(forms.count(form) == 1 for form in forms)
    assert packed != content_of([0x61, 0x62])


def test_ids_may_be_any_64_bit_integer() -> None:
    assert content_of([0, -1, 2**63 - 1, -(2**63)]) == [ids(0, -1, 2**63 - 1, -(2**63))]


@pytest.mark.parametrize("end", ["a", None, 1.5, 2**63, -(2**63) - 1, 10**100, [], {}], ids=str)
def test_ids_end_at_the_first_value_that_is_none(end: object) -> None:
    assert content_of([7, 8, end, 9]) == [ids(7, 8)]
    assert content_of([[7, 8, end, 9]]) == [ids(7, 8)]


@pytest.mark.parametrize("prompt", [None, 5, True, {}, [], [None], [{}], [1.5]], ids=str)
def test_a_prompt_of_a_wrong_type_has_no_content(prompt: object) -> None:
    assert content_of(prompt) == []


def test_values_among_prompts_that_are_none_are_left_out() -> None:
    assert content_of(["a", None, {"b": 1}, 5, [1, "c"]]) == [text("a"), ids(1)]


def test_no_more_segments_are_kept_than_can_have_keys() -> None:
    assert len(content_of(["a"] * 5000)) == MAX_SEGMENTS


def test_the_last_id_of_a_cut_list_is_left_out_because_it_may_go_on() -> None:
    assert content_of_bytes(b'{"prompt":[12,34') == [ids(12, closed=False)]
    assert content_of_bytes(b'{"prompt":[[12],[34,5') == [ids(12), ids(34, closed=False)]


def test_a_cut_text_is_open() -> None:
    assert content_of_bytes(b'{"prompt":"ab') == [text("ab", closed=False)]
    assert content_of_bytes(b'{"prompt":["ab","cd') == [text("ab"), text("cd", closed=False)]


def test_a_prompt_before_the_field_that_was_cut_is_closed() -> None:
    assert content_of_bytes(b'{"prompt":"ab","model":"m') == [text("ab")]
