"""The ext_proc exchange of one HTTP request, without IO.

Rules of this room: no grpc, no asyncio, no clock, no protobuf. Events come in (`receive`), replies go out as
the bytes to send, in order; `close` is called once when the stream has ended, however it ended. A decision
is asked of one callable, so the exchange knows nothing of prompts or endpoints.

How an exchange goes
--------------------
Envoy opens one stream for one request and says in its first message how it sends bodies (`protocol_config`).
What the exchange has to find is the one moment at which it has read enough of the body *and* may still pin:

===================================  =========================================  ===========================
request body is sent                 the pin goes out with                      keyed by
===================================  =========================================  ===========================
never, or headers end the stream     the reply to the headers                   nothing: routed by load
BUFFERED, BUFFERED_PARTIAL           the reply to the body                      the body, up to Envoy's limit
STREAMED, without waiting            the reply to the headers, held back until  the first chunk
                                     the first chunk has come
STREAMED                             the reply to the first chunk               the first chunk
FULL_DUPLEX_STREAMED                 the reply to the headers, held back until  the first `HELD_BYTES`
                                     enough of the body has come
===================================  =========================================  ===========================

With headers skipped the body is the first message and everything above holds without the reply to the
headers.

The request side is one of the `State`s below; what may come in which state, and what happens then, is the
table `_RULES`. An event that the table does not hold (a body after the refusal, a second headers message, a
kind from a later protocol) is counted and answered with the reply that changes nothing, so that the request
still flows.

The response side changes no byte. It is read for one thing: which endpoint served.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import Enum, auto
from typing import ClassVar, NamedTuple, Protocol

from extproc import messages
from extproc.messages import (
    BodyMode,
    Event,
    Origin,
    RequestBody,
    RequestHeaders,
    RequestTrailers,
    ResponseBody,
    ResponseHeaders,
    ResponseTrailers,
    Unknown,
)

HELD_BYTES = 65_536
"""How much of a FULL_DUPLEX_STREAMED body is held back for the key, in bytes: prefixLength's largest value.
Envoy keeps sending meanwhile, so holding costs memory here, not a round trip."""


class Question(NamedTuple):
    """What is known when the pick has to be made."""

    origin: Origin
    body: bytes
    complete: bool
    """The body is whole, as far as Envoy says."""


class Pinned(Protocol):
    """A pick that was taken: it counts as in flight on its endpoint until it is released."""

    destination: str
    """`ip:port[,ip:port...]`: the first choice, then where to retry."""

    def answered(self, served: str, status: int) -> None:
        """The response has begun: `served` is the endpoint's address or empty, `status` the HTTP status."""

    def release(self) -> None:
        """The request is over. Called exactly once."""


class Refused(NamedTuple):
    """The request is not to be served: Envoy answers it with this."""

    status: int
    message: str
    kind: str
    retry_after: int | None = None


Answer = Pinned | Refused | None
"""None: let it pass unpinned, to whatever endpoint the gateway's own policy chooses."""


class State(Enum):
    """Where the request side stands."""

    START = auto()
    """Nothing has been read."""
    HELD = auto()
    """Headers were read and are not answered yet: their reply will carry the pin."""
    AWAITED = auto()
    """Headers were answered; the pin goes out with the body's reply."""
    PAST = auto()
    """The pick is past, or there is none to make any more."""
    REFUSED = auto()
    """Envoy was told to answer the client itself."""


