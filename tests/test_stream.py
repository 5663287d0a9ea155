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
from extproc.stream import HELD_BYTES, HELD_CHUNKS, Answer, Exchange, Overdue, Question, Refused, State

PIN = "10.0.0.1:8000,10.0.0.2:8000"


@dataclass
class Pin:
    destination: str = PIN
    served: list[tuple[str, int, bool]] = field(default_factory=list)
    released: int = 0

    def answered(self, served: str, status: int, tried: bool) -> None:
        self.served.append((served, status, tried))

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


def test_a_short_streamed_body_that_waits_is_pinned_in_the_reply_to_its_first_chunk() -> None:
    """It mostly is there whole when the headers are answered, and then Envoy has chosen no endpoint yet."""
    exchange = Router().open()
    first = RequestHeaders(origin(BodyMode.STREAMED), end_of_stream=False, length=HELD_BYTES)
    assert said(exchange.receive(first)) == ["request_headers"]
    chunk = RequestBody(Origin("", "", "", None), b"x", end_of_stream=True)
    assert said(exchange.receive(chunk)) == ["request_body+pin"]


@pytest.mark.parametrize("length", [HELD_BYTES + 1, None])
def test_a_longer_streamed_body_that_waits_is_pinned_at_its_headers(length: int | None) -> None:
    """Its first chunk comes when Envoy has chosen already."""
    router = Router()
    exchange = router.open()
    first = RequestHeaders(origin(BodyMode.STREAMED), end_of_stream=False, length=length)
    assert said(exchange.receive(first)) == ["request_headers+pin"]
    assert said(exchange.receive(RequestBody(origin(None), b"x", end_of_stream=False))) == ["request_body"]
    assert len(router.asked) == 1


@pytest.mark.parametrize(
    ("first", "sure"),
    [
        (RequestHeaders(origin(BodyMode.STREAMED), end_of_stream=False, length=3), False),
        (RequestBody(origin(BodyMode.STREAMED), b"x", end_of_stream=True), False),
        (RequestBody(origin(BodyMode.FULL_DUPLEX_STREAMED), b"x", end_of_stream=True), False),
        (RequestBody(origin(BodyMode.BUFFERED_PARTIAL), b"x", end_of_stream=True), True),
        (RequestHeaders(origin(BodyMode.BUFFERED_PARTIAL), end_of_stream=False), True),
        (RequestHeaders(origin(BodyMode.BUFFERED), end_of_stream=True), True),
    ],
)
def test_a_pin_that_may_have_come_too_late_blames_no_endpoint(first: Event, sure: bool) -> None:
    for served in ("10.0.0.1:8000", "10.0.0.2:8000"):
        router = Router(Pin())
        exchange = router.open()
        exchange.receive(first)
        if not router.asked:
            exchange.receive(RequestBody(origin(None), b"x", end_of_stream=True))
        exchange.receive(ResponseHeaders(200, served, end_of_stream=False))
        assert isinstance(router.answer, Pin)
        assert router.answer.served == [(served, 200, sure)]


@pytest.mark.parametrize(("attempts", "sure"), [(0, True), (1, False), (2, True)])
def test_an_endpoint_that_the_gateway_passed_over_is_not_blamed(attempts: int, sure: bool) -> None:
    """One attempt alone, and that elsewhere: the gateway does not know the first choice, or drew another
    cluster by weight."""
    router = Router(Pin())
    exchange = router.open()
    exchange.receive(RequestHeaders(origin(BodyMode.BUFFERED), end_of_stream=True))
    exchange.receive(ResponseHeaders(200, "10.0.0.2:8000", end_of_stream=False, attempts=attempts))
    assert isinstance(router.answer, Pin)
    assert router.answer.served == [("10.0.0.2:8000", 200, sure)]


def test_a_streamed_body_that_does_not_come_in_time_is_not_waited_for() -> None:
    """Envoy's message time-out runs while the headers are held back."""
    router = Router()
    exchange = router.open()
    exchange.receive(RequestHeaders(origin(BodyMode.STREAMED, waiting=False), end_of_stream=False))
    assert exchange.patience is not None
    assert exchange.patience < 0.2
    assert said(exchange.receive(Overdue())) == ["request_headers+pin"]
    assert exchange.patience is None
    assert said(exchange.receive(RequestBody(origin(None), b"x", end_of_stream=True))) == ["request_body"]
    assert router.asked == [Question(router.asked[0].origin, b"", complete=False)]


def test_a_full_duplex_body_whose_client_waits_is_let_go_with_what_has_come() -> None:
    router = Router()
    exchange = router.open()
    exchange.receive(RequestHeaders(origin(BodyMode.FULL_DUPLEX_STREAMED), end_of_stream=False))
    assert exchange.receive(RequestBody(origin(None), b"x" * 100, end_of_stream=False)) == ()
    assert exchange.patience is not None
    replies = exchange.receive(Overdue())
    assert said(replies) == ["request_headers+pin", "request_body"]
    assert router.asked[0].body == b"x" * 100
    assert not router.asked[0].complete


