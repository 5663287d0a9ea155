"""ModelDataCacheConfig, ModelImageCache and NodeModelCache: what the operator writes, and people read."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, ClassVar, Literal

from pydantic import ConfigDict, Field

from cacheprep.api.conditions import Conditions
from cacheprep.api.model import Bytes, Count, Key, Message, Model, Name, Resource, Time, Uid, rule, rules
from cacheprep.api.serving import EndpointRef, HostPath, Mount
from cacheprep.api.sources import CacheSource
from cacheprep.listing import Verification
from cacheprep.store.layout import State as StoreState

MOST_NOT_READY = 50
"""Nodes that a status names; more are counted only."""
MOST_CACHES_OF_A_NODE = 512
MOST_ROOTS = 16
MOST_ENDPOINTS = 256
PROGRESS_SECONDS, PROGRESS_SHARE = 30.0, 0.05
"""Progress alone is written at most this often, and only when it is this much of the whole."""
HEARTBEAT_SECONDS = 300.0
"""How old `observedAt` of a NodeModelCache may become though nothing changes, as kubelet's node status."""


# --- ModelDataCacheConfig ---


class DataCacheState(StrEnum):
    """Where a weights cache is, in one word."""

    RESOLVING = "Resolving"
    """Its source is being listed."""
    FILLING = "Filling"
    """Nodes fetch it."""
    READY = "Ready"
    """All target nodes have it."""
    DEGRADED = "Degraded"
    """Some target node failed, and is tried again."""
    FAILED = "Failed"
    """The source cannot be listed as it is."""
    RELEASING = "Releasing"
    """Not wanted any more; pods may still use it."""


class DataCacheSpec(Model):
    """A source, and where it is kept. Made by the operator, never changed: what changes is another cache."""

    model_config = ConfigDict(
        json_schema_extra=rules(
            rule(
                "self == oldSelf",
                "cannot change: change the object that endpointRef names, which makes another cache",
            )
        )
    )

    endpoint_ref: EndpointRef
    source: CacheSource
    host_path: HostPath
    mount: Mount = Mount.HOST_PATH
    claim_name: Name | None = None


class NodeProgress(Model):
    """A target node that has not got the weights."""

    node: Name
    state: StoreState
    reason: Annotated[str, Field(max_length=64)]
    """A reason of docs/model-cache.md."""
    message: Message = ""
    bytes_done: Bytes = 0
    bytes_per_second: Bytes | None = None
    eta_seconds: Count | None = None
    attempts: Count = 0
    next_attempt: Time | None = None


class DataCacheStatus(Model):
    """What has become of a weights cache."""

    observed_generation: int | None = Field(default=None, ge=0)
    state: DataCacheState = DataCacheState.RESOLVING
    key: Key | None = None
    """Of what the source held when it was listed."""
    revision: Annotated[str, Field(max_length=4096)] | None = None
    """The source's word for it: a commit."""
    verification: Verification | None = None
    total_bytes: Bytes | None = None
    files: Count | None = None
    listing_parts: Count = 0
    """ConfigMaps that hold the listing."""
    resolved_at: Time | None = None
    drift_checked_at: Time | None = None
    drifted_key: Key | None = None
    """What the source held at the last look, if that is something else."""
    target: Count = 0
    """Nodes that are to have it."""
    ready: Count = 0
    """Of these, nodes that have it, verified."""
    bytes_done: Bytes = 0
    """On all target nodes together; at most every 30 s and 5 %."""
    bytes_per_second: Bytes | None = None
    """Of all target nodes that fetch now; absent if none does."""
    eta_seconds: Count | None = None
    """From progressAt on, until all target nodes have it, at that rate."""
    progress_at: Time | None = None
    """When bytesDone and what follows from it were written."""
    started_at: Time | None = None
    finished_at: Time | None = None
    """When all target nodes had it for the first time."""
    not_ready: Annotated[tuple[NodeProgress, ...], Field(max_length=MOST_NOT_READY)] = ()
    """Target nodes that have not got it, those that failed first."""
    conditions: Conditions = ()


class ModelDataCacheConfig(Resource):
    """The weights of one endpoint on the disks of its target nodes."""

    KIND: ClassVar[str] = "ModelDataCacheConfig"
    PLURAL: ClassVar[str] = "modeldatacacheconfigs"

    kind: Literal["ModelDataCacheConfig"] = "ModelDataCacheConfig"
    spec: DataCacheSpec
    status: DataCacheStatus = Field(default_factory=DataCacheStatus)


