"""Which API a body is read as, and that no body whatever is an error."""

import gzip
import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from extproc.prefix import block_keys
from extproc.prompt import APIS, MAX_DECODED_BYTES, Prompt, Scope, Segment, read
from extproc.prompt.body import parse

BODIES = Path(__file__).parent.parent / "data" / "bodies"
CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
PATHS = [*(path for api in APIS for path in api.paths[:1]), "/invocations", ""]

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
    assert api_of("/v1/messages?beta=true", both) == "anthropic-messages"


@pytest.mark.parametrize("path", ["", "/invocations", "/v1/threads/thread_1/messages"])
def test_another_path_leaves_it_to_the_shape(path: str) -> None:
    assert api_of(path, MESSAGES) == "chat"
    assert api_of(path, PROMPT) == "completions"


def test_every_api_has_its_own_name() -> None:
    names = [api.name for api in APIS]
    assert sorted({*names, "raw"}) == sorted([*names, "raw"])


def test_an_object_of_another_shape_is_keyed_by_its_bytes_and_still_names_its_scope() -> None:
    body = b'{"model":"m","contents":"hi"}'
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


FILES = {
    "chat-": ("/v1/chat/completions", "chat"),
    "completions-": ("/v1/completions", "completions"),
    "completions-anthropic": ("/v1/complete", "completions"),
    "anthropic-": ("/v1/messages", "anthropic-messages"),
    "responses-": ("/v1/responses", "responses"),
    "responses-input-tokens": ("/v1/responses/input_tokens", "responses"),
    "embeddings-": ("/v1/embeddings", "embeddings"),
    "embeddings-moderation": ("/v1/moderations", "embeddings"),
    "embeddings-ollama": ("/api/embeddings", "embeddings"),
    "score-": ("/score", "score"),
    "ollama-": ("/api/chat", "ollama-chat"),
    "generate-": ("/inference/v1/generate", "generate"),
    "raw-": ("/v1/other", "raw"),
}
"""By the beginning of a file's name, the longest that fits: the path that it is sent to, and its API."""


def expected(file: Path) -> tuple[str, str]:
    """Return the path and the API of one of the bodies."""
    return FILES[max((start for start in FILES if file.name.startswith(start)), key=len)]


@pytest.mark.parametrize("file", [*bodies("[!o]*.json"), *bodies("ollama*.json")], ids=lambda path: path.stem)
def test_each_real_body_is_read_as_its_api_and_has_keys(file: Path) -> None:
    path, api = expected(file)
    prompt = read(path, file.read_bytes(), True)
    assert prompt is not None
    assert prompt.api == api
    assert prompt.content
    assert block_keys(prompt).keys


# By its shape alone, a conversation or an input may be that of another API: then it has the same chain.
LOOKS_LIKE = {
    "anthropic-": {"chat", "anthropic-messages"},
    "embeddings-ollama": {"ollama-generate"},
    "completions-anthropic": {"completions"},
}


@pytest.mark.parametrize("file", [*bodies("[!o]*.json"), *bodies("ollama*.json")], ids=lambda path: path.stem)
def test_without_a_path_the_shape_tells_the_api(file: Path) -> None:
    path, api = expected(file)
    likely = next((apis for start, apis in LOOKS_LIKE.items() if file.name.startswith(start)), {api})
    body = file.read_bytes()
    found = read("", body, True)
    assert found is not None
    assert found.api in likely
    if found.api in ("chat", "anthropic-messages"):
        assert read(path, body, True) == found._replace(api=api)


@pytest.mark.parametrize(
    ("name", "encoding"), [("other-gzip.json.gz", "gzip"), ("other-deflate.json.zz", "deflate")]
)
def test_a_compressed_body_is_the_prompt_that_it_holds(name: str, encoding: str) -> None:
    plain = read(CHAT, (BODIES / "chat-one-message.json").read_bytes(), True)
    assert read(CHAT, (BODIES / name).read_bytes(), True, encoding) == plain


@pytest.mark.parametrize("encoding", ["compress", "gzip, unknown", "br", "gzip"])
def test_a_body_that_cannot_be_decoded_is_routed_by_load(encoding: str) -> None:
    assert read(CHAT, MESSAGES, True, encoding) is None


def test_a_compressed_text_is_cut_where_it_is_no_longer_decoded() -> None:
    body = gzip.compress(b"a text" * MAX_DECODED_BYTES)
    prompt = read("", body, True, "gzip")
    assert prompt is not None
    (segment,) = prompt.content
    assert len(segment.data) == MAX_DECODED_BYTES
    assert not segment.closed


def test_a_form_is_routed_by_load() -> None:
    boundary = b"--5d8c6f1e"
    form = boundary + b'\r\nContent-Disposition: form-data; name="model"\r\n\r\nwhisper\r\n' + boundary
    assert read("/v1/audio/transcriptions", form, True) is None
    assert read("/v1/audio/transcriptions", form[:100], False) is None


@pytest.mark.parametrize("file", bodies("jsonsuite/y_object*.json"), ids=lambda path: path.name)
def test_every_object_that_a_parser_must_accept_is_parsed(file: Path) -> None:
    parsed = parse(file.read_bytes())
    assert parsed is not None
    assert not parsed.truncated


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
    [
        *("messages", "prompt", "role", "content", "type", "text", "tool_calls", "tools", "model", "x"),
        *("system", "input", "inputs", "instructions", "output", "call_id", "query", "documents", "text_1"),
        *("token_ids", "text_input", "images", "datatype", "data", "previous_response_id", "cache_salt"),
        *("parameters", "nvext", "adapter_id", "cache_control", "tool_use_id", "keep_alive"),
    ]
)
WORDS = st.sampled_from(["tool_result", "text", "function_call_output", "user", "BYTES"])
JSON = st.recursive(
    st.one_of(
        WORDS,
        st.none(),
        st.booleans(),
        st.integers(),
        st.integers(2**62, 2**70),
        st.floats(),
        st.text(max_size=4),
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
