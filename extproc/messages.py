"""ext_proc protobuf bytes to events, and replies to bytes. The only room that knows ext_proc's messages.

In: one serialised `envoy.service.ext_proc.v3.ProcessingRequest`. Out: one small event for the exchange
(`extproc/stream.py`). Replies are built here as serialised `ProcessingResponse`s; those that never vary are
built once.

The generated upb messages of `xds-protos` are used as they are: parsing a headers message takes about 2 us
and a pinned reply about 7 us, where a pure Python protobuf takes hundreds.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import IntEnum
from functools import lru_cache
from typing import NamedTuple

from envoy.config.core.v3.base_pb2 import HeaderValue, HeaderValueOption
from envoy.extensions.filters.http.ext_proc.v3.processing_mode_pb2 import ProcessingMode
from envoy.service.ext_proc.v3.external_processor_pb2 import (
    CommonResponse,
    HttpBody,
    ProcessingRequest,
    ProcessingResponse,
)

from extproc.address import subset_of

DESTINATION = "x-gateway-destination-endpoint"
"""Header and metadata key that carry the pick (Endpoint Picker Protocol, Gateway API Inference Extension)."""

SERVED = "x-gateway-destination-endpoint-served"
"""Metadata key in which Envoy's override_host policy reports the endpoint that served
(`selected_host_key`)."""

NAMESPACE = "envoy.lb"
"""Metadata namespace of both (same protocol)."""

SUBSET_NAMESPACE = "envoy.lb.subset_hint"
SUBSET = "x-gateway-destination-endpoint-subset"
"""Metadata namespace and key in which the gateway names the only endpoints that may be picked (same
protocol)."""

ATTRIBUTES = "envoy.filters.http.ext_proc"
"""The one namespace in which Envoy sends the attributes that the filter's configuration asks for."""
_ATTEMPTS = "upstream.request_attempt_count"

MAX_STREAMED_BYTES = 62_000
"""Largest body chunk in one streamed reply, in bytes: Envoy refuses much larger ones; other servers use
this."""


class BodyMode(IntEnum):
    """How Envoy sends a body: `ProcessingMode.BodySendMode`, the numbers of its proto."""

    NONE = 0
    STREAMED = 1
    BUFFERED = 2
    BUFFERED_PARTIAL = 3
    FULL_DUPLEX_STREAMED = 4
    GRPC = 5


class Bodies(NamedTuple):
    """How the bodies of one request and of its response are sent."""

    request: BodyMode
    response: BodyMode


NO_BODIES = Bodies(BodyMode.NONE, BodyMode.NONE)


class Protocol(NamedTuple):
    """What Envoy says of the exchange in its first message (`protocol_config`, `observability_mode`)."""

    request_body: BodyMode
    response_body: BodyMode
    without_waiting: bool
    """Body chunks are sent before the headers were answered."""
    observed: bool = False
    """Envoy waits for no reply and ignores those that come."""


OBSERVED = Protocol(BodyMode.STREAMED, BodyMode.STREAMED, without_waiting=True, observed=True)
"""What is known of an exchange that Envoy only shows (`observability_mode`)."""


class Origin(NamedTuple):
    """What the first message says of a request besides its body; empty strings where Envoy did not say."""

    path: str
    encoding: str
    """Header `content-encoding`; not known where headers are skipped."""
    route: str
    """Attribute `xds.route_name`."""
    protocol: Protocol | None
    subset: tuple[str, ...] | None = None
    """What the gateway's metadata names as the only endpoints that may be picked, as it wrote them: `ip:port`
    or `ip`; empty if it names none. None: every endpoint may be. Never read from a header, which the client
    writes."""


class RequestHeaders(NamedTuple):
    """The headers of the request; `origin` is set on the first message of an exchange."""

    origin: Origin
    end_of_stream: bool
    open_ended: bool = False
    """The body may last as long as the response: a connection to be upgraded, CONNECT, gRPC."""
    length: int | None = None
    """`content-length`, looked for only in a STREAMED exchange that waits. None: unknown."""

    @property
    def protocol(self) -> Protocol | None:
        """What Envoy said of the exchange, on its first message."""
        return self.origin.protocol


class RequestBody(NamedTuple):
    """The request's body, or a part of it. `origin` matters where headers are skipped and this comes
    first."""

    origin: Origin
    body: bytes
    end_of_stream: bool

    @property
    def protocol(self) -> Protocol | None:
        """What Envoy said of the exchange, on its first message."""
        return self.origin.protocol


