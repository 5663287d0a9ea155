"""What InferenceEndpointConfig and JumpStartModel share: engine, scale, routing, caches, and their status."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field, WithJsonSchema

from cacheprep.api.conditions import Conditions
from cacheprep.api.model import Count, Duration, Key, Model, Name, Time, Uid, rule, rules
from cacheprep.api.names import DEFAULT_ROOT, OWN_PREFIX

MOST_CONTAINERS = 16
_CONTAINERS = {
    "type": "array",
    "maxItems": MOST_CONTAINERS,
    "items": {
        "type": "object",
        "required": ["name", "image"],
        "properties": {
            "name": {"type": "string", "minLength": 1, "maxLength": 63},
            "image": {"type": "string", "minLength": 1, "maxLength": 1024},
        },
        "x-kubernetes-preserve-unknown-fields": True,
    },
}
_POD_SPEC = {
    "type": "object",
    "required": ["containers"],
    "properties": {
        "containers": {**_CONTAINERS, "minItems": 1},
        "initContainers": _CONTAINERS,
        "nodeName": {"type": "string", "maxLength": 253},
    },
    "x-kubernetes-preserve-unknown-fields": True,
    **rules(
        rule(
            "!has(self.nodeName)",
            "leave nodeName out: it goes past the scheduler; pin pods by nodeSelector",
        ),
        rule(
            f"!self.containers.exists(c, c.name.startsWith('{OWN_PREFIX}'))"
            " && (!has(self.initContainers)"
            f" || !self.initContainers.exists(c, c.name.startsWith('{OWN_PREFIX}')))",
            f"rename the container: names that begin with {OWN_PREFIX} are the operator's",
        ),
    ),
}

PodSpec = Annotated[dict[str, Any], WithJsonSchema(_POD_SPEC)]
"""A PodSpec of Kubernetes; what is not looked at here is kept as it is, and checked when a pod is made."""

LabelValue = Annotated[str, Field(max_length=63)]
Gate = Annotated[
    Literal["all", "none"] | Annotated[int, Field(ge=1, le=5000)],
    WithJsonSchema(
        {
            "x-kubernetes-int-or-string": True,
            **rules(
                rule(
                    "type(self) == int ? self >= 1 && self <= 5000 : self in ['all', 'none']",
                    "must be all, none, or the number of nodes that must be ready, from 1 to 5000",
                )
            ),
        }
    ),
]
"""How many target nodes must be ready before pods exist."""


class TemplateMetadata(Model):
    """Labels and annotations of the pods."""

    labels: Annotated[dict[str, LabelValue], Field(max_length=64)] = Field(default_factory=dict)
    annotations: Annotated[dict[str, Annotated[str, Field(max_length=16384)]], Field(max_length=64)] = Field(
        default_factory=dict
    )


class PodTemplate(Model):
    """A pod template, as a Deployment has it."""

    metadata: TemplateMetadata = Field(default_factory=TemplateMetadata)
    spec: PodSpec
    """The pods. The operator adds the volume with the model, its mount in the engine's container, and the
    init container that has the model ready."""


class Engine(Model):
    """The server that loads the model."""

    model_config = ConfigDict(
        json_schema_extra=rules(
            rule(
                "!has(self.container) || self.template.spec.containers.exists(c, c.name == self.container)",
                "container must be the name of one of template.spec.containers",
            )
        )
    )

    template: PodTemplate
    container: Annotated[str, Field(min_length=1, max_length=63)] | None = None
    """The container that reads the model; default: the first."""
    model_path: Annotated[
        str,
        Field(
            max_length=255,
            json_schema_extra=rules(
                rule(
                    "self.startsWith('/') && size(self) > 1 && !self.contains(':')"
                    " && !self.split('/').exists(part, part == '..')",
                    "must be an absolute path other than /, without .. and colons",
                )
            ),
        ),
    ] = "/model"
    """Where the container finds the model's files, read-only, on warm nodes and cold ones alike."""
    port: Annotated[int, Field(ge=1, le=65535)] = 8000
    """Where the engine listens for HTTP; the port `http` of the Service."""


