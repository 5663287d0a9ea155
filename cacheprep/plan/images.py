"""Images kept on nodes: one DaemonSet for each image and namespace, for all endpoints that run it.

A pod that runs the image keeps kubelet from removing it. What runs in it is a static program from the
operator's own image, so the target needs neither shell nor C library. It never gates: pods do not wait.

A tag may be moved, and an image may have several: what is on a node goes by digest. A node on which the tag
means another digest than on most has not got the image; one that keeps the digest under another tag has.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from cacheprep.api import Endpoint, ModelImageCache
from cacheprep.api.caches import ImageCachePhase, ImageCacheStatus
from cacheprep.api.conditions import ConditionType, Reason
from cacheprep.api.model import JsonObject
from cacheprep.api.names import API_VERSION, CACHE, COMPONENT, IMAGE_READY, READY
from cacheprep.plan.actions import Delete, LabelNode
from cacheprep.plan.conditions import Changes
from cacheprep.plan.draft import Draft
from cacheprep.plan.identity import image_cache_name, image_identity
from cacheprep.plan.jobs import UNPRIVILEGED, confined, owned_by
from cacheprep.plan.observed import Component, Node, Observed, Pod
from cacheprep.plan.settings import Settings
from cacheprep.plan.status import told, write_status
from cacheprep.plan.targets import ARCHITECTURE, node_terms, targets
from cacheprep.plan.workload import images

HOLD = "warmroute-hold"
"""The init container of the operator's own image."""
_HOLD = "/warmroute"
UNFIT = ("no match for platform", "exec format error")
"""What is said where an image is not made for a node: by containerd if none of an index fits, and by the
kernel if a program does not."""


def keeps_images(endpoint: Endpoint) -> bool:
    """Whether an endpoint is to have its images on nodes."""
    config = endpoint.spec.model_cache_config.image_cache
    return config is not None and config.enabled and not endpoint.deleting


def sharing(observed: Observed, image: str) -> list[Endpoint]:
    """Endpoints of the namespace that want an image, by name: their pods are to run it, or some still do."""
    wanted = image_identity(image)
    running = {
        pod.endpoint
        for pod in observed.pods
        if pod.endpoint and any(image_identity(one) == wanted for one in pod.images)
    }
    found = (
        endpoint
        for endpoint in observed.endpoints
        if keeps_images(endpoint)
        and (endpoint.name in running or wanted in map(image_identity, images(endpoint)))
    )
    return sorted(found, key=lambda endpoint: (endpoint.name, endpoint.kind))


def keep_images(observed: Observed, settings: Settings, draft: Draft) -> None:
    """Have the image caches of the endpoint, let go those that nobody of the namespace wants."""
    there = {cache.name: cache for cache in observed.image_caches}
    if keeps_images(observed.endpoint):
        for image in images(observed.endpoint):
            _keep(observed, image, there.pop(image_cache_name(image), None), settings, draft)
    for cache in there.values():
        if sharing(observed, cache.spec.image):
            _keep(observed, cache.spec.image, cache, settings, draft)
        else:
            _let_go(observed, cache, draft)


def target_nodes(observed: Observed) -> tuple[Node, ...]:
    """The nodes that are to have the caches of an endpoint, by name."""
    spec = observed.endpoint.spec.engine.template.spec
    return targets(spec, observed.nodes, unfit_architectures(observed))


def unfit_architectures(observed: Observed) -> frozenset[str]:
    """Architectures (`kubernetes.io/arch`) that an image of the endpoint is not made for, as far as nodes
    have said so: no pod will ever run there."""
    caches = {image_cache_name(image) for image in images(observed.endpoint)}
    nodes = (
        observed.node_named.get(pod.node)
        for pod in observed.pods
        if pod.cache in caches and _of_other_architecture(pod.problem)
    )
    return frozenset(node.labels[ARCHITECTURE] for node in nodes if node and ARCHITECTURE in node.labels)


def _of_other_architecture(problem: str) -> bool:
    return any(words in problem for words in UNFIT)


