"""What happens to nodes: files on their disks, restarts, and others in their place."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Mapping
from typing import Any

from cacheprep.api.names import DEFAULT_ROOT
from cacheprep.plan.identity import store_path
from e2e.cluster import cache, hardware, kind, network
from e2e.cluster.command import ClusterError, run
from e2e.operator.installation import AGENT, AGENTS
from e2e.operator.waiting import until
from e2e.scenarios import stack

NO_AGENT = "e2e.warmroute.dev/no-agent"
"""Label of nodes from which the agent is kept away: kustomization.yaml."""


async def on(node: str, script: str) -> str:
    """What a shell on a node says. Raises `ClusterError`."""
    return await asyncio.to_thread(run, "docker", "exec", node, "sh", "-c", script)


async def files(node: str, namespace: str) -> list[str]:
    """Everything that a node's disk has of a namespace, its directory included."""
    place = store_path(DEFAULT_ROOT, namespace)
    return (await on(node, f"if [ -e {place} ]; then find {place}; fi")).splitlines()


async def wipe(node: str, namespace: str) -> None:
    """Remove all of that behind everybody's back."""
    await on(node, f"rm -rf {store_path(DEFAULT_ROOT, namespace)}")


async def kill(node: str, pod: Mapping[str, Any]) -> None:
    """Kill (SIGKILL) what runs of `cacheprep` in a pod on a node. Raises `ClusterError` if nothing does."""
    uid = pod["metadata"]["uid"]
    # Control groups write it with one or the other.
    script = (
        f"pids=$(grep -lE '{uid}|{uid.replace('-', '_')}' /proc/[0-9]*/cgroup | cut -d/ -f3"
        " | while read pid; do grep -qs cacheprep /proc/$pid/cmdline && echo $pid; done); kill -9 $pids"
    )
    await on(node, script)


async def reboot(node: str) -> None:
    """Have the node say that it was started anew: another boot id, and its kubelet begins again."""
    boot = cache.root() / "e2e" / "nodes" / node / "boot" / "id"
    await asyncio.to_thread(boot.write_text, f"{uuid.uuid4()}\n")
    await on(node, "systemctl restart kubelet")
    await ready(node)


async def replace(node: str) -> None:
    """Another machine under the same name, which kept its disk: deleted from the cluster, and joined anew."""
    await stack.kubectl("delete", "node", node, "--wait")
    await on(node, "systemctl restart kubelet")
    await ready(node)
    # What a cloud's controllers do for a new node.
    await asyncio.to_thread(network.connect)
    await asyncio.to_thread(hardware.attach)


async def ready(node: str) -> None:
    """Wait until the node is Ready."""

    async def there() -> bool:
        try:
            await stack.kubectl("wait", f"node/{node}", "--for=condition=Ready", "--timeout=60s")
        except ClusterError as error:
            if "NotFound" not in str(error):
                raise
            return False
        return True

    await until(there, f"node {node} has come back", 90)


async def no_agent(node: str) -> None:
    """Have no agent on a node, as if there had never been one."""
    await keep_agent_away(node, away=True)
    await agent_has_left(node)
    await stack.kubectl("delete", "nodemodelcache", node, "--ignore-not-found")


async def agent_has_left(node: str) -> None:
    """Wait until no agent is on a node."""

    async def left() -> bool:
        pods = await stack.pods(AGENTS, AGENT)
        return all(pod["spec"]["nodeName"] != node for pod in pods)

    await until(left, f"the agent of {node} has left", 60)


async def keep_agent_away(node: str, *, away: bool) -> None:
    """Have no agent on a node, or one again."""
    await stack.kubectl("label", "node", node, "--overwrite", f"{NO_AGENT}=true" if away else f"{NO_AGENT}-")


def workers() -> set[str]:
    """Names of the nodes that have GPUs."""
    return set(kind.WORKERS)
