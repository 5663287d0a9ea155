"""The Endpoint Picker Protocol, with a real Envoy on the gateway's side of it."""

from __future__ import annotations

import asyncio
import socket
from dataclasses import replace
from pathlib import Path

import orjson
import pytest

from extproc.simulation.presets import PRESETS
from tests.envoy.client import client
from tests.envoy.conftest import FAST
from tests.envoy.inference_pool import AS_LIST, AS_TEXT, inference_pool
from tests.envoy.process import HOST, eventually
from tests.envoy.traffic import CHAT, ask, chat, digest, text

MODELS = "/v1/models"
PIN = "x-gateway-destination-endpoint"


def has_ipv6() -> bool:
    with socket.socket(socket.AF_INET6) as probe:
        try:
            probe.bind(("::1", 0))
        except OSError:
            return False
        return True


async def test_only_the_endpoints_of_the_subset_serve_with_and_without_a_body(tmp_path: Path) -> None:
    async with inference_pool(tmp_path) as pool, client(pool.url, "HTTP/1.1") as gateway:
        first, _, third = (engine.address for engine in pool.engines)
        for header in (AS_TEXT, AS_LIST):
            headers = {header: f"{third},10.9.9.9:80, {first}"}
            replies = [await ask(gateway, chat(text(seed, 500)), headers=headers) for seed in range(12)]
            replies += [await ask(gateway, None, MODELS, method="GET", headers=headers) for _ in range(8)]
            assert {reply.status for reply in replies} == {200}
            assert {reply.engine for reply in replies} == {"engine-1", "engine-3"}


@pytest.mark.skipif(not has_ipv6(), reason="this machine has no IPv6 loopback address")
async def test_an_engine_with_an_ipv6_address_is_reached(tmp_path: Path) -> None:
    async with inference_pool(tmp_path, (HOST, "::1")) as pool, client(pool.url, "HTTP/1.1") as gateway:
        _, six = pool.engines

        async def serving(headers: dict[str, str]) -> set[tuple[int, str]]:
            replies = [await ask(gateway, chat(text(seed, 500)), headers=headers) for seed in range(6)]
            replies += [await ask(gateway, None, MODELS, method="GET", headers=headers) for _ in range(6)]
            return {(reply.status, reply.engine) for reply in replies}

        for subset in (six.address, "::1", "[::1]"):
            assert await serving({AS_TEXT: subset}) == {(200, "engine-2")}
        await pool.set_endpoints([six.address])
        assert await serving({}) == {(200, "engine-2")}


async def test_without_a_ready_endpoint_it_is_503_and_no_engine_hears_of_it(tmp_path: Path) -> None:
    async with inference_pool(tmp_path) as pool, client(pool.url, "HTTP/1.1") as gateway:

        async def refused(headers: dict[str, str]) -> None:
            for body, path in ((chat("x"), CHAT), (None, MODELS)):
                reply = await ask(gateway, body, path, method="POST" if body else "GET", headers=headers)
                assert reply.status == 503
                assert orjson.loads(reply.body)["error"]["type"] == "no_endpoint"
                assert "x-simulated-engine" not in reply.headers

        for subset in ({AS_TEXT: "10.9.9.9:80"}, {AS_TEXT: ","}, {AS_LIST: "10.9.9.9"}):
            await refused(subset)
        await pool.set_endpoints([])
        await refused({})
        await pool.set_endpoints([engine.address for engine in pool.engines])
        assert (await ask(gateway, chat("x"))).status == 200


async def test_a_full_pool_is_429_and_says_when_to_come_again(tmp_path: Path) -> None:
    slow = replace(FAST, speed=1.0, spec=PRESETS["demo"])
    async with (
        inference_pool(tmp_path, (HOST, HOST), slow, {"shed": {"maxInFlight": 1}}) as pool,
        client(pool.url, "HTTP/2") as gateway,
    ):
        long = [chat(text(seed, 200), max_tokens=2000, ignore_eos=True, stream=True) for seed in range(2)]
        running = [asyncio.create_task(ask(gateway, body)) for body in long]

        async def full() -> bool:
            return sum((await pool.samples("extproc_in_flight_requests")).values()) == 2

        try:
            await eventually(full, "both engines are busy", 30)
            for body, path in ((chat("x"), CHAT), (None, MODELS)):
                reply = await ask(gateway, body, path, method="POST" if body else "GET")
                assert (reply.status, reply.headers.get("retry-after")) == (429, "1")
                assert orjson.loads(reply.body)["error"]["type"] == "overloaded"
        finally:
            for one in running:
                one.cancel()
            await asyncio.gather(*running, return_exceptions=True)


async def test_the_next_of_the_list_serves_for_a_dead_first_choice_and_the_picker_hears_who(
    tmp_path: Path,
) -> None:
    async with inference_pool(tmp_path) as pool, client(pool.url, "HTTP/1.1") as gateway:
        prompt = chat(text(1, 500))
        home = (await ask(gateway, prompt)).engine
        await next(engine for engine in pool.engines if engine.name == home).stop()
        reply = await ask(gateway, prompt)
        assert reply.status == 200
        assert reply.engine != home

        async def counted() -> bool:
            served = await pool.samples("extproc_served_total")
            return served[("first_choice", "llama")] == 1 and served[("retry", "llama")] == 1

        await eventually(counted, "the picker has heard who served")


async def test_large_bodies_pass_whole_in_both_directions(tmp_path: Path) -> None:
    body = chat(text(1, 1_500_000))
    async with inference_pool(tmp_path) as pool, client(pool.url, "HTTP/2") as gateway:
        reply = await ask(gateway, [body[at : at + 100_000] for at in range(0, len(body), 100_000)])
        assert (reply.status, reply.sha256) == (200, digest(body))


async def test_a_gateway_that_obeys_the_header_obeys_no_client_while_the_pool_is_unknown(
    tmp_path: Path,
) -> None:
    async with (
        inference_pool(tmp_path, known=False, obeys_header=True) as pool,
        client(pool.url, "HTTP/1.1") as gateway,
    ):
        for method, body, path in (("POST", chat("x"), CHAT), ("GET", None, MODELS)):
            for target in [engine.address for engine in pool.engines]:
                replies = [
                    await ask(gateway, body, path, method=method, headers={PIN: target}) for _ in range(12)
                ]
                assert {reply.status for reply in replies} == {200}
                assert len({reply.engine for reply in replies}) > 1
        await pool.set_endpoints([engine.address for engine in pool.engines])
        headers = {AS_TEXT: pool.engines[0].address, PIN: pool.engines[1].address}
        assert (await ask(gateway, chat("x"), headers=headers)).engine == "engine-1"


async def test_what_a_client_writes_in_the_protocol_s_headers_chooses_nothing(tmp_path: Path) -> None:
    async with inference_pool(tmp_path) as pool, client(pool.url, "HTTP/1.1") as gateway:
        prompts = [chat(text(seed, 500)) for seed in range(12)]
        for target in [engine.address for engine in pool.engines]:
            forged = {
                PIN: target,
                f"{PIN}-subset": target,
                f"{PIN}-served": target,
                "test-epp-endpoint-selection": target,
                "x-warmroute-pool": "other",
            }
            replies = [await ask(gateway, body, headers=forged) for body in prompts]
            assert {reply.status for reply in replies} == {200}
            assert len({reply.engine for reply in replies}) > 1
        served = await pool.samples("extproc_served_total")
        assert served[("first_choice", "llama")] == len(pool.engines) * len(prompts)
