"""Objects of Kubernetes as JSON, cut down to what the plan looks at. Pure.

What a rule does not look at is left out, so that changes of it wake nobody: a node's heartbeat, the counters
of a Job.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any, NamedTuple

from cacheprep.api.names import (
    APPLIED,
    ATTEMPT,
    CACHE,
    CACHE_KEY,
    COMPONENT,
    ENDPOINT,
    NODE,
    RETRY,
    SOURCE,
    WORKLOAD,
)
from cacheprep.failures import Reason
from cacheprep.objects import Json
from cacheprep.plan.images import HOLD, UNFIT
from cacheprep.plan.observed import (
    Component,
    Deployment,
    Job,
    JobState,
    Node,
    Object,
    Pod,
    Slice,
    SliceEndpoint,
    Taint,
)

_EXIT_CODE = re.compile(r"failed with exit code ([0-9]+)")
"""In the message of a Job that its podFailurePolicy ended: kubernetes, pkg/controller/job,
pod_failure_policy.go."""
_REASONS = {str(reason.exit_code): reason for reason in Reason}


class Owned(NamedTuple):
    """A Deployment, and who owns it."""

    namespace: str
    name: str
    owner: str
    """uid of the controlling owner; "" if there is none."""
    deployment: Deployment


class JobPod(NamedTuple):
    """A pod of a Job of ours."""

    namespace: str
    name: str
    job: str
    succeeded: bool
    said: str
    """What its container said last, or how it ended if it said nothing; "" before that."""
    created: float
    waiting: str = ""
    """Why it cannot start, as `CreateContainerConfigError: ...`; "" if it can."""


class Placed(NamedTuple):
    """Something in a namespace."""

    namespace: str
    what: Any


def node(item: Json) -> Node:
    """A Node."""
    metadata, spec, status = item["metadata"], item.get("spec") or {}, item.get("status") or {}
    ready = _condition(status, "Ready")
    return Node(
        name=metadata["name"],
        uid=metadata["uid"],
        boot_id=(status.get("nodeInfo") or {}).get("bootID") or "",
        labels=metadata.get("labels") or {},
        taints=tuple(
            Taint(taint["key"], taint["effect"], taint.get("value") or "")
            for taint in spec.get("taints") or ()
        ),
        ready=ready is not None,
        ready_since=_time((ready or {}).get("lastTransitionTime")) or 0.0,
        unschedulable=bool(spec.get("unschedulable")),
        deleting=_deleting(item),
        created=_time(metadata.get("creationTimestamp")) or 0.0,
    )


def job(item: Json) -> Job:
    """A Job of ours. Raises ValueError or KeyError if its labels are not those of one."""
    metadata, status = item["metadata"], item.get("status") or {}
    labels, annotations = metadata["labels"], metadata.get("annotations") or {}
    failed, complete = _condition(status, "Failed"), _condition(status, "Complete")
    state = JobState.FAILED if failed else JobState.SUCCEEDED if complete else JobState.ACTIVE
    message = str((failed or {}).get("message") or "")
    code = _EXIT_CODE.search(message)
    ended = failed or complete
    return Job(
        name=metadata["name"],
        namespace=metadata["namespace"],
        component=Component(labels[COMPONENT]),
        cache=labels[CACHE],
        state=state,
        key=labels.get(CACHE_KEY) or "",
        source=labels.get(SOURCE) or "",
        node=annotations.get(NODE) or "",
        attempt=int(annotations.get(ATTEMPT) or 1),
        retry=annotations.get(RETRY) or "",
        finished=_time(status.get("completionTime") or ended.get("lastTransitionTime")) if ended else None,
        failure=_REASONS.get(code[1]) if code else None,
        message=message,
        deleting=_deleting(item),
    )


def job_pod(item: Json) -> JobPod:
    """A pod of a Job of ours; `job` is "" for one of a DaemonSet."""
    metadata, status = item["metadata"], item.get("status") or {}
    owner = _owner(item)
    ended = [
        state["terminated"]
        for container in status.get("containerStatuses") or ()
        if (state := container.get("state") or {}).get("terminated")
    ]
    return JobPod(
        namespace=metadata["namespace"],
        name=metadata["name"],
        job=owner["name"] if owner.get("kind") == "Job" else "",
        succeeded=status.get("phase") == "Succeeded",
        said=_last_words(ended[0]) if ended else "",
        created=_time(metadata.get("creationTimestamp")) or 0.0,
        waiting=_hindrance(status),
    )


def with_words(job: Job, pods: Iterable[JobPod]) -> Job:
    """A Job as it is told together with its pods: why it failed, or why it does not start.

    Args:
        job: as Kubernetes has it, whose own message names no more than an exit code.
        pods: of the Job, in any order; the newest one that said something counts.
    """
    newest = sorted(pods, key=lambda pod: pod.created, reverse=True)
    if job.state is JobState.ACTIVE:
        return replace(job, waiting=newest[0].waiting) if newest else job
    said = next((pod.said for pod in newest if pod.said), "")
    if job.state is not JobState.FAILED or not said:
        return job
    word = f"{job.failure}: " if job.failure is not None else ""
    return replace(job, message=f"Job {job.name}: {said.removeprefix(word)}")


def pod(item: Json) -> Pod:
    """A pod of an endpoint, or of a DaemonSet that keeps an image."""
    metadata, spec, status = item["metadata"], item.get("spec") or {}, item.get("status") or {}
    labels, annotations = metadata.get("labels") or {}, metadata.get("annotations") or {}
    containers: Sequence[Json] = status.get("containerStatuses") or ()
    return Pod(
        name=metadata["name"],
        uid=metadata["uid"],
        endpoint=labels.get(ENDPOINT) or "",
        cache=labels.get(CACHE) or "",
        node=spec.get("nodeName") or "",
        ips=tuple(one["ip"] for one in status.get("podIPs") or ()),
        ready=_is_true(status, "Ready"),
        terminating=_deleting(item),
        cache_key=annotations.get(CACHE_KEY) or "",
        images=tuple(one["image"] for one in spec.get("containers") or ()),
        digest=_digest(containers),
        pulled="@sha256:" in _image_id(containers),
        problem=_problem([*(status.get("initContainerStatuses") or ()), *containers]),
        created=_time(metadata.get("creationTimestamp")) or 0.0,
    )


def deployment(item: Json) -> Owned:
    """A Deployment that bears the label of an endpoint; `ours` is left to who knows the endpoint's uid."""
    metadata, spec, status = item["metadata"], item["spec"], item.get("status") or {}
    annotations = metadata.get("annotations") or {}
    template = spec["template"]["metadata"].get("annotations") or {}
    rolling = (spec.get("strategy") or {}).get("rollingUpdate") or {}
    replicas = 1 if spec.get("replicas") is None else int(spec["replicas"])
    count = {
        name: int(status.get(name) or 0) for name in ("replicas", "updatedReplicas", "availableReplicas")
    }
    observed = int(status.get("observedGeneration") or 0) >= int(metadata.get("generation") or 0)
    said = Deployment(
        uid=metadata["uid"],
        ours=True,
        cache=template.get(CACHE) or "",
        cache_key=template.get(CACHE_KEY) or "",
        workload=annotations.get(WORKLOAD) or "",
        applied=annotations.get(APPLIED) or "",
        replicas=replicas,
        ready_replicas=int(status.get("readyReplicas") or 0),
        rolled_out=observed and all(counted == replicas for counted in count.values()),
        rolling=(str(rolling.get("maxSurge", "")), str(rolling.get("maxUnavailable", ""))),
        deleting=_deleting(item),
    )
    return Owned(metadata["namespace"], metadata["name"], _owner(item).get("uid") or "", said)


