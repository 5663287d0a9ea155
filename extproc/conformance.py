"""What the conformance suite of the Gateway API Inference Extension asks of an Endpoint Picker besides the
protocol. On only where `extproc epp --conformance` runs it: with it a client chooses endpoints.

The suite tests gateways. It steers each request by a header that its client sends, and looks in a header of
the response for the endpoint that the gateway reported (conformance/utils/headers of that repository).
"""

from __future__ import annotations

from collections.abc import Sequence

from envoy.config.core.v3.base_pb2 import HeaderValueOption
from envoy.service.ext_proc.v3.external_processor_pb2 import ProcessingRequest, ProcessingResponse

from extproc import messages
from extproc.messages import Event, RequestHeaders, ResponseHeaders
from extproc.stream import Exchange, Overdue

SELECTION = "test-epp-endpoint-selection"
"""Request header: the only endpoints to pick from, `ip` or `ip:port` with commas. Outranks the gateway's
subset."""

SERVED = "x-conformance-test-served-endpoint"
"""Response header: the endpoint that served, as the gateway reported it."""


def decode(data: bytes) -> Event:
    """As `extproc.messages.decode`, with the endpoints that the request's header selects as its subset."""
    event = messages.decode(data)
    if isinstance(event, RequestHeaders) and SELECTION.encode() in data:
        for header in ProcessingRequest.FromString(data).request_headers.headers.headers:
            if header.key == SELECTION and (
                value := header.raw_value.decode("utf-8", "replace") or header.value
            ):
                subset = tuple(part.strip() for part in value.split(",") if part.strip())
                return event._replace(origin=event.origin._replace(subset=subset))
    return event


class ConformanceExchange(Exchange):
    """As `Exchange`, and says in the response's headers who served."""

    __slots__ = ()

    def receive(self, event: Event | Overdue) -> Sequence[bytes]:
        """As `Exchange.receive`."""
        replies = super().receive(event)
        if isinstance(event, ResponseHeaders) and event.served and replies:
            return (_served(event.served),)
        return replies


def _served(endpoint: str) -> bytes:
    response = ProcessingResponse()
    option = response.response_headers.response.header_mutation.set_headers.add()
    option.header.key = SERVED
    option.header.raw_value = endpoint.encode()
    option.append_action = HeaderValueOption.OVERWRITE_IF_EXISTS_OR_ADD
    data: bytes = response.SerializeToString()
    return data