class RequestTrailers(NamedTuple):
    """The trailers of the request."""

    protocol: Protocol | None = None
    """What Envoy said of the exchange, on its first message; as in all the following."""


class ResponseHeaders(NamedTuple):
    """The headers of the response, of the engine or of Envoy itself (a local reply)."""

    status: int
    """HTTP status, 0 where it could not be read."""
    served: str
    """`ip:port` of the endpoint that served as Envoy reports it, empty if it does not."""
    end_of_stream: bool
    protocol: Protocol | None = None
    attempts: float = 0
    """Upstreams that Envoy has asked, 0 where it does not say."""


class ResponseBody(NamedTuple):
    """A part of the response's body."""

    body: bytes
    end_of_stream: bool
    protocol: Protocol | None = None


class ResponseTrailers(NamedTuple):
    """The trailers of the response."""

    protocol: Protocol | None = None


class Unknown(NamedTuple):
    """A message that holds none of the kinds above: of a later protocol, or not ext_proc at all."""

    protocol: Protocol | None = None


Event = (
    RequestHeaders
    | RequestBody
    | RequestTrailers
    | ResponseHeaders
    | ResponseBody
    | ResponseTrailers
    | Unknown
)

_NOWHERE = Origin("", "", "", None)


def decode(data: bytes) -> Event:
    """The event in a serialised `ProcessingRequest`.

    Raises `google.protobuf.message.DecodeError` if the bytes are not one.
    """
    if len(data) >= _LARGE and data[:1] == _REQUEST_BODY:
        event = _body_first(data)
        if event is not None:
            return event
    message = ProcessingRequest.FromString(data)
    kind = message.WhichOneof("request")
    if kind == "request_body":
        part = message.request_body
        return RequestBody(_origin(message, ()), part.body, part.end_of_stream)
    if kind == "response_headers":
        return _response_headers(message)
    if kind == "request_headers":
        return _request_headers(message, data)
    protocol = _protocol_of(message)
    if kind == "response_body":
        return ResponseBody(message.response_body.body, message.response_body.end_of_stream, protocol)
    if kind == "response_trailers":
        return ResponseTrailers(protocol)
    if kind == "request_trailers":
        return RequestTrailers(protocol)
    return Unknown(protocol)


_LARGE = 16_384
"""Bytes of a message from which on copying its body costs more than looking for it."""

_REQUEST_BODY = bytes([ProcessingRequest.DESCRIPTOR.fields_by_name["request_body"].number << 3 | 2])
_BODY = HttpBody.DESCRIPTOR.fields_by_name["body"].number << 3 | 2
"""Tags of the two fields around a body's bytes: number and wire type 2, a length and then that many bytes
(https://protobuf.dev/programming-guides/encoding)."""

_LONGEST_VARINT = 10
"""Bytes of an encoded number at most (same source)."""


def _body_first(data: bytes) -> RequestBody | None:
    """A message that begins with a request body, as all of Envoy's do: the body's bytes are cut out and only
    what is around them goes through the parser, which would copy them twice. None: it is not of that form.
    """
    try:
        part, end = _extent(data, 1)
        if data[part] != _BODY:
            return None
        begin, body_end = _extent(data, part + 1)
    except IndexError:
        return None
    if body_end > end or end > len(data):
        return None
    around = ProcessingRequest.FromString(data[end:])
    if around.WhichOneof("request") is not None:
        return None
    part_around = HttpBody.FromString(data[body_end:end])
    if part_around.body:
        return None
    return RequestBody(_origin(around, ()), data[begin:body_end], part_around.end_of_stream)


def _extent(data: bytes, at: int) -> tuple[int, int]:
    """Where a length-delimited value whose length stands at `at` begins and ends. IndexError if the
    length is cut or none.
    """
    length = shift = 0
    while shift < 7 * _LONGEST_VARINT:
        byte = data[at]
        at += 1
        length |= (byte & 0x7F) << shift
        if byte < 0x80:
            return at, at + length
        shift += 7
    raise IndexError(at)


_CONTENT_ENCODING = b"content-encoding"
_OPEN_ENDED = (b"upgrade", b"CONNECT", b"application/grpc")


def _request_headers(message: ProcessingRequest, data: bytes) -> RequestHeaders:
    """Looks at single headers only where the message's bytes show that there is one to look for."""
    part = message.request_headers
    headers = part.headers.headers
    origin = _origin(message, headers, _CONTENT_ENCODING in data)
    open_ended = any(mark in data for mark in _OPEN_ENDED) and any(map(_is_open_ended, headers))
    protocol = origin.protocol
    length = None
    if protocol is not None and protocol.request_body is BodyMode.STREAMED and not protocol.without_waiting:
        length = next((_number(_text(header)) for header in headers if header.key == "content-length"), None)
    return RequestHeaders(origin, part.end_of_stream, open_ended, length)