def own_image(item: Json) -> str:
    """The operator's image that a DaemonSet of ours runs; "" if it is not one."""
    containers = item["spec"]["template"]["spec"].get("initContainers") or ()
    return next((str(one["image"]) for one in containers if one["name"] == HOLD), "")


def endpoint_slice(item: Json) -> Placed:
    """An EndpointSlice of ours, with the Service that it is of."""
    metadata = item["metadata"]
    ports = item.get("ports") or ()
    said = Slice(
        name=metadata["name"],
        family=item["addressType"],
        port=int(ports[0].get("port") or 0) if ports else 0,
        endpoints=tuple(_slice_endpoint(one) for one in item.get("endpoints") or ()),
    )
    service = (metadata.get("labels") or {}).get("kubernetes.io/service-name") or ""
    return Placed(metadata["namespace"], (service, said))


def other(kind: str) -> Any:
    """Reads any other object of ours, of this kind."""

    def read(item: Json) -> Placed:
        metadata = item["metadata"]
        labels, annotations = metadata.get("labels") or {}, metadata.get("annotations") or {}
        said = Object(
            kind=kind,
            name=metadata["name"],
            uid=metadata["uid"],
            applied=annotations.get(APPLIED) or "",
            endpoint=_owner(item).get("uid") or "",
            cache=labels.get(CACHE) or "",
            deleting=_deleting(item),
        )
        return Placed(metadata["namespace"], said)

    return read