# --- ModelImageCache ---


class ImageCachePhase(StrEnum):
    """Where an image cache is, in one word."""

    PULLING = "Pulling"
    CACHED = "Cached"
    DEGRADED = "Degraded"
    RELEASING = "Releasing"


class ImageCacheSpec(Model):
    """An image, and the endpoints of the namespace that share it."""

    model_config = ConfigDict(
        json_schema_extra=rules(
            rule("self.image == oldSelf.image", "image cannot change: it is another cache")
        )
    )

    image: Annotated[str, Field(min_length=1, max_length=1024)]
    """As pod templates write it."""
    endpoint_refs: Annotated[tuple[EndpointRef, ...], Field(max_length=MOST_ENDPOINTS)] = ()
    """Who wants it; it goes with the last."""


class ImageCacheStatus(Model):
    """What has become of an image cache."""

    observed_generation: int | None = Field(default=None, ge=0)
    phase: ImageCachePhase = ImageCachePhase.PULLING
    digest: Annotated[str, Field(max_length=80)] | None = None
    """sha256:..., as the nodes' runtimes say. An image under two names is one on a node's disk."""
    target: Count = 0
    cached: Count = 0
    conditions: Conditions = ()


class ModelImageCache(Resource):
    """An image that is kept on nodes, shared by the endpoints of a namespace that run it."""

    KIND: ClassVar[str] = "ModelImageCache"
    PLURAL: ClassVar[str] = "modelimagecaches"

    kind: Literal["ModelImageCache"] = "ModelImageCache"
    spec: ImageCacheSpec
    status: ImageCacheStatus = Field(default_factory=ImageCacheStatus)


# --- NodeModelCache ---


class RootStatus(Model):
    """A cache root of a node."""

    path: HostPath
    file_system: Annotated[str, Field(max_length=32)] | None = None
    """Its type, as xfs."""
    total_bytes: Bytes = 0
    available_bytes: Bytes = 0
    """As df says; what is being fetched is allocated already."""
    shared_with_system: bool = False
    """It lies on the disk of the system or of kubelet."""
    usable: bool
    reason: Annotated[str, Field(max_length=64)] | None = None
    """Why it is not usable."""
    message: Message = ""


class CacheOnNode(Model):
    """A cache on a node's disk."""

    namespace: Annotated[str, Field(max_length=63)]
    root: HostPath
    key: Key
    state: StoreState
    """`ready` is verified: every file was hashed, and none was touched since."""
    bytes_total: Bytes = 0
    bytes_done: Bytes = 0
    bytes_per_second: Bytes | None = None
    """As the process says that fetches it; absent if none does."""
    verified_at: Time | None = None
    """When every byte was read last."""
    in_use: bool = False
    """A pod of the node uses it."""
    message: Message = ""


class NodeCacheSpec(Model):
    """Nothing: what is wanted of a node follows from the other kinds."""


class NodeCacheStatus(Model):
    """What its agent found on a node. `nodeUid` and `bootId` say which life of the node it speaks of."""

    node_uid: Uid | None = None
    """metadata.uid of the Node."""
    boot_id: Annotated[str, Field(max_length=64)] | None = None
    """status.nodeInfo.bootID of the Node."""
    observed_at: Time | None = None
    """When the agent looked last."""
    agent_version: Annotated[str, Field(max_length=64)] | None = None
    roots: Annotated[tuple[RootStatus, ...], Field(max_length=MOST_ROOTS)] = ()
    caches: Annotated[tuple[CacheOnNode, ...], Field(max_length=MOST_CACHES_OF_A_NODE)] = ()
    conditions: Conditions = ()


class NodeModelCache(Resource):
    """What is on the disks of the node of the same name; written by the agent there, and nobody else."""

    KIND: ClassVar[str] = "NodeModelCache"
    PLURAL: ClassVar[str] = "nodemodelcaches"
    NAMESPACED: ClassVar[bool] = False

    kind: Literal["NodeModelCache"] = "NodeModelCache"
    spec: NodeCacheSpec = Field(default_factory=NodeCacheSpec)
    status: NodeCacheStatus = Field(default_factory=NodeCacheStatus)
