"""Which API a body is read as, and that no body whatever is an error."""

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from extproc.prefix import block_keys
from extproc.prompt import APIS, Prompt, Scope, Segment, read

BODIES = Path(__file__).parent.parent / "data" / "bodies"
CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
PATHS = [CHAT, COMPLETIONS, "/invocations", ""]

MESSAGES = json.dumps({"model": "m", "messages": [{"role": "user", "content": "hi"}]}).encode()
PROMPT = json.dumps({"model": "m", "prompt": "hi"}).encode()


def bodies(pattern: str) -> list[Path]:
    """Return the body files that match; never none."""
    found = sorted(path for path in BODIES.glob(pattern) if path.name not in ("README.md", "LICENSE"))
    assert found
    return found


def api_of(path: str, body: bytes) -> str | None:
    prompt = read(path, body, True)
    return prompt and prompt.api


def test_the_path_chooses_the_api() -> None:
    both = json.dumps({"prompt": "hi", "messages": []}).encode()
    assert api_of("/v1/chat/completions", both) == "chat"
    assert api_of("/v1/completions", both) == "completions"
    assert api_of("/tenant/openai/v1/completions/?api-version=1&x=/chat/completions", both) == "completions"


@pytest.mark.parametrize("path", ["", "/invocations", "/v1/messages?beta=true"])
def test_another_path_leaves_it_to_the_shape(path: str) -> None:
    assert api_of(path, MESSAGES) == "chat"
    assert api_of(path, PROMPT) == "completions"


def test_every_api_has_its_own_name() -> None:
    names = [api.name for api in APIS]
    assert sorted({*names, "raw"}) == sorted([*names, "raw"])


def test_an_object_of_another_shape_is_keyed_by_its_bytes_and_still_names_its_scope() -> None:
    body = b'{"model":"m","inputs":"hi"}'
    assert read("/invocations", body, True) == Prompt("raw", Scope("m"), [Segment(b"raw", body, True)])


@pytest.mark.parametrize("body", [b"plain text", b"[1,2]", b"5", b'{"a":1,}', "Grüße".encode(), b'"\\ud83d"'])
@pytest.mark.parametrize("complete", [True, False])
def test_text_that_is_no_json_object_is_keyed_by_its_bytes(body: bytes, complete: bool) -> None:
    assert read(CHAT, body, complete) == Prompt("raw", Scope(), [Segment(b"raw", body, complete)])


def test_text_may_be_cut_inside_its_last_character() -> None:
    body = "Grüße 家".encode()[:-1]
    assert read("", body, False) == Prompt("raw", Scope(), [Segment(b"raw", body, False)])


@pytest.mark.parametrize("name", ["other-gzip.json.gz", "other-utf16.json"])
def test_a_binary_body_is_routed_by_load(name: str) -> None:
    assert read(CHAT, (BODIES / name).read_bytes(), True) is None


@pytest.mark.parametrize("body", [b"", b" \r\n\t" * 100])
def test_an_empty_body_is_routed_by_load(body: bytes) -> None:
    assert read(CHAT, body, True) is None


def test_a_byte_order_mark_and_blanks_around_the_body_do_not_matter() -> None:
    assert read(CHAT, b"\xef\xbb\xbf" + MESSAGES, True) == read(CHAT, MESSAGES, True)
    assert read(CHAT, b"\r\n " + MESSAGES + b" \r\n", True) == read(CHAT, MESSAGES, True)


def test_raw_utf8_and_escaped_surrogate_pairs_are_the_same_prompt() -> None:
    raw, escaped = (
        (BODIES / name).read_bytes() for name in ("chat-raw-utf8.json", "chat-surrogate-pairs.json")
    )
    assert raw != escaped
    assert read(CHAT, raw, True) == read(CHAT, escaped, True)


@pytest.mark.parametrize("path", bodies("chat-*"), ids=lambda path: path.stem)
def test_real_chat_bodies_have_content(path: Path) -> None:
    prompt = read("", path.read_bytes(), True)
    assert prompt is not None
    assert prompt.api == "chat"
    assert block_keys(prompt).keys


@pytest.mark.parametrize("path", bodies("completions-*"), ids=lambda path: path.stem)
def test_real_completions_bodies_have_content(path: Path) -> None:
    prompt = read("", path.read_bytes(), True)
    assert prompt is not None
    assert prompt.api == "completions"
    assert block_keys(prompt).keys


def any_key(path: str, body: bytes) -> None:
    """Read and key a body, for what it may raise."""
    for complete in (True, False):
        prompt = read(path, body, complete)
        if prompt is not None:
            for limit in (None, 1, 1024):
                assert all(0 <= key < 2**64 for key in block_keys(prompt, limit).keys)


HOSTILE = {
    "deep": b'{"messages":' + b"[" * 100_000,
    "deep and closed": b'{"messages":' + b"[" * 150 + b"]" * 150 + b"}",
    "just too deep": b'{"messages":[{"role":"user","content":' + b"[" * 199 + b"]" * 199 + b"}]}",
    "integer of 4,300 digits": b'{"messages":[{"role":"user","content":-' + b"9" * 4300 + b"}]}",
    "integer of 4,301 digits": b'{"messages":[{"role":"user","content":' + b"9" * 4301 + b"}]}",
    "not a number": b'{"messages":[{"role":"user","content":[NaN,Infinity,-Infinity,1e999]}],"tools":[NaN]}',
    "null bytes": b'{"messages":"\\u0000"}\0\0',
    "lone surrogate": b'{"messages":[{"role":"\\ud800","content":"\\udfff"}]}',
    "huge ids": b'{"prompt":[1e400,' + b"9" * 4000 + b"]}",
    "nested ids": b'{"prompt":[[1,"a"],[[2]],{"a":[3]}]}',
    "only quotes": b'"' * 1000,
    "brace after brace": b"{" * 1000,
    "many keys": b"{" + b",".join(b'"%d":%d' % (i, i) for i in range(5000)) + b"}",
}


@pytest.mark.parametrize("body", HOSTILE.values(), ids=HOSTILE.keys())
@pytest.mark.parametrize("path", PATHS)
def test_no_hostile_body_is_an_error(path: str, body: bytes) -> None:
    any_key(path, body)


@pytest.mark.parametrize("file", [*bodies("*.*"), *bodies("jsonsuite/*.json")], ids=lambda path: path.name)
def test_no_real_body_and_no_file_of_the_json_test_suite_is_an_error(file: Path) -> None:
    for path in PATHS:
        any_key(path, file.read_bytes())


@given(st.sampled_from(PATHS), st.binary())
def test_no_bytes_are_an_error(path: str, body: bytes) -> None:
    any_key(path, body)


KEYS = st.sampled_from(
    ["messages", "prompt", "role", "content", "type", "text", "tool_calls", "tools", "model", "x"]
)
JSON = st.recursive(
    st.one_of(
        st.none(), st.booleans(), st.integers(), st.integers(2**62, 2**70), st.floats(), st.text(max_size=4)
    ),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(KEYS, inner, max_size=5),
    max_leaves=30,
)


@given(st.sampled_from(PATHS), st.dictionaries(KEYS, JSON, max_size=4), st.integers(0, 400))
def test_no_json_of_wrong_types_is_an_error_cut_or_whole(
    path: str, fields: dict[str, object], cut: int
) -> None:
    body = json.dumps(fields).encode()
    any_key(path, body)
    any_key(path, body[:cut])
