"""What the controller is to do. Each action says why, in words, for the log and for `cacheprep status`.

They are carried out in their order. Each may fail, or be carried out twice: the next plan goes by what is
then.
"""

from __future__ import annotations

from dataclasses import dataclass

from cacheprep.api.model import JsonObject


@dataclass(frozen=True, slots=True)
class Apply:
    """Server-side apply of a whole object. `manifest` has apiVersion, kind, metadata.name and namespace."""

    manifest: JsonObject
    why: str

    @property
    def kind(self) -> str:
        """The object's kind."""
        return str(self.manifest["kind"])

    @property
    def name(self) -> str:
        """Its name."""
        return str(self.manifest["metadata"]["name"])


@dataclass(frozen=True, slots=True)
class Delete:
    """Delete an object, and in the background what it owns; not there is good, too."""

    kind: str
    namespace: str
    name: str
    why: str


@dataclass(frozen=True, slots=True)
class Scale:
    """Set the replicas of a Deployment by its subresource `scale`; an apply never says them."""

    namespace: str
    name: str
    replicas: int
    why: str


@dataclass(frozen=True, slots=True)
class SetRolling:
    """Set how a Deployment rolls out, as its `rollingUpdate` has it, and leave its pod template as it is: an
    apply would write that, too, as this release makes it."""

    namespace: str
    name: str
    rolling: JsonObject
    why: str


@dataclass(frozen=True, slots=True)
class LabelNode:
    """Set a label of a node, or with `value` None remove it; only if the node has this uid still."""

    node: str
    uid: str
    label: str
    value: str | None
    why: str


@dataclass(frozen=True, slots=True)
class RecordListing:
    """Store what a resolve Job printed: `listings.config_maps` of it, then `listings.resolved` as status."""

    namespace: str
    job: str
    cache: str
    why: str


@dataclass(frozen=True, slots=True)
class RecordDrift:
    """Note what a drift Job printed: `drift.looked` of it as status of the cache."""

    namespace: str
    job: str
    cache: str
    why: str


@dataclass(frozen=True, slots=True)
class SetStatus:
    """Make the status of an object of the API so; by its subresource, whole.

    Only of this `resource_version`: a status that was made from what was seen before must not undo another.
    """

    kind: str
    namespace: str
    name: str
    resource_version: str
    status: JsonObject
    why: str


@dataclass(frozen=True, slots=True)
class SetFinalizer:
    """Put the operator's finalizer on an endpoint, or with `present` False take it away; others stay."""

    kind: str
    namespace: str
    name: str
    present: bool
    why: str


@dataclass(frozen=True, slots=True)
class Event:
    """Write an Event about the endpoint, once: a condition has changed."""

    kind: str
    namespace: str
    name: str
    uid: str
    warning: bool
    reason: str
    message: str
    why: str


Action = (
    Apply
    | Delete
    | Scale
    | SetRolling
    | LabelNode
    | RecordListing
    | RecordDrift
    | SetStatus
    | SetFinalizer
    | Event
)
