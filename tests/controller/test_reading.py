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


def test_since_when_a_node_is_ready_is_read() -> None:
    ready = {"type": "Ready", "status": "True", "lastTransitionTime": AT}
    status = {"conditions": [ready], "nodeInfo": {"bootID": "b"}}
    item = {"metadata": {"name": "a", "uid": "u"}, "status": status}
    assert reading.node(item).ready_since == SECONDS
    ready["status"] = "Unknown"
    assert (reading.node(item).ready, reading.node(item).ready_since) == (False, 0.0)


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
        "spec": {
            "replicas": 2,
            "template": {"metadata": {}},
            "strategy": {"rollingUpdate": {"maxSurge": 0, "maxUnavailable": "25%"}},
        },
        "status": status,
    }


def test_how_a_deployment_rolls_out_is_read_as_text_since_it_is_a_number_or_a_share() -> None:
    assert reading.deployment(deployment()).deployment.rolling == ("0", "25%")


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


@pytest.mark.parametrize(
    ("written", "pulled"), [("docker.io/vllm@sha256:ab", True), ("sha256:ab", False)], ids=["pulled", "put"]
)
def test_an_images_digest_is_read_as_runtimes_write_it(written: str, pulled: bool) -> None:
    found = reading.pod(pod({"imageID": written}))
    assert (found.digest, found.pulled) == ("sha256:ab", pulled)


# --- Why a Job's pod failed, or does not start ---


def job_pod(created: str = AT, **status: Any) -> reading.JobPod:
    owner = {"kind": "Job", "name": "fill-1", "controller": True}
    metadata = {"name": "fill-1-x", "namespace": "llm", "uid": "u", "creationTimestamp": created}
    return reading.job_pod({"metadata": {**metadata, "ownerReferences": [owner]}, "status": status})


def ended(message: str, code: int = 3, reason: str = "Error") -> dict[str, Any]:
    terminated = {"message": message, "exitCode": code, "reason": reason}
    return {"containerStatuses": [{"state": {"terminated": terminated}}]}


NOTE = '{"event": "note", "message": "AccessDenied: is what this note is not about"}'
DENIED = failed("Container cacheprep for pod llm/x failed with exit code 3 matching FailJob rule at index 2")


def test_a_failed_job_says_what_its_pod_said_last_and_not_its_exit_code() -> None:
    said = f"{NOTE}\nAccessDenied: s3://weights/llama/: 403 Forbidden\n"
    found = reading.with_words(reading.job(job(DENIED)), [job_pod(**ended(said))])
    assert found.failure is Reason.ACCESS_DENIED
    assert found.message == "Job fill-1: s3://weights/llama/: 403 Forbidden"


@pytest.mark.parametrize(
    ("printed", "why"),
    [
        ("Traceback (most recent call last):\n  File x\nMemoryError", "MemoryError"),
        ("SourceUnavailable: no route\n" + NOTE, "SourceUnavailable: no route"),
        (NOTE, "OOMKilled, exit code 137"),
        ("", "OOMKilled, exit code 137"),
    ],
    ids=["a defect", "notes after it", "only notes", "nothing"],
)
def test_what_a_pod_said_last_is_why_it_ended_or_else_how(printed: str, why: str) -> None:
    assert job_pod(**ended(printed, 137, "OOMKilled")).said == why


def test_of_several_pods_of_a_job_the_newest_that_said_something_counts() -> None:
    pods = [
        job_pod("2026-01-31T12:01:00Z", **ended("InvalidRequest: second")),
        job_pod("2026-01-31T12:00:00Z", **ended("InvalidRequest: first")),
        job_pod("2026-01-31T12:02:00Z"),
    ]
    found = reading.with_words(reading.job(job(failed("it has reached the backoff limit"))), pods)
    assert found.message == "Job fill-1: InvalidRequest: second"


def test_a_failed_job_whose_pods_are_gone_says_what_kubernetes_says() -> None:
    found = reading.job(job(DENIED))
    assert reading.with_words(found, []) == found


@pytest.mark.parametrize(
    ("status", "why"),
    [
        (
            {
                "containerStatuses": [
                    {
                        "state": {
                            "waiting": {
                                "reason": "CreateContainerConfigError",
                                "message": 'secret "keys" not found',
                            }
                        }
                    }
                ]
            },
            'CreateContainerConfigError: secret "keys" not found',
        ),
        (
            {
                "conditions": [
                    {
                        "type": "PodScheduled",
                        "status": "False",
                        "reason": "Unschedulable",
                        "message": "0/4 nodes are available: 1 Insufficient memory",
                    }
                ]
            },
            "Unschedulable: 0/4 nodes are available: 1 Insufficient memory",
        ),
        ({"containerStatuses": [{"state": {"waiting": {"reason": "ContainerCreating"}}}]}, ""),
        ({"containerStatuses": [{"state": {"running": {}}}]}, ""),
    ],
    ids=["a Secret lacks", "no room", "being made", "runs"],
)
def test_a_job_whose_pod_cannot_start_says_why(status: dict[str, Any], why: str) -> None:
    assert reading.with_words(reading.job(job()), [job_pod(**status)]).waiting == why


def test_the_operators_own_image_is_read_where_it_has_written_it() -> None:
    def daemon_set(**pod: Any) -> dict[str, Any]:
        return {"spec": {"template": {"spec": pod}}}

    hold = {"name": "warmroute-hold", "image": "registry.example/cacheprep:2"}
    assert reading.own_image(daemon_set(initContainers=[{"name": "a", "image": "b"}, hold])) == hold["image"]
    assert reading.own_image(daemon_set()) == ""
