"""The ext_proc exchange of one HTTP request, without IO.

Rules of this room: no grpc, no asyncio, no clock, no protobuf. Events come in (`receive`), replies go out as
the bytes to send, in order; `close` is called once when the stream has ended, however it ended. That time
passes is an event too (`Overdue`). A decision is asked of one callable, so the exchange knows nothing of
prompts or endpoints.

How an exchange goes
--------------------
Envoy opens one stream for one request and says in its first message how it sends bodies (`protocol_config`).
What the exchange has to find is the one moment at which it has read enough of the body *and* may still pin:

===================================  =========================================  ===========================
request body is sent                 the pin goes out with                      keyed by
===================================  =========================================  ===========================
never, or headers end the stream,    the reply to the headers                   nothing: routed by load
or open-ended (upgrade, gRPC)
BUFFERED, BUFFERED_PARTIAL           the reply to the body                      the body, up to Envoy's limit
STREAMED, without waiting            the reply to the headers, held back until  the first chunk
                                     the first chunk has come
STREAMED, at most `HELD_BYTES`       the reply to the first chunk               the first chunk
STREAMED, longer or unknown          the reply to the headers                   nothing: routed by load
FULL_DUPLEX_STREAMED                 the reply to the headers, held back until  the first `HELD_BYTES`
                                     enough of the body has come
===================================  =========================================  ===========================

With headers skipped the body is the first message and everything above holds without the reply to the
headers. docs/exchanges.md says what each costs and where a pin may come too late.

Each reply to headers asks for the headers and trailers of the response (`mode_override`), so that the stream
lasts as long as the request does.

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
    NO_BODIES,
    Bodies,
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
"""How much of a body is waited for, in bytes: prefixLength's largest value. Of a FULL_DUPLEX_STREAMED one so
much is held back; Envoy keeps sending meanwhile, so holding costs memory here, not a round trip."""

HELD_CHUNKS = 128
"""Chunks that are held back at most: a client that sends a byte in each would fill the memory with objects,
and one that streams its request a little at a time may wait for the response to begin."""

CHUNK_PATIENCE = 0.1
"""Seconds for which the reply to the headers waits for the first chunk of a STREAMED body. Envoy's
`message_timeout`, 0.2 s by default, runs meanwhile: a slow client's request would fail with it."""

SILENCE_PATIENCE = 1.0
"""Seconds without a message after which a FULL_DUPLEX_STREAMED body is not waited for any longer, since its
client may wait for the response to begin; and for an upgrade to be let through."""

_SWITCHING_PROTOCOLS = 101


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

    def answered(self, served: str, status: int, tried: bool) -> None:
        """The response has begun: `served` is the endpoint's address or empty, `status` the HTTP status.
        Not `tried`: Envoy may have chosen before the pin came, or it asked one upstream alone, so that
        another endpoint served is no fault of the one that the pin named.
        """

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


class Overdue(NamedTuple):
    """Envoy has sent nothing for as long as `Exchange.patience` said."""

    protocol: None = None


class State(Enum):
    """Where the request side stands."""

    START = auto()
    """Nothing has been read."""
    HELD = auto()
    """Headers were read and are not answered yet: their reply will carry the pin."""
    AWAITED = auto()
    """Headers were answered; the pin goes out with the reply to the body, or to the trailers if there is
    none."""
    OPENING = auto()
    """An open-ended request, pinned, which Envoy was asked not to buffer. It is not known yet whether it
    does."""
    PAST = auto()
    """The pick is past, or there is none to make any more."""
    REFUSED = auto()
    """Envoy was told to answer the client itself."""
    LEFT = auto()
    """Envoy is to go on alone: closing the stream is all that is left to do."""
    WATCHED = auto()
    """Envoy only shows what passes (`observability_mode`): it waits for no reply, and a pick would count a
    request where it does not go."""


