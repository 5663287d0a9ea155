"""The demo's requests and when they arrive, made from two published traces. Pure: the same arguments give the
same bytes.

- **tau-bench** airline sessions (agent traffic): text, tools and recorded answers as published. Each
  assistant turn is one request with the whole history before it. The data has no times: sessions start as a
  Poisson process that was running before the first second, and the turns of a session follow each other after
  `TURN_GAP_S` plus an exponential time.
- **Mooncake** conversations (chat traffic): a random sample of whole conversations out of an hour of
  production traffic, with the hour compressed into the run. The trace has no text, only an id per 512 tokens;
  equal ids become equal pseudo-random text of `BLOCK_BYTES`, so that bodies share prefixes exactly as the
  trace says. Prompts and answers are thereby a quarter as long as recorded (one byte per recorded token, and
  a simulated token is four bytes). Requests of more than `MAX_BLOCKS` blocks (2 %) are left out.
"""

from __future__ import annotations

import gzip
import random
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any, NamedTuple

import orjson

from extproc.simulation.tokens import TOKEN_BYTES

MODEL = "demo"
"""Model name in every request."""
TRACE_SECONDS = 3537.0
"""Time that the Mooncake trace covers."""
BLOCK_TOKENS = 512
"""Tokens per hash id in the Mooncake trace."""
BLOCK_BYTES = 512
"""Bytes of text made for each of them."""
MAX_BLOCKS = 112
"""Longest prompt kept, in blocks: bodies stay below 60 KB."""
TURN_GAP_S = 0.4
"""Least time between two turns of a session."""
TURN_GAP_MEAN_S = 2.0
"""Mean time between two turns of a session, the least included."""

_WORDS = (
    "time", "year", "people", "way", "day", "man", "thing", "woman", "life", "child", "world", "school",
    "state", "family", "student", "group", "country", "problem", "hand", "part", "place", "case",
    "week", "company", "system", "program", "question", "work", "government", "number", "night",
    "point", "home", "water", "room", "mother", "area", "money", "story", "fact", "month", "lot",
    "right", "study", "book", "eye", "job", "word", "business", "issue", "side", "kind", "head",
    "house", "service", "friend", "father", "power", "hour",
)  # fmt: skip


class Arrival(NamedTuple):
    """One request and when it is due."""

    at: float
    """Seconds after the start of the run."""
    source: str
    """`tau-bench` or `mooncake`."""
    body: bytes
    """A chat completion request, streamed, with a fixed number of output tokens."""


@dataclass(frozen=True, slots=True)
class Traffic:
    """Arrivals in order of time, and figures that describe them."""

    arrivals: list[Arrival]
    seconds: float

    @property
    def by_source(self) -> dict[str, int]:
        """Requests per source."""
        counts: dict[str, int] = defaultdict(int)
        for arrival in self.arrivals:
            counts[arrival.source] += 1
        return dict(counts)

    @property
    def time_scale(self) -> float:
        """How many times faster than recorded the Mooncake conversations run."""
        return TRACE_SECONDS / self.seconds


def traffic(seconds: float, rate: float, seed: int) -> Traffic:
    """Return `seconds` of traffic at `rate` requests per second on average, half from each source.

    Raises `ValueError` if the data holds too few conversations or sessions for that much.
    """
    draw = random.Random(seed)
    arrivals = [*_taubench(seconds, rate / 2, draw), *_mooncake(seconds, rate / 2, draw)]
    arrivals.sort(key=lambda arrival: arrival.at)
    return Traffic(arrivals, seconds)


def probe_body(size: int, number: int) -> bytes:
    """Return a chat request of about `size` bytes that asks for no token: an engine refuses it at once, so it
    is good for measuring latency."""
    return _body([{"role": "user", "content": f"{number:08d} " + "x" * (size - 200)}], 0, stream=False)