def _slice_endpoint(item: Json) -> SliceEndpoint:
    conditions, target = item.get("conditions") or {}, item.get("targetRef") or {}
    return SliceEndpoint(
        address=item["addresses"][0],
        pod=target.get("name") or "",
        pod_uid=target.get("uid") or "",
        node=item.get("nodeName") or "",
        zone=item.get("zone") or "",
        ready=bool(conditions.get("ready")) and bool(conditions.get("serving")),
        terminating=bool(conditions.get("terminating")),
    )


def _digest(containers: Sequence[Json]) -> str:
    """sha256:... of the first container's image; "" while the runtime does not say."""
    image = _image_id(containers)
    return image[image.find("sha256:") :] if "sha256:" in image else ""


def _image_id(containers: Sequence[Json]) -> str:
    return str(containers[0].get("imageID") or "") if containers else ""


def _problem(containers: Sequence[Json]) -> str:
    """What a container waits for that fails. Of the message only what is looked at: the rest changes all the
    time."""
    for container, reason, message in _waiting(containers):
        ended = (container.get("lastState") or {}).get("terminated") or {}
        said = f"{message} {ended.get('message') or ''}"
        unfit = next((words for words in UNFIT if words in said), "")
        return f"{reason}: {unfit}" if unfit else reason
    return ""


def _waiting(containers: Iterable[Json]) -> Iterator[tuple[Json, str, str]]:
    """Containers that wait for something that fails, with the reason and what is said of it."""
    for container in containers:
        waiting = (container.get("state") or {}).get("waiting") or {}
        reason = str(waiting.get("reason") or "")
        if reason and reason not in ("ContainerCreating", "PodInitializing"):
            yield container, reason, str(waiting.get("message") or "")


def _hindrance(status: Json) -> str:
    """Why a pod cannot start, in whole: a container that fails to, or no node that takes it."""
    for _, reason, message in _waiting(status.get("containerStatuses") or ()):
        return f"{reason}: {message}"
    return _unschedulable(status)


def _unschedulable(status: Json) -> str:
    """Why the scheduler has found no node; "" if it has."""
    for one in status.get("conditions") or ():
        if (one["type"], one["status"], one.get("reason")) == ("PodScheduled", "False", "Unschedulable"):
            return f"Unschedulable: {one.get('message') or ''}"
    return ""


def _last_words(terminated: Json) -> str:
    """What `cacheprep` said last: why it ended, after notes in JSON. Or how Kubernetes says that it ended."""
    lines = [line.strip() for line in str(terminated.get("message") or "").splitlines()]
    words = [line for line in lines if line and not line.startswith("{")]
    reasons = tuple(f"{reason}: " for reason in Reason)
    why = next((line for line in reversed(words) if line.startswith(reasons)), words[-1] if words else "")
    return why or f"{terminated.get('reason') or 'Error'}, exit code {terminated.get('exitCode')}"


def _condition(status: Json, kind: str) -> Mapping[str, Any] | None:
    found = (one for one in status.get("conditions") or () if one["type"] == kind and one["status"] == "True")
    return next(found, None)


def _is_true(status: Json, kind: str) -> bool:
    return _condition(status, kind) is not None


def _owner(item: Json) -> Mapping[str, Any]:
    owners = item["metadata"].get("ownerReferences") or ()
    return next((owner for owner in owners if owner.get("controller")), {})


def _deleting(item: Json) -> bool:
    return bool(item["metadata"].get("deletionTimestamp"))


def _time(text: str | None) -> float | None:
    return None if not text else datetime.fromisoformat(text).timestamp()