class Exchange:
    """One request, from Envoy's first message to the end of the stream."""

    __slots__ = (
        "_ask",
        "_chunks",
        "_count_unexpected",
        "_held_bytes",
        "_holds",
        "_origin",
        "_pinned",
        "_protocol",
        "_request_ended",
        "_response_ended",
        "state",
    )

    def __init__(self, ask: Callable[[Question], Answer], count_unexpected: Callable[[], None]) -> None:
        """`ask` makes the pick; `count_unexpected` is told of each event that the table does not hold."""
        self._ask = ask
        self._count_unexpected = count_unexpected
        self._protocol = _UNTOLD
        self._origin: Origin | None = None
        self._pinned: Pinned | None = None
        self._holds = True
        """The pin goes out while Envoy cannot have chosen an endpoint yet."""
        self._chunks: list[bytes] = []
        self._held_bytes = 0
        self._request_ended = False
        self._response_ended = False
        self.state = State.START

    @property
    def past_pick(self) -> bool:
        """Nothing still to come could change where the request goes, and no byte waits to be given back."""
        return (
            (self.state is State.PAST or self.state is State.OPENING)
            and (self._request_ended or self._protocol.request_body is not BodyMode.FULL_DUPLEX_STREAMED)
            and (self._response_ended or self._protocol.response_body is not BodyMode.FULL_DUPLEX_STREAMED)
        )

    @property
    def finished(self) -> bool:
        """Nothing more is to be said: the stream is to be closed, with OK."""
        return self.state is State.REFUSED or self.state is State.LEFT

    @property
    def patience(self) -> float | None:
        """Seconds to wait for Envoy's next message before `Overdue` is received. None: as long as it
        takes."""
        if self.state is State.HELD:
            streamed = self._protocol.request_body is BodyMode.STREAMED
            return CHUNK_PATIENCE if streamed else SILENCE_PATIENCE
        return SILENCE_PATIENCE if self.state is State.OPENING else None

    def receive(self, event: Event | Overdue) -> Sequence[bytes]:
        """The replies to an event, in the order in which they must be sent. Never raises on what Envoy
        sent."""
        if self.state is State.START and event.protocol is not None:
            self._protocol = event.protocol
            if event.protocol.observed:
                self.state = State.WATCHED
        rule = self._RULES.get((self.state, type(event)))
        return self._unexpected(event) if rule is None else rule(self, event)

    def close(self) -> None:
        """The stream has ended. Releases the pick; harmless when called again."""
        self._chunks.clear()
        pinned, self._pinned = self._pinned, None
        if pinned is not None:
            pinned.release()

    def _unexpected(self, event: Event | Overdue) -> Sequence[bytes]:
        self._count_unexpected()
        if isinstance(event, Unknown | Overdue) or self.finished or self.state is State.WATCHED:
            return ()
        return (messages.neutral(type(event)),)

    # --- the request, in the order in which its messages come ---

    def _headers(self, event: RequestHeaders) -> Sequence[bytes]:
        """the pick, or wait for the body"""
        self._origin = event.origin
        self._request_ended = event.end_of_stream
        mode = self._protocol.request_body
        if event.open_ended and not event.end_of_stream:
            return self._open(mode)
        if event.end_of_stream or mode is BodyMode.NONE or mode is BodyMode.GRPC:
            return self._decide(RequestHeaders, b"", event.end_of_stream)
        if mode is BodyMode.FULL_DUPLEX_STREAMED:
            self.state = State.HELD
            return ()
        if mode is BodyMode.STREAMED:
            if self._protocol.without_waiting:
                self.state = State.HELD
                return ()
            if event.length is None or event.length > HELD_BYTES:
                # Envoy sends no chunk before the headers are answered, and with that answer it chooses an
                # endpoint unless the body is there whole already.
                return self._decide(RequestHeaders, b"", complete=False)
            self._holds = False
        self.state = State.AWAITED
        return (messages.neutral(RequestHeaders, self._wanted()),)

    def _open(self, mode: BodyMode) -> Sequence[bytes]:
        """The pick for a body that may not end before the response does: it is not waited for."""
        replies = self._decide(RequestHeaders, b"", False, self._wanted(NO_BODIES))
        if (mode in _BUFFERED or self._protocol.response_body in _BUFFERED) and not self.finished:
            self.state = State.OPENING
        return replies

    def _leave(self, _event: Overdue) -> Sequence[bytes]:
        """close the stream, so that Envoy goes on alone"""
        self.state = State.LEFT
        return ()

    def _first_body(self, event: RequestBody) -> Sequence[bytes]:
        """the pick, keyed by this body"""
        self._origin = event.origin
        mode = self._protocol.request_body
        # With headers skipped only the buffering of a body stops Envoy from choosing an endpoint.
        self._holds = mode in _BUFFERED
        if mode is not BodyMode.FULL_DUPLEX_STREAMED:
            return self._decide(RequestBody, event.body, event.end_of_stream)
        refused = self._pick(event.body, event.end_of_stream)
        if refused is not None:
            return (_refusal(refused),)
        self._request_ended = event.end_of_stream
        destination = "" if self._pinned is None else self._pinned.destination
        return messages.streamed(RequestBody, event.body, event.end_of_stream, destination)

    def _awaited_body(self, event: RequestBody) -> Sequence[bytes]:
        """the pick, keyed by this body"""
        return self._decide(RequestBody, event.body, event.end_of_stream)

    def _awaited_trailers(self, _event: RequestTrailers) -> Sequence[bytes]:
        """the pick: there was no body"""
        return self._decide(RequestTrailers, b"", complete=True)

    def _held_body(self, event: RequestBody) -> Sequence[bytes]:
        """hold it, or the pick and all that was held"""
        self._chunks.append(event.body)
        self._held_bytes += len(event.body)
        self._request_ended = event.end_of_stream
        streamed = self._protocol.request_body is BodyMode.STREAMED
        enough = self._held_bytes >= HELD_BYTES or len(self._chunks) >= HELD_CHUNKS
        return self._let_go(event.end_of_stream) if streamed or enough or event.end_of_stream else ()

    def _held_trailers(self, _event: RequestTrailers) -> Sequence[bytes]:
        """the pick and all that was held"""
        replies = self._let_go(complete=True)
        return replies if self.finished else (*replies, messages.neutral(RequestTrailers))

    def _held_too_long(self, _event: Overdue) -> Sequence[bytes]:
        """the pick and all that was held"""
        return self._let_go(complete=False)

    def _let_go(self, complete: bool) -> Sequence[bytes]:
        """The held headers with the pin, then the body that came meanwhile."""
        body, came = b"".join(self._chunks), bool(self._chunks)
        self._chunks.clear()
        replies = self._decide(RequestHeaders, body, complete)
        if self.finished or not came:
            return replies
        if self._protocol.request_body is BodyMode.STREAMED:
            return (*replies, messages.neutral(RequestBody))
        return (*replies, *messages.streamed(RequestBody, body, self._request_ended))

    def _passing_body(self, event: RequestBody) -> Sequence[bytes]:
        """let it pass"""
        self._request_flows()
        if self._protocol.request_body is not BodyMode.FULL_DUPLEX_STREAMED:
            return (messages.neutral(RequestBody),)
        if self._request_ended:
            # Bytes after the end would be appended to a body that is whole.
            self._count_unexpected()
            return ()
        self._request_ended = event.end_of_stream
        return messages.streamed(RequestBody, event.body, event.end_of_stream)

    def _passing_trailers(self, _event: RequestTrailers) -> Sequence[bytes]:
        """let them pass"""
        self._request_flows()
        return (messages.neutral(RequestTrailers),)

    def _request_flows(self) -> None:
        """The request is not held back, but its response may be."""
        if self.state is not State.OPENING or self._protocol.response_body not in _BUFFERED:
            self.state = State.PAST

    def _decide(
        self, replied_to: type[Event], body: bytes, complete: bool, bodies: Bodies | None = None
    ) -> Sequence[bytes]:
        refused = self._pick(body, complete)
        if refused is not None:
            return (_refusal(refused),)
        if replied_to is RequestHeaders and bodies is None:
            bodies = self._wanted()
        destination = "" if self._pinned is None else self._pinned.destination
        return (messages.pinned(replied_to, destination, bodies),)

    def _pick(self, body: bytes, complete: bool) -> Refused | None:
        assert self._origin is not None  # noqa: S101  every path here read the first message
        answer = self._ask(Question(self._origin, body, complete))
        if isinstance(answer, Refused):
            self.state = State.REFUSED
            return answer
        self._pinned = answer
        self.state = State.PAST
        return None

    def _wanted(self, bodies: Bodies | None = None) -> Bodies | None:
        """How bodies are to be sent from now on, by default as they are. None: not to be said, since Envoy
        would not listen or already sends all that is wanted.
        """
        protocol = self._protocol
        modes = Bodies(protocol.request_body, protocol.response_body)
        if protocol is _UNTOLD or protocol.without_waiting or any(mode in _UNTOUCHED for mode in modes):
            return None
        return modes if bodies is None else bodies

    # --- the response ---

    def _response_headers(self, event: ResponseHeaders) -> Sequence[bytes]:
        """note who served"""
        self._respond()
        self._response_ended = event.end_of_stream
        pinned = self._pinned
        if pinned is not None:
            pinned.answered(event.served, event.status, self._holds and event.attempts != 1)
        if event.status == _SWITCHING_PROTOCOLS:
            return self._upgraded()
        return (messages.neutral(ResponseHeaders, self._wanted_of_response()),)

    def _wanted_of_response(self) -> Bodies | None:
        """What could not be asked for at the request's headers, where its body was FULL_DUPLEX_STREAMED."""
        protocol = self._protocol
        late = protocol.request_body is BodyMode.FULL_DUPLEX_STREAMED and not protocol.without_waiting
        if not late or protocol.response_body in _UNTOUCHED:
            return None
        return Bodies(protocol.request_body, protocol.response_body)

    def _upgraded(self) -> Sequence[bytes]:
        """What follows is no body that ends: it must not be buffered. Where Envoy was not asked for that at
        the request's headers, whether it now complies is never known, so it is left alone.
        """
        headers_skipped = self._pinned is None
        if self._protocol.response_body in _BUFFERED or (
            self._protocol.request_body in _BUFFERED and headers_skipped
        ):
            self.state = State.LEFT
        return (messages.neutral(ResponseHeaders, self._wanted(NO_BODIES)),)

    def _response_body(self, event: ResponseBody) -> Sequence[bytes]:
        """let it pass"""
        self._respond()
        if self._protocol.response_body is not BodyMode.FULL_DUPLEX_STREAMED:
            return (messages.neutral(ResponseBody),)
        if self._response_ended:
            self._count_unexpected()
            return ()
        self._response_ended = event.end_of_stream
        return messages.streamed(ResponseBody, event.body, event.end_of_stream)

    def _response_trailers(self, _event: ResponseTrailers) -> Sequence[bytes]:
        """let them pass"""
        self._respond()
        return (messages.neutral(ResponseTrailers),)

    def _respond(self) -> None:
        """Whatever of the response is heard first: the request is decided. Its body may still be coming."""
        if self.state is State.HELD:
            # Envoy answers by itself and wants no byte back.
            self._request_ended = True
            self._chunks.clear()
        self.state = State.PAST

    _RULES: ClassVar[dict[tuple[State, type[Event | Overdue]], Callable[..., Sequence[bytes]]]] = {
        (State.START, RequestHeaders): _headers,
        (State.START, RequestBody): _first_body,
        (State.START, RequestTrailers): _passing_trailers,
        (State.HELD, RequestBody): _held_body,
        (State.HELD, RequestTrailers): _held_trailers,
        (State.HELD, Overdue): _held_too_long,
        (State.AWAITED, RequestBody): _awaited_body,
        (State.AWAITED, RequestTrailers): _awaited_trailers,
        (State.OPENING, RequestBody): _passing_body,
        (State.OPENING, RequestTrailers): _passing_trailers,
        (State.OPENING, Overdue): _leave,
        (State.PAST, RequestBody): _passing_body,
        (State.PAST, RequestTrailers): _passing_trailers,
        # Envoy may answer by itself (a 413, a redirect) at any moment; with headers skipped and no body, the
        # response is the first that is heard of a request.
        (State.START, ResponseHeaders): _response_headers,
        (State.START, ResponseBody): _response_body,
        (State.START, ResponseTrailers): _response_trailers,
        (State.HELD, ResponseHeaders): _response_headers,
        (State.HELD, ResponseBody): _response_body,
        (State.HELD, ResponseTrailers): _response_trailers,
        (State.AWAITED, ResponseHeaders): _response_headers,
        (State.AWAITED, ResponseBody): _response_body,
        (State.AWAITED, ResponseTrailers): _response_trailers,
        (State.OPENING, ResponseHeaders): _response_headers,
        (State.OPENING, ResponseBody): _response_body,
        (State.OPENING, ResponseTrailers): _response_trailers,
        (State.PAST, ResponseHeaders): _response_headers,
        (State.PAST, ResponseBody): _response_body,
        (State.PAST, ResponseTrailers): _response_trailers,
    }


_BUFFERED = (BodyMode.BUFFERED, BodyMode.BUFFERED_PARTIAL)
_UNTOUCHED = (BodyMode.FULL_DUPLEX_STREAMED, BodyMode.GRPC)
"""Modes in which an override is ignored or not foreseen."""

_UNTOLD = messages.Protocol(BodyMode.BUFFERED_PARTIAL, BodyMode.NONE, without_waiting=False)
"""What is taken for granted where Envoy does not say: before 1.33 it sent no `protocol_config`, and bodies
message by message."""


def _refusal(refused: Refused) -> bytes:
    """The refusal in the shape of OpenAI's errors, which every SDK can read."""
    body = f'{{"error":{{"message":"{refused.message}","type":"{refused.kind}","code":{refused.status}}}}}'
    return messages.refusal(refused.status, body.encode(), f"extproc_{refused.kind}", refused.retry_after)
