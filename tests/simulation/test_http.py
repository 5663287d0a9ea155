"""The HTTP shell: the surface of a vLLM server, and what tests rely on to see which engine served."""

from __future__ import annotations

import asyncio
import gzip
import hashlib
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import aiohttp
import orjson
import pytest
import pytest_asyncio

from extproc.simulation.http import Settings, SimulatedEngine, engines
from extproc.simulation.presets import PRESETS

FAST = Settings(replace(PRESETS["demo"], prefill_overhead_s=0.001, blocks=2000), speed=5.0)


@pytest_asyncio.fixture
async def engine() -> AsyncIterator[SimulatedEngine]:
    async with engines(1, FAST) as (one,):
        yield one


@pytest_asyncio.fixture
async def client() -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession() as session:
        yield session


def _chat(**fields: Any) -> dict[str, Any]:
    return {"model": "m", "messages": [{"role": "user", "content": "hello " * 50}], **fields}


async def _events(response: aiohttp.ClientResponse) -> list[Any]:
    lines = [line async for line in response.content if line.strip()]
    assert all(line.startswith(b"data: ") for line in lines)
    assert lines[-1].strip() == b"data: [DONE]"
    return [orjson.loads(line[6:]) for line in lines[:-1]]


async def _idle(engine: SimulatedEngine) -> None:
    async with asyncio.timeout(5):
        while engine.engine.running:  # noqa: ASYNC110 - the model has no event loop to tell
            await asyncio.sleep(0.01)


async def test_a_chat_is_answered_with_usage_and_says_that_it_is_simulated(
    engine: SimulatedEngine, client: aiohttp.ClientSession
) -> None:
    for cached in (0, 80):
        async with client.post(
            f"{engine.url}/v1/chat/completions", json=_chat(max_tokens=7, ignore_eos=True)
        ) as reply:
            assert reply.status == 200
            assert reply.headers["x-simulated-engine"] == "engine-1"
            answer = await reply.json()
        assert answer["system_fingerprint"] == "simulated"
        assert answer["choices"][0]["finish_reason"] == "length"
        assert len(answer["choices"][0]["message"]["content"]) == 7 * 4
        assert answer["usage"]["completion_tokens"] == 7
        assert answer["usage"]["prompt_tokens_details"] == {"cached_tokens": cached}


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
async def test_a_stream_gives_the_same_text_in_chunks_and_ends_with_usage(
    engine: SimulatedEngine, client: aiohttp.ClientSession, path: str
) -> None:
    body = _chat(prompt="hello " * 50, max_tokens=20, ignore_eos=True)
    async with client.post(engine.url + path, json=body) as reply:
        whole = (await reply.json())["choices"][0]
    stream = {**body, "stream": True, "stream_options": {"include_usage": True}}
    async with client.post(engine.url + path, json=stream) as reply:
        assert reply.headers["content-type"].startswith("text/event-stream")
        events = await _events(reply)
    assert events[-1]["choices"] == []
    assert events[-1]["usage"]["completion_tokens"] == 20
    choices = [event["choices"][0] for event in events[:-1]]
    if path == "/v1/chat/completions":
        text = "".join(choice["delta"]["content"] for choice in choices)
        assert choices[0]["delta"]["role"] == "assistant"
        assert text == whole["message"]["content"]
    else:
        text = "".join(choice["text"] for choice in choices)
        assert text == whole["text"]
    assert [choice["finish_reason"] for choice in choices] == [None] * (len(choices) - 1) + ["length"]


async def test_the_first_chunk_arrives_long_before_the_last(client: aiohttp.ClientSession) -> None:
    async with engines(1, replace(FAST, speed=1.0)) as (engine,):
        body = _chat(stream=True, max_tokens=60, ignore_eos=True)
        loop = asyncio.get_running_loop()
        async with client.post(f"{engine.url}/v1/chat/completions", json=body) as reply:
            await reply.content.readline()
            first = loop.time()
            await reply.read()
            assert loop.time() - first > 0.2  # 59 steps of about 7 ms


async def test_a_drawn_length_is_the_same_for_the_same_prompt_and_seed(client: aiohttp.ClientSession) -> None:
    async def lengths(seed: int) -> list[int]:
        async with engines(1, replace(FAST, seed=seed, mean_output_tokens=20)) as (engine,):
            found = []
            for number in range(5):
                async with client.post(
                    f"{engine.url}/v1/completions", json={"prompt": f"p{number}"}
                ) as reply:
                    found.append((await reply.json())["usage"]["completion_tokens"])
            return found

    assert await lengths(1) == await lengths(1) != await lengths(2)


async def test_every_reply_describes_the_body_as_it_arrived(
    engine: SimulatedEngine, client: aiohttp.ClientSession
) -> None:
    plain = orjson.dumps(_chat(max_tokens=1))
    for method, path, body, headers, status in (
        ("POST", "/v1/chat/completions", plain, {}, 200),
        ("POST", "/v1/chat/completions", gzip.compress(plain), {"content-encoding": "gzip"}, 200),
        ("POST", "/v1/chat/completions", b"\xff\x00 not json", {}, 400),
        ("POST", "/v1/completions", b"", {}, 400),
        ("PUT", "/anything/else", b"x" * 3_000_000, {}, 404),
        ("GET", "/v1/models", b"", {}, 200),
        ("GET", "/health", b"", {}, 200),
    ):
        async with client.request(method, engine.url + path, data=body, headers=headers) as reply:
            assert reply.status == status, (method, path)
            assert reply.headers["x-simulated-engine"] == "engine-1"
            assert reply.headers["x-request-body-bytes"] == str(len(body))
            assert reply.headers["x-request-body-sha256"] == hashlib.sha256(body).hexdigest()


