"""What the scenarios act upon: the router, engines and a route to them, deployed as docs/ say."""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import yaml
from prometheus_client.parser import text_string_to_metric_families

from e2e.cluster import images, kind
from images.build import EXTPROC
from tests.envoy.process import eventually

Json = dict[str, Any]

DIRECTORY = Path(__file__).parent / "stack"
ROUTER, ENGINES = "warmroute", "llm"
"""The namespaces."""
LABEL = {ROUTER: "app.kubernetes.io/name=extproc", ENGINES: "app=llm"}


async def kubectl(*words: str | Path, stdin: str | None = None, seconds: float = 180) -> str:
    """What kubectl says, without holding up the load. Raises `ClusterError`."""
    return await asyncio.to_thread(partial(kind.kubectl, *words, stdin=stdin, seconds=seconds))


def objects() -> list[Json]:
    """All of it, as it is at the start of every scenario."""
    made = list(yaml.safe_load_all(kind.kubectl("kustomize", DIRECTORY)))
    for one in made:
        if one["kind"] == "Deployment":
            # The tag stays the same when the image changes: pods of the one before are to be replaced.
            template = one["spec"]["template"]["metadata"]
            template.setdefault("annotations", {})["warmroute.dev/image"] = images.identity(EXTPROC.reference)
    return made


def written(made: Sequence[Json]) -> str:
    """The text of the router's configuration among these objects."""
    (one,) = (one for one in made if key_of(one) == ("ConfigMap", "extproc"))
    return str(one["data"]["extproc.yaml"])


def configuration(made: Sequence[Json]) -> Json:
    """The same, parsed anew: it may be changed."""
    parsed: Json = yaml.safe_load(written(made))
    return parsed


async def configure(text: str) -> None:
    """Write the router's configuration, and wait until every replica has it in its file.

    A kubelet brings a changed ConfigMap when it next looks at the pod; here that is hastened.
    """
    patch = json.dumps({"data": {"extproc.yaml": text}})
    await kubectl("patch", "configmap/extproc", f"--namespace={ROUTER}", f"--patch={patch}")
    stamp = f"warmroute.dev/configured={hashlib.sha256(text.encode()).hexdigest()[:16]}"
    selected = (f"--namespace={ROUTER}", f"--selector={LABEL[ROUTER]}")
    await kubectl("annotate", "pods", *selected, "--overwrite", stamp)

    async def brought() -> bool:
        return all([await _file(pod["metadata"]["name"]) == text for pod in await pods(ROUTER)])

    await eventually(brought, "the kubelet has brought the configuration", 90)


async def _file(pod: str) -> str:
    read = "import sys; sys.stdout.write(open('/etc/extproc/extproc.yaml').read())"
    return await kubectl("exec", pod, f"--namespace={ROUTER}", "--", "python3", "-c", read)


async def settle(made: Sequence[Json]) -> None:
    """Bring everything to what these objects say, and wait until it serves."""
    await asyncio.to_thread(kind.apply, made)
    for namespace, deployment in ((ENGINES, "llm"), (ROUTER, "extproc")):
        await rolled_out(namespace, deployment)
    await configure(written(made))
    await eventually(accepted, "the gateway has taken the route and the policies", 90)


async def rolled_out(namespace: str, deployment: str, label: str | None = None) -> None:
    """Wait until all pods of a Deployment are its newest and ready, and no other with its label is left."""
    name = f"deployment/{deployment}"
    await kubectl("rollout", "status", name, f"--namespace={namespace}", "--timeout=120s")
    wanted = int(await kubectl("get", name, f"--namespace={namespace}", "--output=jsonpath={.spec.replicas}"))

    async def alone() -> bool:
        return len(await pods(namespace, label)) == wanted

    await eventually(alone, f"{namespace} has {wanted} pods", 60)


async def pods(namespace: str, label: str | None = None) -> list[Json]:
    """The pods of the router, or of the engines, those that are going included."""
    said = await kubectl(
        *("get", "pods", f"--namespace={namespace}", f"--selector={label or LABEL[namespace]}"),
        "--output=json",
    )
    found: list[Json] = json.loads(said)["items"]
    return found


async def scale(replicas: int) -> None:
    """Have so many engines, and wait until they serve and the others are gone."""
    await kubectl("scale", "deployment/llm", f"--namespace={ENGINES}", f"--replicas={replicas}")
    await rolled_out(ENGINES, "llm")


async def no_engines() -> None:
    """Have no engine at all, and so all GPUs free."""
    there = await kubectl(
        "get", "deployment/llm", f"--namespace={ENGINES}", "--ignore-not-found", "--output=name"
    )
    if there:
        await scale(0)


async def samples(namespace: str, pod: str, port: int) -> dict[tuple[str, str], float]:
    """The metrics of a pod: (name, labels as `key=value,...`) to the value."""
    page = await kubectl("get", "--raw", f"/api/v1/namespaces/{namespace}/pods/{pod}:{port}/proxy/metrics")
    return {
        (
            sample.name,
            ",".join(f"{key}={value}" for key, value in sorted(sample.labels.items())),
        ): sample.value
        for family in text_string_to_metric_families(page)
        for sample in family.samples
    }


async def of_router(name: str, within: str = "", namespace: str = ROUTER) -> dict[str, float]:
    """A metric by replica of the router, summed over its labels that have the text `within`."""
    found = {}
    for pod in await pods(namespace, LABEL[ROUTER]):
        pod_name = pod["metadata"]["name"]
        held = await samples(namespace, pod_name, 9090)
        found[pod_name] = sum(
            value for (metric, labels), value in held.items() if metric == name and within in labels
        )
    return found


async def cached_tokens() -> float:
    """The prompt tokens that the engines had in their caches, by their own counters, together."""
    total = 0.0
    for pod in await pods(ENGINES):
        held = await samples(ENGINES, pod["metadata"]["name"], 8000)
        total += sum(value for (name, _), value in held.items() if name == "vllm:prefix_cache_hits_total")
    return total


async def accepted() -> bool:
    """Whether the Gateway is programmed, and the policies and the route are in force."""
    kinds = "gateway,httproute,envoyextensionpolicy,backendtrafficpolicy,clienttrafficpolicy"
    said = await kubectl("get", kinds, f"--namespace={ENGINES}", "--output=json")
    return all(_in_force(one) for one in json.loads(said)["items"])


def _in_force(one: Json) -> bool:
    status = one.get("status") or {}
    parents = status.get("parents") or status.get("ancestors") or [status]
    wanted = "Programmed" if one["kind"] == "Gateway" else "Accepted"
    return all(
        any(
            condition["type"] == wanted and condition["status"] == "True"
            for condition in parent.get("conditions") or ()
        )
        for parent in parents
    )


async def remove(objects_: Sequence[Json], kept: Sequence[Json]) -> None:
    """Delete those of the objects that are not among the kept ones."""
    names = {key_of(one) for one in kept}
    going = [one for one in objects_ if key_of(one) not in names]
    await kubectl("delete", "--wait", "--ignore-not-found", "--filename=-", stdin=yaml.safe_dump_all(going))


def key_of(one: Json) -> tuple[str, str]:
    """Kind and name of an object."""
    return one["kind"], one["metadata"]["name"]
