"""docs/exchanges.md says what the code does: both of its tables are made anew from it."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path

from extproc.messages import (
    BodyMode,
    Event,
    Origin,
    Protocol,
    RequestBody,
    RequestHeaders,
    RequestTrailers,
    ResponseBody,
    ResponseHeaders,
    ResponseTrailers,
    Unknown,
)
from extproc.stream import HELD_BYTES, Answer, Exchange, Overdue, Question, State
from tests.test_stream import said

PAGE = Path(__file__).parent.parent / "docs" / "exchanges.md"


@dataclass
class Pin:
    destination: str = "10.0.0.1:80"

    def answered(self, served: str, status: int, tried: bool) -> None:
        pass

    def release(self) -> None:
        pass


@dataclass
class Router:
    asked: list[Question] = field(default_factory=list)

    def ask(self, question: Question) -> Answer:
        self.asked.append(question)
        return Pin()

    def open(self) -> Exchange:
        return Exchange(self.ask, lambda: None)


# When the pin goes out

CHUNK = 10_000
_WORDS = {
    "request_headers": "headers",
    "request_body": "body",
    "request_trailers": "trailers",
}


def pinned_with(headers: bool, mode: BodyMode, without_waiting: bool, length: int | None) -> tuple[str, str]:
    """With which reply the pin goes out, in reply to what, and how much of a long body it is keyed by."""
    router = Router()
    exchange = router.open()
    protocol = Protocol(mode, BodyMode.NONE, without_waiting)
    first = Origin("/v1/chat/completions", "", "", protocol)
    later = Origin("", "", "", None)
    chunk = bytes(CHUNK)
    events: list[tuple[str, Event]] = []
    if headers:
        events.append(("", RequestHeaders(first, False, False, length)))
    events += [("", RequestBody(later if headers or n else first, chunk, n == 9)) for n in range(10)]
    for number, (_, event) in enumerate(events):
        replies = said(list(exchange.receive(event)))
        pins = [reply for reply in replies if reply.endswith("+pin")]
        duplex = not headers and mode is BodyMode.FULL_DUPLEX_STREAMED
        if pins or (duplex and router.asked):
            with_reply = "body" if duplex else _WORDS[pins[0].removesuffix("+pin")]
            held = with_reply == "headers" and number > 0
            keyed = len(router.asked[0].body)
            amount = {0: "nothing", CHUNK: "the first chunk"}.get(
                keyed, f"its first {HELD_BYTES // 1024} KiB"
            )
            if mode in (BodyMode.BUFFERED, BodyMode.BUFFERED_PARTIAL):
                amount = "what is buffered of it"
            return f"the {with_reply}{', held back' if held else ''}", amount
    return "never", "nothing"


def pin_rows() -> Iterator[str]:
    """The first five columns of the page's first table."""
    for headers, mode in product((True, False), BodyMode):
        cases: list[tuple[str, bool, int | None]] = [("", False, None)]
        if mode is BodyMode.STREAMED and headers:
            cases = [
                (f", waits, up to {HELD_BYTES // 1024} KiB", False, HELD_BYTES),
                (", waits, longer or of unknown length", False, None),
                (", without waiting", True, None),
            ]
        for words, without_waiting, length in cases:
            reply, keyed = pinned_with(headers, mode, without_waiting, length)
            if mode is BodyMode.NONE and not headers:
                reply, keyed = "never", "nothing"
            yield f"| {'SEND' if headers else 'SKIP'} | {mode.name}{words} | {reply} | {keyed} |"


# What may come when

_EVENTS: dict[type[Event | Overdue], str] = {
    RequestHeaders: "request headers",
    RequestBody: "request body",
    RequestTrailers: "request trailers",
    ResponseHeaders: "response headers",
    ResponseBody: "response body",
    ResponseTrailers: "response trailers",
    Overdue: "nothing for a while",
    Unknown: "anything else",
}


def rules_table() -> str:
    """The page's second table."""
    lines = [
        f"| | {' | '.join(state.name for state in State)} |",
        "|---" * (len(State) + 1) + "|",
    ]
    for event, name in _EVENTS.items():
        cells = []
        for state in State:
            rule = Exchange._RULES.get((state, event))
            cells.append("—" if rule is None else (inspect.getdoc(rule) or "").splitlines()[0])
        lines.append(f"| **{name}** | {' | '.join(cells)} |")
    return "\n".join(lines)


def test_the_table_of_pins_is_what_the_exchange_does() -> None:
    text = PAGE.read_text()
    rows = [line for line in text.splitlines() if line.startswith(("| SEND |", "| SKIP |"))]
    written = ["|".join(row.split("|")[:5]) + "|" for row in rows]
    assert written == list(pin_rows()), "docs/exchanges.md:\n" + "\n".join(pin_rows())


def test_the_table_of_rules_is_the_one_of_the_code() -> None:
    table = PAGE.read_text().partition("<!-- rules -->\n")[2].partition("\n<!-- end of rules -->")[0]
    assert table == rules_table(), "docs/exchanges.md:\n" + rules_table()


def test_every_rule_says_in_its_first_line_what_it_does() -> None:
    for rule in Exchange._RULES.values():
        first = (inspect.getdoc(rule) or "").splitlines()[0]
        assert first
        assert not first.endswith(".")
