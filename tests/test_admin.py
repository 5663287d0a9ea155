"""The admin address: who may listen there, what is answered, and what is refused."""

from __future__ import annotations

import asyncio
import gzip
import json
import random
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import pytest

from extproc import admin
from extproc.address import Address
from extproc.admin import Admin
from extproc.config import ConfigError, needing_restart, parse
from extproc.explain import MAX_BODY_BYTES, Asked, explain
from extproc.explanation import Explanation

BODY = json.dumps({"model": "llama", "messages": [{"role": "user", "content": "What is a cache?"}]}).encode()
POOLS = 'pools: [{name: a, endpoints: {static: ["10.0.0.1:80"]}}]\n'
Explain = Callable[[Asked], Explanation]


def prompt_only(asked: Asked) -> Explanation:
    return explain(asked, [], 0.0, random.Random())


@asynccontextmanager
async def served(answer: Explain = prompt_only) -> AsyncIterator[tuple[str, aiohttp.ClientSession]]:
    server = Admin(answer)
    address = await server.start(Address("127.0.0.1", 0))
    try:
        async with aiohttp.ClientSession() as session:
            yield f"http://{address}", session
    finally:
        await server.stop()


async def post(url: str, session: aiohttp.ClientSession, **options: Any) -> tuple[int, dict[str, Any]]:
    async with session.post(f"{url}/explain", **{"data": BODY, **options}) as reply:
        return reply.status, await reply.json()


class TestItsKey:
    @pytest.mark.parametrize("address", ["127.0.0.1:9005", "127.8.0.1:0", '"[::1]:9005"'])
    def test_takes_loopback_addresses(self, address: str) -> None:
        assert str(parse(f"admin: {address}\n{POOLS}", "f").admin) == address.strip('"')

    @pytest.mark.parametrize(
        "address",
        ["0.0.0.0:9005", '"[::]:9005"', "10.0.0.1:9005", "localhost:9005", "unix:/run/x.sock"],
    )
    def test_refuses_every_other_and_says_what_to_write(self, address: str) -> None:
        with pytest.raises(ConfigError) as caught:
            parse(f"admin: {address}\n{POOLS}", "f")
        (problem,) = caught.value.problems
        assert problem.path == "admin"
        assert address.strip('"').split(":")[0] in problem.message
        assert "must be a loopback address such as 127.0.0.1:9005" in problem.message

    def test_is_off_by_default_and_takes_effect_at_a_restart(self) -> None:
        off, on = parse(POOLS, "f"), parse(f"admin: 127.0.0.1:9005\n{POOLS}", "f")
        assert off.admin is None
        assert parse(f"admin: null\n{POOLS}", "f").admin is None
        assert needing_restart(off, on) == ["admin"]

    def test_has_a_port_of_its_own(self) -> None:
        with pytest.raises(ConfigError, match="collides with metrics"):
            parse(f"metrics: 0.0.0.0:9005\nadmin: 127.0.0.1:9005\n{POOLS}", "f")


async def test_the_first_page_says_what_it_is() -> None:
    async with served() as (url, session), session.get(f"{url}/") as reply:
        assert reply.status == 200
        (line,) = (await reply.text()).splitlines()
        assert line.startswith("extproc ")
        assert "/explain" in line


async def test_a_body_is_explained() -> None:
    async with served() as (url, session):
        status, said = await post(url, session)
        assert (status, said["bytes"], said["prompt"]["api"]) == (200, len(BODY), "chat")
        assert said["prompt"]["content"] == [
            {"kind": "text/message/user", "bytes": 16, "closed": True, "text": None}
        ]


async def test_text_is_answered_to_who_asks_for_it() -> None:
    async with served() as (url, session):
        _, said = await post(url, session, params={"show_text": "1"})
        assert said["prompt"]["content"][0]["text"] == "What is a cache?"
        _, said = await post(url, session, params={"show_text": "0"})
        assert "What is a cache?" not in json.dumps(said)