def _is_open_ended(header: HeaderValue) -> bool:
    """Envoy shows an extended CONNECT (RFC 8441) as the Upgrade that it means."""
    key = header.key
    if key == "upgrade":
        return True
    if key == ":method":
        return _text(header) == "CONNECT"
    return key == "content-type" and _text(header).startswith("application/grpc")


def _number(text: str) -> int | None:
    return int(text) if text.isascii() and text.isdigit() and len(text) < 20 else None


def _origin(message: ProcessingRequest, headers: Iterable[HeaderValue], encoded: bool = False) -> Origin:
    """Path and route from the attributes, which outlive skipped headers, else the path from the headers.

    Each header read costs half a microsecond, so they are not read for the encoding unless it is there.
    """
    protocol = _protocol_of(message)
    subset = _subset(message) if message.HasField("metadata_context") else None
    path = encoding = route = ""
    attributes = message.attributes
    if ATTRIBUTES in attributes:
        fields = attributes[ATTRIBUTES].fields
        if "request.path" in fields:
            path = fields["request.path"].string_value
        if "xds.route_name" in fields:
            route = fields["xds.route_name"].string_value
    elif protocol is None and not headers and subset is None:
        return _NOWHERE
    for header in headers if encoded or not path else ():
        key = header.key
        if key == ":path":
            path = _text(header)
        elif key == "content-encoding":
            encoding = _text(header)
    return Origin(path, encoding, route, protocol, subset)


def _subset(message: ProcessingRequest) -> tuple[str, ...] | None:
    """The protocol says a list of texts; gateways that fill it from a header send one text with commas.

    A value of another kind names nothing, rather than everything: the gateway did mean to restrict.
    """
    metadata = message.metadata_context.filter_metadata
    if SUBSET_NAMESPACE not in metadata or SUBSET not in metadata[SUBSET_NAMESPACE].fields:
        return None
    value = metadata[SUBSET_NAMESPACE].fields[SUBSET]
    texts = (value.string_value, *(one.string_value for one in value.list_value.values))
    return subset_of(texts)


def _protocol_of(message: ProcessingRequest) -> Protocol | None:
    if message.observability_mode:
        return OBSERVED  # Envoy says this in each message, and the rest in none
    if not message.HasField("protocol_config"):
        return None
    config = message.protocol_config
    return _protocol(
        config.request_body_mode,
        config.response_body_mode,
        config.send_body_without_waiting_for_header_response,
    )


@lru_cache(maxsize=64)
def _protocol(request_body: int, response_body: int, without_waiting: bool) -> Protocol:
    return Protocol(_body_mode(request_body), _body_mode(response_body), without_waiting)


def _response_headers(message: ProcessingRequest) -> ResponseHeaders:
    status = 0
    for header in message.response_headers.headers.headers:
        if header.key == ":status":
            text = _text(header)
            status = int(text) if text.isascii() and text.isdigit() and len(text) == 3 else 0
            break
    served, attempts = "", 0.0
    metadata = message.metadata_context.filter_metadata
    if NAMESPACE in metadata:
        fields = metadata[NAMESPACE].fields
        if SERVED in fields:
            served = fields[SERVED].string_value
    if ATTRIBUTES in message.attributes:
        fields = message.attributes[ATTRIBUTES].fields
        if not served and "upstream.address" in fields:
            served = fields["upstream.address"].string_value
        if _ATTEMPTS in fields:
            attempts = fields[_ATTEMPTS].number_value
    end = message.response_headers.end_of_stream
    return ResponseHeaders(status, served, end, _protocol_of(message), attempts)


def _text(header: HeaderValue) -> str:
    """A header's value. Envoy fills `raw_value`; a server of the older form fills `value`."""
    raw: bytes = header.raw_value
    return raw.decode("utf-8", "replace") if raw else str(header.value)


def _body_mode(number: int) -> BodyMode:
    """A mode that this release does not know is treated as one that is answered message by message."""
    return BodyMode(number) if 0 <= number <= BodyMode.GRPC else BodyMode.STREAMED


def _bytes(response: ProcessingResponse) -> bytes:
    data: bytes = response.SerializeToString()
    return data


