"""Conditions, their reasons, and what to do about each. Pure.

docs/model-cache.md has the reasons as a table, which is made from these lists.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Literal, Self

from pydantic import Field

from cacheprep.api.model import Message, Model, Time
from cacheprep.failures import Reason as FailureReason


class _Row(StrEnum):
    """A word, and what is to be said of it: a row of a table."""

    text: str

    def __new__(cls, word: str, text: str) -> Self:
        """A member from its row."""
        member = str.__new__(cls, word)
        member._value_ = word
        member.text = text
        return member


class ConditionType(_Row):
    """What a condition is about."""

    @property
    def about(self) -> str:
        """What True means."""
        return self.text

    RESOLVED = "Resolved", "The source was listed; every node fetches exactly that listing."
    CACHED = "Cached", "All target nodes have the weights, verified."
    IMAGE_CACHED = "ImageCached", "All target nodes keep the image."
    GATE_OPEN = "GateOpen", "The Deployment may exist. Once true, always true."
    AVAILABLE = "Available", "Pods serve."
    ROLLING_OVER = "RollingOver", "Another cache takes the place of the one in use."
    SOURCE_DRIFTED = "SourceDrifted", "The source has other content; Unknown: it could not be listed again."
    POD_SECURITY_FORBIDDEN = "PodSecurityForbidden", "The namespace's Pod Security level refuses the pods."
    FORBIDDEN = "Forbidden", "The operator lacks a right."
    CLEANED_UP = "CleanedUp", "Files, labels and objects of what was deleted are gone."


class Reason(_Row):
    """Why a condition is as it is."""

    @property
    def remedy(self) -> str:
        """What to do, in one line."""
        return self.text

    @property
    def nothing_to_do(self) -> bool:
        """Whether nobody has to do anything about it."""
        return self.remedy == "Nothing." or self.remedy.startswith("Nothing:")

    # Of the source.
    RESOLVING = "Resolving", "Nothing: a Job lists the source."
    SOURCE_LISTED = "SourceListed", "Nothing."
    SOURCE_UNCHANGED = "SourceUnchanged", "Nothing."
    SOURCE_CHANGED = (
        "SourceChanged",
        "Nothing with `onDrift: rollOver`; else set that, or name what the source has now.",
    )

    # Of filling, as in `cacheprep.failures`.
    INVALID_REQUEST = "InvalidRequest", "Correct the field that the message names."
    ACCESS_DENIED = (
        "AccessDenied",
        "Give the ServiceAccount or Secret that the message names the right to read.",
    )
    SOURCE_UNAVAILABLE = (
        "SourceUnavailable",
        "Nothing if it comes back; else see that the nodes reach the source.",
    )
    INTEGRITY_MISMATCH = "IntegrityMismatch", "Nothing if the next try is good; else upload the file anew."
    INSUFFICIENT_CAPACITY = (
        "InsufficientCapacity",
        "Delete a model, take larger disks, or `rollover: breakBeforeMake` if two versions do not fit.",
    )
    CANCELED = "Canceled", "Nothing: it is tried again."
    JOB_PENDING = (
        "JobPending",
        "Mend what the message names: a Secret or an image that lacks, or why no pod can be put on the node.",
    )
    DEFECT = "Defect", "Read the log of the Job that the message names, and report it."

    # Of nodes.
    FILLING = "Filling", "Nothing: `kubectl get modeldatacacheconfig -o wide` shows how far it is."
    ALL_NODES_READY = "AllNodesReady", "Nothing."
    NO_TARGET_NODES = (
        "NoTargetNodes",
        "Nothing if the pool scales from zero; else see selector, taints and architecture.",
    )
    NODES_FAILED = "NodesFailed", "Read the reason of each node in `status.notReady`."
    AGENT_MISSING = (
        "AgentMissing",
        "See why the DaemonSet of the agent has no pod on the nodes in the message.",
    )
    AGENT_SILENT = (
        "AgentSilent",
        "See the log of the agent's pod on the node: what is on its disk is not known any more.",
    )
    HOST_PATH_NOT_ALLOWED = (
        "HostPathNotAllowed",
        "Take one of the roots in the message, or have the operator allow this one.",
    )

    # Of the gate and the Deployment.
    WAITING_FOR_NODES = (
        "WaitingForNodes",
        "Nothing: it opens when enough nodes are ready, or as `onGateTimeout` says.",
    )
    ENOUGH_NODES_READY = "EnoughNodesReady", "Nothing."
    GATE_TIMED_OUT = (
        "GateTimedOut",
        "Pods on cold nodes download by themselves; read why nodes are not ready.",
    )
    NOT_GATED = "NotGated", "Nothing: `gate: none`, or there is no weights cache."
    ROLLING_OUT = "RollingOut", "Nothing: see `kubectl rollout status deployment`."
    SERVING = "Serving", "Nothing."
    NOT_SERVING = "NotServing", "Look at the pods: `kubectl describe pod -l warmroute.dev/endpoint=NAME`."
    NAME_TAKEN = "NameTaken", "Rename this object, or delete the object that the message names."

    # Of a rollover.
    FILLING_NEXT = "FillingNext", "Nothing: pods run on from the old cache until the new one is there."
    MAKING_ROOM = "MakingRoom", "Nothing: `rollover: breakBeforeMake` stops the old pods first."
    COMPLETE = "Complete", "Nothing."

    # Of images.
    PULLING = "Pulling", "Nothing: kubelet pulls one image after the other."
    PULLED = "Pulled", "Nothing."
    PULL_FAILED = "PullFailed", "See the image's name and the pull secrets of the pod template."
    DIGEST_MISMATCH = (
        "DigestMismatch",
        "Name the image by its digest, or by a tag that is not moved: nodes have different images.",
    )
    ARCHITECTURE_MISMATCH = (
        "ArchitectureMismatch",
        "Set `nodeSelector: {kubernetes.io/arch: ...}`, or build the image for it.",
    )

    # Of rights.
    POD_SECURITY = (
        "PodSecurity",
        "Label the namespace `pod-security.kubernetes.io/enforce: privileged`, or take `mount: pvc`.",
    )
    RIGHT_MISSING = (
        "RightMissing",
        "Apply manifests/operator again: the message names the verb and the resource.",
    )

    # Of the end.
    WAITING_FOR_PODS = "WaitingForPods", "Nothing: files in use stay until the pods have stopped."
    REMOVING = "Removing", "Nothing: agents delete the files."
    CLEANUP_TIMED_OUT = "CleanupTimedOut", "On the nodes in the message: `cacheprep rm KEY --to ROOT`."


def reason_of(failure: FailureReason | None) -> Reason:
    """The reason of a condition for that of a failure; None: something ended in a way that has none."""
    return Reason.DEFECT if failure is None else Reason[failure.name]


def reason_named(word: str) -> Reason:
    """The reason of a word; `Defect` for one that another release has."""
    return next((reason for reason in Reason if reason.value == word), Reason.DEFECT)


Status = Literal["True", "False", "Unknown"]


class Condition(Model):
    """metav1.Condition."""

    type: Annotated[str, Field(max_length=64)]
    status: Status
    reason: Annotated[str, Field(min_length=1, max_length=64)]
    message: Message = ""
    observed_generation: int | None = Field(default=None, ge=0)
    last_transition_time: Time


Conditions = Annotated[
    tuple[Condition, ...],
    Field(
        max_length=16,
        json_schema_extra={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["type"]},
    ),
]