async def test_a_client_that_leaves_frees_its_place(
    engine: SimulatedEngine, client: aiohttp.ClientSession
) -> None:
    body = _chat(stream=True, max_tokens=10_000, ignore_eos=True)
    reply = await client.post(f"{engine.url}/v1/chat/completions", json=body)
    await reply.content.readline()
    assert engine.engine.running == 1
    reply.close()
    await _idle(engine)
    assert engine.engine.counters.cancelled == 1
    assert engine.engine.cache.in_use == 0


async def test_metrics_carry_vllm_names_and_count_hits(
    engine: SimulatedEngine, client: aiohttp.ClientSession
) -> None:
    for _ in range(2):
        async with client.post(
            f"{engine.url}/v1/chat/completions", json=_chat(max_tokens=2, ignore_eos=True)
        ) as reply:
            await reply.read()
    async with client.get(f"{engine.url}/metrics") as reply:
        page = await reply.text()
    values = {
        line.split("{")[0]: line.rsplit(" ", 1)[1] for line in page.splitlines() if not line.startswith("#")
    }
    assert values["vllm:num_requests_running"] == values["vllm:num_requests_waiting"] == "0"
    assert values["vllm:prefix_cache_hits_total"] == "80"
    assert values["vllm:generation_tokens_total"] == "4"
    assert values["vllm:time_to_first_token_seconds_count"] == "2"
    assert float(values["simulation:prefill_busy_seconds_total"]) > 0


async def test_a_reset_empties_the_cache_and_is_refused_while_a_request_runs(
    engine: SimulatedEngine, client: aiohttp.ClientSession
) -> None:
    url = f"{engine.url}/v1/chat/completions"
    stream = await client.post(url, json=_chat(stream=True, max_tokens=10_000, ignore_eos=True))
    await stream.content.readline()
    async with client.post(f"{engine.url}/reset_prefix_cache") as reply:
        assert reply.status == 409
    stream.close()
    await _idle(engine)
    async with client.post(f"{engine.url}/reset_prefix_cache") as reply:
        assert reply.status == 200
    async with client.post(url, json=_chat(max_tokens=1)) as reply:
        assert (await reply.json())["usage"]["prompt_tokens_details"]["cached_tokens"] == 0


async def test_a_prompt_larger_than_the_cache_is_a_400(
    engine: SimulatedEngine, client: aiohttp.ClientSession
) -> None:
    async with client.post(
        f"{engine.url}/v1/completions", json={"prompt": "x" * 200_000, "max_tokens": 1}
    ) as reply:
        assert reply.status == 400
        assert "KV cache" in (await reply.json())["error"]["message"]


async def test_engines_have_names_ports_and_caches_of_their_own(client: aiohttp.ClientSession) -> None:
    async with engines(3, FAST) as started:
        assert len({engine.port for engine in started}) == 3
        for engine in started:
            async with client.post(f"{engine.url}/v1/chat/completions", json=_chat(max_tokens=1)) as reply:
                assert reply.headers["x-simulated-engine"] == engine.name
                assert (await reply.json())["usage"]["prompt_tokens_details"]["cached_tokens"] == 0


async def test_a_stopped_engine_cuts_its_streams_and_comes_back_on_its_port_with_an_empty_cache(
    engine: SimulatedEngine, client: aiohttp.ClientSession
) -> None:
    reply = await client.post(
        f"{engine.url}/v1/chat/completions", json=_chat(stream=True, max_tokens=10_000, ignore_eos=True)
    )
    await reply.content.readline()
    port = engine.port
    await engine.stop()
    with pytest.raises(aiohttp.ClientError):
        await reply.read()
    with pytest.raises(aiohttp.ClientError):
        await client.get(f"{engine.url}/health")
    await engine.start()
    assert engine.port == port
    async with client.post(f"{engine.url}/v1/chat/completions", json=_chat(max_tokens=1)) as again:
        assert (await again.json())["usage"]["prompt_tokens_details"]["cached_tokens"] == 0


async def test_a_port_in_use_is_named(engine: SimulatedEngine) -> None:
    with pytest.raises(OSError, match=f"cannot listen on 127.0.0.1:{engine.port}"):
        async with engines([engine.port], FAST):
            pass


async def test_a_reply_says_to_which_endpoint_the_request_was_pinned(
    engine: SimulatedEngine, client: aiohttp.ClientSession
) -> None:
    pinned = {"x-gateway-destination-endpoint": "10.0.0.1:8000,10.0.0.2:8000"}
    async with client.get(f"{engine.url}/health", headers=pinned) as reply:
        assert reply.headers["x-request-pin"] == "10.0.0.1:8000,10.0.0.2:8000"
    async with client.get(f"{engine.url}/health") as reply:
        assert "x-request-pin" not in reply.headers


async def test_an_engine_has_the_name_it_was_given_and_several_are_numbered() -> None:
    named = replace(FAST, name="pod-a")
    async with engines(1, named) as alone, engines(2, named) as both:
        assert [one.name for one in (*alone, *both)] == ["pod-a", "pod-a-1", "pod-a-2"]
