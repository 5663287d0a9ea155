"""A model of a cluster, in memory: it carries out the actions of a plan, and does what the controllers of
Kubernetes, kubelets, agents and sources would do. It is no cluster: what it knows of them is written here.

Every action is held against the promises of the operator before it is carried out (`Broken`).
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any

from cacheprep.api import (
    Endpoint,
    InferenceEndpointConfig,
    ModelDataCacheConfig,
    ModelImageCache,
    NodeModelCache,
)
from cacheprep.api.caches import CacheOnNode, DataCacheState
from cacheprep.api.model import seconds
from cacheprep.api.names import (
    APPLIED,
    ATTEMPT,
    CACHE,
    CACHE_KEY,
    COMPONENT,
    ENDPOINT,
    FINALIZER,
    NODE,
    RETRY,
    SOURCE,
    WEIGHTS_READY,
    WORKLOAD,
)
from cacheprep.failures import Reason as FailureReason
from cacheprep.listing import File, Listing
from cacheprep.plan.actions import (
    Action,
    Apply,
    Delete,
    Event,
    LabelNode,
    RecordDrift,
    RecordListing,
    Scale,
    SetFinalizer,
    SetRolling,
    SetStatus,
)
from cacheprep.plan.labels import orphans
from cacheprep.plan.listings import config_maps, fits, looked, resolved
from cacheprep.plan.observed import (
    Component,
    Deployment,
    Job,
    JobState,
    Node,
    Object,
    Observed,
    Pod,
    Slice,
    SliceEndpoint,
)
from cacheprep.plan.plan import Plan, plan
from cacheprep.plan.possession import silent
from cacheprep.plan.release import removable
from cacheprep.plan.settings import Settings
from cacheprep.plan.targets import targets

NAMESPACE, NAME, ROOT = "llm", "llama", "/opt/dlami/nvme"
TOTAL = 1000
"""Bytes of the model."""
START = 1_800_000_000.0
SETTINGS = Settings(downloads_at_once=3)

JsonObject = dict[str, Any]


class Broken(AssertionError):  # noqa: N818 - says what has happened
    """A promise of the operator is broken."""


def spec(**changed: Any) -> JsonObject:
    """The spec of an endpoint: five lines of modelCacheConfig, and what changes."""
    container = {"name": "vllm", "image": "vllm/vllm-openai:v1", "args": ["/model"]}
    made: JsonObject = {
        "modelSource": {"s3": {"uri": "s3://models/llama/"}},
        "engine": {"template": {"spec": {"containers": [container]}}},
        "replicas": 2,
        "modelCacheConfig": {"weightsCache": {"enabled": True}, "imageCache": {"enabled": True}},
    }
    return {**made, **changed}


@dataclass
class Disk:
    """What is on a node's disk, by key: bytes that are there."""

    bytes: dict[str, int] = field(default_factory=dict)
    rates: dict[str, int] = field(default_factory=dict)
    """Bytes per second of what is being fetched."""


