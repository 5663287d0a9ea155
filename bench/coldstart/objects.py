"""What the operator makes for a model, by its own rules (`cacheprep.plan`), as objects to apply.

The bench plays the operator: it decides which node is prepared and which is not. Where the operator itself
runs, a node that a pod may be put on does not stay unprepared.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from cacheprep.api import InferenceEndpointConfig, ModelDataCacheConfig, ModelImageCache
from cacheprep.api.names import API_VERSION, IMAGE_READY, WEIGHTS_READY
from cacheprep.listing import Listing
from cacheprep.plan import listings
from cacheprep.plan.actions import Apply
from cacheprep.plan.draft import Draft
from cacheprep.plan.identity import cache_name, image_cache_name
from cacheprep.plan.images import keep_images
from cacheprep.plan.jobs import fill_job
from cacheprep.plan.observed import Node, Observed
from cacheprep.plan.settings import Settings
from cacheprep.plan.versions import wanted_spec
from cacheprep.plan.workload import deployment

Json = dict[str, Any]

NAMESPACE = f"coldstart-{os.getpid()}"
"""Another one for each run: one that is deleted is not gone while the API server lacks any of its parts."""
OURS = "coldstart.bench/run"
"""Label of such namespaces."""
SECRET = "source"
ROOT = "/opt/dlami/nvme/coldstart"
"""On the workers' disks. Not the operator's root: its agents remove from there what no object asks for."""
MAY_RUN = "coldstart.bench/may-run"
"""Label of the node that the next pod is to be put on, as a node has that has just joined."""
ENGINE = "engine"
PORT = 8000


@dataclass(frozen=True)
class Source:
    """Where models are: a server that speaks S3, and the keys to it."""

    url: str
    region: str
    bucket: str
    access: str
    secret: str

    def credentials(self) -> dict[str, str]:
        """Variables of an environment."""
        return {"AWS_ACCESS_KEY_ID": self.access, "AWS_SECRET_ACCESS_KEY": self.secret}


@dataclass(frozen=True)
class Workload:
    """A model whose source is listed, with the image that serves it."""

    endpoint: InferenceEndpointConfig
    cache: ModelDataCacheConfig
    image: ModelImageCache
    listing: Listing
    settings: Settings

    @property
    def name(self) -> str:
        """Of the endpoint and its Deployment."""
        return self.endpoint.name

    def listed(self) -> list[Json]:
        """The ConfigMaps that every node fetches by."""
        return [_without_owner(one) for one in listings.config_maps(self.endpoint, self.cache, self.listing)]

    def fill(self, node: str) -> Json:
        """The Job that has the weights on a node."""
        return _without_owner(fill_job(self.endpoint, self.cache, _node(node), 1, self.settings))

    def pods(self) -> Json:
        """The Deployment, without pods yet."""
        made = _without_owner(deployment(self.endpoint, self.cache, [self.image], self.settings))
        made["spec"]["replicas"] = 0
        return made

    def labels(self) -> dict[str, str]:
        """Of a node that has both; pods prefer it."""
        return {WEIGHTS_READY + self.cache.uid: "true", IMAGE_READY + self.image.uid: "true"}


def keeper(workloads: Sequence[Workload], node: str) -> Json:
    """The DaemonSet that has the image of all workloads on a node; on that one only."""
    first = workloads[0]
    observed = Observed(
        now=time.time(),
        endpoint=first.endpoint,
        endpoints=tuple(one.endpoint for one in workloads),
        nodes=(_node(node),),
        image_caches=(first.image,),
    )
    draft = Draft(observed.now)
    keep_images(observed, first.settings, draft)
    (made,) = (one for one in draft.actions if isinstance(one, Apply) and one.kind == "DaemonSet")
    kept = _without_owner(made.manifest)
    pod = kept["spec"]["template"]["spec"]
    pod["affinity"] = {}
    pod["nodeSelector"] = {"kubernetes.io/hostname": node}
    return kept


def base(source: Source) -> list[Json]:
    """The namespace, and the Secret with the keys to the source."""
    labels = {"pod-security.kubernetes.io/enforce": "privileged", OURS: "true"}
    return [
        {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE, "labels": labels}},
        {
            "apiVersion": "v1",
            "kind": "Secret",
            "metadata": {"name": SECRET, "namespace": NAMESPACE},
            "stringData": source.credentials(),
        },
    ]


def workload(name: str, image: str, source: Source, listing: Listing, settings: Settings) -> Workload:
    """The workload of a model at `s3://bucket/NAME/`, whose pods run `image`."""
    endpoint = InferenceEndpointConfig.read(
        {
            "apiVersion": API_VERSION,
            "kind": "InferenceEndpointConfig",
            "metadata": {"name": name, "namespace": NAMESPACE, "uid": f"coldstart-{name}"},
            "spec": {
                "modelSource": {
                    "s3": {
                        "uri": uri(source, name),
                        "endpointUrl": source.url,
                        "region": source.region,
                        "credentialsSecretRef": {"name": SECRET},
                    }
                },
                "engine": {"template": {"spec": _pod(image)}, "port": PORT},
                "autoscaling": {"external": {}},
                "modelCacheConfig": {
                    "weightsCache": {"enabled": True, "hostPath": ROOT},
                    "imageCache": {"enabled": True},
                },
            },
        }
    )
    spec = wanted_spec(endpoint)
    assert spec is not None
    named = {"name": cache_name(endpoint, spec), "namespace": NAMESPACE, "uid": f"coldstart-weights-{name}"}
    cache = ModelDataCacheConfig.read(
        {
            "apiVersion": API_VERSION,
            "kind": ModelDataCacheConfig.KIND,
            "metadata": named,
            "spec": spec.write(),
        }
    )
    parts = len(listings.config_maps(endpoint, cache, listing))
    status = listings.resolved(cache, listing, parts, time.time())
    kept = {"name": image_cache_name(image), "namespace": NAMESPACE, "uid": "coldstart-image"}
    return Workload(
        endpoint,
        ModelDataCacheConfig.read({**cache.write(), "status": status}),
        ModelImageCache.read(
            {
                "apiVersion": API_VERSION,
                "kind": ModelImageCache.KIND,
                "metadata": kept,
                "spec": {"image": image},
            }
        ),
        listing,
        settings,
    )


def uri(source: Source, name: str) -> str:
    """Where the model of this name is."""
    return f"s3://{source.bucket}/{name}/"


def _pod(image: str) -> Json:
    return {
        "nodeSelector": {MAY_RUN: "true"},
        "tolerations": [{"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}],
        "automountServiceAccountToken": False,
        "terminationGracePeriodSeconds": 5,
        "containers": [
            {
                "name": ENGINE,
                "image": image,
                "args": ["/model", "--host", "0.0.0.0", "--port", str(PORT)],
                "ports": [{"name": "http", "containerPort": PORT}],
                "readinessProbe": {"httpGet": {"path": "/health", "port": "http"}, "periodSeconds": 1},
            }
        ],
    }


def _node(name: str) -> Node:
    return Node(name=name, uid=name, boot_id="", labels={MAY_RUN: "true"})


def _without_owner(made: Json) -> Json:
    """An object whose owner is nowhere would be removed at once."""
    metadata = {key: value for key, value in made["metadata"].items() if key != "ownerReferences"}
    return {**made, "metadata": metadata}
