"""What is read of Kubernetes' objects."""

from __future__ import annotations

from typing import Any

import pytest

from cacheprep.controller import reading
from cacheprep.failures import Reason
from cacheprep.plan.observed import JobState

AT = "2026-01-31T12:00:00Z"
SECONDS = 1769860800.0


def job(*conditions: dict[str, Any], **status: Any) -> dict[str, Any]:
    return {
        "metadata": {
            "name": "fill-1",
            "namespace": "llm",
            "labels": {"warmroute.dev/component": "fill", "warmroute.dev/cache": "llama-1"},
            "annotations": {"warmroute.dev/node": "node-a", "warmroute.dev/attempt": "3"},
        },
        "status": {"conditions": list(conditions), **status},
    }


def failed(message: str) -> dict[str, Any]:
    return {"type": "Failed", "status": "True", "message": message, "lastTransitionTime": AT}


def test_a_job_without_conditions_runs() -> None:
    found = reading.job(job())
    assert (found.state, found.node, found.attempt, found.finished) == (JobState.ACTIVE, "node-a", 3, None)


def test_a_job_that_is_complete_ended_when_it_says() -> None:
    done = {"type": "Complete", "status": "True", "lastTransitionTime": "2026-01-31T13:00:00Z"}
    found = reading.job(job(done, completionTime=AT))
    assert (found.state, found.finished, found.failure) == (JobState.SUCCEEDED, SECONDS, None)


@pytest.mark.parametrize("reason", [reason for reason in Reason if reason is not Reason.CANCELED])
def test_a_job_that_its_failure_policy_ended_names_the_reason_of_the_exit_code(reason: Reason) -> None:
    message = (
        f"Container cacheprep for pod llm/fill-1-x failed with exit code {reason.exit_code}"
        " matching FailJob rule at index 3"
    )
    found = reading.job(job(failed(message)))
    assert (found.state, found.failure, found.finished) == (JobState.FAILED, reason, SECONDS)


def test_a_job_that_failed_otherwise_has_no_reason() -> None:
    found = reading.job(job(failed("Job has reached the specified backoff limit")))
    assert (found.state, found.failure) == (JobState.FAILED, None)


def test_a_jobs_counters_are_not_read() -> None:
    assert reading.job(job(active=1)) == reading.job(job(active=1, ready=1, startTime=AT))


def test_a_nodes_heartbeat_is_not_read() -> None:
    def node(beat: str) -> dict[str, Any]:
        ready = {"type": "Ready", "status": "True", "lastHeartbeatTime": beat}
        status = {"conditions": [ready], "nodeInfo": {"bootID": "b"}, "images": [{"names": [beat]}]}
        return {"metadata": {"name": "a", "uid": "u", "resourceVersion": beat}, "status": status}

    assert reading.node(node("1")) == reading.node(node("2"))
    assert reading.node(node("1")).ready


def deployment(**status: int) -> dict[str, Any]:
    owner = {"uid": "u", "controller": True}
    return {
        "metadata": {
            "name": "llama",
            "namespace": "llm",
            "uid": "d",
            "generation": 2,
            "ownerReferences": [owner],
        },
        "spec": {"replicas": 2, "template": {"metadata": {}}},
        "status": status,
    }


def test_a_deployment_is_rolled_out_when_all_pods_are_of_its_newest_template_and_available() -> None:
    whole = {"observedGeneration": 2, "replicas": 2, "updatedReplicas": 2, "availableReplicas": 2}
    assert reading.deployment(deployment(**whole)).deployment.rolled_out
    for lacking in (
        {"observedGeneration": 1},
        {"replicas": 3},
        {"updatedReplicas": 1},
        {"availableReplicas": 1},
    ):
        assert not reading.deployment(deployment(**{**whole, **lacking})).deployment.rolled_out


def pod(*containers: dict[str, Any]) -> dict[str, Any]:
    metadata = {"name": "p", "namespace": "llm", "uid": "u", "labels": {"warmroute.dev/cache": "image-1"}}
    return {"metadata": metadata, "spec": {}, "status": {"containerStatuses": list(containers)}}


def test_a_pod_that_cannot_pull_says_why_and_one_that_is_being_made_has_no_problem() -> None:
    def waiting(reason: str) -> dict[str, Any]:
        return pod({"state": {"waiting": {"reason": reason}}})

    assert reading.pod(waiting("ErrImagePull")).problem == "ErrImagePull"
    assert reading.pod(waiting("ContainerCreating")).problem == ""


@pytest.mark.parametrize(
    ("state", "problem"),
    [
        (
            {
                "state": {
                    "waiting": {
                        "reason": "ImagePullBackOff",
                        "message": 'Back-off pulling image "vllm": ErrImagePull: rpc error: code = NotFound'
                        " desc = failed to pull: no match for platform in manifest: not found",
                    }
                }
            },
            "ImagePullBackOff: no match for platform",
        ),
        (
            {
                "state": {"waiting": {"reason": "CrashLoopBackOff", "message": "back-off 20s"}},
                "lastState": {"terminated": {"message": "exec /warmroute/hold: exec format error"}},
            },
            "CrashLoopBackOff: exec format error",
        ),
    ],
)
def test_an_image_of_another_architecture_is_told_from_one_that_cannot_be_pulled(
    state: dict[str, Any], problem: str
) -> None:
    assert reading.pod(pod(state)).problem == problem


@pytest.mark.parametrize("written", ["docker.io/vllm@sha256:ab", "sha256:ab"])
def test_an_images_digest_is_read_as_runtimes_write_it(written: str) -> None:
    assert reading.pod(pod({"imageID": written})).digest == "sha256:ab"