def _body(
    messages: list[Any], output_tokens: int, tools: list[Any] | None = None, *, stream: bool = True
) -> bytes:
    fields: dict[str, Any] = {
        "messages": messages,
        "model": MODEL,
        "max_tokens": output_tokens,
        "ignore_eos": True,
    }
    if stream:
        fields |= {"stream": True, "stream_options": {"include_usage": True}}
    if tools:
        fields["tools"] = tools
    return orjson.dumps(fields)


def _lines(name: str) -> Iterator[Any]:
    packed = files("extproc.demo").joinpath("data", name).read_bytes()
    yield from map(orjson.loads, gzip.decompress(packed).splitlines())


def _taubench(seconds: float, rate: float, draw: random.Random) -> Iterator[Arrival]:
    sessions = [session["messages"] for session in _lines("taubench_airline_sessions.jsonl.gz")]
    tools = next(_lines("taubench_airline_tools.json.gz"))
    draw.shuffle(sessions)
    turns = [
        [i for i, message in enumerate(session) if message["role"] == "assistant"] for session in sessions
    ]
    per_session = sum(map(len, turns)) / len(turns)
    # Sessions that began before the run are in their middle when it starts: the rate is steady from the first
    # second.
    start = -max(map(len, turns)) * TURN_GAP_MEAN_S
    for session, replies in zip(sessions, turns, strict=True):
        start += draw.expovariate(rate / per_session)
        if start >= seconds:
            return
        at = start
        for reply in replies:
            if 0 <= at < seconds:
                yield Arrival(at, "tau-bench", _body(session[:reply], _answer_tokens(session[reply]), tools))
            at += TURN_GAP_S + draw.expovariate(1 / (TURN_GAP_MEAN_S - TURN_GAP_S))
    raise ValueError(f"{len(sessions)} tau-bench sessions are too few: lower --rate or --seconds")


def _answer_tokens(message: dict[str, Any]) -> int:
    text = (message.get("content") or "").encode() + (
        orjson.dumps(message["tool_calls"]) if message.get("tool_calls") else b""
    )
    return max(1, len(text) // TOKEN_BYTES)


def _mooncake(seconds: float, rate: float, draw: random.Random) -> Iterator[Arrival]:
    conversations: dict[int, list[Any]] = defaultdict(list)
    for row in _lines("mooncake_conversation_sample.jsonl.gz"):
        ids = row["hash_ids"]
        if len(ids) <= MAX_BLOCKS:
            # Block 0 is the system prompt that all share: the block behind it tells conversations apart.
            conversations[ids[1] if len(ids) > 1 else -1 - ids[0]].append(row)
    wanted = round(seconds * rate)
    names = list(conversations)
    draw.shuffle(names)
    rows: list[Any] = []
    while len(rows) < wanted:
        if not names:
            raise ValueError(f"{len(rows)} Mooncake requests are too few: lower --rate or --seconds")
        rows += conversations[names.pop()]
    for row in rows:
        at = row["timestamp"] / 1000 / TRACE_SECONDS * seconds
        yield Arrival(min(at, seconds), "mooncake", _mooncake_body(row))


def _mooncake_body(row: dict[str, Any]) -> bytes:
    ids: list[int] = row["hash_ids"]
    last = row["input_length"] - BLOCK_TOKENS * (len(ids) - 1)
    texts = [block_text(block) for block in ids]
    texts[-1] = texts[-1][: max(TOKEN_BYTES, last * BLOCK_BYTES // BLOCK_TOKENS)]
    messages = [{"role": "user", "content": "".join(texts[1:] or texts)}]
    if len(texts) > 1:
        messages.insert(0, {"role": "system", "content": texts[0]})
    return _body(messages, max(1, row["output_length"] // TOKEN_BYTES))


@cache
def block_text(block: int) -> str:
    """Return the `BLOCK_BYTES` of ASCII text that stand for one hash id."""
    draw = random.Random(block)
    return " ".join(draw.choices(_WORDS, k=BLOCK_BYTES // 3))[:BLOCK_BYTES]