_KINDS: dict[type[Event], str] = {
    RequestHeaders: "request_headers",
    RequestBody: "request_body",
    RequestTrailers: "request_trailers",
    ResponseHeaders: "response_headers",
    ResponseBody: "response_body",
    ResponseTrailers: "response_trailers",
}
"""What a reply is called that answers an event: the same as in the request."""


def _reply(kind: str, bodies: Bodies | None) -> ProcessingResponse:
    """A reply that changes nothing. `SetInParent`, since reading a oneof member does not set it."""
    response = ProcessingResponse()
    part = getattr(response, kind)
    if hasattr(part, "response"):
        part.response.SetInParent()
    part.SetInParent()
    if bodies is not None:
        send = ProcessingMode.SEND
        mode = response.mode_override
        mode.request_body_mode, mode.response_body_mode = bodies
        mode.response_header_mode, mode.request_trailer_mode, mode.response_trailer_mode = send, send, send
    return response


def neutral(event: type[Event], bodies: Bodies | None = None) -> bytes:
    """The reply to an event of this type that changes nothing, so that the request flows on.

    `bodies`, in a reply to headers, asks Envoy to send the bodies so from now on, and to send the response's
    headers and all trailers, which keeps the stream open until the response ends (`mode_override`). Envoy
    does so where `allow_mode_override` is set and else ignores it.
    """
    return _neutral(_KINDS[event], bodies)


@lru_cache(maxsize=256)
def _neutral(kind: str, bodies: Bodies | None) -> bytes:
    return _bytes(_reply(kind, bodies))


def pinned(event: type[Event], destination: str, bodies: Bodies | None = None) -> bytes:
    """The reply to an event of the request that sends it to `destination`.

    `destination` is `ip:port[,ip:port...]`, tried in order. It goes out as header and as dynamic metadata,
    equal, as the Endpoint Picker Protocol asks; in a reply to trailers as metadata only, since a header set
    there would be a trailer. Without a destination the reply takes the header away, which the client may have
    sent: there are gateways that obey the header alone. `bodies` as in `neutral`.
    """
    return _pinned(_KINDS[event], destination, bodies)


@lru_cache(maxsize=4096)
def _pinned(kind: str, destination: str, bodies: Bodies | None) -> bytes:
    """Cached: endpoints have few orders that are used, and building a reply takes as long as hashing a
    prompt."""
    response = _reply(kind, bodies)
    if kind != "request_trailers":
        headers = getattr(response, kind).response.header_mutation
        if destination:
            mutation = headers.set_headers.add()
            mutation.header.key = DESTINATION
            mutation.header.raw_value = destination.encode("ascii")
            mutation.append_action = HeaderValueOption.OVERWRITE_IF_EXISTS_OR_ADD
        else:
            headers.remove_headers.append(DESTINATION)
    if destination:
        _pin_by_metadata(response, destination)
    return _bytes(response)


def _pin_by_metadata(response: ProcessingResponse, destination: str) -> None:
    lb = response.dynamic_metadata.fields[NAMESPACE].struct_value
    lb.fields[DESTINATION].string_value = destination


def streamed(event: type[Event], body: bytes, end_of_stream: bool, destination: str = "") -> list[bytes]:
    """Replies that give a body chunk back in FULL_DUPLEX_STREAMED mode, cut to what Envoy accepts in one.

    With `destination` the first of them pins, by metadata alone.
    """
    chunks = [body[i : i + MAX_STREAMED_BYTES] for i in range(0, len(body), MAX_STREAMED_BYTES)] or [b""]
    replies = []
    for index, chunk in enumerate(chunks):
        response = ProcessingResponse()
        part = response.request_body if event is RequestBody else response.response_body
        part.response.status = CommonResponse.CONTINUE
        out = part.response.body_mutation.streamed_response
        out.body = chunk
        out.end_of_stream = end_of_stream and index == len(chunks) - 1
        if destination and index == 0:
            _pin_by_metadata(response, destination)
        replies.append(_bytes(response))
    return replies


def refusal(status: int, body: bytes, details: str, retry_after: int | None) -> bytes:
    """A reply with which Envoy answers the client itself.

    `status` is the HTTP status, `body` JSON, `details` goes to Envoy's access log, `retry_after` is in
    seconds.
    """
    response = ProcessingResponse()
    immediate = response.immediate_response
    immediate.status.code = status
    immediate.body = body
    immediate.details = details
    headers = {"content-type": "application/json"}
    if retry_after is not None:
        headers["retry-after"] = str(retry_after)
    for key, value in headers.items():
        option = immediate.headers.set_headers.add()
        option.header.key = key
        option.header.raw_value = value.encode("ascii")
    return _bytes(response)
