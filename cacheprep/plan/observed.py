"""What the controller sees of a cluster, as far as rules look at it. Times are seconds since the epoch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cached_property

from cacheprep.api import Endpoint, ModelDataCacheConfig, ModelImageCache, NodeModelCache
from cacheprep.failures import Reason as FailureReason


class Component(StrEnum):
    """What an object of the operator is for: the value of the label `COMPONENT`."""

    RESOLVE = "resolve"
    """A Job that lists a source."""
    DRIFT = "drift"
    """A Job that lists it again."""
    FILL = "fill"
    """A Job that fetches to one node."""
    IMAGE = "image"
    """A DaemonSet that keeps an image on nodes."""
    LISTING = "listing"
    """ConfigMaps with a listing."""


@dataclass(frozen=True, slots=True)
class Taint:
    """A taint of a node."""

    key: str
    effect: str
    value: str = ""


@dataclass(frozen=True, slots=True)
class Node:
    """A node. `ready` is its condition Ready, which is so since `ready_since`; `created`
    metadata.creationTimestamp."""

    name: str
    uid: str
    boot_id: str
    labels: Mapping[str, str] = field(default_factory=dict)
    taints: tuple[Taint, ...] = ()
    ready: bool = True
    unschedulable: bool = False
    deleting: bool = False
    created: float = 0.0
    ready_since: float = 0.0


class JobState(StrEnum):
    """Where a Job is."""

    ACTIVE = "active"
    SUCCEEDED = "succeeded"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class Job:
    """A Job of the operator.

    Everything but its state is read from its labels and annotations. `failure` is the reason whose exit code
    its pod ended with (`failures.Reason`), None for any other code; `finished` when it ended. `message` is
    what its pod said last, or else Kubernetes of the Job. `waiting` is why its pod cannot start, as
    `ErrImagePull: ...`; "" if it can.
    """

    name: str
    namespace: str
    component: Component
    cache: str
    state: JobState = JobState.ACTIVE
    key: str = ""
    source: str = ""
    node: str = ""
    attempt: int = 1
    retry: str = ""
    finished: float | None = None
    failure: FailureReason | None = None
    message: str = ""
    waiting: str = ""
    deleting: bool = False


@dataclass(frozen=True, slots=True)
class Pod:
    """A pod of an endpoint, or of a DaemonSet that keeps an image.

    `ips` are its addresses, `node` is "" until it is scheduled. `cache_key` is the annotation, `images` what
    its containers were told to run; `digest` that of the first as the runtime says, and `problem` what a
    container waits for that fails, as `ErrImagePull: ...`. `pulled`: the digest is one of a registry, the
    same on all nodes; else the image was put on the node otherwise, and it is the id that it has there.
    """

    name: str
    uid: str
    endpoint: str = ""
    cache: str = ""
    node: str = ""
    ips: tuple[str, ...] = ()
    ready: bool = False
    terminating: bool = False
    cache_key: str = ""
    images: tuple[str, ...] = ()
    digest: str = ""
    pulled: bool = False
    problem: str = ""
    created: float = 0.0


@dataclass(frozen=True, slots=True)
class Deployment:
    """The Deployment of the endpoint's name.

    `ours`: it is owned by the endpoint. `cache`, `cache_key` and `template` are the annotations that its pod
    template has, `workload` its own. `rolled_out`: the newest template is observed, and all pods are of it,
    available, and as many as wanted. `rolling` is its strategy's maxSurge and maxUnavailable.
    """

    uid: str
    ours: bool
    cache: str = ""
    cache_key: str = ""
    workload: str = ""
    applied: str = ""
    replicas: int = 1
    ready_replicas: int = 0
    rolled_out: bool = False
    rolling: tuple[str, str] = ("", "")
    deleting: bool = False


@dataclass(frozen=True, slots=True)
class SliceEndpoint:
    """An endpoint of an EndpointSlice of ours; `ready` is `serving` as well."""

    address: str
    pod: str
    pod_uid: str
    node: str
    zone: str
    ready: bool
    terminating: bool


@dataclass(frozen=True, slots=True)
class Slice:
    """An EndpointSlice of ours; `family` is IPv4 or IPv6, `port` that of the engine."""

    name: str
    family: str
    port: int
    endpoints: tuple[SliceEndpoint, ...]


@dataclass(frozen=True, slots=True)
class Object:
    """Any other object of ours in the namespace: `applied` is its annotation."""

    kind: str
    name: str
    uid: str = ""
    applied: str = ""
    endpoint: str = ""
    cache: str = ""
    deleting: bool = False


@dataclass(frozen=True)
class Observed:
    """All that the plan for one endpoint looks at.

    `endpoints` are all of the namespace, this one too; `data_caches`, `image_caches` and `objects` those of
    the namespace. `jobs` are the operator's of all namespaces, since sources are shared. `pods` are those of
    the namespace's endpoints and of the DaemonSets of its image caches. `slices` are those of the endpoint's
    `-warm` Service. `stored` names the data caches of which all ConfigMaps with the listing are there.
    `heard` is when the agent of a node was heard last, by the clock of who observes; of a node that is not in
    it, only what its agent says itself is known. `foreign` are names, of those that an endpoint takes, of
    objects that are somebody else's, as `Service/llama`.
    """

    now: float
    endpoint: Endpoint
    endpoints: tuple[Endpoint, ...] = ()
    nodes: tuple[Node, ...] = ()
    node_caches: Mapping[str, NodeModelCache] = field(default_factory=dict)
    data_caches: tuple[ModelDataCacheConfig, ...] = ()
    image_caches: tuple[ModelImageCache, ...] = ()
    jobs: tuple[Job, ...] = ()
    pods: tuple[Pod, ...] = ()
    deployment: Deployment | None = None
    objects: tuple[Object, ...] = ()
    slices: tuple[Slice, ...] = ()
    stored: frozenset[str] = frozenset()
    heard: Mapping[str, float] = field(default_factory=dict)
    foreign: frozenset[str] = frozenset()

    @cached_property
    def own_caches(self) -> Mapping[str, ModelDataCacheConfig]:
        """Weights caches of the endpoint, by name."""
        uid = self.endpoint.uid
        return {one.name: one for one in self.data_caches if one.spec.endpoint_ref.uid == uid}

    @cached_property
    def node_named(self) -> Mapping[str, Node]:
        """Nodes by name."""
        return {node.name: node for node in self.nodes}

    @cached_property
    def own_pods(self) -> tuple[Pod, ...]:
        """Pods of the endpoint."""
        return tuple(pod for pod in self.pods if pod.endpoint == self.endpoint.name)

    def object(self, kind: str, name: str) -> Object | None:
        """The object of ours of that kind and name."""
        return self._objects.get((kind, name))

    @cached_property
    def _objects(self) -> Mapping[tuple[str, str], Object]:
        return {(one.kind, one.name): one for one in self.objects}
