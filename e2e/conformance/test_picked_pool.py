"""An InferencePool whose picker is the router, behind Istio: where prompts go, and what is without it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter, defaultdict
from collections.abc import Sequence
from functools import partial

from e2e.cluster import kind
from e2e.conformance import picked
from e2e.scenarios import stack
from e2e.scenarios.fail_open import requests_are_served_without_the_router
from e2e.scenarios.load import Changes, Client, Outcome, all_served, hit_rate, load, more, pinned
from e2e.scenarios.shared_picks import two_replicas_send_a_prefix_to_one_engine
from tests.envoy.process import eventually


def share_on_one_engine(outcomes: Sequence[Outcome]) -> float:
    """Of the requests of each conversation, those on the engine that most of them went to."""
    engines: dict[int, Counter[str]] = defaultdict(Counter)
    for outcome in outcomes:
        engines[outcome.conversation][outcome.engine] += 1
    return sum(max(counted.values()) for counted in engines.values()) / len(outcomes)


async def test_equal_prefixes_reach_one_pod_of_the_pool(gateway: Client) -> None:
    await picked.scale("extproc", 1)
    outcomes = [await gateway.ask(number, turn) for turn in range(8) for number in range(100, 116)]
    all_served(outcomes)
    pinned(outcomes)
    assert share_on_one_engine(outcomes) >= 0.99
    assert {outcome.engine for outcome in outcomes} == {
        f"{pod['status']['podIP']}:8000" for pod in await stack.pods(picked.NAMESPACE, picked.LABEL["llm"])
    }
    # Of eight turns the first finds nothing, the others all but the question.
    assert hit_rate(outcomes) > 0.8


async def test_two_replicas_with_certificates_of_their_own_send_a_prefix_to_the_same_pod(
    gateway: Client,
) -> None:
    await two_replicas_send_a_prefix_to_one_engine(gateway, picked.NAMESPACE)


async def test_pods_that_join_and_leave_the_pool_are_picked_and_left(gateway: Client) -> None:
    changes = Changes()
    async with load(gateway) as outcomes:
        await more(outcomes, 60)
        async with changes.change():
            await picked.scale("llm", 4)
        grown = len(outcomes)
        await eventually(
            lambda: len({outcome.engine for outcome in outcomes[grown:]}) == 4, "the fourth is picked", 60
        )
        async with changes.change():
            await picked.scale("llm", 2)
        await more(outcomes, 60)
    all_served(outcomes)
    pinned(changes.outside(outcomes))


async def test_without_its_picker_a_pool_that_fails_open_still_serves(gateway: Client) -> None:
    await requests_are_served_without_the_router(gateway, partial(picked.scale, "extproc"))


async def test_without_its_picker_a_pool_that_fails_closed_refuses_and_serves_again_with_it(
    gateway: Client,
) -> None:
    await picked.fail("FailClose")
    await picked.scale("extproc", 0)

    async def refuses() -> bool:
        return (await gateway.ask(400)).status >= 500

    await eventually(refuses, "requests are refused", 60)
    refused = [await gateway.ask(number) for number in range(401, 421)]
    assert {500 <= outcome.status < 600 for outcome in refused} == {True}, refused
    await picked.scale("extproc", 2)

    async def serves() -> bool:
        return (await gateway.ask(400)).pinned

    await eventually(serves, "requests are pinned again", 60)
    outcomes = [await gateway.ask(number) for number in range(421, 441)]
    all_served(outcomes)
    pinned(outcomes)


async def test_the_doctor_finds_nothing_wrong_with_it(gateway: Client) -> None:
    report = diagnosis()
    assert report["findings"] == []
    assert report["attached"] == [f"InferencePool {picked.NAMESPACE}/{picked.POOL}"]


async def test_without_a_destination_rule_every_request_is_a_500_though_the_pool_fails_open(
    gateway: Client,
) -> None:
    await picked.kubectl("delete", "destinationrule/extproc")
    await every_request_is_a_500(gateway, 500, "no-tls-to-picker")


async def test_a_destination_rule_that_verifies_the_picker_is_no_better(gateway: Client) -> None:
    patch = json.dumps([{"op": "remove", "path": "/spec/trafficPolicy/tls/insecureSkipVerify"}])
    await picked.kubectl("patch", "destinationrule/extproc", "--type=json", f"--patch={patch}")
    await every_request_is_a_500(gateway, 600, "picker-not-trusted")


async def every_request_is_a_500(gateway: Client, first: int, finding: str) -> None:
    """Assert it of conversations from `first` on, and that the doctor finds this and nothing else."""
    try:

        async def refuses() -> bool:
            return (await gateway.ask(first)).status == 500

        await eventually(refuses, "requests are refused", 60)
        outcomes = [await gateway.ask(number) for number in range(first + 1, first + 21)]
        assert {outcome.status for outcome in outcomes} == {500}
        report = diagnosis()
        assert [one["name"] for one in report["findings"]] == [finding]
    finally:
        await picked.settle()


def diagnosis() -> picked.Json:
    """What `extproc doctor --json` says."""
    done = subprocess.run(
        [sys.executable, "-m", "extproc", "doctor", "--namespace", picked.NAMESPACE, "--json"],
        env={**os.environ, "KUBECONFIG": str(kind.kubeconfig())},
        check=False,
        capture_output=True,
        timeout=120,
    )
    assert done.returncode in (0, 1), done.stderr
    report: picked.Json = json.loads(done.stdout)
    return report
