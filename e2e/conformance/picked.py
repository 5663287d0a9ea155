"""What the stories of an InferencePool act upon: engines, the router as their picker, a route of Istio's."""

from __future__ import annotations

import asyncio
import json
from functools import partial
from pathlib import Path
from typing import Any

import yaml

from e2e.cluster import images, kind
from e2e.conformance import istio
from e2e.scenarios import stack
from images.build import EXTPROC

Json = dict[str, Any]

NAMESPACE = "picked"
POOL = "llm"
LABEL = {"llm": "app=llm", "extproc": "app.kubernetes.io/name=extproc"}
"""Of the pods of each Deployment: engines and routers."""
_DIRECTORY = Path(__file__).parent / "stack"
_ENGINES = stack.DIRECTORY / "engines.yaml"


def objects() -> list[Json]:
    """All of it. Raises `ClusterError`."""
    engines = list(yaml.safe_load_all(_ENGINES.read_text()))
    for one in engines:
        if one["kind"] == "Namespace":
            one["metadata"]["name"] = NAMESPACE
        else:
            one["metadata"]["namespace"] = NAMESPACE
        for container in one["spec"]["template"]["spec"]["containers"] if one["kind"] == "Deployment" else ():
            container["image"] = EXTPROC.reference
    made = engines + list(yaml.safe_load_all(kind.kubectl("kustomize", _DIRECTORY)))
    for one in made:
        if one["kind"] == "Deployment":
            # The tag stays the same when the image changes: pods of the one before are to be replaced.
            template = one["spec"]["template"]["metadata"]
            template.setdefault("annotations", {})["warmroute.dev/image"] = images.identity(EXTPROC.reference)
    return made


async def kubectl(*words: str, stdin: str | None = None) -> str:
    """What kubectl says, in the stories' namespace, without holding up the load. Raises `ClusterError`."""
    asked = partial(kind.kubectl, f"--namespace={NAMESPACE}", *words, stdin=stdin, seconds=180)
    return await asyncio.to_thread(asked)


async def settle() -> None:
    """Bring everything to its start, and wait until it is deployed. Raises `ClusterError`."""
    await asyncio.to_thread(kind.apply, await asyncio.to_thread(objects))
    for deployment, label in LABEL.items():
        await stack.rolled_out(NAMESPACE, deployment, label)
    await kubectl("wait", "gateway/llm", "--for=condition=Programmed", "--timeout=120s")
    await kubectl("rollout", "status", f"deployment/llm-{istio.CLASS}", "--timeout=120s")


def remove() -> None:
    """Remove all of it. Raises `ClusterError`."""
    kind.kubectl("delete", "namespace", NAMESPACE, "--ignore-not-found", "--wait", seconds=180)


def address() -> str:
    """`ip:port` on the nodes' network where the gateway answers. Raises `ClusterError`."""
    said = kind.kubectl(
        *("get", f"service/llm-{istio.CLASS}", f"--namespace={NAMESPACE}", "--output=json"),
    )
    (port,) = (one["nodePort"] for one in json.loads(said)["spec"]["ports"] if one["port"] == 80)
    query = '--output=jsonpath={.status.addresses[?(@.type=="InternalIP")].address}'
    return f"{kind.kubectl('get', 'node', kind.CONTROL_PLANE, query).split()[0]}:{port}"


async def scale(deployment: str, replicas: int) -> None:
    """Have so many pods of a Deployment, and wait until they are ready and no other is left.

    Raises `ClusterError`.
    """
    await kubectl("scale", f"deployment/{deployment}", f"--replicas={replicas}")
    await stack.rolled_out(NAMESPACE, deployment, LABEL[deployment])


async def fail(mode: str) -> None:
    """Write what the gateway does without the picker: FailOpen or FailClose. Raises `ClusterError`."""
    patch = json.dumps({"spec": {"endpointPickerRef": {"failureMode": mode}}})
    await kubectl("patch", f"inferencepool/{POOL}", "--type=merge", f"--patch={patch}")