class World:
    """One namespace with one endpoint, nodes, and time."""

    def __init__(self, nodes: int = 3, endpoint: JsonObject | None = None) -> None:
        self.now = START
        self.settings = SETTINGS
        self._uids = 0
        self.version = 1
        """Of what the source holds."""
        self.source_failure: FailureReason | None = None
        self.capacity = 10 * TOTAL
        self.nodes: dict[str, Node] = {}
        self.disks: dict[str, Disk] = {}
        self.said: dict[str, JsonObject] = {}
        """NodeModelCaches."""
        self.objects: dict[tuple[str, str], JsonObject] = {}
        self.jobs: dict[str, tuple[JsonObject, Job]] = {}
        self.pods: dict[str, Pod] = {}
        self.deployment: JsonObject | None = None
        self.replicas = 1
        self.rolled_out = False
        self.finished: list[Action] = []
        self.allowed: set[str] = set()
        """Keys that pods were allowed to load."""
        self.make(endpoint if endpoint is not None else spec())
        for number in range(nodes):
            self.add_node(f"node-{number}")

    # --- What people and the world do ---

    def make(self, written: JsonObject) -> None:
        """Create the endpoint."""
        metadata: JsonObject = {"name": NAME, "namespace": NAMESPACE, "uid": self.uid(), "generation": 1}
        kind = {"apiVersion": "warmroute.dev/v1alpha1", "kind": "InferenceEndpointConfig"}
        self.endpoint: JsonObject | None = {**kind, "metadata": metadata, "spec": written, "status": {}}

    def edit(self, **changed: Any) -> None:
        """Change fields of its spec; None removes one."""
        assert self.endpoint is not None
        made = {**self.endpoint["spec"], **changed}
        self.endpoint["spec"] = {name: value for name, value in made.items() if value is not None}
        self.endpoint["metadata"]["generation"] += 1

    def policy(self, **changed: Any) -> None:
        """Change fields of its cachePolicy."""
        assert self.endpoint is not None
        self.edit(cachePolicy={**self.endpoint["spec"].get("cachePolicy", {}), **changed})

    def image(self, image: str) -> None:
        """Change the engine's image."""
        self.edit(engine={"template": {"spec": {"containers": [{"name": "vllm", "image": image}]}}})

    def delete(self) -> None:
        """Delete the endpoint."""
        assert self.endpoint is not None
        metadata = self.endpoint["metadata"]
        metadata.setdefault("deletionTimestamp", self.time())
        if not metadata.get("finalizers"):
            self._gone()

    def add_node(self, name: str, **fields: Any) -> None:
        """A node joins, or is made anew under its name; its disk is empty."""
        boot = f"boot-{self.uid()}"
        self.nodes[name] = Node(name, self.uid(), boot, {"kubernetes.io/arch": "amd64"}, created=self.now)
        self.nodes[name] = replace(self.nodes[name], **fields)
        self.disks[name] = Disk()
        for pod in [pod for pod in self.pods.values() if pod.node == name]:
            del self.pods[pod.uid]

    def remove_node(self, name: str) -> None:
        """A node goes, with its pods. What its agent said last stays."""
        del self.nodes[name], self.disks[name]
        for pod in [pod for pod in self.pods.values() if pod.node == name]:
            del self.pods[pod.uid]

    def reboot(self, name: str) -> None:
        """A node starts again; its disk is as it was."""
        self.nodes[name] = replace(self.nodes[name], boot_id=f"boot-{self.uid()}")

    def change_node(self, name: str, **fields: Any) -> None:
        """Cordon it, or whatever."""
        self.nodes[name] = replace(self.nodes[name], **fields)

    def wipe(self, name: str) -> None:
        """Its disk loses everything."""
        self.disks[name] = Disk()

    # --- What the controllers of Kubernetes, kubelets and agents do ---

    def run_jobs(self, failure: FailureReason | None = None) -> None:
        """Every Job that is active ends; with `failure` those that fill fail."""
        for name, (manifest, job) in list(self.jobs.items()):
            if job.state is JobState.ACTIVE:
                self.jobs[name] = (manifest, self._ended(job, failure))

    def _ended(self, job: Job, failure: FailureReason | None) -> Job:
        if job.component is not Component.FILL:
            failure = self.source_failure
        elif job.node not in self.nodes:
            return job
        else:
            failure = failure or self.source_failure
            cache = next(one for one in self.data_caches() if one.name == job.cache)
            if failure is None and self.listing(self.version) != self.listing_of(cache.status.key):
                failure = FailureReason.SOURCE_CHANGED
            if failure is None and self.free(job.node) < TOTAL:
                failure = FailureReason.INSUFFICIENT_CAPACITY
        if failure is not None:
            return replace(job, state=JobState.FAILED, finished=self.now, failure=failure, message="failed")
        if job.component is Component.FILL:
            self.disks[job.node].bytes[job.key] = TOTAL
        return replace(job, state=JobState.SUCCEEDED, finished=self.now)

    def free(self, node: str) -> int:
        return self.capacity - sum(self.disks[node].bytes.values())

    def run_agents(self, names: Iterable[str] | None = None) -> None:
        """Agents look at their disks, remove what nobody wants, and say what is there."""
        for name in self.nodes if names is None else names:
            if name not in self.nodes:
                continue
            node, disk = self.nodes[name], self.disks[name]
            for key in list(disk.bytes):
                entry = self._entry(name, key, disk.bytes[key])
                if removable(self.data_caches(), CacheOnNode.read(entry)):
                    del disk.bytes[key]
            entries = [self._entry(name, key, held) for key, held in sorted(disk.bytes.items())]
            root = {"path": ROOT, "usable": True, "availableBytes": self.free(name)}
            status = {
                "nodeUid": node.uid,
                "bootId": node.boot_id,
                "observedAt": self.time(),
                "roots": [{**root, "totalBytes": self.capacity}],
                "caches": entries,
            }
            kind = {"apiVersion": "warmroute.dev/v1alpha1", "kind": "NodeModelCache"}
            self.said[name] = {**kind, "metadata": {"name": name}, "status": status}

    def _entry(self, node: str, key: str, held: int) -> JsonObject:
        used = any(pod.node == node and pod.cache_key == key for pod in self.pods.values())
        state = "ready" if held == TOTAL else "partial"
        place: JsonObject = {"namespace": NAMESPACE, "root": ROOT, "key": key}
        if state == "partial" and key in self.disks[node].rates:
            place["bytesPerSecond"] = self.disks[node].rates[key]
        return {**place, "state": state, "bytesTotal": TOTAL, "bytesDone": held, "inUse": used}

    def run_deployment(self) -> None:
        """Pods become those of the Deployment, and ready; old ones go, new ones fetch on cold nodes."""
        if self.deployment is None or self.deployment["metadata"].get("deletionTimestamp"):
            self.deployment = None
            for pod in [pod for pod in self.pods.values() if pod.endpoint]:
                del self.pods[pod.uid]
            return
        template = self.deployment["spec"]["template"]
        identity = json.dumps(template, sort_keys=True)
        fitting = targets(template["spec"], self.nodes.values())
        key = template["metadata"]["annotations"].get(CACHE_KEY, "")
        images = tuple(one["image"] for one in template["spec"]["containers"])
        for pod in [pod for pod in self.pods.values() if pod.endpoint and pod.problem != identity]:
            del self.pods[pod.uid]
        of_template = [pod for pod in self.pods.values() if pod.endpoint]
        for pod in of_template[self.replicas :]:
            del self.pods[pod.uid]
        for number in range(len(of_template), self.replicas if fitting else 0):
            node = fitting[number % len(fitting)]
            uid = self.uid()
            if key and self.free(node.name) >= TOTAL:
                self.disks[node.name].bytes.setdefault(key, TOTAL)
            self.pods[uid] = Pod(
                f"{NAME}-{uid}",
                uid,
                endpoint=NAME,
                node=node.name,
                ips=(f"10.0.{int(uid) // 250}.{int(uid) % 250 + 1}",),
                ready=True,
                cache_key=key,
                images=images,
                # Not a problem: which template the pod is of, which only this model asks.
                problem=identity,
                created=self.now,
            )
        having = [pod for pod in self.pods.values() if pod.endpoint]
        self.rolled_out = len(having) == self.replicas

    def run_daemon_sets(self) -> None:
        """Pods that keep images are on all nodes that they fit, and ready."""
        for uid, pod in list(self.pods.items()):
            if not pod.endpoint and ("DaemonSet", pod.cache) not in self.objects:
                del self.pods[uid]
        for (kind, name), manifest in self.objects.items():
            if kind != "DaemonSet":
                continue
            there = {pod.node for pod in self.pods.values() if pod.cache == name}
            for node in targets(manifest["spec"]["template"]["spec"], self.nodes.values()):
                if node.name not in there:
                    uid = self.uid()
                    self.pods[uid] = Pod(
                        f"{name}-{uid}", uid, cache=name, node=node.name, ready=True, created=self.now
                    )

    def collect_garbage(self) -> None:
        """What belongs to what is no more goes, too."""
        for name, (_, job) in list(self.jobs.items()):
            if ("ModelDataCacheConfig", job.cache) not in self.objects:
                del self.jobs[name]

    def run_all(self) -> None:
        """Everybody but the operator does what there is to do."""
        self.run_jobs()
        self.run_agents()
        self.run_deployment()
        self.run_daemon_sets()
        self.collect_garbage()
        if self.endpoint is None:
            for action in orphans(tuple(self.nodes.values()), self._cache_uids()):
                self.carry_out(action)

    def _cache_uids(self) -> set[str]:
        kinds = ("ModelDataCacheConfig", "ModelImageCache")
        return {one["metadata"]["uid"] for (kind, _), one in self.objects.items() if kind in kinds}

    def settle(self, seconds_each: float = 1.0, most: int = 200) -> int:
        """Plan, carry out and go on, until there is nothing to do; how many rounds it took."""
        for number in range(most):
            made = self.rest()
            before = self._picture()
            self.run_all()
            self.now += seconds_each
            if not made.actions and before == self._picture():
                return number
        raise Broken(f"not settled after {most} rounds: {[action.why for action in made.actions]}")

    def _picture(self) -> str:
        said = {
            name: {key: value for key, value in one["status"].items() if key != "observedAt"}
            for name, one in self.said.items()
        }
        observed = self.observed() if self.endpoint is not None else None
        unheard = [node.name for node in self.nodes.values() if observed and silent(observed, node)]
        whole = (unheard, sorted(self.pods), sorted(self.jobs), said, [job for _, job in self.jobs.values()])
        serving = (self.deployment is None, self.replicas, self.rolled_out)
        return repr((whole, serving, sorted(self.objects), self.nodes, self.disks, self.endpoint))

    def rest(self, most: int = 12) -> Plan:
        """Plan and carry out until the operator waits for others; what it did first."""
        first = self.step()
        made = first
        for _ in range(most):
            if not made.actions:
                return first
            made = self.step()
        raise Broken(f"it does not come to rest by itself: {[action.why for action in made.actions]}")

    def round(self) -> None:
        """The operator does what it can, then everybody else."""
        self.rest()
        self.run_all()
        self.now += 1

    def step(self, most: int | None = None) -> Plan:
        """Plan once and carry out the first actions: all, or as many as there is time for before a crash."""
        if self.endpoint is None:
            return Plan((), None)
        made = plan(self.observed(), self.settings)
        for action in made.actions[:most]:
            self.hold(action)
            self.carry_out(action)
        return made

    # --- What is seen ---

    def observed(self) -> Observed:
        assert self.endpoint is not None
        endpoint = self._endpoint()
        return Observed(
            now=self.now,
            endpoint=endpoint,
            endpoints=(endpoint,),
            nodes=tuple(self.nodes.values()),
            node_caches={name: NodeModelCache.read(one) for name, one in self.said.items()},
            data_caches=tuple(self.data_caches()),
            image_caches=tuple(
                ModelImageCache.read(one)
                for (kind, _), one in self.objects.items()
                if kind == "ModelImageCache"
            ),
            jobs=tuple(job for _, job in self.jobs.values()),
            pods=tuple(replace(pod, problem="") for pod in self.pods.values()),
            deployment=self._deployment(),
            objects=tuple(self._object(one) for one in self.objects.values()),
            slices=tuple(
                self._slice(one) for (kind, _), one in self.objects.items() if kind == "EndpointSlice"
            ),
            stored=frozenset(
                cache.name
                for cache in self.data_caches()
                if cache.status.listing_parts
                and all(
                    ("ConfigMap", f"{cache.name}-listing-{part}") in self.objects
                    for part in range(cache.status.listing_parts)
                )
            ),
        )

    def _endpoint(self) -> Endpoint:
        assert self.endpoint is not None
        return InferenceEndpointConfig.read(self.endpoint)

    def data_caches(self) -> list[ModelDataCacheConfig]:
        return [
            ModelDataCacheConfig.read(one)
            for (kind, _), one in self.objects.items()
            if kind == "ModelDataCacheConfig"
        ]

    def _deployment(self) -> Deployment | None:
        if self.deployment is None:
            return None
        metadata = self.deployment["metadata"]
        annotations = metadata["annotations"]
        rolling = self.deployment["spec"]["strategy"]["rollingUpdate"]
        return Deployment(
            uid=metadata["uid"],
            ours=True,
            cache=annotations.get(CACHE, ""),
            cache_key=annotations.get(CACHE_KEY, ""),
            workload=annotations[WORKLOAD],
            applied=annotations[APPLIED],
            replicas=self.replicas,
            ready_replicas=sum(bool(pod.endpoint) for pod in self.pods.values()),
            rolled_out=self.rolled_out,
            rolling=(str(rolling["maxSurge"]), str(rolling["maxUnavailable"])),
            deleting="deletionTimestamp" in metadata,
        )

    def _object(self, one: JsonObject) -> Object:
        metadata = one["metadata"]
        owners = [owner["uid"] for owner in metadata.get("ownerReferences", ())]
        return Object(
            kind=one["kind"],
            name=metadata["name"],
            uid=metadata["uid"],
            applied=metadata.get("annotations", {}).get(APPLIED, ""),
            endpoint=owners[0] if owners else "",
            cache=metadata.get("labels", {}).get(CACHE, ""),
        )

    def _slice(self, one: JsonObject) -> Slice:
        made = [
            SliceEndpoint(
                address=each["addresses"][0],
                pod=each["targetRef"]["name"],
                pod_uid=each["targetRef"]["uid"],
                node=each["nodeName"],
                zone=each.get("zone", ""),
                ready=each["conditions"]["ready"],
                terminating=each["conditions"]["terminating"],
            )
            for each in one["endpoints"]
        ]
        return Slice(one["metadata"]["name"], one["addressType"], one["ports"][0]["port"], tuple(made))

    def listing(self, version: int) -> Listing:
        return Listing("s3://models/llama/", "", (File("model", TOTAL, version=str(version)),))

    def listing_of(self, key: str | None) -> Listing | None:
        every = (self.listing(version) for version in range(1, self.version + 1))
        return next((one for one in every if one.digest()[:40] == key), None)

    # --- The promises ---

    def hold(self, action: Action) -> None:
        """Raises Broken if an action breaks a promise."""
        match action:
            case Apply() if action.kind == "Job":
                self._hold_job(action)
            case Apply() if action.kind == "Deployment":
                self._hold_deployment(action)
            case Scale():
                if self._endpoint().spec.autoscaling is not None:
                    raise Broken("replicas are set though something else scales")
            case LabelNode() if action.value is not None and action.label.startswith(WEIGHTS_READY):
                self._hold_label(action)
            case Delete() if action.kind == "ModelDataCacheConfig":
                self._hold_deletion(action.name)
            case SetStatus() if action.status.get("state") == DataCacheState.RELEASING:
                self._hold_release(action.name)
            case _:
                pass

    def _hold_job(self, action: Apply) -> None:
        labels = action.manifest["metadata"]["labels"]
        if labels[COMPONENT] != Component.FILL:
            same = [job for _, job in self.jobs.values() if job.cache == labels[CACHE]]
            if any(job.component == labels[COMPONENT] and job.state is JobState.ACTIVE for job in same):
                raise Broken("two Jobs list one source for one cache")
            return
        node = action.manifest["metadata"]["annotations"][NODE]
        active = [job for _, job in self.jobs.values() if job.state is JobState.ACTIVE]
        if any((job.node, job.key) == (node, labels[CACHE_KEY]) for job in active):
            raise Broken(f"two Jobs for node {node} and key {labels[CACHE_KEY]}")
        if sum(job.component is Component.FILL for job in active) >= self.settings.downloads_at_once:
            raise Broken("more nodes read the source than it is to bear")

    def _hold_deployment(self, action: Apply) -> None:
        if "replicas" in action.manifest["spec"]:
            raise Broken("an apply says replicas")
        pod_spec = action.manifest["spec"]["template"]["spec"]
        affinity = pod_spec.get("affinity", {}).get("nodeAffinity", {})
        if "requiredDuringSchedulingIgnoredDuringExecution" in affinity:
            raise Broken("prepared nodes are required")
        key = action.manifest["metadata"]["annotations"].get(CACHE_KEY)
        if key is None or key in self.allowed:
            return
        cache = next(one for one in self.data_caches() if one.status.key == key)
        fitting = [node.name for node in targets(pod_spec, self.nodes.values())]
        having = [name for name in fitting if self._says_ready(name, key)]
        endpoint = self._endpoint()
        policy = endpoint.spec.cache_policy
        assert cache.status.resolved_at is not None
        waited = self.now - cache.status.resolved_at.timestamp()
        timed_out = policy.on_gate_timeout == "open" and waited >= seconds(policy.gate_timeout)
        wanted = {"all": len(fitting), "none": 0}.get(str(policy.gate))
        if wanted is None:
            wanted = min(int(policy.gate), len(fitting))
        if len(having) < wanted and not timed_out:
            raise Broken(f"pods before the gate: {len(having)} of {wanted} nodes")
        self.allowed.add(key)

    def _hold_label(self, action: LabelNode) -> None:
        uid = action.label.removeprefix(WEIGHTS_READY)
        cache = next(one for one in self.data_caches() if one.uid == uid)
        if not self._says_ready(action.node, cache.status.key or ""):
            raise Broken(f"node {action.node} is labelled and has not got the cache in this life")

    def _says_ready(self, name: str, key: str) -> bool:
        said = self.said.get(name)
        if said is None:
            return False
        status, node = said["status"], self.nodes[name]
        if (status["nodeUid"], status["bootId"]) != (node.uid, node.boot_id):
            return False
        return any((one["key"], one["state"]) == (key, "ready") for one in status["caches"])

    def _hold_release(self, name: str) -> None:
        endpoint = self._endpoint()
        weights = endpoint.spec.model_cache_config.weights_cache
        if endpoint.deleting or weights is None or not weights.enabled:
            return
        self._hold_deletion(name)

    def _hold_deletion(self, name: str) -> None:
        cache = next(one for one in self.data_caches() if one.name == name)
        key = cache.status.key
        if key is None:
            return
        if any(pod.endpoint and pod.cache_key == key for pod in self.pods.values()):
            raise Broken(f"{name} goes while pods load it")
        deployment = self._deployment()
        if deployment is not None and not deployment.deleting and deployment.cache == name:
            raise Broken(f"{name} goes while the Deployment names it")
        if deployment is not None and not deployment.deleting and not deployment.rolled_out:
            raise Broken(f"{name} goes before the rollout is complete")

    # --- Carrying out ---

    def carry_out(self, action: Action) -> None:
        match action:
            case Apply():
                self._apply(action.manifest)
            case Delete():
                self._delete(action.kind, action.name)
            case Scale():
                self.replicas, self.rolled_out = action.replicas, False
            case SetRolling():
                assert self.deployment is not None
                self.deployment["spec"]["strategy"]["rollingUpdate"] = action.rolling
            case LabelNode():
                self._label(action)
            case SetStatus():
                self._set_status(action)
            case SetFinalizer():
                assert self.endpoint is not None
                self.endpoint["metadata"]["finalizers"] = [FINALIZER] if action.present else []
                if not action.present and "deletionTimestamp" in self.endpoint["metadata"]:
                    self._gone()
            case RecordListing():
                self._record(action.cache, drift=False)
            case RecordDrift():
                self._record(action.cache, drift=True)
            case Event():
                pass
        self.finished.append(action)

    def _apply(self, manifest: JsonObject) -> None:
        kind, name = manifest["kind"], manifest["metadata"]["name"]
        if kind == "Job":
            self.jobs.setdefault(name, (manifest, self._job(manifest)))
            return
        before = self.deployment if kind == "Deployment" else self.objects.get((kind, name))
        kept = before["metadata"] if before is not None else {"uid": self.uid(), "generation": 1}
        versions = {"uid": kept["uid"], "generation": kept["generation"], "resourceVersion": self.uid()}
        made = json.loads(json.dumps({**manifest, "metadata": {**manifest["metadata"], **versions}}))
        if before is not None and "status" in before:
            made["status"] = before["status"]
        if kind == "Deployment":
            self.deployment, self.rolled_out = made, False
        else:
            self.objects[kind, name] = made

    def _job(self, manifest: JsonObject) -> Job:
        metadata = manifest["metadata"]
        labels, annotations = metadata["labels"], metadata["annotations"]
        return Job(
            name=metadata["name"],
            namespace=metadata["namespace"],
            component=Component(labels[COMPONENT]),
            cache=labels[CACHE],
            key=labels.get(CACHE_KEY, ""),
            source=labels[SOURCE],
            node=annotations.get(NODE, ""),
            attempt=int(annotations[ATTEMPT]),
            retry=annotations[RETRY],
        )

    def _delete(self, kind: str, name: str) -> None:
        if kind == "Job":
            self.jobs.pop(name, None)
        elif kind == "Deployment":
            if self.deployment is not None:
                self.deployment["metadata"]["deletionTimestamp"] = self.time()
        else:
            gone = self.objects.pop((kind, name), None)
            uid = gone["metadata"]["uid"] if gone is not None else ""
            for (its_kind, its_name), one in list(self.objects.items()):
                owners = one["metadata"].get("ownerReferences", ())
                if any(owner["uid"] == uid for owner in owners):
                    self._delete(its_kind, its_name)

    def _label(self, action: LabelNode) -> None:
        node = self.nodes.get(action.node)
        if node is None or node.uid != action.uid:
            return
        labels = {name: value for name, value in node.labels.items() if name != action.label}
        if action.value is not None:
            labels[action.label] = action.value
        self.nodes[action.node] = replace(node, labels=labels)

    def _set_status(self, action: SetStatus) -> None:
        if action.kind == "InferenceEndpointConfig":
            assert self.endpoint is not None
            self.endpoint["status"] = action.status
            return
        one = self.objects.get((action.kind, action.name))
        # Another version: as the API server does it, refused.
        if one is not None and one["metadata"]["resourceVersion"] == action.resource_version:
            one["status"] = action.status
            one["metadata"]["resourceVersion"] = self.uid()

    def _record(self, name: str, *, drift: bool) -> None:
        cache = next(one for one in self.data_caches() if one.name == name)
        listing = self.listing(self.version)
        if drift or not fits(cache, listing):
            status = looked(cache, listing, self.now)
        else:
            parts = config_maps(self._endpoint(), cache, listing)
            for manifest in parts:
                self._apply(manifest)
            status = resolved(cache, listing, len(parts), self.now)
        one = self.objects["ModelDataCacheConfig", name]
        one["status"] = status
        one["metadata"]["resourceVersion"] = self.uid()

    def _gone(self) -> None:
        assert self.endpoint is not None
        uid = self.endpoint["metadata"]["uid"]
        self.endpoint = None
        for (kind, name), one in list(self.objects.items()):
            if any(owner["uid"] == uid for owner in one["metadata"].get("ownerReferences", ())):
                self._delete(kind, name)
        if self.deployment is not None:
            self.deployment["metadata"]["deletionTimestamp"] = self.time()

    def uid(self) -> str:
        self._uids += 1
        return str(self._uids)

    def time(self) -> str:
        return datetime.fromtimestamp(int(self.now), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")

    # --- What tests ask ---

    def condition(self, name: str) -> JsonObject | None:
        assert self.endpoint is not None
        conditions: list[JsonObject] = self.endpoint["status"].get("conditions", [])
        return next((one for one in conditions if one["type"] == name), None)

    def own(self, kind: str) -> list[JsonObject]:
        return [one for (of, _), one in sorted(self.objects.items()) if of == kind]

    def left(self) -> list[str]:
        """What there is of the operator: objects, files, labels."""
        labels = [name for node in self.nodes.values() for name in node.labels if "cache-ready" in name]
        files = [key for disk in self.disks.values() for key in disk.bytes]
        pods = [pod.name for pod in self.pods.values()]
        deployment = [] if self.deployment is None else [ENDPOINT]
        return [
            *(f"{kind}/{name}" for kind, name in self.objects),
            *self.jobs,
            *labels,
            *files,
            *pods,
            *deployment,
        ]
