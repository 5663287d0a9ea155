"""The gRPC server over a real channel: streams, health, limits, drain."""

from __future__ import annotations

import asyncio
import os
import random
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
import pytest
from envoy.service.ext_proc.v3.external_processor_pb2 import ProcessingRequest, ProcessingResponse
from grpc_health.v1 import health_pb2, health_pb2_grpc

from extproc.address import parse_address
from extproc.messages import BodyMode
from extproc.server import HEALTH_SERVICES, LIVENESS, SERVICE, ListenError, Server
from extproc.stream import Answer, Exchange, Question


@dataclass
class Pin:
    destination: str = "10.0.0.1:80"
    released: int = 0

    def answered(self, served: str, status: int, tried: bool) -> None:
        pass

    def release(self) -> None:
        self.released += 1


@dataclass
class Seen:
    pins: list[Pin] = field(default_factory=list)
    streams: int = 0
    errors: list[str] = field(default_factory=list)
    fail: bool = False

    def ask(self, _question: Question) -> Answer:
        if self.fail:
            raise RuntimeError("a defect")
        self.pins.append(Pin())
        return self.pins[-1]

    def stream(self, change: int) -> None:
        self.streams += change


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@asynccontextmanager
async def serving(seen: Seen, listen: str | None = None, **options: int) -> AsyncIterator[tuple[Server, Any]]:
    server = Server(
        lambda _metadata: Exchange(seen.ask, lambda: None),
        max_message_bytes=options.get("max_message_bytes", 1 << 20),
        on_stream=seen.stream,
        on_error=seen.errors.append,
    )
    address = listen or f"127.0.0.1:{free_port()}"
    await server.start(parse_address(address), None)
    await server.set_ready(True)
    async with grpc.aio.insecure_channel(address) as channel:
        try:
            yield server, channel
        finally:
            await server.drain(0, 0)


def process(channel: Any) -> Any:
    return channel.stream_stream(
        f"/{SERVICE}/Process",
        request_serializer=ProcessingRequest.SerializeToString,
        response_deserializer=ProcessingResponse.FromString,
    )()


def headers(*, end: bool) -> ProcessingRequest:
    message = ProcessingRequest()
    message.request_headers.end_of_stream = end
    return message


def body(data: bytes) -> ProcessingRequest:
    message = ProcessingRequest()
    message.request_body.body = data
    return message


async def until(condition: Any) -> None:
    async with asyncio.timeout(10):
        while not condition():  # noqa: ASYNC110  what is waited for happens in gRPC, which sets no event
            await asyncio.sleep(0.01)


@pytest.mark.parametrize("socket_kind", ["tcp", "unix"])
async def test_a_request_is_picked_and_its_pick_released_when_envoy_half_closes(
    socket_kind: str, tmp_path: Path
) -> None:
    seen = Seen()
    listen = f"unix:{tmp_path}/s" if socket_kind == "unix" else None
    async with serving(seen, listen) as (_, channel):
        call = process(channel)
        await call.write(headers(end=True))
        assert (await call.read()).WhichOneof("response") == "request_headers"
        assert seen.streams == 1
        await call.done_writing()
        assert await call.read() is grpc.aio.EOF
        assert await call.code() is grpc.StatusCode.OK
    assert [pin.released for pin in seen.pins] == [1]
    assert seen.streams == 0


async def test_a_request_that_envoy_resets_is_released_once() -> None:
    seen = Seen()
    async with serving(seen) as (_, channel):
        call = process(channel)
        await call.write(headers(end=True))
        await call.read()
        call.cancel()
        await until(lambda: seen.streams == 0)
    assert [pin.released for pin in seen.pins] == [1]
    assert seen.errors == []


async def test_a_defect_of_ours_ends_one_stream_with_an_error_and_is_counted() -> None:
    seen = Seen(fail=True)
    async with serving(seen) as (_, channel):
        call = process(channel)
        await call.write(headers(end=True))
        with pytest.raises(grpc.aio.AioRpcError, match="internal error") as failed:
            await call.read()
        assert failed.value.code() is grpc.StatusCode.INTERNAL
        assert "defect" not in str(failed.value)
        seen.fail = False
        again = process(channel)
        await again.write(headers(end=True))
        assert (await again.read()).HasField("request_headers")
    assert seen.errors == ["RuntimeError"]


