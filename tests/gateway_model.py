"""Envoy's side of an ext_proc exchange, without IO, as Envoy 1.40 was measured to behave.

It sends an `Exchange` what a gateway of a given configuration sends for a given request, in an order that the
test draws, and takes the replies as strictly as Envoy does: a reply of the wrong kind, one too many or one
too few fails. What a real Envoy does with every combination is in tests/envoy/test_exchanges.py.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import product

from envoy.extensions.filters.http.ext_proc.v3.processing_mode_pb2 import ProcessingMode
from envoy.service.ext_proc.v3.external_processor_pb2 import ProcessingResponse

from extproc.messages import (
    DESTINATION,
    NAMESPACE,
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
)
from extproc.stream import Exchange, Overdue

FULL = BodyMode.FULL_DUPLEX_STREAMED
_WHOLE = (BodyMode.BUFFERED, BodyMode.BUFFERED_PARTIAL, BodyMode.GRPC)


@dataclass(frozen=True, slots=True)
class Setup:
    """How the gateway is configured: the fields of `processing_mode`, and what stands beside it."""

    request_headers: bool = True
    request_body: BodyMode = BodyMode.BUFFERED_PARTIAL
    request_trailers: bool = False
    response_headers: bool = True
    response_body: BodyMode = BodyMode.NONE
    response_trailers: bool = True
    without_waiting: bool = False
    allow_override: bool = True
    limit: int = 200_000
    """Bytes of a body that BUFFERED_PARTIAL sends at most."""
    told: bool = True
    """The first message says how bodies are sent. False: an Envoy before 1.33."""

    def __str__(self) -> str:
        def word(send: bool) -> str:
            return "SEND" if send else "SKIP"

        return (
            f"request {word(self.request_headers)} {self.request_body.name} {word(self.request_trailers)}, "
            f"response {word(self.response_headers)} {self.response_body.name} "
            f"{word(self.response_trailers)}{', without waiting' * self.without_waiting}"
            f"{', fixed' * (not self.allow_override)}"
        )


def every_setup() -> list[Setup]:
    """All that Envoy accepts: FULL_DUPLEX_STREAMED needs its trailers sent."""
    two = (True, False)
    return [
        Setup(*modes, *flags)
        for modes in product(two, BodyMode, two, two, BodyMode, two)
        for flags in ((False, True), (False, False), (True, True))
        if (modes[1] is not FULL or modes[2]) and (modes[4] is not FULL or modes[5])
    ]


@dataclass(frozen=True, slots=True)
class Request:
    """What passes through the gateway."""

    chunks: tuple[bytes, ...] | None = (b"{}",)
    """None: headers end the request."""
    trailers: bool = False
    open_ended: bool = False
    """An upgrade: the body lasts as long as the response, and the engine answers 101 at its headers."""
    length_known: bool = True
    answer: tuple[bytes, ...] = (b"data: 1\n\n",)
    answer_trailers: bool = False
    early: bool = False
    """The engine answers at the headers, while the body may still be coming."""

    @property
    def body(self) -> bytes:
        return b"".join(self.chunks or ())


@dataclass(slots=True)
class Side:
    """One direction: what is on its way, what was let through."""

    mode: BodyMode
    trailers_sent: bool
    arrived: bytearray = field(default_factory=bytearray)
    """Bytes that came in and are not passed on or sent to the router yet."""
    ended: bool = False
    """The end of the body came in."""
    awaited: deque[tuple[type[Event], bytes]] = field(default_factory=deque)
    """Messages that need a reply each, with the bytes that it lets through."""
    out: bytearray = field(default_factory=bytearray)
    out_ended: bool = False
    partial_done: bool = False
    whole_sent: bool = False
    duplex_sent: int = 0
    duplex_ended: bool = False
    trailers_asked: bool = False
    trailers_passed: bool = False


class Envoy:
    """One request through one gateway. `steps` names what may happen next; `run` lets it happen."""

    def __init__(self, exchange: Exchange, setup: Setup, request: Request, served: str) -> None:
        self.exchange = exchange
        self.setup = setup
        self.request = request
        self._served = served
        self._first = True
        self._up = Side(setup.request_body, setup.request_trailers)
        self._down = Side(setup.response_body, setup.response_trailers)
        self._send_response_headers = setup.response_headers
        self._to_come = deque(request.chunks or ())
        self._answer = deque(request.answer)
        self._pin = ""
        self._begun = False
        self._headers_answered = False
        self._response_begun = False
        self._response_headers_answered = False
        self.released = False
        """The request's headers went to an endpoint."""
        self.pin_at_release = ""
        self.refused = 0
        self.left = False
        """The router closed the stream with OK: the gateway goes on alone."""
        self.messages = 0

    @property
    def upstream(self) -> bytes:
        """The body that the engine got."""
        return bytes(self._up.out)

    @property
    def downstream(self) -> bytes:
        """The body that the client got."""
        return bytes(self._down.out)

    @property
    def complete(self) -> bool:
        """Both directions have ended, and nothing waits for the router."""
        return not self.steps() and self._up.out_ended and self._down.out_ended

    @property
    def waits(self) -> bool:
        """For a reply of the router, however long it takes."""
        return bool(self._up.awaited or self._down.awaited)

    def steps(self) -> dict[str, Callable[[], None]]:
        """What may happen next, by name. Empty when all is over."""
        up, down = self._up, self._down
        possible: dict[str, Callable[[], None]] = {}
        if self.refused:
            return possible
        if not self._begun:
            return {"begin": self._begin}
        if not up.ended and (not self.request.open_ended or self._response_begun):
            possible["request data"] = self._request_data
        if self.released and not self._response_begun and (up.out_ended or self._answers_early):
            possible["response headers"] = self._response_headers
        if self._response_begun and not down.ended:
            possible["response data"] = self._response_data
        if self.exchange.patience is not None and not self.left:
            # An Overdue may come at any moment, but must come when nothing else can happen.
            possible["silence"] = self._silence
        return possible

    @property
    def _bare_response(self) -> bool:
        """The response's headers end it."""
        return not self.request.answer and not self.request.answer_trailers

    @property
    def _answers_early(self) -> bool:
        return self.request.early or self.request.open_ended

    # --- what happens ---

    def _begin(self) -> None:
        self._begun = True
        end = self.request.chunks is None and not self.request.trailers
        if end:
            self._up.ended = True
        if self.setup.request_headers:
            known = self.request.length_known and self.request.chunks is not None
            streamed = self.setup.request_body is BodyMode.STREAMED and not self.setup.without_waiting
            length = len(self.request.body) if known and streamed and self.setup.told else None
            self._up.awaited.append((RequestHeaders, b""))
            self._send(RequestHeaders(self._origin(), end, self.request.open_ended, length))
        else:
            self._headers_answered = True
            self._release()
            if end:
                self._up.out_ended = True

    def _request_data(self) -> None:
        up = self._up
        if self._to_come:
            up.arrived += self._to_come.popleft()
        else:
            up.ended = True
        self._process_request()

    def _response_headers(self) -> None:
        self._response_begun = True
        end = self._bare_response
        self._down.ended = end
        if self._send_response_headers and not self.left:
            self._down.awaited.append((ResponseHeaders, b""))
            status = 101 if self.request.open_ended else 200
            self._send(ResponseHeaders(status, self._served, end, self._protocol()))
        else:
            self._response_headers_answered = True
            self._process_response()

    def _response_data(self) -> None:
        if self._answer:
            self._down.arrived += self._answer.popleft()
        else:
            self._down.ended = True
        self._process_response()

    def _silence(self) -> None:
        self._receive(Overdue())

    # --- the request side ---

    def _process_request(self) -> None:
        up = self._up
        waits_for_headers = not self._headers_answered
        early = up.mode is FULL or (up.mode is BodyMode.STREAMED and self.setup.without_waiting)
        if self.left or not waits_for_headers or (early and self.setup.request_headers):
            self._flow(up, RequestBody, self._origin, RequestTrailers)
        self._settle()

    def _headers_replied(self) -> None:
        """What Envoy does with the reply to the request's headers, beyond what it says."""
        up = self._up
        self._headers_answered = True
        if up.ended and not self.request.trailers and not up.arrived and self.request.chunks is None:
            self._release()
            up.out_ended = True
            return
        if up.mode in (BodyMode.NONE, FULL):
            self._release()
        elif up.mode is BodyMode.STREAMED:
            if not up.ended or up.awaited or self.setup.without_waiting:
                self._release()
            else:
                up.whole_sent = True
        elif up.mode is BodyMode.GRPC and not up.ended:
            # Not made in 1.40: a body that is not there whole passes by the router.
            up.mode = BodyMode.NONE
            self._release()
        self._process_request()

    def _release(self) -> None:
        if not self.released:
            self.released = True
            self.pin_at_release = self._pin

    def _settle(self) -> None:
        """The request goes on once nothing of it waits for a reply."""
        up = self._up
        if not up.awaited and self._headers_answered and up.ended and up.mode is not FULL and not up.arrived:
            self._release()
            up.out_ended = True

    # --- both sides ---

    def _flow(
        self,
        side: Side,
        body: type[RequestBody] | type[ResponseBody],
        origin: Callable[[], Origin] | None,
        trailers: type[RequestTrailers] | type[ResponseTrailers],
    ) -> None:
        """Send or pass on what has come in, as the body mode says."""
        has_trailers = self.request.trailers if body is RequestBody else self.request.answer_trailers

        def message(data: bytes, end: bool) -> RequestBody | ResponseBody:
            if body is RequestBody:
                assert origin is not None
                return RequestBody(origin(), data, end)
            return ResponseBody(data, end, self._protocol())

        mode = BodyMode.NONE if self.left else side.mode
        if mode in _WHOLE and side.partial_done:
            mode = BodyMode.NONE
        if mode is BodyMode.NONE:
            side.out += side.arrived
            side.arrived.clear()
        elif mode is FULL:
            data = bytes(side.arrived)
            side.arrived.clear()
            if data:
                side.duplex_sent += len(data)
                self._send(message(data, False))
            if side.ended and not side.trailers_asked and not has_trailers and not self.left:
                side.trailers_asked = True
                self._send(message(b"", True))
        elif mode is BodyMode.STREAMED:
            data = bytes(side.arrived)
            side.arrived.clear()
            if data or (side.ended and not has_trailers and not side.trailers_asked):
                if side.ended:
                    side.trailers_asked = not has_trailers
                side.awaited.append((body, data))
                self._send(message(data, side.ended and not has_trailers))
        else:
            partial = mode is BodyMode.BUFFERED_PARTIAL and len(side.arrived) > self.setup.limit
            if (side.ended or partial) and not side.whole_sent and (side.arrived or not has_trailers):
                side.whole_sent = True
                side.partial_done = True
                data = bytes(side.arrived)
                side.arrived.clear()
                side.awaited.append((body, data))
                self._send(message(data, side.ended and not has_trailers))
        in_turn = mode is FULL or not side.awaited
        if side.ended and has_trailers and in_turn and not side.trailers_passed:
            self._trailers(side, trailers)

    def _trailers(self, side: Side, trailers: type[RequestTrailers] | type[ResponseTrailers]) -> None:
        side.trailers_passed = True
        if side.trailers_sent and not self.left:
            side.awaited.append((trailers, b""))
            self._send(trailers(self._protocol()))

    def _process_response(self) -> None:
        down = self._down
        if not self._response_headers_answered and not self.left:
            return
        if self._bare_response:
            down.out_ended = True
            return
        self._flow(down, ResponseBody, None, ResponseTrailers)
        if down.ended and not down.awaited and not down.arrived and (down.mode is not FULL or self.left):
            down.out_ended = True

    # --- the stream ---

    def _origin(self) -> Origin:
        return Origin("/v1/chat/completions", "", "", self._protocol())

    def _protocol(self) -> Protocol | None:
        """Told in the first message only."""
        if not self._first or not self.setup.told:
            return None
        setup = self.setup
        return Protocol(setup.request_body, setup.response_body, setup.without_waiting)

    def _send(self, event: Event) -> None:
        self._first = False
        self.messages += 1
        self._receive(event)

    def _receive(self, event: Event | Overdue) -> None:
        replies = list(self.exchange.receive(event))
        for data in replies:
            self._take(ProcessingResponse.FromString(data))
        if self.exchange.finished and not self.refused:
            self._leave()

    def _leave(self) -> None:
        """Closed with OK: nothing is sent any more, all that waits goes on."""
        self.left = True
        for side in (self._up, self._down):
            for _, data in side.awaited:
                side.out += data
            side.awaited.clear()
            side.mode = BodyMode.NONE
        self._headers_answered = self._response_headers_answered = True
        self._release()
        self._process_request()
        if self._response_begun:
            self._process_response()

    def _take(self, reply: ProcessingResponse) -> None:
        assert not self.left, "a reply after the end"
        kind = reply.WhichOneof("response")
        if kind == "immediate_response":
            self.refused += 1
            return
        lb = (
            reply.dynamic_metadata.fields[NAMESPACE].struct_value
            if reply.HasField("dynamic_metadata")
            else None
        )
        if lb is not None:
            self._pin = lb.fields[DESTINATION].string_value
        side = self._up if kind.startswith("request") else self._down
        duplex = kind.endswith("body") and side.mode is FULL
        if duplex:
            self._take_streamed(side, getattr(reply, kind))
            return
        assert side.awaited, f"{kind}: Envoy waits for no reply"
        event, data = side.awaited[0]
        assert _KINDS[event] == kind, f"{kind} in reply to {event.__name__}"
        self._check_mutation(reply, kind)
        side.awaited.popleft()
        side.out += data
        self._after(event, reply)

    def _take_streamed(self, side: Side, part: object) -> None:
        assert self._headers_answered or side is self._down, "a body before the headers"
        response = part.response  # type: ignore[attr-defined]
        assert response.body_mutation.HasField("streamed_response"), "no bytes given back"
        piece = response.body_mutation.streamed_response
        assert not side.duplex_ended, "bytes after the end"
        assert len(piece.body) <= 65_536
        side.out += piece.body
        assert len(side.out) <= side.duplex_sent, "more bytes than were sent"
        if piece.end_of_stream:
            side.duplex_ended = True
            side.out_ended = True

    def _check_mutation(self, reply: ProcessingResponse, kind: str) -> None:
        part = getattr(reply, kind)
        common = part.response if hasattr(part, "response") else part
        names = [option.header.key for option in common.header_mutation.set_headers]
        removed = list(common.header_mutation.remove_headers)
        if removed:  # what a client may have sent under the pin's name
            assert (removed, names, self._pin) == ([DESTINATION], [], "")
            assert kind in ("request_headers", "request_body")
        if names:
            assert names == [DESTINATION]
            assert kind in ("request_headers", "request_body")
            assert common.header_mutation.set_headers[0].header.raw_value.decode() == self._pin
        if hasattr(part, "response"):
            assert not part.response.HasField("body_mutation"), "a body changed"
            assert part.response.status == 0

    def _after(self, event: type[Event], reply: ProcessingResponse) -> None:
        """What a reply lets happen."""
        if event in (RequestHeaders, ResponseHeaders) and reply.HasField("mode_override"):
            self._override(event, reply.mode_override)
        if event is RequestHeaders:
            self._headers_replied()
        elif event in (RequestBody, RequestTrailers):
            if event is RequestTrailers and self._up.mode is FULL:
                self._up.out_ended = self._up.duplex_ended = True
            self._process_request()
        else:
            self._response_headers_answered = True
            if event is ResponseTrailers and self._down.mode is FULL:
                self._down.out_ended = self._down.duplex_ended = True
            self._process_response()
            if event is ResponseHeaders and self._up.mode is BodyMode.NONE:
                self._process_request()

    def _override(self, event: type[Event], mode: ProcessingMode) -> None:
        setup = self.setup
        if not setup.allow_override or setup.without_waiting:
            return
        if event is RequestHeaders:
            self._send_response_headers = mode.response_header_mode != ProcessingMode.SKIP
        self._up.mode = BodyMode(mode.request_body_mode)
        self._up.trailers_sent = mode.request_trailer_mode == ProcessingMode.SEND
        self._down.mode = BodyMode(mode.response_body_mode)
        self._down.trailers_sent = mode.response_trailer_mode == ProcessingMode.SEND


_KINDS: dict[type[Event], str] = {
    RequestHeaders: "request_headers",
    RequestBody: "request_body",
    RequestTrailers: "request_trailers",
    ResponseHeaders: "response_headers",
    ResponseBody: "response_body",
    ResponseTrailers: "response_trailers",
}
