"""A namespace with model services: what its people write, and what they can see."""

from __future__ import annotations

import asyncio
import copy
import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any

import yaml

from cacheprep.api.names import API_VERSION, COMPONENT, ENDPOINT, WARM_SUFFIX, WEIGHTS_READY
from cacheprep.objects import path
from e2e.cluster import kind
from e2e.operator import nodes
from e2e.operator.sources import SECRET_NAME, TOKEN, TOKEN_NAME, credentials
from e2e.operator.waiting import LOOK_SECONDS, until
from e2e.scenarios import stack
from extproc.pool.discovery.kubernetes import ApiError, Cluster

Json = dict[str, Any]

ENDPOINT_KIND = "InferenceEndpointConfig"
OWNED: tuple[str, ...] = ("ModelDataCacheConfig", "ModelImageCache", "Deployment", "DaemonSet", "Job", "Pod")
OWNED += ("ConfigMap", "Service", "EndpointSlice", "HorizontalPodAutoscaler")
"""Kinds that the operator makes, or has made, for an endpoint."""
MODEL_PATH = "/model"


class Tenant:
    """One namespace, as its people see it."""

    def __init__(self, cluster: Cluster, namespace: str) -> None:
        self.cluster = cluster
        self.namespace = namespace

    # --- what people write ---

    async def move_in(self, level: str = "privileged") -> None:
        """Make the namespace, of a level of Pod Security, and the Secrets of its sources."""
        labels = {"pod-security.kubernetes.io/enforce": level}
        await self._apply({"kind": "Namespace", "metadata": {"name": self.namespace, "labels": labels}})
        await self.secret(SECRET_NAME, credentials())
        await self.secret(TOKEN_NAME, {"token": TOKEN})

    async def secret(self, name: str, values: Mapping[str, str]) -> None:
        """Make a Secret, or another one of it."""
        metadata = {"name": name, "namespace": self.namespace}
        await self._apply({"kind": "Secret", "metadata": metadata, "stringData": dict(values)})

    async def _apply(self, item: Json) -> None:
        await asyncio.to_thread(kind.apply, [{"apiVersion": "v1", **item}])

    async def endpoint(self, name: str, source: Json, **said: Any) -> None:
        """Write an endpoint: five lines of modelCacheConfig, and what an endpoint needs. `said` goes into its
        spec; `template` is the spec of its pods, by default `engine()`."""
        template = said.pop("template", None) or engine()
        item = {
            "apiVersion": API_VERSION,
            "kind": ENDPOINT_KIND,
            "metadata": {"name": name, "namespace": self.namespace},
            "spec": {
                "modelSource": source,
                "engine": {"template": {"spec": template}, "modelPath": MODEL_PATH},
                "modelCacheConfig": {"weightsCache": {"enabled": True}},
                **said,
            },
        }
        await self.write(item)

    async def write(self, item: Json) -> None:
        """Apply an object of the API. Raises `ApiError`."""
        query = [("fieldManager", "people"), ("force", "true")]
        metadata = item["metadata"]
        where = path(item["kind"], metadata["name"], metadata.get("namespace") or self.namespace)
        await self.cluster.send("PATCH", where, item, query, "application/apply-patch+yaml")

    async def change(self, name: str, **spec: Any) -> None:
        """Change fields of an endpoint's spec."""
        where = path(ENDPOINT_KIND, name, self.namespace)
        await self.cluster.send("PATCH", where, {"spec": spec}, (), "application/merge-patch+json")

    async def retry(self, name: str, word: str) -> None:
        """Have what failed tried again at once, as docs/model-cache.md says."""
        noted = f"warmroute.dev/retry={word}"
        await self.kubectl("annotate", "iec", name, noted, "--overwrite")

    async def delete(self, name: str) -> None:
        """Delete an endpoint, and do not wait."""
        await self.cluster.send("DELETE", path(ENDPOINT_KIND, name, self.namespace))

    async def move_out(self) -> None:
        """Delete all endpoints and then the namespace, and wait until it is gone."""
        for one in await self.all(ENDPOINT_KIND):
            await self.delete(one["metadata"]["name"])
        await until(self.has_no_endpoint, f"{self.namespace}: endpoints are gone", 180)
        await stack.kubectl("delete", "namespace", self.namespace, "--wait", "--timeout=120s")

    async def has_no_endpoint(self) -> bool:
        """Whether none is left, nor anything of them: their finalizer goes last."""
        return not await self.all(ENDPOINT_KIND)

    # --- what they see ---

    async def kubectl(self, *words: str) -> str:
        """What kubectl says in the namespace. Raises `ClusterError`."""
        return await stack.kubectl(f"--namespace={self.namespace}", *words)

    async def all(self, kind_: str, selector: str = "") -> list[Json]:
        """Objects of a kind."""
        where = path(kind_, namespace="" if kind_ in ("Node", "NodeModelCache") else self.namespace)
        query = [("labelSelector", selector)] if selector else []
        answer = await self.cluster.send("GET", where, None, query)
        return list(answer["items"])

    async def get(self, kind_: str, name: str) -> Json | None:
        """An object; None if it is not there."""
        namespace = "" if kind_ in ("Node", "NodeModelCache") else self.namespace
        try:
            return dict(await self.cluster.send("GET", path(kind_, name, namespace)))
        except ApiError as error:
            if error.status != 404:
                raise
            return None

    async def status(self, name: str) -> Json:
        """Status of an endpoint."""
        return dict((await self.get(ENDPOINT_KIND, name) or {}).get("status") or {})

    async def condition(self, name: str, type_: str, kind_: str = ENDPOINT_KIND) -> Json:
        """A condition of an endpoint, or of another object of the API; empty if it has none."""
        conditions = ((await self.get(kind_, name) or {}).get("status") or {}).get("conditions") or ()
        return next((dict(one) for one in conditions if one["type"] == type_), {})

    async def caches(self, name: str) -> list[Json]:
        """ModelDataCacheConfigs of an endpoint."""
        return await self.all("ModelDataCacheConfig", f"{ENDPOINT}={name}")

    async def cache(self, name: str) -> Json:
        """The only ModelDataCacheConfig of an endpoint."""
        (cache,) = await self.caches(name)
        return cache

    async def pods(self, name: str) -> list[Json]:
        """Pods of an endpoint, those that are going included."""
        return await self.all("Pod", f"{ENDPOINT}={name}")

    async def jobs(self, component: str) -> list[Json]:
        """Jobs that list (`resolve`) or fetch (`fill`)."""
        return await self.all("Job", f"{COMPONENT}={component}")

    async def labelled(self, cache: Json) -> set[str]:
        """Nodes that are said to have a cache."""
        name = WEIGHTS_READY + cache["metadata"]["uid"]
        return {one["metadata"]["name"] for one in await self.all("Node", f"{name}=true")}

    async def warm(self, name: str) -> dict[str, bool]:
        """Whether each pod of an endpoint is warm, by its uid, as the `-warm` slices say."""
        service = f"kubernetes.io/service-name={name}{WARM_SUFFIX}"
        return {
            one["targetRef"]["uid"]: bool(one["conditions"]["ready"])
            for item in await self.all("EndpointSlice", service)
            for one in item.get("endpoints") or ()
        }

    async def loaded(self, pod: Json) -> dict[str, str]:
        """What the engine of a pod finds where its model is: SHA-256 by name."""
        script = (
            "import hashlib, json, pathlib; root = pathlib.Path('/model');"
            "print(json.dumps({str(f.relative_to(root)): hashlib.sha256(f.read_bytes()).hexdigest()"
            " for f in root.rglob('*') if f.is_file()}))"
        )
        name = pod["metadata"]["name"]
        said = await self.kubectl("exec", name, "--container=engine", "--", "python3", "-c", script)
        return dict(json.loads(said))

    async def logs(self, pod: Json, container: str) -> str:
        """What a container of a pod printed."""
        return (await self.cluster.log(self.namespace, pod["metadata"]["name"], container)).decode()

    # --- what they wait for ---

    async def serves(self, name: str, replicas: int, seconds: float = 180) -> None:
        """Wait until so many pods of the newest source serve, and nothing else of an endpoint is left."""

        async def holds() -> bool:
            status = await self.status(name)
            pods = await self.pods(name)
            return (
                status.get("phase") == "Serving"
                and status.get("readyReplicas") == replicas
                and len(pods) == replicas
                and all(map(is_ready, pods))
                and len(await self.caches(name)) == 1
            )

        await until(holds, f"{name}: {replicas} pods serve", seconds)

    async def says(self, name: str, type_: str, reason: str, seconds: float = 120) -> Json:
        """Wait until a condition of an endpoint has a reason; returns the condition."""
        found: Json = {}

        async def holds() -> bool:
            found.clear()
            found.update(await self.condition(name, type_))
            return found.get("reason") == reason

        await until(holds, f"{name}: {type_} says {reason}", seconds)
        return found

    async def is_labelled(self, cache: Json, wanted: set[str], seconds: float = 120) -> None:
        """Wait until exactly these nodes are said to have a cache."""

        async def holds() -> bool:
            return await self.labelled(cache) == wanted

        await until(holds, f"{cache['metadata']['name']} is on {sorted(wanted)}", seconds)

    async def nothing_is_left(self, seconds: float = 120) -> None:
        """Wait until no object, no label of a node and no file is left that the operator made here."""

        async def left() -> list[str]:
            found: list[str] = []
            for kind_ in (ENDPOINT_KIND, *OWNED):
                # Others put ConfigMaps into every namespace.
                selector = ENDPOINT if kind_ == "ConfigMap" else ""
                found += [f"{kind_} {one['metadata']['name']}" for one in await self.all(kind_, selector)]
            if found:
                return found
            for node in sorted(nodes.workers()):
                found += [f"{node}: {file}" for file in await nodes.files(node, self.namespace)]
            return found

        loop = asyncio.get_running_loop()
        end = loop.time() + seconds
        while remains := await left():
            assert loop.time() < end, f"after {seconds:g} s there is still: {remains[:10]}"
            await asyncio.sleep(LOOK_SECONDS)


