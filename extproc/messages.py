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
from envoy.service.ext_proc.v3.external_processor_pb2 import (
    CommonResponse,
    HttpBody,
    ProcessingRequest,
    ProcessingResponse,
)

DESTINATION = "x-gateway-destination-endpoint"
"""Header and metadata key that carry the pick (Endpoint Picker Protocol, Gateway API Inference Extension)."""

SERVED = "x-gateway-destination-endpoint-served"
"""Metadata key in which Envoy's override_host policy reports the endpoint that served
(`selected_host_key`)."""

NAMESPACE = "envoy.lb"
"""Metadata namespace of both (same protocol)."""

ATTRIBUTES = "envoy.filters.http.ext_proc"
"""The one namespace in which Envoy sends the attributes that the filter's configuration asks for."""

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


class Protocol(NamedTuple):
    """What Envoy says of the exchange in its first message (`protocol_config`)."""

    request_body: BodyMode
    response_body: BodyMode
    without_waiting: bool
    """Body chunks are sent before the headers were answered."""


class Origin(NamedTuple):
    """What the first message says of a request besides its body; empty strings where Envoy did not say."""

    path: str
    encoding: str
    """Header `content-encoding`; not known where headers are skipped."""
    route: str
    """Attribute `xds.route_name`."""
    protocol: Protocol | None


class RequestHeaders(NamedTuple):
    """The headers of the request; `origin` is set on the first message of an exchange."""

    origin: Origin
    end_of_stream: bool


class RequestBody(NamedTuple):
    """The request's body, or a part of it. `origin` matters where headers are skipped and this comes
    first."""

    origin: Origin
    body: bytes
    end_of_stream: bool


class RequestTrailers(NamedTuple):
    """The trailers of the request."""


class ResponseHeaders(NamedTuple):
    """The headers of the response, of the engine or of Envoy itself (a local reply)."""

    status: int
    """HTTP status, 0 where it could not be read."""
    served: str
    """`ip:port` of the endpoint that served as Envoy reports it, empty if it does not."""
    end_of_stream: bool


class ResponseBody(NamedTuple):
    """A part of the response's body."""

    body: bytes
    end_of_stream: bool


class ResponseTrailers(NamedTuple):
    """The trailers of the response."""


class Unknown(NamedTuple):
    """A message that holds none of the kinds above: of a later protocol, or not ext_proc at all."""


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
        headers = message.request_headers
        encoded = _CONTENT_ENCODING in data
        return RequestHeaders(_origin(message, headers.headers.headers, encoded), headers.end_of_stream)
    if kind == "response_body":
        return ResponseBody(message.response_body.body, message.response_body.end_of_stream)
    if kind == "response_trailers":
        return ResponseTrailers()
    if kind == "request_trailers":
        return RequestTrailers()
    return Unknown()


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


def _origin(message: ProcessingRequest, headers: Iterable[HeaderValue], encoded: bool = False) -> Origin:
    """Path and route from the attributes, which outlive skipped headers, else the path from the headers.

    Each header read costs half a microsecond, so they are not read for the encoding unless it is there.
    """
    protocol = None
    if message.HasField("protocol_config"):
        config = message.protocol_config
        protocol = _protocol(
            config.request_body_mode,
            config.response_body_mode,
            config.send_body_without_waiting_for_header_response,
        )
    path = encoding = route = ""
    attributes = message.attributes
    if ATTRIBUTES in attributes:
        fields = attributes[ATTRIBUTES].fields
        if "request.path" in fields:
            path = fields["request.path"].string_value
        if "xds.route_name" in fields:
            route = fields["xds.route_name"].string_value
    elif protocol is None and not headers:
        return _NOWHERE
    for header in headers if encoded or not path else ():
        key = header.key
        if key == ":path":
            path = _text(header)
        elif key == "content-encoding":
            encoding = _text(header)
    return Origin(path, encoding, route, protocol)


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
    served = ""
    metadata = message.metadata_context.filter_metadata
    if NAMESPACE in metadata:
        fields = metadata[NAMESPACE].fields
        if SERVED in fields:
            served = fields[SERVED].string_value
    if not served and ATTRIBUTES in message.attributes:
        fields = message.attributes[ATTRIBUTES].fields
        if "upstream.address" in fields:
            served = fields["upstream.address"].string_value
    return ResponseHeaders(status, served, message.response_headers.end_of_stream)


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


def _neutral(kind: str) -> bytes:
    """A reply that changes nothing. `SetInParent`, since reading a oneof member does not set it."""
    response = ProcessingResponse()
    part = getattr(response, kind)
    if hasattr(part, "response"):
        part.response.SetInParent()
    part.SetInParent()
    return _bytes(response)


_NEUTRAL: dict[type[Event], bytes] = {
    RequestHeaders: _neutral("request_headers"),
    RequestBody: _neutral("request_body"),
    RequestTrailers: _neutral("request_trailers"),
    ResponseHeaders: _neutral("response_headers"),
    ResponseBody: _neutral("response_body"),
    ResponseTrailers: _neutral("response_trailers"),
}


def neutral(event: type[Event]) -> bytes:
    """The reply to an event of this type that changes nothing, so that the request flows on."""
    return _NEUTRAL[event]


@lru_cache(maxsize=4096)
def pinned(at_headers: bool, destination: str) -> bytes:
    """The reply to request headers, or else to a request body, that sends the request to `destination`.

    `destination` is `ip:port[,ip:port...]`, tried in order. It goes out as header and as dynamic metadata,
    equal, as the Endpoint Picker Protocol asks. Cached: endpoints have few orders that are used, and
    building a reply takes as long as hashing a prompt.
    """
    response = ProcessingResponse()
    part = response.request_headers if at_headers else response.request_body
    mutation = part.response.header_mutation.set_headers.add()
    mutation.header.key = DESTINATION
    mutation.header.raw_value = destination.encode("ascii")
    mutation.append_action = HeaderValueOption.OVERWRITE_IF_EXISTS_OR_ADD
    lb = response.dynamic_metadata.fields[NAMESPACE].struct_value
    lb.fields[DESTINATION].string_value = destination
    return _bytes(response)


def streamed(event: type[Event], body: bytes, end_of_stream: bool) -> list[bytes]:
    """Replies that give a body chunk back in FULL_DUPLEX_STREAMED mode, cut to what Envoy accepts in one."""
    chunks = [body[i : i + MAX_STREAMED_BYTES] for i in range(0, len(body), MAX_STREAMED_BYTES)] or [b""]
    replies = []
    for index, chunk in enumerate(chunks):
        response = ProcessingResponse()
        part = response.request_body if event is RequestBody else response.response_body
        part.response.status = CommonResponse.CONTINUE
        out = part.response.body_mutation.streamed_response
        out.body = chunk
        out.end_of_stream = end_of_stream and index == len(chunks) - 1
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
