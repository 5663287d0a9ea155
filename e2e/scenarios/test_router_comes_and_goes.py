"""The router, and what it learns from, restarted and gone while requests come: they go on."""

from __future__ import annotations

import asyncio

from e2e.cluster import kind
from e2e.cluster.command import run, succeeds
from e2e.scenarios import stack
from e2e.scenarios.fail_open import requests_are_served_without_the_router
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
    async def scale(replicas: int) -> None:
        deployment = ("deployment/extproc", f"--namespace={stack.ROUTER}")
        await stack.kubectl("scale", *deployment, f"--replicas={replicas}")
        await stack.rolled_out(stack.ROUTER, "extproc")

    await requests_are_served_without_the_router(gateway, scale)


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


async def test_routers_restarted_while_the_api_server_is_away_serve_unpinned_until_it_is_back(
    gateway: Client,
) -> None:
    changes = Changes()
    containers = [
        pod["status"]["containerStatuses"][0]["containerID"].removeprefix("containerd://")
        for pod in await stack.pods(stack.ROUTER)
    ]
    async with load(gateway) as outcomes:
        await more(outcomes, 40)
        async with changes.change():
            await asyncio.to_thread(_on_control_plane, f"mv {MANIFEST} /root/")
            try:
                await eventually(_api_server_is_away, "the API server is away", 60)
                known = len(outcomes)
                await more(outcomes, 40)
                assert any(outcome.pinned for outcome in outcomes[known:]), "what was known was given up"
                for container in containers:
                    await asyncio.to_thread(
                        _on_control_plane, f"ctr -n k8s.io tasks kill --signal SIGKILL {container}"
                    )
                await eventually(
                    lambda: not any(outcome.pin for outcome in outcomes[-30:]),
                    "no router knows an engine",
                    30,
                )
                await more(outcomes, 40)
            finally:
                await asyncio.to_thread(_on_control_plane, f"mv /root/kube-apiserver.yaml {MANIFEST}")
            await eventually(_api_server_answers, "the API server is back", 120)
            await eventually(
                lambda: all(outcome.pinned for outcome in outcomes[-30:]), "requests are pinned again", 60
            )
        await more(outcomes, 60)
    all_served(outcomes)
    pinned(changes.outside(outcomes))


MANIFEST = "/etc/kubernetes/manifests/kube-apiserver.yaml"
"""While it is there, the kubelet of the control plane runs an API server."""


def _on_control_plane(script: str) -> None:
    run("docker", "exec", kind.CONTROL_PLANE, "sh", "-c", script)


def _kill_api_server() -> None:
    """As a crash would: its kubelet starts it again."""
    _on_control_plane('kill -9 "$(pidof kube-apiserver)"')


async def _api_server_is_away() -> bool:
    return not await _api_server_answers()


async def _api_server_answers() -> bool:
    words = ("docker", "exec", kind.CONTROL_PLANE, "curl", "-ksf", "https://127.0.0.1:6443/readyz")
    return await asyncio.to_thread(succeeds, *words)
