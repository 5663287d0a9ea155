"""The cluster as far as the plan looks at it: local indices, kept by watches, and which endpoints a change is
about."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import Any, NamedTuple

from cacheprep.api import (
    Endpoint,
    InferenceEndpointConfig,
    JumpStartModel,
    ModelDataCacheConfig,
    ModelImageCache,
    NodeModelCache,
)
from cacheprep.api.model import Resource as OwnKind
from cacheprep.api.names import APPLIED, COMPONENT, ENDPOINT, MANAGER, WARM_SUFFIX
from cacheprep.controller import reading
from cacheprep.controller.index import Index
from cacheprep.controller.reading import JobPod, Owned, Placed
from cacheprep.objects import RESOURCES, Json
from cacheprep.plan.jobs import listing_name
from cacheprep.plan.observed import Deployment, Job, JobState, Node, Object, Observed, Pod
from cacheprep.plan.possession import SILENT_SECONDS
from extproc.pool.discovery.kubernetes import Listing


class Parent(NamedTuple):
    """An InferenceEndpointConfig or JumpStartModel."""

    kind: str
    namespace: str
    name: str


class World:
    """All that is followed.

    Args:
        changed: called with each endpoint that a change is about.
        heard: called after every change, whomever it is about.
        clock: Unix time, s.
    """

    def __init__(
        self, changed: Callable[[Parent], None], heard: Callable[[], None], clock: Callable[[], float]
    ) -> None:
        self._changed = changed
        self._heard = heard
        self._clock = clock
        self._agents_heard: dict[str, float] = {}
        """By node, as far as they have written since it is followed."""
        self._endpoints: dict[Parent, Endpoint] = {}
        self.lost_caches = False
        """Whether a cache has gone since this was last set to False."""
        for_all, in_namespace = self._about_all, self._about_namespace
        self.inference = self._index(InferenceEndpointConfig, self._about_endpoint)
        self.jump_start = self._index(JumpStartModel, self._about_endpoint)
        self.data_caches = self._index(ModelDataCacheConfig, self._about_cache)
        self.image_caches = self._index(ModelImageCache, self._about_cache)
        self.node_caches = self._index(NodeModelCache, self._about_node_cache)
        self.nodes: Index[Node] = Index(_listing("Node", reading.node), for_all)
        self.jobs: Index[Job] = Index(_listing("Job", reading.job, COMPONENT), self._about_job)
        self.deployments: Index[Owned] = Index(
            _listing("Deployment", reading.deployment, ENDPOINT), in_namespace
        )
        self.pods: Index[Placed] = Index(_listing("Pod", _placed(reading.pod), ENDPOINT), in_namespace)
        self.own_pods: Index[Placed] = Index(_listing("Pod", _own_pod, COMPONENT), in_namespace)
        selector = f"endpointslice.kubernetes.io/managed-by={MANAGER}"
        self.slices: Index[Placed] = Index(
            _listing("EndpointSlice", reading.endpoint_slice, selector), in_namespace
        )
        self.others: tuple[Index[Placed], ...] = tuple(
            Index(_listing(kind, reading.other(kind), label), in_namespace)
            for kind, label in (
                ("Service", ENDPOINT),
                ("ConfigMap", ENDPOINT),
                ("HorizontalPodAutoscaler", ENDPOINT),
                ("DaemonSet", COMPONENT),
            )
        )

    @property
    def indices(self) -> Iterator[Index[Any]]:
        """Everything to be followed."""
        yield from (self.inference, self.jump_start, self.data_caches, self.image_caches, self.node_caches)
        yield from (self.nodes, self.jobs, self.deployments, self.pods, self.own_pods, self.slices)
        yield from self.others

    @property
    def unknown(self) -> list[str]:
        """Plurals of what is not known yet. Before all is known nothing may be planned."""
        return [index.listing.resource.plural for index in self.indices if not index.synced]

    @property
    def parents(self) -> list[Parent]:
        """All endpoints."""
        return list(self._endpoints)

    @property
    def cache_uids(self) -> frozenset[str]:
        """uids of all caches."""
        caches = (*self.data_caches.values, *self.image_caches.values)
        return frozenset(cache.uid for cache in caches)

    def observed(self, parent: Parent, now: float) -> Observed | None:
        """What the plan for an endpoint looks at, at `now` (Unix time, s); None if it is not there."""
        endpoint = self._endpoints.get(parent)
        if endpoint is None:
            return None
        namespace = parent.namespace
        data_caches = tuple(one for one in self.data_caches.values if one.namespace == namespace)
        image_caches = tuple(one for one in self.image_caches.values if one.namespace == namespace)
        written = (_object(one) for one in (*data_caches, *image_caches))
        others = (one.what for index in self.others for one in index.values if one.namespace == namespace)
        objects: tuple[Object, ...] = (*written, *others)
        parts = {one.name for one in objects if one.kind == "ConfigMap"}
        pods = (one.what for one in self.pods.values if one.namespace == namespace)
        own_pods = [one.what for one in self.own_pods.values if one.namespace == namespace]
        warm = parent.name + WARM_SUFFIX
        in_namespace = (one.what for one in self.slices.values if one.namespace == namespace)
        return Observed(
            now=now,
            endpoint=endpoint,
            endpoints=tuple(one for of, one in self._endpoints.items() if of.namespace == namespace),
            nodes=self.nodes.values,
            node_caches={one.name: one for one in self.node_caches.values},
            data_caches=data_caches,
            image_caches=image_caches,
            jobs=self._jobs(namespace, (one for one in own_pods if isinstance(one, JobPod))),
            pods=(*pods, *(one for one in own_pods if isinstance(one, Pod))),
            deployment=self._deployment(endpoint),
            objects=objects,
            slices=tuple(one for service, one in in_namespace if service == warm),
            stored=frozenset(one.name for one in data_caches if _is_stored(one, parts)),
            heard=self._agents_heard,
        )

    def job_pods(self, namespace: str, job: str) -> tuple[JobPod, ...]:
        """The pods of a Job."""
        pods = (one.what for one in self.own_pods.values if one.namespace == namespace)
        return tuple(pod for pod in pods if isinstance(pod, JobPod) and pod.job == job)

    def data_cache(self, namespace: str, name: str) -> ModelDataCacheConfig | None:
        """The cache of a name."""
        found = (one for one in self.data_caches.values if (one.namespace, one.name) == (namespace, name))
        return next(found, None)

    def version(self, kind: str, namespace: str, name: str) -> str:
        """The resourceVersion in which an object of a kind of ours is in view; "" if it is not."""
        of_kind = (self.inference, self.jump_start, self.data_caches, self.image_caches)
        for index in of_kind:
            for one in index.values:
                if (one.kind, one.namespace, one.name) == (kind, namespace, name):
                    return str(one.metadata.resource_version)
        return ""

    def _jobs(self, namespace: str, pods: Iterable[JobPod]) -> tuple[Job, ...]:
        """All Jobs; those of the namespace with what their pods say."""
        of_job: defaultdict[str, list[JobPod]] = defaultdict(list)
        for pod in pods:
            of_job[pod.job].append(pod)
        return tuple(
            reading.with_words(job, of_job[job.name])
            if job.namespace == namespace and job.name in of_job
            else job
            for job in self.jobs.values
        )

    def _deployment(self, endpoint: Endpoint) -> Deployment | None:
        for one in self.deployments.values:
            if (one.namespace, one.name) == (endpoint.namespace, endpoint.name):
                return replace(one.deployment, ours=one.owner == endpoint.uid)
        return None

    def _index(self, kind: type[OwnKind], told: Callable[[Any, Any], None]) -> Index[Any]:
        return Index(_listing(kind.KIND, kind.read), told)

    def _about_endpoint(self, old: Endpoint | None, new: Endpoint | None) -> None:
        for one in (old, new):
            if one is not None:
                self._endpoints.pop(Parent(one.kind, one.namespace, one.name), None)
        if new is not None:
            parent = Parent(new.kind, new.namespace, new.name)
            self._endpoints[parent] = new
            self._changed(parent)
        # Endpoints of a namespace share images.
        self._about_namespace(old, new)

    def _about_namespace(self, old: Any, new: Any) -> None:
        if old is None and new is None:
            self._about_all(old, new)
            return
        namespaces = {one.namespace for one in (old, new) if one is not None}
        self._about(parent for parent in self._endpoints if parent.namespace in namespaces)

    def _about_cache(self, old: Any, new: Any) -> None:
        self.lost_caches |= old is not None and new is None
        self._about_namespace(old, new)

    def _about_job(self, old: Job | None, new: Job | None) -> None:
        ends = (
            old is not None and old.state is JobState.ACTIVE and (new is None or new.state is not old.state)
        )
        if ends:
            # A place at its source has become free.
            self._about_all(old, new)
        else:
            self._about_namespace(old, new)

    def _about_node_cache(self, old: NodeModelCache | None, new: NodeModelCache | None) -> None:
        back = old is not None and new is not None and self._hear(old, new)
        if new is None and old is not None:
            self._agents_heard.pop(old.name, None)
        if old is None or new is None or back or _life(old) != _life(new):
            self._about_all(old, new)
            return
        differs = set(old.status.caches) ^ set(new.status.caches)
        namespaces = {cache.namespace for cache in differs}
        self._about(parent for parent in self._endpoints if parent.namespace in namespaces)

    def _hear(self, old: NodeModelCache, new: NodeModelCache) -> bool:
        """An agent has written. Whether it may have been taken for silent.

        When it was heard goes by our own clock: that of a node need not agree with it. Of an agent that was
        not heard since we listen there is only what it says itself.
        """
        at, told = self._clock(), old.status.observed_at
        before = self._agents_heard.get(new.name, told.timestamp() if told is not None else at)
        self._agents_heard[new.name] = at
        return at - before >= SILENT_SECONDS

    def _about_all(self, _old: Any, _new: Any) -> None:
        self._about(self._endpoints)

    def _about(self, parents: Iterable[Parent]) -> None:
        for parent in list(parents):
            self._changed(parent)
        self._heard()


def _listing(kind: str, read: Callable[[Json], Any], selector: str = "") -> Listing[Any]:
    return Listing(RESOURCES[kind], "", read, selector=selector)


def _placed(read: Callable[[Json], Any]) -> Callable[[Json], Placed]:
    return lambda item: Placed(item["metadata"]["namespace"], read(item))


def _own_pod(item: Json) -> Placed:
    """A pod of a Job, or of a DaemonSet that keeps an image."""
    of_job = reading.job_pod(item)
    return Placed(item["metadata"]["namespace"], of_job if of_job.job else reading.pod(item))


def _object(cache: ModelDataCacheConfig | ModelImageCache) -> Object:
    return Object(
        kind=cache.kind,
        name=cache.name,
        uid=cache.uid,
        applied=cache.metadata.annotations.get(APPLIED, ""),
        endpoint=cache.metadata.labels.get(ENDPOINT, ""),
        deleting=cache.deleting,
    )


def _is_stored(cache: ModelDataCacheConfig, config_maps: set[str]) -> bool:
    count = cache.status.listing_parts
    return count > 0 and all(listing_name(cache.name, part) in config_maps for part in range(count))


def _life(said: NodeModelCache) -> object:
    status = said.status
    roots = tuple((root.path, root.usable, root.message) for root in status.roots)
    return status.node_uid, status.boot_id, roots