def _keep(
    observed: Observed, image: str, cache: ModelImageCache | None, settings: Settings, draft: Draft
) -> None:
    users = sharing(observed, image)
    name = image_cache_name(image)
    there = observed.object("ModelImageCache", name)
    manifest: JsonObject = {
        "apiVersion": API_VERSION,
        "kind": "ModelImageCache",
        "metadata": {"name": name, "namespace": observed.endpoint.namespace},
        "spec": {
            "image": image if cache is None else cache.spec.image,
            "endpointRefs": [{"kind": one.kind, "name": one.name, "uid": one.uid} for one in users],
        },
    }
    why = f"image of {', '.join(one.name for one in users)}"
    draft.apply(manifest, there.applied if there is not None else "", why)
    if cache is None or cache.deleting:
        return
    nodes = _targets(observed, users)
    there = observed.object("DaemonSet", name)
    draft.apply(
        _daemon_set(cache, users, settings),
        there.applied if there is not None else "",
        f"keeps {cache.spec.image} on {len(nodes)} nodes",
    )
    kept = _kept(observed, cache)
    for node in observed.nodes:
        _label(node, IMAGE_READY + cache.uid, node.name in kept.nodes, draft)
    _say(observed, cache, nodes, kept, draft)


def _let_go(observed: Observed, cache: ModelImageCache, draft: Draft) -> None:
    for node in observed.nodes:
        _label(node, IMAGE_READY + cache.uid, False, draft)
    why = "no endpoint of the namespace wants the image"
    daemon_set = observed.object("DaemonSet", cache.name)
    if daemon_set is not None and not daemon_set.deleting:
        draft.add(Delete("DaemonSet", cache.namespace, cache.name, why))
    if not cache.deleting and daemon_set is None and not _labelled(observed, IMAGE_READY + cache.uid):
        draft.add(Delete("ModelImageCache", cache.namespace, cache.name, why))


def _labelled(observed: Observed, label: str) -> bool:
    return any(label in node.labels for node in observed.nodes)


def _targets(observed: Observed, users: Sequence[Endpoint]) -> list[Node]:
    found = {
        node.name: node
        for endpoint in users
        for node in targets(endpoint.spec.engine.template.spec, observed.nodes)
    }
    return [found[name] for name in sorted(found)]


class _Kept(NamedTuple):
    """Where an image is kept, by name of the node."""

    nodes: frozenset[str]
    digest: str | None
    """What most of these have; None while no runtime has said."""
    others: Mapping[str, str]
    """Nodes on which the tag means another digest, and which."""
    failing: Mapping[str, str]
    """Nodes that cannot pull it, and why."""


def _kept(observed: Observed, cache: ModelImageCache) -> _Kept:
    of_images = [pod for pod in observed.pods if pod.cache]
    holding = [pod for pod in of_images if pod.ready and not pod.terminating and _same_life(observed, pod)]
    mine = [pod for pod in holding if pod.cache == cache.name]
    wanted = _wanted(observed, cache, mine)
    # What a digest names cannot be another image, whichever of its digests the runtime says.
    differing = [pod for pod in mine if pod.pulled and pod.digest != wanted[_arch(observed, pod)]]
    others = {} if "@" in cache.spec.image else {pod.node: pod.digest for pod in differing}
    same = {pod.node for pod in holding if pod.digest and pod.digest == wanted.get(_arch(observed, pod))}
    nodes = ({pod.node for pod in mine} | same) - others.keys()
    found = Counter(wanted[_arch(observed, pod)] for pod in mine if pod.node in nodes and pod.digest)
    digest = max(found, key=lambda one: (found[one], one), default=None)
    failing = {pod.node: pod.problem for pod in of_images if pod.cache == cache.name and pod.problem}
    return _Kept(frozenset(nodes), digest, others, failing)


def _wanted(observed: Observed, cache: ModelImageCache, mine: Iterable[Pod]) -> Mapping[str, str]:
    """The digest that the image's name means, by architecture: where it is a tag, what most nodes have.

    Digests of a registry go first: the id of an image that was put on a node is none that others have.
    """
    of_architecture: defaultdict[str, list[Pod]] = defaultdict(list)
    for pod in mine:
        of_architecture[_arch(observed, pod)].append(pod)
    wanted = {}
    for architecture, pods in of_architecture.items():
        count = Counter((pod.pulled, pod.digest) for pod in pods)
        # Of as many, that which was said before.
        _, wanted[architecture] = max(
            count, key=lambda one: (one[0], count[one], one[1] == cache.status.digest, one[1])
        )
    return wanted


def _arch(observed: Observed, pod: Pod) -> str:
    node = observed.node_named.get(pod.node)
    return node.labels.get(ARCHITECTURE, "") if node is not None else ""


def _same_life(observed: Observed, pod: Pod) -> bool:
    """Whether a pod was made for the node that is there now, and not for one of the same name before it."""
    node = observed.node_named.get(pod.node)
    return node is not None and node.ready and pod.created >= node.created