class Exchange:
    """One request, from Envoy's first message to the end of the stream."""

    __slots__ = (
        "_ask",
        "_chunks",
        "_count_unexpected",
        "_echo_request",
        "_echo_response",
        "_held_bytes",
        "_origin",
        "_pinned",
        "state",
    )

    def __init__(self, ask: Callable[[Question], Answer], count_unexpected: Callable[[], None]) -> None:
        """`ask` makes the pick; `count_unexpected` is told of each event that the table does not hold."""
        self._ask = ask
        self._count_unexpected = count_unexpected
        self._origin: Origin | None = None
        self._pinned: Pinned | None = None
        self._chunks: list[RequestBody] = []
        self._held_bytes = 0
        self._echo_request = False
        self._echo_response = False
        self.state = State.START

    @property
    def past_pick(self) -> bool:
        """Nothing still to come could change where the request goes, and no byte waits to be given back."""
        return self.state is State.PAST and not self._echo_request and not self._echo_response

    @property
    def refused(self) -> bool:
        """The exchange is over: Envoy answers the client, nothing more is to be said."""
        return self.state is State.REFUSED

    def receive(self, event: Event) -> Sequence[bytes]:
        """The replies to an event, in the order in which they must be sent. Never raises on what Envoy
        sent."""
        rule = self._RULES.get((self.state, type(event)))
        if rule is None:
            self._count_unexpected()
            return () if isinstance(event, Unknown) or self.refused else (messages.neutral(type(event)),)
        return rule(self, event)

    def close(self) -> None:
        """The stream has ended. Releases the pick; harmless when called again."""
        self._chunks.clear()
        pinned, self._pinned = self._pinned, None
        if pinned is not None:
            pinned.release()

    # --- the request, in the order in which its messages come ---

    def _headers(self, event: RequestHeaders) -> Sequence[bytes]:
        self._begin(event.origin)
        protocol = event.origin.protocol
        mode = protocol.request_body if protocol else BodyMode.BUFFERED_PARTIAL
        if event.end_of_stream or mode is BodyMode.NONE:
            return self._decide(RequestHeaders, b"", event.end_of_stream)
        self._echo_request = mode is BodyMode.FULL_DUPLEX_STREAMED
        at_once = mode is BodyMode.STREAMED and protocol is not None and protocol.without_waiting
        if self._echo_request or at_once:
            self.state = State.HELD
            return ()
        self.state = State.AWAITED
        return (messages.neutral(RequestHeaders),)

    def _first_body(self, event: RequestBody) -> Sequence[bytes]:
        self._begin(event.origin)
        return self._decide(RequestBody, event.body, event.end_of_stream)

    def _awaited_body(self, event: RequestBody) -> Sequence[bytes]:
        return self._decide(RequestBody, event.body, event.end_of_stream)

    def _held_body(self, event: RequestBody) -> Sequence[bytes]:
        self._chunks.append(event)
        self._held_bytes += len(event.body)
        if self._echo_request and not event.end_of_stream and self._held_bytes < HELD_BYTES:
            return ()
        return self._let_go(event.end_of_stream)

    def _held_trailers(self, event: RequestTrailers) -> Sequence[bytes]:
        replies = self._let_go(complete=True)
        return replies if self.refused else (*replies, messages.neutral(RequestTrailers))

    def _let_go(self, complete: bool) -> Sequence[bytes]:
        """The held headers with the pin, then every chunk that came meanwhile."""
        chunks = list(self._chunks)
        self._chunks.clear()
        replies = list(self._decide(RequestHeaders, b"".join(chunk.body for chunk in chunks), complete))
        if not self.refused:
            for chunk in chunks:
                replies += self._passing_body(chunk)
        return replies

    def _passing_body(self, event: RequestBody) -> Sequence[bytes]:
        """A chunk that is not looked at: given back where Envoy waits for the bytes, else acknowledged."""
        if not self._echo_request:
            return (messages.neutral(RequestBody),)
        self._echo_request = not event.end_of_stream
        return messages.streamed(RequestBody, event.body, event.end_of_stream)

    def _decide(self, replied_to: type[Event], body: bytes, complete: bool) -> Sequence[bytes]:
        assert self._origin is not None  # noqa: S101  every path here went through _begin
        answer = self._ask(Question(self._origin, body, complete))
        if isinstance(answer, Refused):
            self.state = State.REFUSED
            return (_refusal(answer),)
        self.state = State.PAST
        if answer is None:
            return (messages.neutral(replied_to),)
        self._pinned = answer
        return (messages.pinned(replied_to is RequestHeaders, answer.destination),)

    def _begin(self, origin: Origin) -> None:
        self._origin = origin
        self._echo_response = (
            origin.protocol is not None and origin.protocol.response_body is BodyMode.FULL_DUPLEX_STREAMED
        )

    # --- the response ---

    def _response_headers(self, event: ResponseHeaders) -> Sequence[bytes]:
        self.state = State.PAST
        self._echo_request = False
        self._echo_response = self._echo_response and not event.end_of_stream
        if self._pinned is not None:
            self._pinned.answered(event.served, event.status)
        return (messages.neutral(ResponseHeaders),)

    def _response_body(self, event: ResponseBody) -> Sequence[bytes]:
        if not self._echo_response:
            return (messages.neutral(ResponseBody),)
        self._echo_response = not event.end_of_stream
        return messages.streamed(ResponseBody, event.body, event.end_of_stream)

    def _trailers(self, event: RequestTrailers | ResponseTrailers) -> Sequence[bytes]:
        return (messages.neutral(type(event)),)

    _RULES: ClassVar[dict[tuple[State, type[Event]], Callable[..., Sequence[bytes]]]] = {
        (State.START, RequestHeaders): _headers,
        (State.START, RequestBody): _first_body,
        (State.HELD, RequestBody): _held_body,
        (State.HELD, RequestTrailers): _held_trailers,
        (State.AWAITED, RequestBody): _awaited_body,
        (State.PAST, RequestBody): _passing_body,
        (State.PAST, RequestTrailers): _trailers,
        # Envoy may answer by itself (a 413, a redirect) at any moment; with headers skipped and no body, the
        # response is the first that is heard of a request.
        (State.START, ResponseHeaders): _response_headers,
        (State.HELD, ResponseHeaders): _response_headers,
        (State.AWAITED, ResponseHeaders): _response_headers,
        (State.PAST, ResponseHeaders): _response_headers,
        (State.PAST, ResponseBody): _response_body,
        (State.PAST, ResponseTrailers): _trailers,
    }


def _refusal(refused: Refused) -> bytes:
    """The refusal in the shape of OpenAI's errors, which every SDK can read."""
    body = f'{{"error":{{"message":"{refused.message}","type":"{refused.kind}","code":{refused.status}}}}}'
    return messages.refusal(refused.status, body.encode(), f"extproc_{refused.kind}", refused.retry_after)
