"""Where requests land, seen in the reply of the engine that served them."""

from __future__ import annotations

from collections import Counter, defaultdict

import pytest

from extproc.envoy_config import Exchange
from tests.envoy.client import Http, client
from tests.envoy.conftest import Stacks
from tests.envoy.traffic import ask, chat, in_parallel, text

# Requests at once, in all: no engine can reach the lower of the two bounds of the spill rule, the floor of 8.
BELOW_BOTH_BOUNDS = 8


@pytest.mark.parametrize("system", ["", text(0, 4000)], ids=["alone", "shared system prompt"])
async def test_a_prefix_stays_on_one_endpoint_while_it_has_room(
    stacks: Stacks, exchange: Exchange, http: Http, system: str
) -> None:
    prefixes = [text(seed, 2000) for seed in range(1, 51)]
    requests = [(prefix, turn) for turn in range(20) for prefix in prefixes]
    async with stacks(exchange) as stack, client(stack.url, http) as gateway:

        async def served_by(request: tuple[str, int]) -> str:
            prefix, turn = request
            reply = await ask(gateway, chat(f"{prefix} question {turn}", system=system))
            assert reply.status == 200
            return reply.engine

        served = await in_parallel(requests, BELOW_BOTH_BOUNDS, served_by)

    engines = defaultdict(set)
    for (prefix, _), engine in zip(requests, served, strict=True):
        engines[prefix].add(engine)
    assert [len(of_prefix) for of_prefix in engines.values()] == [1] * 50
    homes = Counter(engine for (engine,) in engines.values())
    assert len(homes) == 4
