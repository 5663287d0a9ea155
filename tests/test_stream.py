"""The exchange of one request: for each way in which Envoy sends it, when is it keyed, pinned, released."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from envoy.service.ext_proc.v3.external_processor_pb2 import ProcessingResponse
from hypothesis import given
from hypothesis import strategies as st

from extproc import messages
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
from extproc.stream import HELD_BYTES, Answer, Exchange, Question, Refused, State

PIN = "10.0.0.1:8000,10.0.0.2:8000"


@dataclass
class Pin:
    destination: str = PIN
    served: list[tuple[str, int]] = field(default_factory=list)
    released: int = 0

    def answered(self, served: str, status: int) -> None:
        self.served.append((served, status))

    def release(self) -> None:
        self.released += 1


@dataclass
class Router:
    """Answers every question alike and remembers what it was asked."""

    answer: Answer = field(default_factory=Pin)
    asked: list[Question] = field(default_factory=list)
    unexpected: int = 0

    def ask(self, question: Question) -> Answer:
        self.asked.append(question)
        return self.answer

    def count(self) -> None:
        self.unexpected += 1

    def open(self) -> Exchange:
        return Exchange(self.ask, self.count)


def origin(mode: BodyMode | None, *, waiting: bool = True, response: BodyMode = BodyMode.NONE) -> Origin:
    protocol = None if mode is None else Protocol(mode, response, without_waiting=not waiting)
    return Origin("/v1/chat/completions", "", "", protocol)


def said(replies: object) -> list[str]:
    """Each reply as its kind, with `+pin` where it pins."""
    assert isinstance(replies, (list, tuple))
    out = []
    for reply in replies:
        parsed = ProcessingResponse.FromString(reply)
        kind = parsed.WhichOneof("response")
        pins = kind in ("request_headers", "request_body") and any(
            option.header.key == messages.DESTINATION
            for option in getattr(parsed, kind).response.header_mutation.set_headers
        )
        out.append(f"{kind}+pin" if pins else kind)
    return out


HEADERS_ONLY = RequestHeaders(origin(BodyMode.BUFFERED_PARTIAL), end_of_stream=True)


def test_a_request_without_a_body_is_pinned_at_its_headers() -> None:
    router = Router()
    assert said(router.open().receive(HEADERS_ONLY)) == ["request_headers+pin"]
    assert router.asked == [Question(HEADERS_ONLY.origin, b"", complete=True)]


def test_a_gateway_that_sends_no_bodies_gets_the_pin_at_the_headers() -> None:
    router = Router()
    event = RequestHeaders(origin(BodyMode.NONE), end_of_stream=False)
    assert said(router.open().receive(event)) == ["request_headers+pin"]
    assert router.asked[0].complete is False


@pytest.mark.parametrize("mode", [BodyMode.BUFFERED, BodyMode.BUFFERED_PARTIAL, None])
def test_a_buffered_body_is_pinned_in_its_own_reply(mode: BodyMode | None) -> None:
    router = Router()
    exchange = router.open()
    first = origin(mode)
    assert said(exchange.receive(RequestHeaders(first, end_of_stream=False))) == ["request_headers"]
    body = RequestBody(Origin("", "", "", None), b'{"a":1}', end_of_stream=True)
    assert said(exchange.receive(body)) == ["request_body+pin"]
    assert router.asked == [Question(first, b'{"a":1}', complete=True)]


def test_with_headers_skipped_the_body_is_the_first_message_and_is_pinned() -> None:
    router = Router()
    body = RequestBody(origin(BodyMode.BUFFERED_PARTIAL), b"{}", end_of_stream=False)
    assert said(router.open().receive(body)) == ["request_body+pin"]
    assert router.asked[0].origin.path == "/v1/chat/completions"
    assert router.asked[0].complete is False


def test_a_streamed_body_that_does_not_wait_is_pinned_in_the_headers_reply_that_was_held_back() -> None:
    router = Router()
    exchange = router.open()
    assert (
        exchange.receive(RequestHeaders(origin(BodyMode.STREAMED, waiting=False), end_of_stream=False)) == ()
    )
    chunk = RequestBody(Origin("", "", "", None), b"x" * 100, end_of_stream=False)
    assert said(exchange.receive(chunk)) == ["request_headers+pin", "request_body"]
    assert said(exchange.receive(chunk)) == ["request_body"]
    assert len(router.asked) == 1


def test_a_streamed_body_that_waits_is_pinned_in_the_reply_to_its_first_chunk() -> None:
    exchange = Router().open()
    assert said(exchange.receive(RequestHeaders(origin(BodyMode.STREAMED), end_of_stream=False))) == [
        "request_headers"
    ]
    chunk = RequestBody(Origin("", "", "", None), b"x", end_of_stream=True)
    assert said(exchange.receive(chunk)) == ["request_body+pin"]


def body_given_back(replies: list[bytes], kind: str) -> bytes:
    parts = [getattr(ProcessingResponse.FromString(reply), kind) for reply in replies]
    return b"".join(part.response.body_mutation.streamed_response.body for part in parts)


@given(chunks=st.lists(st.binary(max_size=90_000), max_size=6), trailers=st.booleans())
def test_a_full_duplex_body_is_given_back_equal_after_its_pin(chunks: list[bytes], trailers: bool) -> None:
    router = Router()
    exchange = router.open()
    nothing = Origin("", "", "", None)
    replies = list(
        exchange.receive(RequestHeaders(origin(BodyMode.FULL_DUPLEX_STREAMED), end_of_stream=False))
    )
    for chunk in chunks:
        replies += exchange.receive(RequestBody(nothing, chunk, end_of_stream=False))
    if trailers:
        replies += exchange.receive(RequestTrailers())
        assert said(replies)[-1] == "request_trailers"
        replies.pop()
    else:
        replies += exchange.receive(RequestBody(nothing, b"", end_of_stream=True))
    assert said(replies)[0] == "request_headers+pin"
    assert body_given_back(replies[1:], "request_body") == b"".join(chunks)
    (question,) = router.asked
    assert b"".join(chunks).startswith(question.body)
    assert len(question.body) >= min(HELD_BYTES, sum(map(len, chunks)))


def test_a_full_duplex_response_is_given_back_and_keeps_a_draining_server_waiting_until_its_end() -> None:
    exchange = Router().open()
    first = origin(BodyMode.FULL_DUPLEX_STREAMED, response=BodyMode.FULL_DUPLEX_STREAMED)
    exchange.receive(RequestHeaders(first, end_of_stream=True))
    exchange.receive(ResponseHeaders(200, "10.0.0.1:8000", end_of_stream=False))
    assert not exchange.past_pick
    replies = list(exchange.receive(ResponseBody(b"data: 1\n\n", end_of_stream=False)))
    assert not exchange.past_pick
    replies += exchange.receive(ResponseBody(b"", end_of_stream=True))
    assert body_given_back(replies, "response_body") == b"data: 1\n\n"
    assert exchange.past_pick


def test_the_endpoint_that_served_is_reported_and_the_pick_released_once() -> None:
    router = Router()
    exchange = router.open()
    exchange.receive(HEADERS_ONLY)
    assert said(exchange.receive(ResponseHeaders(200, "10.0.0.2:8000", end_of_stream=False))) == [
        "response_headers"
    ]
    assert said(exchange.receive(ResponseTrailers())) == ["response_trailers"]
    exchange.close()
    exchange.close()
    assert isinstance(router.answer, Pin)
    assert router.answer.served == [("10.0.0.2:8000", 200)]
    assert router.answer.released == 1


def test_a_stream_that_ends_before_its_pick_releases_nothing() -> None:
    router = Router()
    exchange = router.open()
    exchange.receive(RequestHeaders(origin(BodyMode.BUFFERED), end_of_stream=False))
    exchange.close()
    assert router.asked == []


def test_a_refused_request_gets_one_answer_and_nothing_after_it() -> None:
    router = Router(answer=Refused(429, "every endpoint is at its limit", "overloaded", retry_after=1))
    exchange = router.open()
    (reply,) = exchange.receive(HEADERS_ONLY)
    immediate = ProcessingResponse.FromString(reply).immediate_response
    assert immediate.status.code == 429
    assert b"every endpoint" in immediate.body
    assert exchange.refused
    assert exchange.receive(ResponseHeaders(429, "", end_of_stream=True)) == ()


def test_a_request_that_no_pool_takes_passes_unpinned() -> None:
    router = Router(answer=None)
    assert said(router.open().receive(HEADERS_ONLY)) == ["request_headers"]


def test_a_local_reply_before_the_pick_passes_and_later_request_parts_do_not_pin() -> None:
    router = Router()
    exchange = router.open()
    exchange.receive(RequestHeaders(origin(BodyMode.BUFFERED), end_of_stream=False))
    assert said(exchange.receive(ResponseHeaders(413, "", end_of_stream=False))) == ["response_headers"]
    assert router.asked == []


def test_what_the_table_does_not_hold_is_counted_and_still_flows() -> None:
    router = Router()
    exchange = router.open()
    exchange.receive(HEADERS_ONLY)
    assert said(exchange.receive(HEADERS_ONLY)) == ["request_headers"]
    assert exchange.receive(Unknown()) == ()
    assert router.unexpected == 2
    assert len(router.asked) == 1


EVENTS = st.one_of(
    st.builds(
        RequestHeaders,
        st.builds(
            origin,
            st.sampled_from([None, *BodyMode]),
            waiting=st.booleans(),
            response=st.sampled_from(list(BodyMode)),
        ),
        st.booleans(),
    ),
    st.builds(
        RequestBody,
        st.builds(origin, st.sampled_from([None, *BodyMode])),
        st.binary(max_size=50),
        st.booleans(),
    ),
    st.just(RequestTrailers()),
    st.builds(ResponseHeaders, st.integers(0, 999), st.sampled_from(["", "10.0.0.2:8000"]), st.booleans()),
    st.builds(ResponseBody, st.binary(max_size=50), st.booleans()),
    st.just(ResponseTrailers()),
    st.just(Unknown()),
)


@given(
    events=st.lists(EVENTS, max_size=12),
    answer=st.sampled_from(["pin", "none", "refuse"]),
)
def test_no_sequence_of_messages_raises_picks_twice_or_leaks_a_pick(events: list[Event], answer: str) -> None:
    pin = Pin()
    answers: dict[str, Answer] = {"pin": pin, "none": None, "refuse": Refused(503, "no endpoint", "empty")}
    router = Router(answer=answers[answer])
    exchange = router.open()
    for event in events:
        for reply in exchange.receive(event):
            assert ProcessingResponse.FromString(reply).WhichOneof("response")
        if exchange.refused:
            break
    picked = len(router.asked)
    exchange.close()
    assert picked <= 1
    assert pin.released == (picked if answer == "pin" else 0)
    assert exchange.state in State
