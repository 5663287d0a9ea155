"""The port that other replicas call: it never is the gateway's."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable

import grpc
import structlog

from extproc.address import Address
from extproc.server import ListenError
from extproc.sharing.batches import MAX_MESSAGE_BYTES
from extproc.sharing.channels import SERVICE

MAX_CALLS = 256
"""Calls at once at most; each peer makes one at a time."""
LONGEST_ANSWER_S = 30.0
"""Seconds after which an answer is ended that its asker does not read. Replicas give up sooner."""

_log = structlog.get_logger(__name__)


class Listener:
    """Serves `Picks` (picks.proto).

    `take` gets each message that is told, and `receipt` gives the answer to it. `known` gets a question and
    gives the messages that answer it. All of them are bytes on the wire.
    """

    def __init__(
        self,
        take: Callable[[bytes], Awaitable[None]],
        receipt: Callable[[], bytes],
        known: Callable[[bytes], AsyncIterator[bytes]],
    ) -> None:
        self._take = take
        self._receipt = receipt
        self._known = known
        self._asked = False
        self._server: grpc.aio.Server | None = None
        self._credentials: grpc.ServerCredentials | None = None
        """Kept alive: gRPC asks them for certificates at each handshake and holds no reference."""

    async def start(self, address: Address, credentials: grpc.ServerCredentials | None) -> Address:
        """Listen: by TLS with `credentials`, else in plaintext.

        Returns the address with the port that the kernel chose where 0 was asked for. Raises `ListenError`.
        """
        server = grpc.aio.server(
            options=[
                ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
                ("grpc.max_concurrent_streams", 16),
                ("grpc.so_reuseport", 0),
                ("grpc.http2.bdp_probe", 0),
            ],
            maximum_concurrent_rpcs=MAX_CALLS,
        )
        handlers = {
            "Tell": grpc.unary_unary_rpc_method_handler(self._tell),
            "Known": grpc.unary_stream_rpc_method_handler(self._answer),
        }
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, handlers),))
        self._credentials = credentials
        try:
            if credentials is None:
                port = server.add_insecure_port(str(address))
            else:
                port = server.add_secure_port(str(address), credentials)
        except RuntimeError as error:
            raise ListenError(
                f"sharing cannot listen on {address}: is the address in use or not ours?"
            ) from error
        await server.start()
        self._server = server
        return address._replace(port=port)

    async def stop(self) -> None:
        """Close the port. Calls that are not over after a second are cut, and what they tell is lost."""
        if self._server is not None:
            await self._server.stop(1.0)

    async def _tell(self, message: bytes, _context: grpc.aio.ServicerContext) -> bytes:
        if message:
            await self._take(message)
        return self._receipt()

    async def _answer(self, question: bytes, context: grpc.aio.ServicerContext) -> None:
        # It costs more than any other call, so one at a time. Who is refused starts without.
        if self._asked:
            await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "another replica is being answered")
        self._asked = True
        try:
            async with asyncio.timeout(LONGEST_ANSWER_S):
                async for message in self._known(question):
                    await context.write(message)
        except TimeoutError:
            await context.abort(grpc.StatusCode.DEADLINE_EXCEEDED, "a call may not take so long")
        except Exception as error:
            _log.error("what is known cannot be told", error=type(error).__name__)
            await context.abort(grpc.StatusCode.INTERNAL, "internal error")
        finally:
            self._asked = False
