"""The least that an external processor in Python can be: grpc.aio, upb messages, one endpoint for all.

It reads no body and decides nothing, so what the router costs above it is what the router does.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator

import grpc
from envoy.config.core.v3.base_pb2 import HeaderValueOption
from envoy.service.ext_proc.v3.external_processor_pb2 import ProcessingRequest, ProcessingResponse
from envoy.service.ext_proc.v3.external_processor_pb2_grpc import add_ExternalProcessorServicer_to_server

DESTINATION = "x-gateway-destination-endpoint"


def replies(pin: str) -> dict[str, ProcessingResponse]:
    """The reply to each kind of message; only that to the body says something: where the request goes."""
    found = {}
    for kind in ("request_headers", "request_body", "response_headers"):
        found[kind] = ProcessingResponse()
        getattr(found[kind], kind).response.SetInParent()
    found["response_trailers"] = ProcessingResponse()
    found["response_trailers"].response_trailers.SetInParent()
    option = found["request_body"].request_body.response.header_mutation.set_headers.add()
    option.header.key, option.header.raw_value = DESTINATION, pin.encode()
    option.append_action = HeaderValueOption.OVERWRITE_IF_EXISTS_OR_ADD
    metadata = found["request_body"].dynamic_metadata.fields["envoy.lb"].struct_value
    metadata.fields[DESTINATION].string_value = pin
    return found


class Handler:
    def __init__(self, pin: str) -> None:
        self._replies = replies(pin)

    async def Process(  # noqa: N802  the name in the proto
        self, requests: AsyncIterator[ProcessingRequest], context: object
    ) -> AsyncIterator[ProcessingResponse]:
        async for request in requests:
            yield self._replies[request.WhichOneof("request")]


async def serve(listen: str, pin: str) -> None:
    server = grpc.aio.server(options=[("grpc.max_receive_message_length", 32 << 20)])
    add_ExternalProcessorServicer_to_server(Handler(pin), server)
    server.add_insecure_port(listen)
    await server.start()
    await server.wait_for_termination()


if __name__ == "__main__":
    asyncio.run(serve(sys.argv[1], sys.argv[2]))