async def test_a_message_over_the_limit_ends_its_stream_alone() -> None:
    seen = Seen()
    async with serving(seen, max_message_bytes=100_000) as (_, channel):
        call = process(channel)
        await call.write(body(b"x" * 200_000))
        with pytest.raises(grpc.aio.AioRpcError) as failed:
            await call.read()
        assert failed.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        again = process(channel)
        await again.write(body(b"x" * 50_000))
        assert (await again.read()).HasField("request_body")


async def test_health_answers_for_every_name_that_gateways_ask_for() -> None:
    async with serving(Seen()) as (server, channel):
        stub = health_pb2_grpc.HealthStub(channel)

        async def status(name: str) -> int:
            answer = await stub.Check(health_pb2.HealthCheckRequest(service=name))
            value: int = answer.status
            return value

        serving_status = health_pb2.HealthCheckResponse.SERVING
        assert {name: await status(name) for name in (*HEALTH_SERVICES, LIVENESS)} == dict.fromkeys(
            (*HEALTH_SERVICES, LIVENESS), serving_status
        )
        await server.set_ready(False)
        assert {await status(name) for name in HEALTH_SERVICES} == {
            health_pb2.HealthCheckResponse.NOT_SERVING
        }
        assert await status(LIVENESS) == serving_status


async def test_a_drain_closes_picked_streams_with_ok_and_still_picks_for_the_others() -> None:
    seen = Seen()
    async with serving(seen) as (server, channel):
        picked, waiting = process(channel), process(channel)
        await picked.write(headers(end=True))
        await picked.read()
        await waiting.write(headers(end=False))
        await waiting.read()
        drain = asyncio.create_task(server.drain(0.3, 5))
        assert await picked.read() is grpc.aio.EOF
        assert await picked.code() is grpc.StatusCode.OK
        late = process(channel)
        await late.write(headers(end=True))
        assert (await late.read()).HasField("request_headers")
        assert await late.code() is grpc.StatusCode.OK
        await waiting.write(body(b"{}"))
        assert (await waiting.read()).request_body.response.header_mutation.set_headers
        assert await waiting.code() is grpc.StatusCode.OK
        async with asyncio.timeout(3):
            await drain
    assert [pin.released for pin in seen.pins] == [1, 1, 1]


async def test_an_address_in_use_is_named() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(ListenError, match=address):
            async with serving(Seen(), address):
                pass


async def test_a_drain_cuts_no_reply_that_was_begun() -> None:
    seen = Seen()
    whole = 8 << 20
    async with serving(seen, max_message_bytes=2 * whole) as (server, channel):
        call = process(channel)
        begun = headers(end=False)
        begun.protocol_config.request_body_mode = BodyMode.FULL_DUPLEX_STREAMED
        await call.write(begun)
        last = body(b"x" * whole)
        last.request_body.end_of_stream = True
        await call.write(last)
        # Nothing is read yet: the replies fill what the connection takes, and the stream waits to write more.
        await until(lambda: seen.pins)
        drain = asyncio.create_task(server.drain(0.1, 10))
        await asyncio.sleep(0.3)
        given_back = 0
        while (reply := await call.read()) is not grpc.aio.EOF:
            given_back += len(reply.request_body.response.body_mutation.streamed_response.body)
        assert given_back == whole
        assert await call.code() is grpc.StatusCode.OK
        await drain


async def test_a_unix_socket_that_is_served_is_not_taken_over_and_a_stale_one_is(tmp_path: Path) -> None:
    path = tmp_path / "s"
    with socket.socket(socket.AF_UNIX) as stale:
        stale.bind(str(path))
    seen = Seen()
    async with serving(seen, f"unix:{path}") as (_, channel):
        with pytest.raises(ListenError, match=f"unix:{path}: another process"):
            async with serving(Seen(), f"unix:{path}"):
                pass
        call = process(channel)
        await call.write(headers(end=True))
        assert (await call.read()).HasField("request_headers")


@pytest.mark.parametrize("name", ["a b", "%41", "a?b", "a#b", "a,b"])
async def test_a_unix_socket_has_the_name_that_was_written(name: str, tmp_path: Path) -> None:
    async with serving(Seen(), f"unix:{tmp_path}/{name}"):
        assert os.listdir(tmp_path) == [name]