class HorizontalScaling(Model):
    """A HorizontalPodAutoscaler that the operator keeps beside the Deployment."""

    model_config = ConfigDict(
        json_schema_extra=rules(
            rule("self.minReplicas <= self.maxReplicas", "minReplicas must not be above maxReplicas")
        )
    )

    min_replicas: Annotated[int, Field(ge=1, le=5000)] = 1
    max_replicas: Annotated[int, Field(ge=1, le=5000)]
    metrics: Annotated[
        tuple[
            Annotated[
                dict[str, Any],
                WithJsonSchema({"type": "object", "x-kubernetes-preserve-unknown-fields": True}),
            ],
            ...,
        ],
        Field(max_length=16),
    ] = ()
    """As in autoscaling/v2; none: 80 % of the CPU that pods request."""


class External(Model):
    """Nothing more to say."""


class Autoscaling(Model):
    """Who sets the number of pods; the operator does not."""

    model_config = ConfigDict(
        json_schema_extra=rules(
            rule(
                "has(self.horizontalPodAutoscaler) != has(self.external)",
                "name one: horizontalPodAutoscaler, or external: {} if something else scales the Deployment",
            )
        )
    )

    horizontal_pod_autoscaler: HorizontalScaling | None = None
    external: External | None = None
    """Something else scales the Deployment: an autoscaler of yours, KEDA, people."""


class Strategy(StrEnum):
    """How the router picks an endpoint: `extproc.config.Strategy`."""

    RANDOM = "RANDOM"
    LEAST_OUTSTANDING_REQUESTS = "LEAST_OUTSTANDING_REQUESTS"
    PREFIX_AWARE = "PREFIX_AWARE"


PrefixLength = Annotated[
    Literal["auto"] | Annotated[int, Field(ge=1024, le=65536)],
    WithJsonSchema(
        {
            "x-kubernetes-int-or-string": True,
            **rules(
                rule(
                    "type(self) == int ? self >= 1024 && self <= 65536 : self == 'auto'",
                    "must be auto, or characters from 1024 to 65536",
                )
            ),
        }
    ),
]


class Routing(Model):
    """Settings of the router for these pods; it takes them up while it runs. docs/strategies.md."""

    strategy: Strategy | None = None
    """How an endpoint is picked."""
    prefix_length: PrefixLength | None = None
    """Characters of message text that make the prefix; auto: the whole prompt."""
    concurrency_threshold: Annotated[int, Field(ge=1, le=1024)] | None = None
    """In-flight requests at which an endpoint is full."""


HostPath = Annotated[
    str,
    Field(
        max_length=255,
        json_schema_extra=rules(
            rule(
                "self.startsWith('/') && size(self) > 1 && !self.endsWith('/')"
                " && !self.split('/').exists(part, part == '..' || part == '.') && !self.contains('//')",
                "must be an absolute path as /opt/dlami/nvme: without .. and without / at its end",
            )
        ),
    ),
]


class WeightsCache(Model):
    """The weights, on the disks of nodes."""

    enabled: bool
    """Have the weights on the nodes before the pods."""
    host_path: HostPath = DEFAULT_ROOT
    """One of the roots that the operator allows; what lies below is derived from namespace and cache key."""


class ImageCache(Model):
    """The images of the pods, on the nodes."""

    enabled: bool
    """Have the images on the nodes; pods do not wait for it."""


class ModelCacheConfig(Model):
    """What is kept on the nodes."""

    weights_cache: WeightsCache | None = None
    image_cache: ImageCache | None = None


class OnGateTimeout(StrEnum):
    """What happens when the gate was shut for too long."""

    OPEN = "open"
    """Pods start; on cold nodes they download by themselves."""
    WAIT = "wait"
    """Go on waiting."""


class Rollover(StrEnum):
    """What goes first when source or image change."""

    MAKE_BEFORE_BREAK = "makeBeforeBreak"
    """The new cache, then the new pods, then the old cache goes: needs room for both."""
    BREAK_BEFORE_MAKE = "breakBeforeMake"
    """Old pods stop and their cache goes, then comes the new one: where GPUs or disks hold one only."""