def test_a_full_duplex_body_in_tiny_chunks_is_not_held_for_long() -> None:
    """Each chunk held is an object: a client could fill the memory with bodies of one byte each."""
    router = Router()
    exchange = router.open()
    exchange.receive(RequestHeaders(origin(BodyMode.FULL_DUPLEX_STREAMED), end_of_stream=False))
    replies: list[bytes] = []
    for number in range(HELD_CHUNKS):
        assert replies == []
        replies = [*exchange.receive(RequestBody(origin(None), bytes([number]), end_of_stream=False))]
    assert said(replies) == ["request_headers+pin", "request_body"]
    assert body_given_back(replies[1:], "request_body") == bytes(range(HELD_CHUNKS))
    assert router.asked[0].body == bytes(range(HELD_CHUNKS))


def override(reply: bytes) -> tuple[BodyMode, BodyMode] | None:
    parsed = ProcessingResponse.FromString(reply)
    if not parsed.HasField("mode_override"):
        return None
    mode = parsed.mode_override
    sent = (mode.response_header_mode, mode.request_trailer_mode, mode.response_trailer_mode)
    assert set(sent) == {1}, "SEND"
    return BodyMode(mode.request_body_mode), BodyMode(mode.response_body_mode)


@pytest.mark.parametrize("mode", BodyMode)
def test_the_reply_to_headers_asks_for_the_end_of_the_response_and_leaves_bodies_as_they_are(
    mode: BodyMode,
) -> None:
    """Without response trailers Envoy may close the stream as soon as the response has begun."""
    for end in (True, False):
        first = RequestHeaders(origin(mode, response=BodyMode.STREAMED), end)
        replies = Router().open().receive(first)
        asked = [override(reply) for reply in replies]
        # What full duplex needs is sent anyway; of GRPC nobody knows what an override does.
        untouched = mode in (BodyMode.FULL_DUPLEX_STREAMED, BodyMode.GRPC)
        assert asked == [None if untouched else (mode, BodyMode.STREAMED)] * len(replies)


@pytest.mark.parametrize(
    "first",
    [
        RequestHeaders(origin(BodyMode.STREAMED, waiting=False), end_of_stream=True),
        RequestHeaders(origin(BodyMode.NONE, response=BodyMode.FULL_DUPLEX_STREAMED), end_of_stream=True),
        RequestHeaders(origin(None), end_of_stream=True),
    ],
    ids=["does not listen", "full duplex", "did not say how bodies are sent"],
)
def test_where_an_override_is_useless_none_is_asked_for(first: RequestHeaders) -> None:
    (reply,) = Router().open().receive(first)
    assert override(reply) is None


UPGRADE = RequestHeaders(origin(BodyMode.BUFFERED), end_of_stream=False, open_ended=True)


def test_an_upgrade_is_pinned_at_its_headers_and_not_to_be_buffered() -> None:
    exchange = Router().open()
    (reply,) = exchange.receive(UPGRADE)
    assert said([reply]) == ["request_headers+pin"]
    assert override(reply) == (BodyMode.NONE, BodyMode.NONE)
    exchange.receive(ResponseHeaders(101, "10.0.0.1:8000", end_of_stream=False))
    assert not exchange.finished
    assert exchange.patience is None


def test_an_upgrade_that_envoy_buffers_nevertheless_is_let_go() -> None:
    exchange = Router().open()
    exchange.receive(UPGRADE)
    assert exchange.patience is not None
    assert exchange.receive(Overdue()) == ()
    assert exchange.finished


def test_an_upgrade_whose_headers_were_skipped_is_let_go_once_it_is_accepted() -> None:
    exchange = Router().open()
    protocol = Protocol(BodyMode.BUFFERED, BodyMode.NONE, without_waiting=False)
    (reply,) = exchange.receive(ResponseHeaders(101, "10.0.0.1:8000", False, protocol))
    assert override(reply) == (BodyMode.NONE, BodyMode.NONE)
    assert exchange.finished


def test_a_gateway_that_only_shows_what_passes_gets_no_reply_and_no_pick() -> None:
    router = Router()
    exchange = router.open()
    watched = Protocol(BodyMode.STREAMED, BodyMode.NONE, without_waiting=False, observed=True)
    events: list[Event] = [
        RequestHeaders(Origin("/", "", "", watched), end_of_stream=False),
        RequestBody(origin(None), b"{}", end_of_stream=True),
        ResponseHeaders(200, "10.0.0.1:8000", end_of_stream=False),
    ]
    assert [exchange.receive(event) for event in events] == [(), (), ()]
    assert router.asked == []
    assert router.unexpected == 3


