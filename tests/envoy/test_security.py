"""Nothing a client sends chooses an engine or weakens the route."""

from __future__ import annotations

from collections import Counter

from extproc.envoy_config import Exchange
from extproc.simulation.http import Settings
from tests.envoy.client import Http, client
from tests.envoy.conftest import Stacks
from tests.envoy.traffic import ask, chat, text

PIN = "x-gateway-destination-endpoint"


async def test_a_forged_pin_changes_nothing(stacks: Stacks, exchange: Exchange, http: Http) -> None:
    prompts = [chat(text(seed, 1000)) for seed in range(8)]
    async with stacks(exchange) as stack, client(stack.url, http) as gateway:
        honest = [(await ask(gateway, prompt)).engine for prompt in prompts]
        targets = [engine.address for engine in stack.engines]
        forged = [
            *({name: target} for name in (PIN, PIN.title()) for target in targets),
            {PIN: ",".join(reversed(targets))},
            {PIN: str(stack.gateway.options.admin)},
            {f"{PIN}-subset": targets[0], f"{PIN}-served": targets[0]},
        ]
        for headers in forged:
            served = [
                (await ask(gateway, prompt, headers=_named(headers, http))).engine for prompt in prompts
            ]
            assert served == honest, headers
        models = [
            (await ask(gateway, None, "/v1/models", method="GET", headers={PIN: targets[0]})).engine
            for _ in range(20)
        ]
        assert len(set(models)) > 1


async def test_a_forged_pin_changes_nothing_while_the_router_is_gone(
    stacks: Stacks, exchange: Exchange
) -> None:
    async with stacks(exchange) as stack, client(stack.url, "HTTP/1.1") as gateway:
        stack.router.kill()
        target = stack.engines[0].address
        replies = [await ask(gateway, chat(text(1, 100)), headers={PIN: target}) for _ in range(40)]
        assert {reply.status for reply in replies} == {200}
        assert max(Counter(reply.engine for reply in replies).values()) < 30


async def test_a_client_cannot_shorten_time_outs_or_turn_off_retries(
    stacks: Stacks, exchange: Exchange
) -> None:
    orders = {
        "x-envoy-upstream-rq-timeout-ms": "1",
        "x-envoy-upstream-rq-per-try-timeout-ms": "1",
        "x-envoy-expected-rq-timeout-ms": "1",
        "x-envoy-max-retries": "0",
        "x-envoy-retry-on": "5xx",
    }
    async with (
        stacks(exchange, settings=Settings(speed=1)) as stack,
        client(stack.url, "HTTP/1.1") as gateway,
    ):
        await stack.engines[0].stop()
        slow = [chat(text(seed, 1000), max_tokens=3, ignore_eos=True) for seed in range(12)]
        assert {(await ask(gateway, body, headers=orders)).status for body in slow} == {200}


def _named(headers: dict[str, str], http: Http) -> dict[str, str]:
    """HTTP/2 knows lower-case names only (RFC 9113, section 8.2.1)."""
    return headers if http == "HTTP/1.1" else {name.lower(): value for name, value in headers.items()}
