"""Those who are missing where there is an API server and nothing else.

A test here is kubelet, the controllers of Jobs, Deployments and garbage, and the agent of each node: it
writes what they would write, and no more. All else is real.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import ssl
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from hashlib import sha256
from pathlib import Path
from typing import Any

from aiohttp import web

from cacheprep.api import NodeModelCache
from cacheprep.api.caches import CacheOnNode, NodeCacheStatus, RootStatus
from cacheprep.api.names import API_VERSION, CACHE_KEY, COMPONENT, DEFAULT_ROOT, ENDPOINT, NODE
from cacheprep.listing import Digest, File, Listing
from cacheprep.objects import apply, delete, path
from cacheprep.store.layout import State, key_of
from extproc.pool.discovery.kubernetes import ApiError, Cluster
from tests.certificates import Authority
from tests.envoy.process import HOST

Json = Mapping[str, Any]
_numbers = itertools.count(1)
OWNED: tuple[str, ...] = ("Job", "Pod", "ConfigMap", "Service", "EndpointSlice", "Deployment", "DaemonSet")
OWNED += ("HorizontalPodAutoscaler", "ModelDataCacheConfig", "ModelImageCache")


def now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def listing(content: str) -> Listing:
    """What a source has whose one file says `content`."""
    digest = sha256(content.encode()).hexdigest()
    return Listing(
        "s3://weights/llama/", "", (File("model.safetensors", len(content), (Digest("sha256", digest),)),)
    )


class Actors:
    """They act when told, once. `source` is what a resolve Job finds."""

    def __init__(self, cluster: Cluster, namespace: str) -> None:
        self.cluster = cluster
        self.namespace = namespace
        self.source = listing("one")
        self.sources: dict[str, Listing] = {}
        """What resolve Jobs of endpoints of these names find instead."""
        self.printed: dict[str, Listing] = {}
        """By pod."""
        self.kubelet_port = 0
        self.disks: dict[str, dict[str, State]] = {}
        self.boots: dict[str, str] = {}
        self.failing: dict[str, int] = {}
        """Exit code of fill Jobs on nodes of these names."""
        self.last_words = ""
        """What their pods say last."""

    # --- reading ---

    async def all(self, kind: str) -> list[dict[str, Any]]:
        namespaced = kind not in ("Node", "NodeModelCache")
        answer = await self.cluster.send("GET", path(kind, namespace=self.namespace if namespaced else ""))
        return list(answer["items"])

    async def get(self, kind: str, name: str) -> dict[str, Any] | None:
        namespaced = kind not in ("Node", "NodeModelCache")
        try:
            return dict(
                await self.cluster.send("GET", path(kind, name, self.namespace if namespaced else ""))
            )
        except ApiError as error:
            if error.status != 404:
                raise
            return None

    # --- people ---

    async def endpoint(self, name: str = "llama", **spec: Any) -> None:
        """Five lines of modelCacheConfig, and what an endpoint needs."""
        item = {
            "apiVersion": API_VERSION,
            "kind": "InferenceEndpointConfig",
            "metadata": {"name": name, "namespace": self.namespace},
            "spec": {
                "modelSource": {"s3": {"uri": "s3://weights/llama/"}},
                "engine": {"template": {"spec": {"containers": [{"name": "vllm", "image": "vllm:1"}]}}},
                "modelCacheConfig": {"weightsCache": {"enabled": True}, "imageCache": {"enabled": True}},
                **spec,
            },
        }
        query = [("fieldManager", "kubectl"), ("force", "true")]
        where = path("InferenceEndpointConfig", name, self.namespace)
        await self.cluster.send("PATCH", where, item, query, "application/apply-patch+yaml")

    async def delete_endpoint(self, name: str = "llama") -> None:
        await delete(self.cluster, "InferenceEndpointConfig", name, self.namespace)

    # --- nodes and their agents ---

    async def node(self, name: str) -> None:
        """A node joins, and its agent says that it has room."""
        boot = f"boot-{next(_numbers)}"
        await self.cluster.send(
            "POST",
            path("Node"),
            {
                "apiVersion": "v1",
                "kind": "Node",
                "metadata": {
                    "name": name,
                    "labels": {"kubernetes.io/os": "linux", "kubernetes.io/arch": "amd64"},
                },
            },
        )
        info = dict.fromkeys(
            ("machineID", "systemUUID", "kernelVersion", "osImage", "containerRuntimeVersion"), "x"
        )
        info |= dict.fromkeys(("kubeletVersion", "kubeProxyVersion"), "v1.34.4")
        info |= {"bootID": boot, "operatingSystem": "linux", "architecture": "amd64"}
        status = {
            "conditions": [{"type": "Ready", "status": "True"}],
            "nodeInfo": info,
            "addresses": [{"type": "InternalIP", "address": HOST}],
            "daemonEndpoints": {"kubeletEndpoint": {"Port": self.kubelet_port}},
        }
        await self._status(path("Node", name, subresource="status"), status)
        # What the controllers of nodes and of taints would take away.
        await self.cluster.send(
            "PATCH", path("Node", name), {"spec": {"taints": None}}, (), "application/merge-patch+json"
        )
        self.boots[name] = boot
        self.disks.setdefault(name, {})
        await self.report(name)

    async def report(self, name: str, at: datetime | None = None) -> None:
        """The agent of a node says what is there; `at` is when it looked, else now."""
        node = await self.get("Node", name)
        assert node is not None
        pods = await self.all("Pod")
        used = {
            key
            for pod in pods
            if pod["spec"].get("nodeName") == name
            and (key := (pod["metadata"].get("annotations") or {}).get(CACHE_KEY))
        }
        status = NodeCacheStatus(
            node_uid=node["metadata"]["uid"],
            boot_id=self.boots[name],
            observed_at=at or datetime.now(UTC),
            roots=(RootStatus(path=DEFAULT_ROOT, usable=True, total_bytes=1 << 40, available_bytes=1 << 40),),
            caches=tuple(
                CacheOnNode(
                    namespace=self.namespace, root=DEFAULT_ROOT, key=key, state=state, in_use=key in used
                )
                for key, state in self.disks[name].items()
            ),
        )
        item = {"apiVersion": API_VERSION, "kind": NodeModelCache.KIND, "metadata": {"name": name}}
        await apply(self.cluster, {**item, "spec": {}})
        await apply(self.cluster, {**item, "status": status.write()}, "status")

    async def agents(self) -> None:
        """Agents remove what is let go."""
        caches = await self.all("ModelDataCacheConfig")
        wanted = {
            (cache.get("status") or {}).get("key")
            for cache in caches
            if (cache.get("status") or {}).get("state") != "Releasing"
        }
        for name, disk in self.disks.items():
            gone = [key for key in disk if key not in wanted]
            for key in gone:
                del disk[key]
            if gone:
                await self.report(name)

    # --- controllers ---

    async def jobs(self) -> None:
        """Jobs run to their end."""
        for job in await self.all("Job"):
            if (job.get("status") or {}).get("conditions") or job["metadata"].get("deletionTimestamp"):
                continue
            component = job["metadata"]["labels"][COMPONENT]
            if component == "fill":
                await self._fill(job)
            else:
                await self._resolve(job)

    async def _resolve(self, job: Json) -> None:
        name = job["metadata"]["name"]
        await self._pod_of(job, next(iter(self.disks)), {"phase": "Succeeded"})
        endpoint = job["metadata"]["labels"][ENDPOINT]
        self.printed[f"{name}-x"] = self.sources.get(endpoint, self.source)
        await self._complete(name)

    async def _pod_of(self, job: Json, node: str, status: Json) -> None:
        """The pod of a Job has ended."""
        name = job["metadata"]["name"]
        template = job["spec"]["template"]
        owner = {
            "apiVersion": "batch/v1",
            "kind": "Job",
            "name": name,
            "uid": job["metadata"]["uid"],
            "controller": True,
        }
        pod = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {**template["metadata"], "name": f"{name}-x", "ownerReferences": [owner]},
            "spec": {**template["spec"], "nodeName": node},
        }
        try:
            await self.cluster.send("POST", path("Pod", namespace=self.namespace), pod)
        except ApiError as error:
            if error.status != 409:
                raise
        await self._status(path("Pod", f"{name}-x", self.namespace, "status"), status)

    async def _fill(self, job: Json) -> None:
        metadata = job["metadata"]
        node, key = metadata["annotations"][NODE], metadata["labels"][CACHE_KEY]
        if (code := self.failing.get(node)) is not None:
            ended = {"exitCode": code, "reason": "Error", "message": self.last_words}
            container = {"name": "cacheprep", "image": "x", "imageID": "", "ready": False, "restartCount": 0}
            statuses = [{**container, "state": {"terminated": ended}}]
            await self._pod_of(job, node, {"phase": "Failed", "containerStatuses": statuses})
            said = f"Container cacheprep for pod {self.namespace}/x failed with exit code {code}"
            await self._fail(metadata["name"], f"{said} matching FailJob rule at index 2")
            return
        self.disks[node][key] = State.READY
        await self._complete(metadata["name"])
        await self.report(node)

    async def _complete(self, job: str) -> None:
        at = now()
        done = {"lastProbeTime": at, "lastTransitionTime": at, "status": "True"}
        conditions = [{"type": "SuccessCriteriaMet", **done}, {"type": "Complete", **done}]
        status = {"startTime": at, "completionTime": at, "succeeded": 1, "conditions": conditions}
        await self._status(path("Job", job, self.namespace, "status"), status)

    async def _fail(self, job: str, message: str) -> None:
        at = now()
        said = {"lastProbeTime": at, "lastTransitionTime": at, "status": "True", "message": message}
        kinds = ("FailureTarget", "Failed")
        conditions = [{"type": kind, "reason": "PodFailurePolicy", **said} for kind in kinds]
        status = {"startTime": at, "failed": 1, "conditions": conditions}
        await self._status(path("Job", job, self.namespace, "status"), status)

    async def deployments(self) -> None:
        """Deployments have the pods that they ask for, of the newest template, Ready, on nodes in turn."""
        nodes = list(self.disks)
        for item in await self.all("Deployment"):
            template, wanted = item["spec"]["template"], item["spec"]["replicas"]
            uid, name = item["metadata"]["uid"], item["metadata"]["name"]
            generation = item["metadata"]["generation"]
            owner = {
                "apiVersion": "apps/v1",
                "kind": "Deployment",
                "name": name,
                "uid": uid,
                "controller": True,
            }
            there = {
                pod["metadata"]["name"]
                for pod in await self.all("Pod")
                if pod["metadata"]["name"].startswith(f"{name}-pod-")
            }
            hashed = sha256(json.dumps(template, sort_keys=True).encode()).hexdigest()[:8]
            named = {f"{name}-pod-{hashed}-{number}" for number in range(wanted)}
            for old in there - named:
                where = path("Pod", old, self.namespace)
                await self.cluster.send("DELETE", where, {"gracePeriodSeconds": 0})
            for number, new in enumerate(sorted(named - there)):
                pod = {
                    "apiVersion": "v1",
                    "kind": "Pod",
                    "metadata": {**template["metadata"], "name": new, "ownerReferences": [owner]},
                    "spec": {**template["spec"], "nodeName": nodes[number % len(nodes)]},
                }
                await self.cluster.send("POST", path("Pod", namespace=self.namespace), pod)
                ip = f"10.0.0.{next(_numbers) % 250 + 1}"
                ready = {
                    "conditions": [{"type": "Ready", "status": "True"}],
                    "podIP": ip,
                    "podIPs": [{"ip": ip}],
                }
                await self._status(path("Pod", new, self.namespace, "status"), ready)
            count = dict.fromkeys(
                ("replicas", "updatedReplicas", "readyReplicas", "availableReplicas"), wanted
            )
            status = {**count, "observedGeneration": generation}
            await self._status(path("Deployment", name, self.namespace, "status"), status)

    async def garbage(self) -> None:
        """What is owned by something that is gone goes, until nothing more does."""
        while True:
            kinds = ("InferenceEndpointConfig", *OWNED)
            lists = await asyncio.gather(*map(self.all, kinds))
            objects = [(kind, item) for kind, items in zip(kinds, lists, strict=True) for item in items]
            uids = {item["metadata"]["uid"] for _, item in objects}
            gone = [
                (kind, item["metadata"]["name"])
                for kind, item in objects
                if (owned := item["metadata"].get("ownerReferences"))
                and not any(owner["uid"] in uids for owner in owned)
            ]
            for kind, name in gone:
                where = path(kind, name, self.namespace)
                await self.cluster.send("DELETE", where, {"gracePeriodSeconds": 0})
            if not gone:
                return

    async def act(self) -> None:
        """All of them, once."""
        try:
            await self.jobs()
            await self.deployments()
            await self.agents()
            await self.garbage()
        except ApiError as error:
            # It changed under their hands, as it does for those who are played here.
            if error.status not in (404, 409):
                raise

    async def _status(self, where: str, status: Json) -> None:
        await self.cluster.send("PATCH", where, {"status": status}, (), "application/merge-patch+json")

    async def leave_nothing(self) -> None:
        """For the next test; finalizers, too, are nobody's then."""
        for kind in ("InferenceEndpointConfig", *OWNED):
            for item in await self.all(kind):
                where = path(kind, item["metadata"]["name"], self.namespace)
                if item["metadata"].get("finalizers"):
                    patch = {"metadata": {"finalizers": None}}
                    await self.cluster.send("PATCH", where, patch, (), "application/merge-patch+json")
                try:
                    await self.cluster.send("DELETE", where, {"gracePeriodSeconds": 0})
                except ApiError as error:
                    if error.status != 404:
                        raise
        for name in list(self.disks):
            await delete(self.cluster, "Node", name)
            await delete(self.cluster, "NodeModelCache", name)


@asynccontextmanager
async def kubelet(actors: Actors, directory: Path) -> AsyncIterator[None]:
    """Answers for what containers printed: the listing, between what else `cacheprep` says."""
    pair = Authority().issue([HOST])
    (directory / "kubelet.crt").write_bytes(pair.certificate)
    (directory / "kubelet.key").write_bytes(pair.key)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(directory / "kubelet.crt", directory / "kubelet.key")

    async def logs(request: web.Request) -> web.Response:
        printed = actors.printed[request.match_info["pod"]]
        return web.Response(body=b"listing s3://weights/llama/\n" + printed.to_json() + b"\n")

    application = web.Application()
    application.router.add_get("/containerLogs/{namespace}/{pod}/{container}", logs)
    runner = web.AppRunner(application)
    await runner.setup()
    try:
        site = web.TCPSite(runner, HOST, 0, ssl_context=context)
        await site.start()
        actors.kubelet_port = runner.addresses[0][1]
        yield
    finally:
        await runner.cleanup()


def key(found: Listing) -> str:
    return key_of(found.digest())