class Mount(StrEnum):
    """How pods reach the disks of nodes."""

    HOST_PATH = "hostPath"
    """By hostPath: the namespace must be of Pod Security level privileged."""
    PVC = "pvc"
    """By a PersistentVolumeClaim, whose volume is the namespace's directory on each node; for all levels."""


class OnDrift(StrEnum):
    """What happens when the source has changed."""

    REPORT = "report"
    """The condition SourceDrifted is true."""
    ROLL_OVER = "rollOver"
    """The condition, and a rollover to what the source has now."""


class Drift(Model):
    """Looking whether the source still has what was listed."""

    enabled: bool = True
    interval: Duration = "24h"
    """How long after one look the next one comes."""
    on_drift: OnDrift = OnDrift.REPORT


class CachePolicy(Model):
    """How caches come and go."""

    gate: Gate = "all"
    """How many target nodes must have the weights before the Deployment is made: all, none, or a number."""
    gate_timeout: Duration = "1h"
    """From when the source is listed."""
    on_gate_timeout: OnGateTimeout = OnGateTimeout.OPEN
    rollover: Rollover = Rollover.MAKE_BEFORE_BREAK
    mount: Mount = Mount.HOST_PATH
    claim_name: Name = "warmroute-cache"
    """With `mount: pvc`: the claim."""
    downloads_at_once: Annotated[int, Field(ge=1, le=1000)] | None = None
    """Nodes that read this source at once; default, and the most: what the operator is set to."""
    drift: Drift = Field(default_factory=Drift)
    cleanup_timeout: Duration = "15m"
    """After deletion, how long nodes may take to confirm that files are gone."""


class ServingSpec(Model):
    """Spec that InferenceEndpointConfig and JumpStartModel share."""

    model_config = ConfigDict(
        json_schema_extra=rules(
            rule(
                "!(has(self.replicas) && has(self.autoscaling))",
                "leave replicas out where autoscaling is set: the autoscaler sets the number of pods",
            )
        )
    )

    engine: Engine
    replicas: Annotated[int, Field(ge=0, le=5000)] | None = None
    """Pods; default 1. Not with `autoscaling`."""
    autoscaling: Autoscaling | None = None
    routing: Routing = Field(default_factory=Routing)
    model_cache_config: ModelCacheConfig = Field(default_factory=ModelCacheConfig)
    cache_policy: CachePolicy = Field(default_factory=CachePolicy)


class Phase(StrEnum):
    """Where an endpoint is, in one word."""

    PENDING = "Pending"
    CACHING = "Caching"
    DEPLOYING = "Deploying"
    SERVING = "Serving"
    ROLLING_OVER = "RollingOver"
    FAILED = "Failed"
    DELETING = "Deleting"


class ServingStatus(Model):
    """What has become of an endpoint."""

    observed_generation: int | None = Field(default=None, ge=0)
    phase: Phase = Phase.PENDING
    active_cache: Annotated[str, Field(max_length=253)] | None = None
    """The ModelDataCacheConfig that the Deployment's pods load."""
    next_cache: Annotated[str, Field(max_length=253)] | None = None
    """The one that takes its place."""
    cache_key: Key | None = None
    """Key of the active cache."""
    listing_requested: Annotated[str, Field(max_length=64)] | None = None
    """When drift asked for a new listing; part of the name of the cache that came of it."""
    gate_opened_at: Time | None = None
    """When pods were allowed; stays."""
    target: Count = 0
    """Nodes that are to have the weights."""
    ready: Count = 0
    """Of these, nodes that have them, verified."""
    replicas: Count = 0
    """Pods of the Deployment."""
    ready_replicas: Count = 0
    conditions: Conditions = ()


class EndpointRef(Model):
    """The InferenceEndpointConfig or JumpStartModel that something is for; of the same namespace."""

    kind: Literal["InferenceEndpointConfig", "JumpStartModel"]
    name: Name
    uid: Uid
