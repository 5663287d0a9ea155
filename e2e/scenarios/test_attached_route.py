"""A route that the router is attached to: where prompts go, and what changes while it is attached."""

from __future__ import annotations

import yaml

from e2e.scenarios import stack, variants
from e2e.scenarios.load import Changes, Client, Outcome, all_served, hit_rate, load, more, pinned
from e2e.scenarios.shared_picks import (
    engines_by_conversation,
    first_turns,
    two_replicas_send_a_prefix_to_one_engine,
)
from tests.envoy.process import eventually


async def test_equal_prefixes_meet_on_one_engine_and_the_engines_count_their_hits(gateway: Client) -> None:
    before = await stack.cached_tokens()
    numbers = range(100, 112)
    outcomes = await first_turns(gateway, numbers)
    outcomes += [await gateway.ask(number, turn) for turn in range(1, 4) for number in numbers]
    all_served(outcomes)
    pinned(outcomes)
    met = engines_by_conversation(outcomes)
    assert all(len(engines) == 1 for engines in met.values()), met
    assert len(set.union(*met.values())) > 1, "all conversations are on one engine"
    # Of four turns the first finds nothing, the others all but the question.
    assert hit_rate(outcomes) > 0.7
    assert await stack.cached_tokens() - before == sum(outcome.cached_tokens for outcome in outcomes)


async def test_two_replicas_of_the_router_send_a_prefix_to_the_same_engine(gateway: Client) -> None:
    await two_replicas_send_a_prefix_to_one_engine(gateway)


async def test_a_strategy_is_changed_live_and_no_pod_restarts(
    gateway: Client, made: list[stack.Json]
) -> None:
    names = {pod["metadata"]["name"] for pod in await stack.pods(stack.ROUTER)}
    configuration = stack.configuration(made)
    async with load(gateway) as outcomes:
        await more(outcomes, 40)
        for pool in configuration["pools"]:
            pool["strategy"] = "LEAST_OUTSTANDING_REQUESTS"
        await stack.configure(yaml.safe_dump(configuration))

        async def by_load_alone() -> bool:
            before = await stack.of_router("extproc_requests_total", "reason=prefix")
            picked = await stack.of_router("extproc_requests_total")
            await more(outcomes, 30)
            after = await stack.of_router("extproc_requests_total", "reason=prefix")
            moved = await stack.of_router("extproc_requests_total")
            return after == before and all(moved[name] > picked[name] for name in picked)

        await eventually(by_load_alone, "every replica picks by load alone", 60)
    all_served(outcomes)
    pinned(outcomes)
    assert {pod["metadata"]["name"] for pod in await stack.pods(stack.ROUTER)} == names


async def test_a_wrong_configuration_changes_nothing_and_is_said_until_it_is_reverted(
    gateway: Client, made: list[stack.Json]
) -> None:
    async def taken(value: float) -> bool:
        said = await stack.of_router("extproc_config_last_reload_successful")
        return set(said.values()) == {value}

    right = yaml.safe_dump(stack.configuration(made))
    async with load(gateway) as outcomes:
        await more(outcomes, 40)
        await stack.configure(right.replace("pools:", "polls:"))
        await eventually(lambda: taken(0), "both replicas say that the configuration is not taken", 60)
        await more(outcomes, 40)
        await stack.configure(right)
        await eventually(lambda: taken(1), "both replicas say that the configuration is taken", 60)
        await more(outcomes, 40)
    all_served(outcomes)
    pinned(outcomes)


async def test_two_models_behind_two_routes_have_a_pool_each_and_keep_to_it(
    gateway: Client, made: list[stack.Json]
) -> None:
    both = variants.second_model(made)
    try:
        await stack.settle(both)
        await stack.rolled_out(stack.ENGINES, "llm-b", "app=llm-b")
        engines = {
            model: {f"{pod['status']['podIP']}:8000" for pod in await stack.pods(stack.ENGINES, label)}
            for model, label in (("a", "app=llm"), ("b", "app=llm-b"))
        }
        assert [len(engines["a"]), len(engines["b"])] == [3, 2]

        async def pins_both() -> bool:
            replies = [await gateway.ask(300, headers={"x-model": model}) for model in engines]
            return all(
                one.pinned and one.engine in engines[model]
                for model, one in zip(engines, replies, strict=True)
            )

        await eventually(pins_both, "both routes are pinned", 60)
        for model, its in engines.items():
            headers = {"x-model": model}
            numbers = range(310, 320)
            outcomes = await first_turns(gateway, numbers, headers)
            outcomes += [
                await gateway.ask(number, turn, headers) for turn in range(1, 4) for number in numbers
            ]
            all_served(outcomes)
            pinned(outcomes)
            met = engines_by_conversation(outcomes)
            assert all(len(engines) == 1 for engines in met.values()), met
            assert set.union(*met.values()) <= its
    finally:
        await stack.remove(both, made)


async def test_two_weighted_backends_keep_their_weights_and_each_pins_to_the_first_of_its_engines(
    gateway: Client, made: list[stack.Json]
) -> None:
    both = variants.weighted(made, {"llm": 75, "llm-b": 25})
    try:
        await stack.settle(both)
        await stack.rolled_out(stack.ENGINES, "llm-b", "app=llm-b")
        engines = {f"{pod['status']['podIP']}:8000" for pod in await stack.pods(stack.ENGINES, "app=llm-b")}
        async with load(gateway) as outcomes:
            await eventually(
                lambda: all(len(one.pin.split(",")) == 5 for one in outcomes[-20:]), "five are named", 60
            )
            begun = len(outcomes)
            await more(outcomes, 400)
        counted = outcomes[begun:]
    finally:
        await stack.remove(both, made)
    all_served(outcomes)
    share = sum(outcome.engine in engines for outcome in counted) / len(counted)
    # Four standard deviations of 400 draws are 9 %.
    assert 0.16 < share < 0.34

    def first_of_its_backend(outcome: Outcome) -> bool:
        same = [one for one in outcome.pin.split(",") if (one in engines) == (outcome.engine in engines)]
        return same[:1] == [outcome.engine]

    assert sum(map(first_of_its_backend, counted)) >= 0.99 * len(counted)


async def test_changes_are_counted_as_such() -> None:
    """What every scenario relies on to look away for a moment, and for no longer."""
    changes = Changes(settle=0.0)
    async with changes.change():
        pass
    (begun, over) = changes._times[0]
    before, within, after = (
        Outcome(0, begun - 2, begun - 1),
        Outcome(0, begun - 1, over + 1),
        Outcome(0, over + 1, over + 2),
    )
    assert changes.outside([before, within, after]) == [before, after]