def _label(node: Node, label: str, wanted: bool, draft: Draft) -> None:
    if wanted and node.labels.get(label) != READY:
        draft.add(LabelNode(node.name, node.uid, label, READY, "it keeps the image"))
    if not wanted and label in node.labels:
        draft.add(LabelNode(node.name, node.uid, label, None, "it does not keep the image for sure any more"))


def _say(
    observed: Observed,
    cache: ModelImageCache,
    nodes: Sequence[Node],
    kept: _Kept,
    draft: Draft,
) -> None:
    cached = sum(node.name in kept.nodes for node in nodes)
    said = f"{cached} of {len(nodes)} nodes keep it"
    if kept.failing:
        other = any(map(_of_other_architecture, kept.failing.values()))
        reason = Reason.ARCHITECTURE_MISMATCH if other else Reason.PULL_FAILED
        phase, said = ImageCachePhase.DEGRADED, f"{said}; {_by_node(kept.failing)}"
    elif kept.others:
        reason, phase = Reason.DIGEST_MISMATCH, ImageCachePhase.DEGRADED
        said = f"{said} as {kept.digest}; {_by_node(kept.others)}"
    elif cached < len(nodes):
        reason, phase = Reason.PULLING, ImageCachePhase.PULLING
    else:
        reason, phase = Reason.PULLED, ImageCachePhase.CACHED
    changes = Changes(cache.status.conditions, cache.metadata.generation, observed.now)
    changes.set(ConditionType.IMAGE_CACHED, cached == len(nodes), reason, said)
    status = ImageCacheStatus(
        observed_generation=cache.metadata.generation,
        phase=phase,
        digest=kept.digest or cache.status.digest,
        target=len(nodes),
        cached=cached,
        conditions=changes.conditions,
    )
    write_status(cache, status, said, draft)


def _by_node(said: Mapping[str, str]) -> str:
    return told((f"{node}: {said[node]}" for node in sorted(said)), separator="; ")


def _daemon_set(cache: ModelImageCache, users: Sequence[Endpoint], settings: Settings) -> JsonObject:
    specs = [endpoint.spec.engine.template.spec for endpoint in users]
    labels = {CACHE: cache.name, COMPONENT: Component.IMAGE.value}
    pod: JsonObject = {
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "terminationGracePeriodSeconds": 1,
        "imagePullSecrets": _union(specs, "imagePullSecrets"),
        "tolerations": _union(specs, "tolerations"),
        "volumes": [{"name": HOLD, "emptyDir": {}}],
        "initContainers": [
            {
                "name": HOLD,
                "image": settings.image,
                "command": ["/usr/local/bin/hold", "install", _HOLD],
                "volumeMounts": [{"name": HOLD, "mountPath": _HOLD}],
                "securityContext": confined(UNPRIVILEGED),
                "resources": _SMALL,
            }
        ],
        "containers": [
            {
                "name": "warmroute-image",
                "image": cache.spec.image,
                "command": [f"{_HOLD}/hold"],
                "volumeMounts": [{"name": HOLD, "mountPath": _HOLD, "readOnly": True}],
                "securityContext": confined(UNPRIVILEGED),
                "resources": _SMALL,
            }
        ],
    }
    accounts = [spec["serviceAccountName"] for spec in specs if spec.get("serviceAccountName")]
    if accounts:
        # It may have pull secrets of its own.
        pod["serviceAccountName"] = accounts[0]
    terms = [node_terms(spec) for spec in specs]
    if all(terms):
        either = [term for of_one in terms for term in of_one]
        required = {"nodeSelectorTerms": _unique(either)}
        pod["affinity"] = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": required}}
    return {
        "apiVersion": "apps/v1",
        "kind": "DaemonSet",
        "metadata": {
            "name": cache.name,
            "namespace": cache.namespace,
            "labels": labels,
            "ownerReferences": [owned_by(cache)],
        },
        "spec": {
            "selector": {"matchLabels": labels},
            "updateStrategy": {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": "10%"}},
            "template": {"metadata": {"labels": labels}, "spec": pod},
        },
    }


_SMALL: JsonObject = {"requests": {"cpu": "1m", "memory": "8Mi"}, "limits": {"memory": "32Mi"}}


def _union(specs: Iterable[JsonObject], field: str) -> list[Any]:
    return _unique([one for spec in specs for one in spec.get(field) or ()])


def _unique(several: Iterable[Any]) -> list[Any]:
    made: list[Any] = []
    for one in several:
        if one not in made:
            made.append(one)
    return made