@pytest.mark.parametrize(
    "first",
    [
        ResponseHeaders(200, "", False, Protocol(BodyMode.NONE, BodyMode.FULL_DUPLEX_STREAMED, False)),
        ResponseBody(b"data", False, Protocol(BodyMode.NONE, BodyMode.FULL_DUPLEX_STREAMED, False)),
        RequestTrailers(Protocol(BodyMode.NONE, BodyMode.FULL_DUPLEX_STREAMED, False)),
    ],
)
def test_a_full_duplex_response_is_given_back_whatever_was_skipped_before_it(first: Event) -> None:
    router = Router()
    exchange = router.open()
    replies = [*exchange.receive(first)]
    replies += exchange.receive(ResponseBody(b" and more", end_of_stream=True))
    whole = (b"data" if isinstance(first, ResponseBody) else b"") + b" and more"
    given_back = [reply for reply in replies if said([reply]) == ["response_body"]]
    assert body_given_back(given_back, "response_body") == whole
    assert router.unexpected == 0


def test_a_full_duplex_request_goes_on_after_its_response_has_begun() -> None:
    exchange = Router().open()
    exchange.receive(RequestHeaders(origin(BodyMode.FULL_DUPLEX_STREAMED), end_of_stream=False))
    exchange.receive(RequestBody(origin(None), b"x" * HELD_BYTES, end_of_stream=False))
    exchange.receive(ResponseHeaders(200, "10.0.0.1:8000", end_of_stream=False))
    replies = [*exchange.receive(RequestBody(origin(None), b"the rest", end_of_stream=True))]
    assert body_given_back(replies, "request_body") == b"the rest"


def test_bytes_after_the_end_of_a_full_duplex_body_are_counted_and_not_given_back() -> None:
    router = Router()
    exchange = router.open()
    full = BodyMode.FULL_DUPLEX_STREAMED
    exchange.receive(RequestHeaders(origin(full, response=full), end_of_stream=False))
    exchange.receive(RequestBody(origin(None), b"{}", end_of_stream=True))
    assert exchange.receive(RequestBody(origin(None), b"more", end_of_stream=True)) == ()
    exchange.receive(ResponseHeaders(200, "", end_of_stream=False))
    exchange.receive(ResponseBody(b"{}", end_of_stream=True))
    assert exchange.receive(ResponseBody(b"more", end_of_stream=True)) == ()
    assert router.unexpected == 2


def test_a_request_without_a_body_that_announced_one_is_pinned_with_its_trailers() -> None:
    router = Router()
    exchange = router.open()
    exchange.receive(RequestHeaders(origin(BodyMode.BUFFERED), end_of_stream=False))
    (reply,) = exchange.receive(RequestTrailers())
    parsed = ProcessingResponse.FromString(reply)
    assert parsed.HasField("request_trailers")
    assert not parsed.request_trailers.header_mutation.set_headers, "it would be a trailer"
    lb = parsed.dynamic_metadata.fields[messages.NAMESPACE].struct_value
    assert lb.fields[messages.DESTINATION].string_value == PIN


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
    assert router.answer.served == [("10.0.0.2:8000", 200, True)]
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
    assert exchange.finished
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


PROTOCOLS = st.none() | st.builds(
    Protocol, st.sampled_from(BodyMode), st.sampled_from(BodyMode), st.booleans(), st.booleans()
)

EVENTS = st.one_of(
    st.builds(
        RequestHeaders,
        st.builds(Origin, st.just("/v1/chat/completions"), st.just(""), st.just(""), PROTOCOLS),
        st.booleans(),
        st.booleans(),
        st.none() | st.integers(0, 100_000),
    ),
    st.builds(
        RequestBody,
        st.builds(Origin, st.just(""), st.just(""), st.just(""), PROTOCOLS),
        st.binary(max_size=50),
        st.booleans(),
    ),
    st.builds(RequestTrailers, PROTOCOLS),
    st.builds(
        ResponseHeaders,
        st.sampled_from([0, 101, 200, 503]),
        st.sampled_from(["", "10.0.0.2:8000"]),
        st.booleans(),
        PROTOCOLS,
    ),
    st.builds(ResponseBody, st.binary(max_size=50), st.booleans(), PROTOCOLS),
    st.builds(ResponseTrailers, PROTOCOLS),
    st.builds(Unknown, PROTOCOLS),
    st.just(Overdue()),
)


@given(
    events=st.lists(EVENTS, max_size=12),
    answer=st.sampled_from(["pin", "none", "refuse"]),
)
def test_no_sequence_of_messages_raises_picks_twice_or_leaks_a_pick(
    events: list[Event | Overdue], answer: str
) -> None:
    pin = Pin()
    answers: dict[str, Answer] = {"pin": pin, "none": None, "refuse": Refused(503, "no endpoint", "empty")}
    router = Router(answer=answers[answer])
    exchange = router.open()
    for event in events:
        for reply in exchange.receive(event):
            assert ProcessingResponse.FromString(reply).WhichOneof("response")
        if exchange.finished:
            break
    picked = len(router.asked)
    exchange.close()
    assert picked <= 1
    assert pin.released == (picked if answer == "pin" else 0)
    assert exchange.state in State