async def test_a_compressed_body_is_read_as_the_gateway_would_send_it() -> None:
    async with served() as (url, session):
        packed = gzip.compress(BODY)
        _, said = await post(url, session, data=packed, headers={"Content-Encoding": "gzip"})
        assert (said["bytes"], said["prompt"]["api"]) == (len(packed), "chat")
        _, said = await post(url, session, data=packed)
        assert said["prompt"] is None


async def test_parameters_say_what_came_with_the_body() -> None:
    asked: list[Asked] = []

    def note(one: Asked) -> Explanation:
        asked.append(one)
        return prompt_only(one)

    async with served(note) as (url, session):
        await post(url, session, params={"path": "/v1/x?y=1", "pool": "a", "incomplete": "1"})
        await post(url, session, params={"route": "chat", "subset": "10.0.0.1:80, 10.0.0.2,"})
    assert asked == [
        Asked(BODY, "/v1/x?y=1", complete=False, pool="a"),
        Asked(BODY, route="chat", subset=("10.0.0.1:80", "10.0.0.2")),
    ]


@pytest.mark.parametrize(
    ("parameters", "said"),
    [
        (
            {"pol": "a"},
            "unknown parameter 'pol'; there are: path, pool, route, subset, incomplete, show_text",
        ),
        ({"show_text": "yes"}, "incomplete and show_text are 1 or 0"),
    ],
)
async def test_what_is_not_understood_is_refused(parameters: dict[str, str], said: str) -> None:
    async with served() as (url, session):
        assert await post(url, session, params=parameters) == (400, {"error": said})


async def test_an_unknown_pool_is_not_found() -> None:
    def of_pools(asked: Asked) -> Explanation:
        from extproc.explain import ExplainError

        raise ExplainError("pool 'b' is unknown; there are: a")

    async with served(of_pools) as (url, session):
        assert await post(url, session) == (404, {"error": "pool 'b' is unknown; there are: a"})


async def test_a_body_that_is_too_large_is_refused() -> None:
    async with served() as (url, session):
        status, said = await post(url, session, data=b" " * (MAX_BODY_BYTES + 1))
        assert (status, said) == (413, {"error": "the body has more than 16777216 bytes"})
        assert (await post(url, session, data=b"{" + b" " * (MAX_BODY_BYTES - 1)))[0] == 200


async def test_a_defect_is_told_without_the_text_that_it_may_hold(caplog: pytest.LogCaptureFixture) -> None:
    def broken(asked: Asked) -> Explanation:
        raise RuntimeError(asked.body.decode())

    async with served(broken) as (url, session):
        assert await post(url, session) == (500, {"error": "RuntimeError while explaining: this is a defect"})
    assert "What is a cache?" not in caplog.text


@pytest.mark.parametrize("host", ["evil.example", "10.0.0.1:80", "127.0.0.1.evil.example", "[", ""])
async def test_a_page_that_was_made_to_point_here_is_refused(host: str) -> None:
    async with served() as (url, session):
        async with session.get(f"{url}/", headers={"Host": host}) as reply:
            assert reply.status in (400, 421)
        assert (await post(url, session, headers={"Host": host}))[0] in (400, 421)


@pytest.mark.parametrize("host", ["localhost", "localhost:1", "127.0.0.1", "[::1]:9005"])
async def test_a_forwarded_port_may_have_any_loopback_name(host: str) -> None:
    async with served() as (url, session):
        assert (await post(url, session, headers={"Host": host}))[0] == 200


async def test_a_body_that_does_not_come_keeps_others_waiting_for_a_while_only(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(admin, "READ_SECONDS", 0.2)
    async with served() as (url, session):
        host, port = url.removeprefix("http://").split(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(b"POST /explain HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 100\r\n\r\n{")
        assert (await post(url, session))[0] == 200
        assert (await reader.readline()).startswith(b"HTTP/1.1 408 ")
        writer.close()


async def test_an_address_in_use_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        server = Admin(prompt_only)
        with pytest.raises(OSError, match=f"admin cannot listen on 127.0.0.1:{port}: another process"):
            await server.start(Address("127.0.0.1", port))
        await server.stop()
