"""What goes over the wire, read and written by an independent implementation (envoy-data-plane)."""

from __future__ import annotations

from typing import Any

import pytest
from envoy.service.ext_proc.v3 import external_processor_pb2 as pb
from envoy_data_plane.envoy.service.ext_proc.v3 import ProcessingResponse
from google.protobuf.message import DecodeError
from google.protobuf.struct_pb2 import Struct
from hypothesis import given
from hypothesis import strategies as st

from extproc import messages
from extproc.messages import (
    BodyMode,
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

KINDS = {
    RequestHeaders: "request_headers",
    RequestBody: "request_body",
    RequestTrailers: "request_trailers",
    ResponseHeaders: "response_headers",
    ResponseBody: "response_body",
    ResponseTrailers: "response_trailers",
}


def attributes(message: pb.ProcessingRequest, **values: str) -> None:
    struct = Struct()
    struct.update({key.replace("__", "."): value for key, value in values.items()})
    message.attributes[messages.ATTRIBUTES].CopyFrom(struct)


def header(message: pb.ProcessingRequest, part: str, key: str, value: bytes) -> None:
    getattr(message, part).headers.headers.add(key=key, raw_value=value)


def test_the_path_comes_from_the_headers_where_no_attributes_are_sent() -> None:
    message = pb.ProcessingRequest()
    header(message, "request_headers", ":path", b"/v1/completions")
    header(message, "request_headers", ":method", b"POST")
    event = messages.decode(message.SerializeToString())
    assert event == RequestHeaders(Origin("/v1/completions", "", "", None), end_of_stream=False)


def test_a_body_that_comes_first_brings_path_and_route_as_attributes() -> None:
    message = pb.ProcessingRequest()
    message.request_body.body = b"{}"
    message.request_body.end_of_stream = True
    message.protocol_config.request_body_mode = BodyMode.BUFFERED_PARTIAL
    attributes(message, request__path="/v1/x", request__method="POST", xds__route_name="llm-a")
    event = messages.decode(message.SerializeToString())
    protocol = Protocol(BodyMode.BUFFERED_PARTIAL, BodyMode.NONE, without_waiting=False)
    assert event == RequestBody(Origin("/v1/x", "", "llm-a", protocol), b"{}", end_of_stream=True)


@pytest.mark.parametrize("source", ["metadata", "attribute"])
def test_the_served_endpoint_is_read_from_metadata_or_from_the_upstream_attribute(source: str) -> None:
    message = pb.ProcessingRequest()
    header(message, "response_headers", ":status", b"200")
    if source == "metadata":
        struct = Struct()
        struct.update({messages.SERVED: "10.0.0.1:8000"})
        message.metadata_context.filter_metadata[messages.NAMESPACE].CopyFrom(struct)
    else:
        attributes(message, upstream__address="10.0.0.1:8000")
    event = messages.decode(message.SerializeToString())
    assert event == ResponseHeaders(200, "10.0.0.1:8000", end_of_stream=False)


@pytest.mark.parametrize(("said", "read"), [(1, 1), (3, 3), (None, 0), (float("inf"), float("inf"))])
def test_how_many_upstreams_envoy_asked_is_read_from_its_attribute(said: float | None, read: float) -> None:
    message = pb.ProcessingRequest()
    header(message, "response_headers", ":status", b"200")
    attributes(message, upstream__address="10.0.0.1:8000")
    if said is not None:
        message.attributes[messages.ATTRIBUTES].update({"upstream.request_attempt_count": said})
    event = messages.decode(message.SerializeToString())
    assert event == ResponseHeaders(200, "10.0.0.1:8000", end_of_stream=False, attempts=read)


SUBSETS = [
    (["10.0.0.1:80", "[fd00::1]:80"], ("10.0.0.1:80", "[fd00::1]:80")),
    ("10.0.0.1:80, 10.0.0.2 ,", ("10.0.0.1:80", "10.0.0.2")),
    (["10.0.0.1,10.0.0.2", 5, None, ["10.0.0.3"]], ("10.0.0.1", "10.0.0.2")),
    ([], ()),
    ("", ()),
    (None, ()),
    (7, ()),
    ({"10.0.0.1:80": True}, ()),
]


@pytest.mark.parametrize("part", ["request_headers", "request_body"])
@pytest.mark.parametrize("size", [2, 100_000])
@pytest.mark.parametrize(("value", "subset"), SUBSETS)
def test_the_endpoints_that_the_gateway_s_metadata_names_come_with_the_first_message(
    part: str, size: int, value: Any, subset: tuple[str, ...]
) -> None:
    message = pb.ProcessingRequest()
    getattr(message, part).SetInParent()
    if part == "request_body":
        message.request_body.body = b"x" * size
    hint = Struct()
    hint.update({"x-gateway-destination-endpoint-subset": value, "other": "y"})
    message.metadata_context.filter_metadata["envoy.lb.subset_hint"].CopyFrom(hint)
    event = messages.decode(message.SerializeToString())
    assert isinstance(event, RequestHeaders | RequestBody)
    assert event.origin.subset == subset


def test_a_subset_is_read_from_its_namespace_and_key_alone_and_never_from_a_header() -> None:
    message = pb.ProcessingRequest()
    header(message, "request_headers", "x-gateway-destination-endpoint-subset", b"10.0.0.1:80")
    header(message, "request_headers", "envoy.lb.subset_hint", b"10.0.0.1:80")
    for namespace in ("envoy.lb", "envoy.lb.subset_hint", "x-gateway-destination-endpoint-subset"):
        struct = Struct()
        struct.update({"envoy.lb.subset_hint": ["10.0.0.1:80"]})
        message.metadata_context.filter_metadata[namespace].CopyFrom(struct)
    event = messages.decode(message.SerializeToString())
    assert isinstance(event, RequestHeaders)
    assert event.origin.subset is None


@pytest.mark.parametrize("value", [b"", b"2000", b"-20", b"abc", "２００".encode(), b"\xff\xfe\xfd"])
def test_a_status_that_is_none_reads_as_zero(value: bytes) -> None:
    message = pb.ProcessingRequest()
    header(message, "response_headers", ":status", value)
    assert messages.decode(message.SerializeToString()) == ResponseHeaders(0, "", end_of_stream=False)


def test_values_of_the_wrong_type_read_as_absent() -> None:
    message = pb.ProcessingRequest()
    message.request_headers.SetInParent()
    struct = Struct()
    struct.update({"request.path": 5, "request.method": ["GET"], "xds.route_name": None})
    message.attributes[messages.ATTRIBUTES].CopyFrom(struct)
    assert messages.decode(message.SerializeToString()) == RequestHeaders(
        Origin("", "", "", None), end_of_stream=False
    )


def test_a_body_mode_of_a_later_protocol_is_answered_message_by_message() -> None:
    message = pb.ProcessingRequest()
    message.request_headers.SetInParent()
    message.protocol_config.request_body_mode = 77
    event = messages.decode(message.SerializeToString())
    assert isinstance(event, RequestHeaders)
    assert event.origin.protocol is not None
    assert event.origin.protocol.request_body is BodyMode.STREAMED


def test_an_empty_message_is_unknown_and_bytes_that_are_no_message_are_an_error() -> None:
    assert messages.decode(b"") == Unknown()
    with pytest.raises(DecodeError):
        messages.decode(b"\xff\xff\xff")


@pytest.mark.parametrize(("event", "kind"), KINDS.items())
def test_a_neutral_reply_answers_its_kind_and_changes_nothing(event: type[messages.Event], kind: str) -> None:
    reply = ProcessingResponse.parse(messages.neutral(event))
    set_kinds = [name for name in KINDS.values() if getattr(reply, name) is not None]
    assert set_kinds == [kind]
    part = getattr(reply, kind)
    if hasattr(part, "response"):
        assert part.response is not None
        assert part.response.header_mutation is None
        assert part.response.body_mutation is None
    assert reply.dynamic_metadata is None


def test_the_protocol_is_read_from_the_first_message_whatever_it_is() -> None:
    protocol = Protocol(BodyMode.NONE, BodyMode.FULL_DUPLEX_STREAMED, without_waiting=True)
    for kind in KINDS.values():
        message = pb.ProcessingRequest()
        getattr(message, kind).SetInParent()
        assert messages.decode(message.SerializeToString()).protocol is None
        message.protocol_config.response_body_mode = BodyMode.FULL_DUPLEX_STREAMED
        message.protocol_config.send_body_without_waiting_for_header_response = True
        assert messages.decode(message.SerializeToString()).protocol == protocol


def test_a_message_that_is_only_shown_says_so_without_a_protocol() -> None:
    for kind in KINDS.values():
        message = pb.ProcessingRequest(observability_mode=True)
        getattr(message, kind).SetInParent()
        protocol = messages.decode(message.SerializeToString()).protocol
        assert protocol is not None
        assert protocol.observed


@pytest.mark.parametrize(
    ("key", "value", "open_ended"),
    [
        ("upgrade", b"websocket", True),
        (":method", b"CONNECT", True),
        ("content-type", b"application/grpc+proto", True),
        ("upgrade-insecure-requests", b"1", False),
        (":path", b"/upgrade?CONNECT", False),
        ("user-agent", b"application/grpc", False),
    ],
)
def test_a_request_whose_body_may_last_as_long_as_its_response_is_known_by_its_headers(
    key: str, value: bytes, open_ended: bool
) -> None:
    message = pb.ProcessingRequest()
    header(message, "request_headers", key, value)
    event = messages.decode(message.SerializeToString())
    assert isinstance(event, RequestHeaders)
    assert event.open_ended is open_ended


@pytest.mark.parametrize(("value", "length"), [(b"12", 12), (b"-1", None), (b"1" * 30, None), (b"", None)])
def test_the_length_of_a_streamed_body_is_read(value: bytes, length: int | None) -> None:
    for without_waiting in (False, True):
        message = pb.ProcessingRequest()
        header(message, "request_headers", "content-length", value)
        message.protocol_config.request_body_mode = BodyMode.STREAMED
        message.protocol_config.send_body_without_waiting_for_header_response = without_waiting
        event = messages.decode(message.SerializeToString())
        assert isinstance(event, RequestHeaders)
        assert event.length == (None if without_waiting else length)


@pytest.mark.parametrize("event", [RequestHeaders, ResponseHeaders])
def test_a_reply_to_headers_can_ask_how_bodies_are_sent_from_now_on(event: type[messages.Event]) -> None:
    bodies = messages.Bodies(BodyMode.NONE, BodyMode.STREAMED)
    mode = ProcessingResponse.parse(messages.neutral(event, bodies)).mode_override
    assert mode is not None
    assert (int(mode.request_body_mode), int(mode.response_body_mode)) == bodies
    sent = (mode.response_header_mode, mode.request_trailer_mode, mode.response_trailer_mode)
    assert {int(one) for one in sent} == {1}


@pytest.mark.parametrize("event", [RequestHeaders, RequestBody])
def test_a_pin_goes_out_as_header_and_as_metadata_equal(event: type[messages.Event]) -> None:
    reply = ProcessingResponse.parse(messages.pinned(event, "10.0.0.1:80,[::1]:81"))
    part = getattr(reply, KINDS[event])
    (option,) = part.response.header_mutation.set_headers
    assert option.header.key == "x-gateway-destination-endpoint"
    assert option.header.raw_value == b"10.0.0.1:80,[::1]:81"
    assert reply.dynamic_metadata is not None
    lb = reply.dynamic_metadata.fields["envoy.lb"].struct_value
    assert lb is not None
    assert lb.fields["x-gateway-destination-endpoint"].string_value == "10.0.0.1:80,[::1]:81"


@pytest.mark.parametrize("event", [RequestHeaders, RequestBody])
def test_without_a_pick_the_header_is_taken_away_that_a_client_may_have_sent(
    event: type[messages.Event],
) -> None:
    reply = ProcessingResponse.parse(messages.pinned(event, ""))
    mutation = getattr(reply, KINDS[event]).response.header_mutation
    assert (mutation.remove_headers, mutation.set_headers) == (["x-gateway-destination-endpoint"], [])
    assert reply.dynamic_metadata is None


@pytest.mark.parametrize("size", [0, 1, 62_000, 62_001, 200_000])
@pytest.mark.parametrize("end", [True, False])
def test_a_body_given_back_is_equal_and_in_pieces_that_envoy_accepts(size: int, end: bool) -> None:
    body = bytes(i % 251 for i in range(size))
    replies = [ProcessingResponse.parse(reply) for reply in messages.streamed(RequestBody, body, end)]
    pieces = []
    for reply in replies:
        assert reply.request_body is not None
        assert reply.request_body.response is not None
        assert reply.request_body.response.body_mutation is not None
        streamed = reply.request_body.response.body_mutation.streamed_response
        assert streamed is not None
        pieces.append(streamed)
    assert b"".join(piece.body for piece in pieces) == body
    assert max(len(piece.body) for piece in pieces) <= 62_000
    assert [piece.end_of_stream for piece in pieces] == [False] * (len(pieces) - 1) + [end]


def test_a_refusal_carries_status_json_body_and_retry_after() -> None:
    reply = ProcessingResponse.parse(messages.refusal(429, b"{}", "why", retry_after=1))
    immediate = reply.immediate_response
    assert immediate is not None
    assert immediate.status is not None
    assert immediate.status.code == 429
    assert immediate.body == b"{}"
    assert immediate.headers is not None
    headers = {o.header.key: o.header.raw_value for o in immediate.headers.set_headers if o.header}
    assert headers == {"content-type": b"application/json", "retry-after": b"1"}


@given(
    body=st.builds(bytes.__mul__, st.binary(max_size=400), st.sampled_from([1, 100])),
    end=st.booleans(),
    path=st.sampled_from(["", "/v1/x"]),
    shown=st.booleans(),
)
def test_a_body_is_read_as_the_parser_reads_it(body: bytes, end: bool, path: str, shown: bool) -> None:
    message = pb.ProcessingRequest()
    message.request_body.body = body
    message.request_body.end_of_stream = end
    if path:
        attributes(message, request__path=path)
    message.observability_mode = shown
    event = messages.decode(message.SerializeToString())
    assert event.protocol == (messages.OBSERVED if shown else None)
    assert event == RequestBody(Origin(path, "", "", event.protocol), body, end)


@given(st.binary(max_size=60), st.integers(0, 60))
def test_bytes_that_begin_like_a_body_are_an_event_or_an_error(noise: bytes, cut: int) -> None:
    message = pb.ProcessingRequest()
    message.request_body.body = b"x" * 20_000
    whole = message.SerializeToString()
    data = whole[:cut] + noise + whole[cut + len(noise) :]
    try:
        expected = pb.ProcessingRequest.FromString(data)
    except DecodeError:
        with pytest.raises(DecodeError):
            messages.decode(data)
    else:
        event = messages.decode(data)
        if expected.WhichOneof("request") == "request_body":
            assert isinstance(event, RequestBody)
            assert event.body == expected.request_body.body
            assert event.end_of_stream == expected.request_body.end_of_stream


def test_a_message_with_two_requests_is_read_as_the_parser_reads_it() -> None:
    first, second = pb.ProcessingRequest(), pb.ProcessingRequest()
    first.request_body.body = b"first" * 10_000
    second.response_headers.end_of_stream = True
    event = messages.decode(first.SerializeToString() + second.SerializeToString())
    assert event == ResponseHeaders(0, "", end_of_stream=True)
    second.request_body.body = b"second"
    event = messages.decode(first.SerializeToString() + second.SerializeToString())
    assert isinstance(event, RequestBody)
    assert event.body == b"second"


@pytest.mark.timeout(5)
@pytest.mark.parametrize("around", [b"", b"\x0a"], ids=["outer", "inner"])
def test_a_length_without_end_is_refused_in_no_time(around: bytes) -> None:
    begun = b"\x1a" if not around else b"\x1a\xff\xff\xff\x07" + around
    with pytest.raises(DecodeError):
        messages.decode(begun + b"\xff" * 4_000_000)
