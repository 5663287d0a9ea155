"""The router, and what it learns from, restarted and gone while requests come: they go on."""

from __future__ import annotations

import asyncio

from e2e.cluster import kind
from e2e.cluster.command import succeeds
from e2e.scenarios import stack
from e2e.scenarios.load import Changes, Client, all_served, load, more, pinned
from tests.envoy.process import eventually


async def test_a_rollout_of_the_router_loses_no_request_and_no_pin(gateway: Client) -> None:
    before = {pod["metadata"]["name"] for pod in await stack.pods(stack.ROUTER)}
    async with load(gateway) as outcomes:
        await more(outcomes, 60)
        await stack.kubectl("rollout", "restart", "deployment/extproc", f"--namespace={stack.ROUTER}")
        await stack.rolled_out(stack.ROUTER, "extproc")
        await more(outcomes, 60)
    assert not before & {pod["metadata"]["name"] for pod in await stack.pods(stack.ROUTER)}
    all_served(outcomes)
    pinned(outcomes)


async def test_without_the_router_requests_are_served_unpinned_and_with_it_again_pinned(
    gateway: Client,
) -> None:
    changes = Changes()
    deployment = ("deployment/extproc", f"--namespace={stack.ROUTER}")
    async with load(gateway) as outcomes:
        await more(outcomes, 60)
        async with changes.change():
            await stack.kubectl("scale", *deployment, "--replicas=0")
            await stack.rolled_out(stack.ROUTER, "extproc")
            away = len(outcomes)
            await more(outcomes, 60)
            unpinned = [outcome for outcome in outcomes[away:] if not outcome.pin]
            await stack.kubectl("scale", *deployment, "--replicas=2")
            await stack.rolled_out(stack.ROUTER, "extproc")
            back = len(outcomes)
            await eventually(lambda: any(one.pinned for one in outcomes[back:]), "pins are back", 30)
        await more(outcomes, 100)
    all_served(outcomes)
    assert len(unpinned) >= 50
    pinned(changes.outside(outcomes))


async def test_a_restart_of_the_api_server_is_not_noticed_and_changes_after_it_are(gateway: Client) -> None:
    async with load(gateway) as outcomes:
        await more(outcomes, 40)
        await asyncio.to_thread(_kill_api_server)
        await eventually(_api_server_answers, "the API server is back", 90)
        await more(outcomes, 60)
        changes = Changes()
        async with changes.change():
            await stack.scale(4)
        grown = len(outcomes)
        await eventually(
            lambda: len({outcome.engine for outcome in outcomes[grown:]}) == 4,
            "the fourth engine is used",
            60,
        )
        await more(outcomes, 60)
    all_served(outcomes)
    pinned(changes.outside(outcomes))


def _kill_api_server() -> None:
    """As a crash would: its kubelet starts it again."""
    killing = 'kill -9 "$(pidof kube-apiserver)"'
    assert succeeds("docker", "exec", kind.CONTROL_PLANE, "sh", "-c", killing)


async def _api_server_answers() -> bool:
    words = ("docker", "exec", kind.CONTROL_PLANE, "curl", "-ksf", "https://127.0.0.1:6443/readyz")
    return await asyncio.to_thread(succeeds, *words)
