"""What must hold for any bytes that a client sends, and how an input of the fuzzer becomes a request.

The first byte of an input chooses the path, the second the encoding and whether the body is complete; the
rest is the body. Inputs that broke something are kept in tests/data/crashes and read again by every test run.
"""

from collections.abc import Iterator
from pathlib import Path

from extproc.prefix import MAX_KEYS, block_keys
from extproc.prompt import APIS, MAX_SEGMENTS, read
from extproc.prompt.encoding import decode

DATA = Path(__file__).parent.parent / "data"
PATHS = (
    *("", "/invocations", "/v1/chat/completions", "/v1/completions", "/v1/messages", "/v1/responses"),
    *("/v1/embeddings", "/rerank", "/api/chat", "/api/generate", "/inference/v1/generate"),
)
"""Only ever added to at the end: what was saved is to keep its meaning."""

ENCODINGS = ("", "", "", "", "gzip", "deflate", "br", "zstd", "gzip, br")
"""Likewise."""

LIMITS = (None, 1, 1024)


def check(data: bytes) -> None:
    """Read and key a request and check what holds for all. Raises AssertionError where it does not."""
    if len(data) < 2:
        return
    path, encoding = PATHS[data[0] % len(PATHS)], ENCODINGS[(data[1] >> 1) % len(ENCODINGS)]
    complete, body = bool(data[1] & 1), data[2:]
    prompt = read(path, body, complete, encoding)
    assert prompt == read(path, body, complete, encoding), "the same body is another prompt"
    if encoding:
        decoded = decode(body, encoding, 4096)
        assert decoded is None or len(decoded) <= 4096, "decoded beyond the cap"
    if prompt is None:
        return
    assert len(prompt.content) <= MAX_SEGMENTS, "too many segments"
    assert all(segment.closed for segment in prompt.content[:-1]), "open before the end"
    for limit in LIMITS:
        keys, ends, _ = block_keys(prompt, limit)
        assert len(keys) == len(ends) <= MAX_KEYS, "too many keys"
        assert all(0 <= key < 1 << 64 for key in keys), "a key is no 64-bit number"
        assert ends == sorted(ends), "ends go back"


def seeds() -> Iterator[bytes]:
    """Yield the real bodies as inputs, each with the path of its API, whole and cut."""
    for file in sorted(DATA.glob("bodies/*.json*")):
        body = file.read_bytes()
        encoding = {".gz": 4, ".zz": 5}.get(file.suffix, 0)
        ends = [end for api in APIS if file.name.startswith(api.name[:5]) for end in api.paths]
        for number, path in enumerate(PATHS):
            if path.endswith(("/invocations", *ends)):
                yield bytes([number, encoding << 1 | 1]) + body
                yield bytes([number, encoding << 1]) + body[: len(body) * 2 // 3]
