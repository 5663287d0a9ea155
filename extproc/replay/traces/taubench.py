"""tau-bench sessions, JSONL: `session` and `messages` with all text and tool calls; no times.

Each turn of the assistant is one request with the whole history before it, answered with as many tokens as
recorded. If `taubench_airline_tools.json` lies beside the file, every request offers those tools. Sessions
begin as a Poisson process; the next turn of a session comes after the last answer was generated at
`TOKENS_PER_S`, a least pause, and an exponential one. The times are the same in every run. To have more load,
let sessions begin closer to each other (`timed`): a time scale would shorten pauses below what answers take.
Yao et al., "tau-bench: A Benchmark for Tool-Agent-User Interaction in Real-World Domains", 2024, and
github.com/sierra-research/tau-bench.
"""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import orjson

from extproc.replay.arrival import TOKEN_BYTES, Arrival, Trace
from extproc.replay.traces.lines import LineError, TraceError, each_line, json_object
from extproc.replay.traces.requests import CHAT, arrival

NAME = "tau-bench"
TOOLS = "taubench_airline_tools.json"
SESSION_GAP_S = 12.0
"""Mean time between two sessions: about one request per second."""
PAUSE_S = (0.4, 1.6)
"""Between two turns of a session, beside the answer: least, and mean of what comes on top."""
TOKENS_PER_S = 40.0
"""Speed at which answers are generated."""
_SEED = 1
NOTE = (
    "The sessions have no times: they begin as a Poisson process, "
    f"{SESSION_GAP_S:g} s apart on average, turns {sum(PAUSE_S):g} s after an answer."
)


def recognise(line: bytes) -> bool:
    """A JSON object with messages, and no body around them."""
    return line.startswith(b"{") and b'"messages"' in line and b'"session"' in line and b'"body"' not in line


def read(path: Path, block_tokens: int = 64, copies: int = 1) -> Trace:
    """The trace. With `copies` every session comes so many times, each time with another customer.

    A copy shares the tools and the system prompt with the rest and nothing beyond: it is the same agent with
    more users, for runs that need more traffic than 200 sessions are.
    """
    sessions, problems = each_line(path, _session)
    tools = _tools(path.with_name(TOOLS))
    arrivals: list[Arrival] = []
    for copy in range(copies):
        for number, messages in enumerate(sessions):
            session = copy * len(sessions) + number + 1
            if copy:
                messages = _another_customer(messages, copy)
            for turn, message in enumerate(messages):
                if turn and message["role"] == "assistant":
                    body = {"model": "agent", "messages": messages[:turn], "tools": tools}
                    arrivals.append(arrival(0.0, CHAT, body, _answer(message), block_tokens, session))
    arrivals = timed(arrivals, SESSION_GAP_S)
    notes = [NOTE] if copies == 1 else [NOTE, f"Each session comes {copies} times, with other customers."]
    return Trace(path.stem, arrivals, block_tokens, notes=notes, problems=problems)


def timed(arrivals: list[Arrival], session_gap_s: float) -> list[Arrival]:
    """The requests of sessions that begin `session_gap_s` apart on average, in order of time.

    Each session's requests must be in order; sessions begin in the order of their numbers.
    """
    draw = random.Random(_SEED)
    sessions: dict[int, list[Arrival]] = {}
    for one in arrivals:
        sessions.setdefault(one.session, []).append(one)
    least, mean = PAUSE_S
    start = 0.0
    found: list[Arrival] = []
    for number in sorted(sessions):
        start += draw.expovariate(1 / session_gap_s)
        at = start
        for one in sessions[number]:
            found.append(one._replace(at=at))
            at += one.output_tokens / TOKENS_PER_S + least + draw.expovariate(1 / mean)
    return sorted(found, key=lambda one: one.at)


def _session(line: bytes) -> list[dict[str, Any]]:
    messages = json_object(line).get("messages")
    if not isinstance(messages, list) or not all(
        isinstance(message, dict) and isinstance(message.get("role"), str) for message in messages
    ):
        raise LineError("messages: expected a list of messages with roles")
    return messages


def _tools(path: Path) -> list[Any]:
    if not path.exists():
        return []
    try:
        tools = orjson.loads(path.read_bytes())
    except (OSError, orjson.JSONDecodeError) as error:
        raise TraceError(f"{path}: {error}") from error
    return tools if isinstance(tools, list) else []


def _another_customer(messages: list[dict[str, Any]], copy: int) -> list[dict[str, Any]]:
    first = next((at for at, message in enumerate(messages) if message["role"] == "user"), None)
    if first is None:
        return messages
    changed = {**messages[first], "content": f"(customer {copy}) {messages[first].get('content') or ''}"}
    return [*messages[:first], changed, *messages[first + 1 :]]


def _answer(message: dict[str, Any]) -> int:
    calls = message.get("tool_calls")
    text = (message.get("content") or "").encode() + (orjson.dumps(calls) if calls else b"")
    return max(1, len(text) // TOKEN_BYTES)