async def labels_of(tenant: Tenant, uids: Sequence[str]) -> list[str]:
    """Labels of nodes that speak of objects with these uids."""
    return [
        f"{node['metadata']['name']}: {label}"
        for node in await tenant.all("Node")
        for label in node["metadata"].get("labels") or {}
        if any(label.endswith(uid) for uid in uids)
    ]


def engine(gpus: int = 1, *, drains: bool = False, image: str = "", **said: Any) -> Json:
    """A PodSpec of a simulated engine, as e2e/scenarios has it, that wants so many GPUs; `said` goes into it.

    Without its constraints of spreading: where pods are put is what stories of the operator are about. With
    `drains` it ends as slowly as one behind a gateway has to.
    """
    made = yaml.safe_load_all((stack.DIRECTORY / "engines.yaml").read_text())
    (deployment,) = (one for one in made if one["kind"] == "Deployment")
    spec: Json = copy.deepcopy(deployment["spec"]["template"]["spec"])
    del spec["topologySpreadConstraints"]
    (container,) = spec["containers"]
    container["image"] = image or f"{container['image']}:dev"
    container["resources"]["limits"]["nvidia.com/gpu"] = str(gpus)
    container["resources"]["requests"]["cpu"] = "10m"
    if not drains:
        del container["lifecycle"]
        spec["terminationGracePeriodSeconds"] = 2
    return {**spec, "nodeSelector": {"nvidia.com/gpu.present": "true"}, **said}


def on_node(name: str) -> Json:
    """For `engine`: only this node."""
    return {"nodeSelector": {"kubernetes.io/hostname": name}}


def is_ready(pod: Json) -> bool:
    """Whether a pod is Ready, and not going."""
    conditions = (pod.get("status") or {}).get("conditions") or ()
    ready = any(one["type"] == "Ready" and one["status"] == "True" for one in conditions)
    return ready and not pod["metadata"].get("deletionTimestamp")


def digests(files: Mapping[str, bytes]) -> dict[str, str]:
    """As `Tenant.loaded`: SHA-256 by name."""
    return {name: hashlib.sha256(content).hexdigest() for name, content in files.items()}
