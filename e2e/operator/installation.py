"""The operator in the cluster, as manifests/operator has it, with the image that is built of this code."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from e2e.cluster import images, kind, published
from e2e.scenarios import stack
from images import build as product

Json = dict[str, Any]

DIRECTORY = Path(__file__).parent / "stack"
OPERATOR, AGENTS = "warmroute-operator", "warmroute-agents"
"""The namespaces."""
CONTROLLER = "app.kubernetes.io/name=cacheprep-controller"
AGENT = "app.kubernetes.io/name=cacheprep-agent"


def install() -> None:
    """Build the image, have it on every node, and bring the operator to this version.

    Raises `ClusterError`.
    """
    images.load([product.build(product.CACHEPREP, published.base())], kind.NODES)
    kind.apply(_objects())
    kind.kubectl("wait", "--for=condition=Established", "crd", "--all", "--timeout=60s")
    for namespace, name in (
        (OPERATOR, "deployment/cacheprep-controller"),
        (AGENTS, "daemonset/cacheprep-agent"),
    ):
        kind.kubectl("rollout", "status", name, f"--namespace={namespace}", "--timeout=180s")


def _objects() -> Sequence[Json]:
    made: list[Json] = list(yaml.safe_load_all(kind.kubectl("kustomize", DIRECTORY)))
    for one in made:
        if one["kind"] in ("Deployment", "DaemonSet"):
            # The tag stays the same when the image changes: pods of the one before are to be replaced.
            template = one["spec"]["template"]["metadata"]
            identity = images.identity(product.CACHEPREP.reference)
            template.setdefault("annotations", {})["warmroute.dev/image"] = identity
    return made


async def kill(namespace: str, pod: str) -> None:
    """Delete a pod without grace, as a crash of its node's power would."""
    await stack.kubectl(
        *("delete", "pod", pod, f"--namespace={namespace}", "--grace-period=0", "--force"),
        *("--wait=false", "--ignore-not-found"),
    )


async def kill_all(namespace: str, selector: str) -> None:
    """Delete all pods with a label so."""
    for pod in await stack.pods(namespace, selector):
        await kill(namespace, pod["metadata"]["name"])


async def settled() -> None:
    """Wait until controller and agents are all there again."""
    await asyncio.gather(
        stack.rolled_out(OPERATOR, "cacheprep-controller", CONTROLLER),
        stack.kubectl(
            *("rollout", "status", "daemonset/cacheprep-agent", f"--namespace={AGENTS}", "--timeout=120s")
        ),
    )