async def test_an_open_health_watch_does_not_hold_a_drain_and_is_told_of_it() -> None:
    async with serving(Seen()) as (server, channel):
        stub = health_pb2_grpc.HealthStub(channel)
        status = health_pb2.HealthCheckResponse
        watches = [stub.Watch(health_pb2.HealthCheckRequest(service=name)) for name in ("", "readiness", "x")]
        said = [[(await watch.read()).status] for watch in watches]
        async with asyncio.timeout(5):
            await server.drain(0.1, 60)
        for watch, heard in zip(watches, said, strict=True):
            while (answer := await watch.read()) is not grpc.aio.EOF:
                heard.append(answer.status)
            assert await watch.code() is grpc.StatusCode.OK
    assert said == [[status.SERVING, status.NOT_SERVING]] * 2 + [[status.SERVICE_UNKNOWN]]


async def test_a_name_that_health_does_not_know_is_not_found() -> None:
    async with serving(Seen()) as (_, channel):
        stub = health_pb2_grpc.HealthStub(channel)
        with pytest.raises(grpc.aio.AioRpcError) as failed:
            await stub.Check(health_pb2.HealthCheckRequest(service="x"))
        assert failed.value.code() is grpc.StatusCode.NOT_FOUND


async def test_headers_that_wait_for_a_body_are_answered_in_time_and_the_body_that_comes_later_too() -> None:
    seen = Seen()
    async with serving(seen) as (_, channel):
        for mode in (BodyMode.STREAMED, BodyMode.FULL_DUPLEX_STREAMED):
            call = process(channel)
            first = headers(end=False)
            first.protocol_config.request_body_mode = mode
            first.protocol_config.send_body_without_waiting_for_header_response = True
            await call.write(first)
            async with asyncio.timeout(10):
                assert (await call.read()).request_headers.response.header_mutation.set_headers
            for part in (b"late", b"later"):
                await call.write(body(part))
                assert (await call.read()).HasField("request_body")
            await call.done_writing()
            assert await call.read() is grpc.aio.EOF
    assert [pin.released for pin in seen.pins] == [1, 1]


async def test_a_stream_that_ends_while_it_waits_for_a_body_leaves_nothing_behind() -> None:
    seen = Seen()
    async with serving(seen) as (_, channel):
        before = len(asyncio.all_tasks())
        for end in ("cancel", "half-close"):
            call = process(channel)
            first = headers(end=False)
            first.protocol_config.request_body_mode = BodyMode.FULL_DUPLEX_STREAMED
            await call.write(first)
            await until(lambda: seen.streams == 1)
            if end == "cancel":
                call.cancel()
            else:
                await call.done_writing()
            await until(lambda: seen.streams == 0)
        await until(lambda: len(asyncio.all_tasks()) <= before + 2)
    assert seen.errors == []


async def test_an_upgrade_that_the_gateway_holds_back_is_let_go_with_ok() -> None:
    seen = Seen()
    async with serving(seen) as (_, channel):
        call = process(channel)
        first = headers(end=False)
        first.protocol_config.request_body_mode = BodyMode.BUFFERED
        first.request_headers.headers.headers.add(key="upgrade", raw_value=b"websocket")
        await call.write(first)
        assert (await call.read()).request_headers.response.header_mutation.set_headers
        async with asyncio.timeout(10):
            assert await call.read() is grpc.aio.EOF
        assert await call.code() is grpc.StatusCode.OK
    assert [pin.released for pin in seen.pins] == [1]


async def test_streams_that_end_at_any_moment_leave_no_task_and_no_pick() -> None:
    seen = Seen()
    draw = random.Random(1)
    async with serving(seen) as (_, channel):
        before = len(asyncio.all_tasks())

        async def one() -> None:
            call = process(channel)
            first = headers(end=draw.random() < 0.2)
            first.protocol_config.request_body_mode = draw.choice(list(BodyMode))
            first.protocol_config.response_body_mode = draw.choice(list(BodyMode))
            if draw.random() < 0.2:
                first.request_headers.headers.headers.add(key="upgrade", raw_value=b"websocket")
            messages = [first, body(b"{}"), body(b""), ProcessingRequest(response_headers={}), body(b"more")]
            for message in messages[: draw.randint(0, 5)]:
                await call.write(message)
                await asyncio.sleep(draw.uniform(0, 0.15))
            if draw.random() < 0.5:
                await call.done_writing()
            call.cancel()

        for _ in range(4):
            await asyncio.gather(*(one() for _ in range(100)))
        await until(lambda: seen.streams == 0)
        await until(lambda: len(asyncio.all_tasks()) <= before + 2)
    assert seen.errors == []
    assert len(seen.pins) > 20
    assert {pin.released for pin in seen.pins} == {1}
