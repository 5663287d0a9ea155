"""The rules of the plan, one by one, in a model of a cluster (`tests.plan.world`)."""

from __future__ import annotations

import gzip
import json
from base64 import b64decode
from dataclasses import replace
from datetime import datetime
from hashlib import sha256
from itertools import pairwise
from typing import Any

import click
import pytest
import yaml

from cacheprep.api.conditions import Reason
from cacheprep.api.model import MOST_MESSAGE
from cacheprep.api.names import CACHE_KEY, FINALIZER, IMAGE_READY, MANAGER, NODE, WEIGHTS_READY
from cacheprep.commands import cacheprep
from cacheprep.failures import Reason as FailureReason
from cacheprep.listing import File, Listing
from cacheprep.plan.actions import Apply, Delete, Event, LabelNode, Scale, SetStatus
from cacheprep.plan.draft import Draft
from cacheprep.plan.fill import fill
from cacheprep.plan.identity import image_cache_name, image_identity
from cacheprep.plan.jobs import fill_job
from cacheprep.plan.listings import PART_BYTES, config_maps
from cacheprep.plan.observed import Component, Job, JobState, Pod
from cacheprep.plan.plan import plan
from cacheprep.plan.possession import SILENT_SECONDS
from cacheprep.plan.progress import progress
from cacheprep.plan.retry import next_attempt
from cacheprep.plan.settings import Settings
from cacheprep.plan.versions import versions
from cacheprep.plan.workload import workload
from tests.plan.world import NAME, START, TOTAL, World, spec

Json = dict[str, Any]


def serving(**changed: Any) -> World:
    """A world in which pods serve."""
    world = World(endpoint=spec(**changed))
    world.settle()
    assert world.deployment is not None
    return world


def applied(world: World, kind: str) -> list[Json]:
    return [one.manifest for one in world.finished if isinstance(one, Apply) and one.kind == kind]


def fill_jobs(world: World) -> list[Json]:
    return [job for job in applied(world, "Job") if job["metadata"]["name"].startswith("fill-")]


def labelled(world: World, prefix: str) -> set[str]:
    return {name for name, node in world.nodes.items() if any(one.startswith(prefix) for one in node.labels)}


# --- From nothing to serving ---


def test_the_source_is_listed_once_and_every_node_fetches_exactly_that() -> None:
    world = serving()
    jobs = [job["metadata"]["name"].split("-")[0] for job in applied(world, "Job")]
    assert jobs == ["resolve", "fill", "fill", "fill"]
    for job in fill_jobs(world):
        (container,) = job["spec"]["template"]["spec"]["containers"]
        assert "--listing=/listing" in container["args"]


def test_a_settled_state_has_an_empty_plan_and_wakes_nobody_but_for_drift_and_silent_agents() -> None:
    world = serving(cachePolicy={"drift": {"enabled": False}})
    said = min(one["status"]["observedAt"] for one in world.said.values())
    made = plan(world.observed(), world.settings)
    assert made == ((), datetime.fromisoformat(said).timestamp() + SILENT_SECONDS)
    world = serving(modelCacheConfig={})
    assert plan(world.observed(), world.settings) == ((), None)


def test_nodes_of_a_cache_whose_source_is_not_listed_wait_for_that() -> None:
    world = World()
    world.run_agents()
    world.step()
    world.step()
    (cache,) = world.data_caches()
    said = progress(world.observed(), cache, world.observed().nodes, world.settings)
    assert {one.reason for one in said} == {"Resolving"}


def test_every_action_says_why() -> None:
    world = serving()
    assert all(action.why for action in world.finished)


def test_a_fill_job_is_pinned_by_the_nodes_name_and_tolerates_what_its_pods_do() -> None:
    toleration = {"key": "nvidia.com/gpu", "operator": "Exists"}
    pods: Json = {"containers": [{"name": "a", "image": "b"}], "tolerations": [toleration]}
    pods |= {"serviceAccountName": "llama", "imagePullSecrets": [{"name": "registry"}]}
    world = serving(engine={"template": {"spec": pods}})
    job = fill_jobs(world)[0]
    pod = job["spec"]["template"]["spec"]
    needed = pod["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    (term,) = needed["nodeSelectorTerms"]
    (field,) = term["matchFields"]
    assert (field["key"], field["operator"]) == ("metadata.name", "In")
    assert field["values"][0] in world.nodes
    assert pod["tolerations"] == [toleration]
    assert pod["serviceAccountName"] == "llama"
    assert pod["imagePullSecrets"] == [{"name": "registry"}]


def test_a_source_is_listed_also_where_all_nodes_are_tainted() -> None:
    toleration = {"key": "nvidia.com/gpu", "operator": "Exists"}
    pods: Json = {"containers": [{"name": "a", "image": "b"}], "tolerations": [toleration]}
    world = serving(engine={"template": {"spec": pods}})
    (job,) = [one for one in applied(world, "Job") if one["metadata"]["name"].startswith("resolve-")]
    assert job["spec"]["template"]["spec"]["tolerations"] == [toleration]


def test_the_jobs_failure_policy_knows_every_exit_code() -> None:
    world = serving()
    rules = fill_jobs(world)[0]["spec"]["podFailurePolicy"]["rules"]
    codes: dict[Any, Any] = {
        rule["onExitCodes"]["values"][0]: rule["action"] for rule in rules if "onExitCodes" in rule
    }
    assert codes == {
        reason.exit_code: "Ignore" if reason is FailureReason.CANCELED else "FailJob"
        for reason in FailureReason
    }
    assert rules[0] == {
        "action": "Ignore",
        "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}],
    }


def test_pods_find_the_model_in_one_place_prefer_prepared_nodes_and_may_be_put_on_others() -> None:
    world = serving()
    assert world.deployment is not None
    template = world.deployment["spec"]["template"]
    pod = template["spec"]
    (ensure,) = pod["initContainers"]
    key = template["metadata"]["annotations"][CACHE_KEY]
    assert ensure["args"][0] == "ensure"
    assert {f"--key={key}", "--listing=/listing", "--allow-shared-disk"} <= set(ensure["args"])
    (mount,) = pod["containers"][0]["volumeMounts"]
    assert mount["mountPath"] == "/model"
    assert mount["subPath"] == f"caches/{key}/model"
    assert mount["readOnly"] is True
    affinity = pod["affinity"]["nodeAffinity"]
    assert list(affinity) == ["preferredDuringSchedulingIgnoredDuringExecution"]
    preferred = affinity["preferredDuringSchedulingIgnoredDuringExecution"]
    said = {
        one["preference"]["matchExpressions"][0]["key"].split(".dev/")[1].split(".")[0]: one["weight"]
        for one in preferred
    }
    assert said == {"weights-cache-ready": 100, "image-cache-ready": 50}


def test_a_hostile_namespace_and_key_cannot_lead_out_of_the_root() -> None:
    world = serving()
    job = fill_jobs(world)[0]
    paths = [
        one["hostPath"]["path"] for one in job["spec"]["template"]["spec"]["volumes"] if "hostPath" in one
    ]
    assert paths == ["/opt/dlami/nvme/warmroute/llm"]


def test_by_a_claim_nothing_runs_as_root_and_no_host_path_is_named() -> None:
    world = serving(cachePolicy={"mount": "pvc"})
    assert world.deployment is not None
    for pod in (
        fill_jobs(world)[0]["spec"]["template"]["spec"],
        world.deployment["spec"]["template"]["spec"],
    ):
        assert not any("hostPath" in volume for volume in pod["volumes"])
        assert {"claimName": "warmroute-cache"} in [
            one.get("persistentVolumeClaim") for one in pod["volumes"]
        ]
    (container,) = fill_jobs(world)[0]["spec"]["template"]["spec"]["containers"]
    assert container["securityContext"]["runAsNonRoot"] is True
    assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}


def test_credentials_are_named_and_never_copied() -> None:
    secret = {"name": "keys"}
    world = serving(modelSource={"s3": {"uri": "s3://models/llama/", "credentialsSecretRef": secret}})
    (container,) = fill_jobs(world)[0]["spec"]["template"]["spec"]["containers"]
    assert container["envFrom"] == [{"secretRef": secret}]
    assert not world.own("Secret")


def test_without_caches_pods_fetch_for_themselves_and_no_node_is_touched() -> None:
    world = serving(modelCacheConfig={})
    assert world.deployment is not None
    pod = world.deployment["spec"]["template"]["spec"]
    assert "s3://models/llama/" in pod["initContainers"][0]["args"]
    assert pod["containers"][0]["volumeMounts"][0]["subPath"] == "model"
    assert not any("hostPath" in volume for volume in pod["volumes"])
    assert pod["initContainers"][0]["securityContext"]["runAsNonRoot"] is True
    assert not labelled(world, "warmroute.dev")
    assert applied(world, "Job") == []


def test_settings_of_the_router_are_written_where_it_takes_them_up_and_change_without_a_rollout() -> None:
    world = serving(routing={"strategy": "PREFIX_AWARE", "prefixLength": 8192})
    before = len(applied(world, "Deployment"))
    world.edit(routing={"strategy": "RANDOM"})
    world.settle()
    (routing,) = (one for one in world.own("ConfigMap") if one["metadata"]["name"] == f"{NAME}-routing")
    assert yaml.safe_load(routing["data"]["settings.yaml"]) == {"strategy": "RANDOM"}
    assert len(applied(world, "Deployment")) == before


# --- The gate ---


def filled(world: World, *names: str) -> None:
    """Go on until these nodes alone have the cache; Jobs on others do not end."""
    for _ in range(4):
        world.rest()
        for job_name, (manifest, job) in list(world.jobs.items()):
            if job.component is Component.RESOLVE or job.node in names:
                world.jobs[job_name] = (manifest, world._ended(job, None))
        world.run_agents()
        world.now += 1


@pytest.mark.parametrize(
    ("gate", "ready", "opens"),
    [
        ("all", ["node-0", "node-1"], False),
        ("all", ["node-0", "node-1", "node-2"], True),
        (2, ["node-0"], False),
        (2, ["node-0", "node-1"], True),
        (9, ["node-0", "node-1", "node-2"], True),
        ("none", [], True),
    ],
)
def test_the_gate_opens_when_as_many_nodes_are_ready_as_it_says(
    gate: str | int, ready: list[str], opens: bool
) -> None:
    world = World(endpoint=spec(cachePolicy={"gate": gate}))
    world.run_agents()
    filled(world, *ready)
    assert (world.deployment is not None) is opens


@pytest.mark.parametrize(("policy", "opens"), [("open", True), ("wait", False)])
def test_after_its_timeout_it_opens_if_so_said(policy: str, opens: bool) -> None:
    world = World(endpoint=spec(cachePolicy={"gateTimeout": "30m", "onGateTimeout": policy}))
    world.run_agents()
    filled(world, "node-0")
    assert world.deployment is None
    made = plan(world.observed(), world.settings)
    if opens:
        assert made.wake_at is not None
        assert made.wake_at <= START + 1800 + 60
    world.now += 1801
    world.rest()
    assert (world.deployment is not None) is opens


def test_without_a_target_node_it_opens_and_says_so() -> None:
    world = World(nodes=0)
    world.settle()
    assert world.deployment is not None
    condition = world.condition("GateOpen")
    assert condition is not None
    assert (condition["status"], condition["reason"]) == ("True", "NoTargetNodes")


def test_once_open_it_stays_open_though_nodes_lose_the_cache() -> None:
    world = serving(cachePolicy={"onGateTimeout": "wait"})
    for name in world.nodes:
        world.wipe(name)
    world.run_agents()
    world.step()
    world.deployment = None
    world.pods.clear()
    world.step()
    assert world.deployment is not None, "deleted by hand, it comes back though no node is ready"


# --- Filling ---


def test_no_more_nodes_read_a_source_at_once_than_it_is_to_bear_also_of_other_namespaces() -> None:
    world = World(nodes=8)
    world.round()
    world.round()
    world.step()
    world.step()
    jobs = [job for _, job in world.jobs.values() if job.component is Component.FILL]
    assert len(jobs) == world.settings.downloads_at_once
    elsewhere = [
        replace(job, name=f"e{number}", namespace="other", key="f" * 40) for number, job in enumerate(jobs)
    ]
    observed = replace(world.observed(), jobs=tuple(elsewhere))
    made = plan(observed, world.settings)
    assert not [action for action in made.actions if isinstance(action, Apply) and action.kind == "Job"]


def test_a_job_that_another_cache_of_the_same_key_has_begun_takes_no_slot_of_its_source() -> None:
    world = World(nodes=9)
    world.round()
    world.round()
    world.step()
    observed = world.observed()
    (cache,) = observed.data_caches
    assert cache.spec.source.s3 is not None
    mirror = cache.spec.source.s3.model_copy(update={"endpoint_url": "https://mirror.example"})
    source = cache.spec.source.model_copy(update={"s3": mirror})
    other = cache.model_copy(
        update={
            "metadata": cache.metadata.model_copy(update={"name": f"{cache.name}-mirror"}),
            "spec": cache.spec.model_copy(update={"source": source}),
        }
    )
    draft, none_yet = Draft(world.now), replace(observed, jobs=(), data_caches=(cache, other))
    for one in (cache, other):
        fill(none_yet, one, observed.nodes, world.settings, draft)
    made = [one.manifest["metadata"] for one in draft.actions if isinstance(one, Apply)]
    filled = {metadata["annotations"][NODE] for metadata in made}
    assert len(filled) == 2 * world.settings.downloads_at_once, "three from each of two sources"


def test_a_failed_fetch_is_tried_again_later_and_later_and_what_cannot_succeed_latest() -> None:
    def wait(attempt: int, failure: FailureReason) -> float:
        job = Job(
            "a",
            "b",
            Component.FILL,
            "c",
            JobState.FAILED,
            node="n",
            attempt=attempt,
            finished=0.0,
            failure=failure,
        )
        return next_attempt(job, Settings())

    waits = [wait(attempt, FailureReason.SOURCE_UNAVAILABLE) for attempt in range(1, 12)]
    assert waits == sorted(waits)
    assert 48 <= waits[0] <= 72
    assert 2880 <= waits[-1] <= 4320
    assert waits[1] == pytest.approx(2 * waits[0])
    assert wait(1, FailureReason.ACCESS_DENIED) == waits[-1]


def test_an_annotation_has_what_failed_tried_again_at_once() -> None:
    world = World()
    world.source_failure = FailureReason.ACCESS_DENIED
    world.round()
    world.round()
    world.source_failure = None
    world.round()
    assert len(applied(world, "Job")) == 1
    assert world.endpoint is not None
    world.endpoint["metadata"]["annotations"] = {"warmroute.dev/retry": "1"}
    world.settle()
    assert world.deployment is not None


def test_a_node_without_room_is_not_tried_and_says_how_much_is_needed() -> None:
    world = World()
    world.capacity = TOTAL - 1
    world.run_agents()
    for _ in range(5):
        world.round()
    assert fill_jobs(world) == []
    (cache,) = world.own("ModelDataCacheConfig")
    (first, *_) = cache["status"]["notReady"]
    assert first["reason"] == "InsufficientCapacity"
    assert f"needs {TOTAL} bytes, {TOTAL - 1} are available" in first["message"]


@pytest.mark.parametrize("change", [{"unschedulable": True}, {"ready": False}, {"deleting": True}])
def test_a_node_that_is_no_target_any_more_keeps_no_other_from_reading_the_source(change: Json) -> None:
    world = World(nodes=4)
    world.round()
    world.rest()
    world.run_agents()
    world.rest()
    first = {job.node for _, job in world.jobs.values() if job.component is Component.FILL}
    gone = min(first)
    world.change_node(gone, **change)
    world.rest()
    world.rest()
    then = {job.node for _, job in world.jobs.values() if job.component is Component.FILL}
    assert then == set(world.nodes) - {gone}


def test_two_caches_of_one_key_during_a_rollover_are_filled_by_one_job_per_node() -> None:
    world = serving()
    # The model's source holds the same under every name.
    world.edit(modelSource={"s3": {"uri": "s3://models/copy/"}})
    world.round()
    world.add_node("node-0")
    world.round()
    world.settle()
    names = [job["metadata"]["name"] for job in fill_jobs(world)]
    assert len(names) == len(set(names)) + 1, "node-0 was filled twice in its two lives, and no other"


def test_data_that_is_on_a_node_already_is_adopted() -> None:
    world = serving()
    before = len(fill_jobs(world))
    world.reboot("node-0")
    world.settle()
    assert len(fill_jobs(world)) == before
    assert "node-0" in labelled(world, WEIGHTS_READY)


def test_a_disk_that_was_wiped_is_filled_again() -> None:
    world = serving()
    world.wipe("node-0")
    world.run_agents()
    world.settle()
    assert world.disks["node-0"].bytes


def test_two_caches_of_one_key_are_filled_once_per_node() -> None:
    world = serving()
    (cache,) = world.data_caches()
    node = next(iter(world.nodes.values()))
    twin = cache.model_copy(
        update={"metadata": cache.metadata.model_copy(update={"name": "twin-0123456789"})}
    )
    names = [
        fill_job(world._endpoint(), one, node, 1, Settings())["metadata"]["name"] for one in (cache, twin)
    ]
    assert names[0] == names[1]


# --- Rollover ---


def test_make_before_break_has_the_new_cache_then_new_pods_then_the_old_cache_goes() -> None:
    world = serving()
    (old,) = world.own("ModelDataCacheConfig")
    world.edit(modelSource={"s3": {"uri": "s3://models/other/"}})
    world.version = 2
    world.finished.clear()
    world.settle()
    order = [
        (type(one).__name__, one.kind if isinstance(one, Apply | Delete) else "", one.name)
        for one in world.finished
        if isinstance(one, Apply | Delete) and one.kind in ("Deployment", "ModelDataCacheConfig")
    ]
    (new,) = world.own("ModelDataCacheConfig")
    assert order == [
        ("Apply", "ModelDataCacheConfig", new["metadata"]["name"]),
        ("Apply", "Deployment", NAME),
        ("Delete", "ModelDataCacheConfig", old["metadata"]["name"]),
    ]
    assert all(list(disk.bytes) == [new["status"]["key"]] for disk in world.disks.values())


def test_break_before_make_has_old_pods_and_files_gone_before_the_first_new_byte() -> None:
    world = serving(cachePolicy={"rollover": "breakBeforeMake"})
    (old,) = world.own("ModelDataCacheConfig")
    world.capacity = TOTAL + TOTAL // 2
    world.run_agents()
    world.edit(modelSource={"s3": {"uri": "s3://models/other/"}})
    world.version = 2
    world.finished.clear()
    world.settle()
    order = [
        (type(one).__name__, one.name.split("-")[0])
        for one in world.finished
        if (isinstance(one, Apply) and one.kind in ("Job", "Deployment"))
        or (isinstance(one, Delete) and one.kind in ("Deployment", "ModelDataCacheConfig"))
    ]
    assert order == [
        ("Apply", "resolve"),
        ("Delete", NAME),
        ("Delete", NAME),
        *[("Apply", "fill")] * 3,
        ("Apply", NAME),
    ]
    assert old["status"]["key"] not in world.disks["node-0"].bytes


def test_a_new_source_that_cannot_be_listed_leaves_what_serves_alone() -> None:
    for rollover in ("makeBeforeBreak", "breakBeforeMake"):
        world = serving(cachePolicy={"rollover": rollover})
        pods = dict(world.pods)
        world.source_failure = FailureReason.ACCESS_DENIED
        world.edit(modelSource={"s3": {"uri": "s3://models/forbidden/"}})
        world.settle()
        assert world.pods == pods
        assert len(labelled(world, WEIGHTS_READY)) == 3
        condition = world.condition("Resolved")
        assert condition is not None
        assert (condition["status"], condition["reason"]) == ("False", "AccessDenied")


def test_another_image_is_rolled_out_at_once_and_its_cache_does_not_gate() -> None:
    world = serving()
    world.image("vllm/vllm-openai:v2")
    world.rest()
    assert world.deployment is not None
    assert world.deployment["spec"]["template"]["spec"]["containers"][0]["image"] == "vllm/vllm-openai:v2"
    world.settle()
    assert [one["spec"]["image"] for one in world.own("ModelImageCache")] == ["vllm/vllm-openai:v2"]


def test_how_pods_are_replaced_changes_at_once_and_restarts_none() -> None:
    world = serving()
    world.settings = replace(world.settings, image="warmroute/cacheprep:next")
    before, pods = len(applied(world, "Deployment")), dict(world.pods)
    world.policy(rollover="breakBeforeMake")
    world.settle()
    assert world.deployment is not None
    rolling = world.deployment["spec"]["strategy"]["rollingUpdate"]
    assert rolling == {"maxSurge": 0, "maxUnavailable": "25%"}
    assert len(applied(world, "Deployment")) == before
    assert world.pods == pods


def test_turning_the_image_cache_on_has_the_image_on_nodes_at_once_and_restarts_no_pod() -> None:
    world = serving(modelCacheConfig={"weightsCache": {"enabled": True}})
    pods = {uid for uid, pod in world.pods.items() if pod.endpoint}
    assert not labelled(world, IMAGE_READY)
    world.edit(modelCacheConfig={"weightsCache": {"enabled": True}, "imageCache": {"enabled": True}})
    world.settle()
    assert labelled(world, IMAGE_READY) == set(world.nodes)
    assert {uid for uid, pod in world.pods.items() if pod.endpoint} == pods
    world.image("vllm/vllm-openai:v2")
    world.settle()
    assert world.deployment is not None
    affinity = world.deployment["spec"]["template"]["spec"]["affinity"]["nodeAffinity"]
    preferred = affinity["preferredDuringSchedulingIgnoredDuringExecution"]
    assert [one["weight"] for one in preferred] == [100, 50], "new pods prefer it from the next template on"


@pytest.mark.parametrize(
    ("rollover", "told"),
    [
        ("makeBeforeBreak", ["FillingNext", "RollingOut", "Complete"]),
        ("breakBeforeMake", ["MakingRoom", "RollingOut", "Complete"]),
    ],
)
def test_a_rollover_is_under_way_until_all_pods_load_the_new_cache(rollover: str, told: list[str]) -> None:
    world = serving(cachePolicy={"rollover": rollover})
    assert world.condition("RollingOver") is None
    world.finished.clear()
    world.version = 2
    world.edit(modelSource={"s3": {"uri": "s3://models/other/"}})
    world.settle()
    events = [
        one for one in world.finished if isinstance(one, Event) and one.message.startswith("RollingOver is")
    ]
    assert [one.reason for one in events] == told
    condition = world.condition("RollingOver")
    assert condition is not None
    assert (condition["status"], condition["reason"]) == ("False", "Complete")


def test_disabling_caches_restarts_no_pod_and_takes_labels_slices_and_daemon_sets_away_at_once() -> None:
    world = serving()
    pods = {uid for uid, pod in world.pods.items() if pod.endpoint}
    world.edit(modelCacheConfig={"weightsCache": {"enabled": False}, "imageCache": {"enabled": False}})
    world.settle()
    assert pods == {uid for uid, pod in world.pods.items() if pod.endpoint}
    assert not labelled(world, "warmroute.dev")
    assert not world.own("EndpointSlice")
    assert not world.own("DaemonSet")
    kept = {pod.node for pod in world.pods.values()}
    assert {name for name, disk in world.disks.items() if disk.bytes} == kept, (
        "files go where no pod uses them"
    )


def test_names_and_templates_are_the_same_in_every_release() -> None:
    """Another value here rolls out every Deployment when the operator is upgraded."""
    world = World()
    which = versions(world.observed())
    assert which.wanted_name == "llama-f0a82b3d33"
    assert workload(world._endpoint(), cached=True) == "5d93ecb15a7502b6"


def test_a_new_release_of_the_operator_restarts_no_pod() -> None:
    world = serving()
    world.settings = replace(world.settings, image="warmroute/cacheprep:next")
    before = len(applied(world, "Deployment"))
    world.settle()
    assert len(applied(world, "Deployment")) == before


# --- Scale ---


def test_replicas_are_set_by_scale_alone_and_not_at_all_when_something_else_scales() -> None:
    world = serving()
    assert world.replicas == 2
    world.edit(replicas=None, autoscaling={"external": {}})
    world.replicas = 5
    world.finished.clear()
    world.settle()
    assert world.replicas == 5
    assert not [one for one in world.finished if isinstance(one, Scale)]


def test_an_autoscaler_of_its_own_is_made_and_goes_again() -> None:
    made = spec(autoscaling={"horizontalPodAutoscaler": {"maxReplicas": 4}})
    del made["replicas"]
    world = World(endpoint=made)
    world.settle()
    (scaler,) = world.own("HorizontalPodAutoscaler")
    assert scaler["spec"]["scaleTargetRef"]["name"] == NAME
    world.edit(autoscaling=None, replicas=1)
    world.settle()
    assert not world.own("HorizontalPodAutoscaler")


# --- Readiness ---


def test_a_node_made_anew_under_its_name_is_not_taken_for_prepared() -> None:
    world = serving()
    labels = world.nodes["node-0"].labels
    world.add_node("node-0", labels=labels)
    world.step()
    assert "node-0" not in labelled(world, WEIGHTS_READY)


def test_pods_are_warm_where_their_node_has_the_weights_and_ready_and_serving_never_differ() -> None:
    world = serving()
    world.wipe("node-0")
    world.run_agents()
    world.step()
    (one,) = world.own("EndpointSlice")
    assert {each["nodeName"]: each["conditions"]["ready"] for each in one["endpoints"]} == {
        "node-0": False,
        "node-1": True,
    }
    assert all(each["conditions"]["ready"] == each["conditions"]["serving"] for each in one["endpoints"])
    assert one["metadata"]["labels"]["kubernetes.io/service-name"] == f"{NAME}-warm"
    assert one["metadata"]["labels"]["endpointslice.kubernetes.io/managed-by"] == MANAGER
    owner = one["metadata"]["ownerReferences"][0]
    assert (owner["kind"], owner["name"]) == ("Service", f"{NAME}-warm")
    (service,) = (each for each in world.own("Service") if each["metadata"]["name"] == f"{NAME}-warm")
    assert "selector" not in service["spec"]
    assert service["spec"]["clusterIP"] == "None"


def test_a_slice_has_at_most_100_endpoints_of_one_family_and_a_pod_stays_in_its_slice() -> None:
    world = serving()
    for number in range(250):
        ips = (f"10.1.{number // 250}.{number % 250}", f"fd00::{number:x}")
        pod = Pod(f"p{number}", f"u{number:03}", endpoint=NAME, node="node-0", ips=ips, ready=True)
        world.pods[pod.uid] = pod
    world.step()
    families = {one["metadata"]["name"]: one["addressType"] for one in world.own("EndpointSlice")}
    assert sorted(families.values()) == ["IPv4"] * 3 + ["IPv6"] * 3
    assert all(len(one["endpoints"]) <= 100 for one in world.own("EndpointSlice"))
    del world.pods["u000"]
    world.finished.clear()
    world.step()
    assert len(applied(world, "EndpointSlice")) == 2, "one slice of each family has changed"


# --- Images ---


@pytest.mark.parametrize(
    ("one", "same"),
    [
        ("nginx", "docker.io/library/nginx:latest"),
        ("index.docker.io/library/nginx", "nginx:latest"),
        ("vllm/vllm-openai:v1", "docker.io/vllm/vllm-openai:v1"),
        ("registry:5000/a@sha256:00", "registry:5000/a:v1@sha256:00"),
    ],
)
def test_one_image_under_two_names_is_one_cache(one: str, same: str) -> None:
    assert image_identity(one) == image_identity(same)
    assert image_cache_name(one) == image_cache_name(same)


def test_a_port_of_a_registry_is_no_tag() -> None:
    assert image_identity("registry:5000/a") == "registry:5000/a:latest"


def test_an_image_is_kept_by_a_program_of_the_operators_so_that_the_image_needs_no_shell() -> None:
    world = serving()
    (daemon_set,) = world.own("DaemonSet")
    pod = daemon_set["spec"]["template"]["spec"]
    assert pod["initContainers"][0]["command"] == ["/usr/local/bin/hold", "install", "/warmroute"]
    assert pod["containers"][0]["command"] == ["/warmroute/hold"]
    assert pod["containers"][0]["image"] == "vllm/vllm-openai:v1"
    assert labelled(world, IMAGE_READY) == set(world.nodes)


def test_nodes_of_an_architecture_that_the_image_lacks_are_no_targets_once_one_has_said_so() -> None:
    world = World()
    for name in ("arm-0", "arm-1"):
        world.add_node(name, labels={"kubernetes.io/arch": "arm64"})
    world.round()
    world.rest()
    (cache,) = world.own("ModelImageCache")
    problem = "ErrImagePull: no match for platform in manifest: not found"
    pod = Pod("p", "p", cache=cache["metadata"]["name"], node="arm-0", problem=problem)
    observed = world.observed()
    made = plan(replace(observed, pods=(*observed.pods, pod)), world.settings)
    statuses = {one.kind: one.status for one in made.actions if isinstance(one, SetStatus)}
    assert statuses["ModelDataCacheConfig"]["target"] == 3
    assert statuses["ModelImageCache"]["conditions"][0]["reason"] == "ArchitectureMismatch"


A, B = f"sha256:{'a' * 64}", f"sha256:{'b' * 64}"


def kept(world: World, **digests: tuple[str, bool]) -> tuple[set[str], Json]:
    """Where the image is ready, and its status, when the pods that keep it have these digests by node."""
    (cache,) = world.own("ModelImageCache")
    for uid, pod in world.pods.items():
        name = pod.node.replace("-", "_")
        if pod.cache == cache["metadata"]["name"] and name in digests:
            digest, pulled = digests[name]
            world.pods[uid] = replace(pod, digest=digest, pulled=pulled)
    world.rest()
    (cache,) = world.own("ModelImageCache")
    return labelled(world, IMAGE_READY), cache["status"]


def test_a_node_on_which_the_tag_means_another_image_than_on_most_is_not_ready_and_is_named() -> None:
    world = serving()
    ready, status = kept(world, node_0=(A, True), node_1=(B, True), node_2=(A, True))
    assert ready == {"node-0", "node-2"}
    assert (status["phase"], status["cached"], status["digest"]) == ("Degraded", 2, A)
    (condition,) = status["conditions"]
    assert (condition["status"], condition["reason"]) == ("False", "DigestMismatch")
    assert f"2 of 3 nodes keep it as {A}; node-1: {B}. Name the image by its digest" in condition["message"]
    of_endpoint = world.condition("ImageCached")
    assert of_endpoint is not None
    assert of_endpoint["message"] == condition["message"]


def test_of_as_many_nodes_the_digest_stays_that_was_wanted_before() -> None:
    for first, second in ((A, B), (B, A)):
        world = World(nodes=2)
        world.settle()
        kept(world, node_0=(first, True))
        ready, status = kept(world, node_1=(second, True))
        assert (ready, status["digest"]) == ({"node-0"}, first)


def test_an_image_that_was_put_on_a_node_without_a_registry_differs_from_none() -> None:
    world = serving()
    ready, status = kept(world, node_0=(A, True), node_1=(B, False), node_2=("", False))
    assert ready == set(world.nodes)
    assert (status["phase"], status["digest"]) == ("Cached", A)


def test_architectures_have_digests_of_their_own() -> None:
    world = serving()
    world.add_node("arm", labels={"kubernetes.io/arch": "arm64"})
    world.settle()
    ready, _ = kept(world, node_0=(A, True), node_1=(A, True), node_2=(A, True), arm=(B, True))
    assert ready == set(world.nodes)


def test_what_a_digest_names_is_that_image_whatever_the_runtime_calls_it() -> None:
    container = {"name": "vllm", "image": f"vllm/vllm-openai@{A}"}
    world = serving(engine={"template": {"spec": {"containers": [container]}}})
    ready, _ = kept(world, node_0=(A, True), node_1=(B, True), node_2=(B, True))
    assert ready == set(world.nodes)


def test_two_tags_of_one_digest_count_once_on_a_node_whichever_of_them_keeps_it() -> None:
    world = serving()
    (mine,) = world.own("ModelImageCache")
    kept(world, node_0=(A, True), node_1=(A, True), node_2=(A, True))
    for uid, pod in list(world.pods.items()):
        if pod.cache and pod.node == "node-2":
            del world.pods[uid]
    other = Pod("other", "other", cache="image-of-another-tag", ready=True, pulled=True, created=world.now)
    tags = (replace(other, node="node-1", digest=A), replace(other, uid="o2", node="node-2", digest=A))
    made = plan(replace(world.observed(), pods=(*world.observed().pods, *tags)), world.settings)
    assert made.actions == (), "node-1 has it twice, node-2 by the other tag"
    moved = replace(other, uid="o2", node="node-2", digest=B)
    made = plan(replace(world.observed(), pods=(*world.observed().pods, moved)), world.settings)
    (gone,) = (one for one in made.actions if isinstance(one, LabelNode))
    assert (gone.node, gone.label, gone.value) == ("node-2", IMAGE_READY + mine["metadata"]["uid"], None)
    (status,) = (one.status for one in made.actions if isinstance(one, SetStatus) and "cached" in one.status)
    assert status["cached"] == 2


def test_an_image_goes_with_the_last_endpoint_of_the_namespace_that_runs_it() -> None:
    world = serving()
    observed = world.observed()
    other = observed.endpoint.model_copy(
        update={"metadata": observed.endpoint.metadata.model_copy(update={"name": "other", "uid": "other"})}
    )
    shared = replace(observed, endpoints=(observed.endpoint, other))
    (cache,) = (
        one
        for one in plan(shared, world.settings).actions
        if isinstance(one, Apply) and one.kind == "ModelImageCache"
    )
    assert [ref["name"] for ref in cache.manifest["spec"]["endpointRefs"]] == [NAME, "other"]
    world.delete()
    left = replace(world.observed(), endpoints=(world.observed().endpoint, other))
    actions = plan(left, world.settings).actions
    assert not [
        one for one in actions if isinstance(one, Delete) and one.kind in ("ModelImageCache", "DaemonSet")
    ]


# --- Drift ---


def test_drift_is_reported_and_nothing_else_unless_so_said() -> None:
    world = serving()
    world.version = 2
    before = len(applied(world, "Deployment"))
    world.now += 27 * 3600
    world.settle()
    condition = world.condition("SourceDrifted")
    assert condition is not None
    assert condition["status"] == "True"
    assert len(applied(world, "Deployment")) == before


def test_a_source_that_cannot_be_listed_again_is_not_said_to_be_unchanged_until_it_is() -> None:
    world = serving()

    def drifted() -> tuple[str, str]:
        condition = world.condition("SourceDrifted")
        assert condition is not None
        return condition["status"], condition["reason"]

    world.now += 27 * 3600
    world.settle()
    assert drifted() == ("False", "SourceUnchanged")
    world.now += 27 * 3600
    world.source_failure = FailureReason.ACCESS_DENIED
    world.settle()
    assert drifted() == ("Unknown", "AccessDenied")
    world.now += 27 * 3600
    world.rest()
    assert drifted() == ("Unknown", "AccessDenied"), "while it is being listed"
    world.source_failure = None
    world.settle()
    assert drifted() == ("False", "SourceUnchanged")


def test_with_roll_over_a_drifted_source_is_listed_anew_and_rolled_out() -> None:
    world = serving(cachePolicy={"drift": {"onDrift": "rollOver"}})
    world.version = 2
    world.now += 27 * 3600
    world.settle()
    (cache,) = world.own("ModelDataCacheConfig")
    assert cache["status"]["key"] == world.listing(2).digest()[:40]
    condition = world.condition("SourceDrifted")
    assert condition is None or condition["status"] == "False"


def test_a_node_that_the_source_refuses_what_was_listed_has_it_looked_at_at_once() -> None:
    world = serving()
    world.version = 2
    world.add_node("new")
    world.settle()
    condition = world.condition("SourceDrifted")
    assert condition is not None
    assert condition["status"] == "True"
    assert world.now < START + 600


def test_a_source_that_changed_before_anybody_had_it_is_listed_anew() -> None:
    world = World()
    world.round()
    world.rest()
    world.version = 2
    for _ in range(80):
        world.round()
    assert world.deployment is not None
    assert set(world.disks["node-0"].bytes) == {world.listing(2).digest()[:40]}


# --- Saying ---


def test_progress_is_written_at_most_every_30_s_and_5_percent() -> None:
    world = World()
    for _ in range(3):
        world.step()
        world.run_agents()
        world.run_jobs() if not fill_jobs(world) else None
        world.now += 1
    world.rest()
    key = world.listing(1).digest()[:40]
    written = []
    for percent in range(1, 61):
        world.disks["node-0"].bytes[key] = TOTAL * percent // 100
        world.disks["node-0"].rates[key] = 2
        world.run_agents()
        world.finished.clear()
        world.step()
        written += [
            world.now
            for one in world.finished
            if isinstance(one, SetStatus) and one.kind == "ModelDataCacheConfig"
        ]
        world.now += 5
    (cache,) = world.own("ModelDataCacheConfig")
    (node,) = (one for one in cache["status"]["notReady"] if one["node"] == "node-0")
    status = cache["status"]
    assert node["bytesPerSecond"] == status["bytesPerSecond"] == 2
    assert node["etaSeconds"] == (TOTAL - node["bytesDone"]) // 2
    assert status["etaSeconds"] == (3 * TOTAL - status["bytesDone"]) // 2
    # Of 1000 bytes 1 % came every 5 s, and 3 nodes are to have them.
    assert 2 <= len(written) <= 10
    assert all(later - earlier >= 30 for earlier, later in pairwise(written[1:]))


def test_events_are_written_on_transitions_only() -> None:
    world = serving()
    world.finished.clear()
    world.wipe("node-0")
    world.settle()
    again = [one for one in world.finished if isinstance(one, Event)]
    assert len({(one.reason, one.message.split(":")[0]) for one in again}) == len(again)
    world.finished.clear()
    world.settle()
    assert world.finished == []


def test_no_rate_and_no_time_left_is_said_where_nothing_moves() -> None:
    world = World()
    world.round()
    world.round()
    key = world.listing(1).digest()[:40]
    world.disks["node-0"].bytes[key] = 400
    world.run_agents()
    world.rest()
    (cache,) = world.own("ModelDataCacheConfig")
    assert not {"bytesPerSecond", "etaSeconds"} & cache["status"].keys()
    world.disks["node-0"].rates[key] = 0
    world.run_agents()
    world.now += 31
    lacking = progress(world.observed(), world.data_caches()[0], world.observed().nodes, world.settings)
    (node,) = (one for one in lacking if one.node == "node-0")
    assert (node.bytes_per_second, node.eta_seconds) == (0, None)


def failed(world: World, node: str, said: str) -> None:
    """The Job that fills a node has failed, and its pod has said why."""
    for name, (manifest, job) in world.jobs.items():
        if job.node == node:
            ended = replace(job, state=JobState.FAILED, finished=world.now, message=f"Job {name}: {said}")
            world.jobs[name] = (manifest, replace(ended, failure=FailureReason.ACCESS_DENIED))


def begun() -> World:
    """A world in which Jobs fetch to nodes."""
    world = World()
    world.round()
    world.rest()
    world.run_agents()
    world.rest()
    assert fill_jobs(world)
    return world


def test_what_the_pod_of_a_failed_job_said_is_told_of_node_cache_and_endpoint_with_what_to_do() -> None:
    world = begun()
    failed(world, "node-1", "s3://models/llama/: 403 Forbidden")
    world.finished.clear()
    world.rest()
    (cache,) = world.own("ModelDataCacheConfig")
    (node,) = (one for one in cache["status"]["notReady"] if one["node"] == "node-1")
    assert node["reason"] == "AccessDenied"
    assert node["message"].endswith(": s3://models/llama/: 403 Forbidden")
    (of_cache,) = (one for one in cache["status"]["conditions"] if one["type"] == "Cached")
    of_endpoint = world.condition("Cached")
    assert of_endpoint is not None
    assert (of_endpoint["status"], of_endpoint["reason"]) == ("False", "AccessDenied")
    assert of_endpoint["message"] == of_cache["message"]
    assert "node-1: Job fill-" in of_cache["message"]
    assert of_cache["message"].endswith(f"403 Forbidden. {Reason.ACCESS_DENIED.remedy}")
    (event,) = (one for one in world.finished if isinstance(one, Event) and one.reason == "AccessDenied")
    assert event.warning
    assert event.message == f"Cached is False: {of_cache['message']}"


def test_what_to_do_is_told_however_long_the_message_is() -> None:
    world = begun()
    failed(world, "node-1", "x" * 5000)
    world.rest()
    condition = world.condition("Cached")
    assert condition is not None
    assert condition["message"].endswith(Reason.ACCESS_DENIED.remedy)
    (event,) = (one for one in world.finished if isinstance(one, Event) and one.reason == "AccessDenied")
    assert event.message.endswith(Reason.ACCESS_DENIED.remedy)
    assert len(condition["message"]) < len(event.message) <= MOST_MESSAGE


def test_a_job_whose_pod_cannot_start_is_not_called_filling() -> None:
    world = begun()
    why = 'CreateContainerConfigError: secret "keys" not found'
    for name, (manifest, job) in world.jobs.items():
        world.jobs[name] = (manifest, replace(job, waiting=why))
    world.rest()
    condition = world.condition("Cached")
    assert condition is not None
    assert condition["reason"] == "JobPending"
    assert why in condition["message"]


def test_a_job_that_is_to_list_the_source_and_cannot_start_says_why() -> None:
    world = World()
    world.rest()
    why = "Unschedulable: 0/3 nodes are available"
    for name, (manifest, job) in world.jobs.items():
        world.jobs[name] = (manifest, replace(job, waiting=why))
    world.rest()
    condition = world.condition("Resolved")
    assert condition is not None
    assert (condition["status"], condition["reason"]) == ("False", "JobPending")
    assert why in condition["message"]


# --- Agents that are silent ---


def test_a_node_whose_agent_says_nothing_any_more_is_not_ready_for_ever() -> None:
    world = serving()
    world.now += SILENT_SECONDS - 10
    world.run_agents(["node-0", "node-1"])
    world.rest()
    assert labelled(world, WEIGHTS_READY) == set(world.nodes), "it may still be heard"
    world.now += 10
    world.finished.clear()
    world.rest()
    assert labelled(world, WEIGHTS_READY) == {"node-0", "node-1"}
    (cache,) = world.own("ModelDataCacheConfig")
    (node,) = cache["status"]["notReady"]
    assert (node["node"], node["reason"]) == ("node-2", "AgentSilent")
    assert "has said nothing since 20" in node["message"]
    condition = world.condition("Cached")
    assert condition is not None
    # Whether the node has it nobody knows.
    assert (condition["status"], condition["reason"]) == ("Unknown", "AgentSilent")
    assert not [one for one in world.finished if isinstance(one, Apply) and one.kind == "Job"]
    world.settle()
    assert labelled(world, WEIGHTS_READY) == set(world.nodes), "it is heard again"


def test_pods_on_a_node_whose_agent_is_silent_are_cold_and_serve_on() -> None:
    world = serving()
    pods = dict(world.pods)
    world.now += SILENT_SECONDS
    world.run_agents(["node-1", "node-2"])
    world.rest()
    (one,) = world.own("EndpointSlice")
    assert {each["nodeName"]: each["conditions"]["ready"] for each in one["endpoints"]} == {
        "node-0": False,
        "node-1": True,
    }
    assert world.pods == pods


def test_when_an_agent_was_heard_goes_by_the_clock_of_who_listens() -> None:
    world = serving()
    world.now += 2 * SILENT_SECONDS
    observed = replace(world.observed(), heard=dict.fromkeys(world.nodes, world.now - 1))
    assert plan(observed, world.settings).actions == ()


def test_a_node_that_was_not_ready_gives_its_agent_the_same_time_from_when_it_is() -> None:
    world = serving()
    world.now += 2 * SILENT_SECONDS
    world.run_agents(["node-1", "node-2"])
    world.change_node("node-0", ready=False)
    world.rest()
    assert "node-0" in labelled(world, WEIGHTS_READY)
    world.change_node("node-0", ready=True, ready_since=world.now)
    world.rest()
    assert "node-0" in labelled(world, WEIGHTS_READY)


def test_an_agent_that_never_spoke_is_missing_and_not_silent() -> None:
    world = serving()
    world.add_node("node-0")
    world.now += 2 * SILENT_SECONDS
    world.run_agents(["node-1", "node-2"])
    world.rest()
    (cache,) = world.own("ModelDataCacheConfig")
    (node,) = cache["status"]["notReady"]
    assert (node["node"], node["reason"]) == ("node-0", "AgentMissing")


def test_a_root_that_the_operator_does_not_allow_is_refused_and_what_serves_goes_on() -> None:
    world = serving()
    pods = dict(world.pods)
    world.edit(modelCacheConfig={"weightsCache": {"enabled": True, "hostPath": "/etc"}})
    world.settle()
    condition = world.condition("GateOpen")
    assert condition is not None
    assert condition["reason"] == "HostPathNotAllowed"
    assert "/opt/dlami/nvme" in condition["message"]
    assert world.pods == pods
    assert not any(job for job in fill_jobs(world) if "/etc" in json.dumps(job))


def test_a_name_that_is_taken_is_said_and_left_alone() -> None:
    world = World()
    observed = replace(world.observed(), foreign=frozenset({f"Service/{NAME}"}))
    made = plan(observed, world.settings)
    assert not [
        one
        for one in made.actions
        if isinstance(one, Apply) and one.kind in ("Service", "Deployment") and one.name == NAME
    ]
    (status,) = (one.status for one in made.actions if isinstance(one, SetStatus) and one.name == NAME)
    assert "NameTaken" in json.dumps(status)


# --- The end ---


def test_the_finalizer_is_there_before_anything_else_and_goes_last() -> None:
    world = World()
    made = world.step()
    assert type(made.actions[0]).__name__ == "SetFinalizer"
    assert world.endpoint is not None
    assert world.endpoint["metadata"]["finalizers"] == [FINALIZER]
    world.settle()
    world.delete()
    world.settle()
    assert world.left() == []
    assert type(world.finished[-1]).__name__ == "SetFinalizer"


def test_a_node_that_vanished_is_not_waited_for() -> None:
    world = serving()
    world.remove_node("node-2")
    world.delete()
    world.now += 1
    world.settle()
    assert world.endpoint is None
    assert world.now < START + 600


def test_a_node_that_does_not_confirm_is_waited_for_until_the_timeout() -> None:
    world = serving(cachePolicy={"cleanupTimeout": "15m"})
    world.delete()
    for _ in range(5):
        world.rest()
        world.run_deployment()
        world.run_daemon_sets()
        world.now += 60
    assert world.endpoint is not None
    world.now += 900
    world.rest()
    assert world.endpoint is None
    told = [
        one.message for one in world.finished if isinstance(one, Event) and one.reason == "CleanupTimedOut"
    ]
    assert told
    assert "node-0, node-1, node-2" in told[0]


def test_nodes_that_do_not_confirm_are_named_also_if_pods_took_all_the_time_there_was() -> None:
    world = serving(cachePolicy={"cleanupTimeout": "15m"})
    world.delete()
    world.rest()
    world.now += 901
    world.rest()
    told = [
        one.message for one in world.finished if isinstance(one, Event) and one.reason == "CleanupTimedOut"
    ]
    assert any("node-0, node-1, node-2" in one for one in told), told


# --- Listings ---


def test_a_long_listing_is_cut_into_config_maps_that_fit_and_read_as_one() -> None:
    world = serving()
    (cache,) = world.data_caches()
    files = tuple(
        File(f"part-{number}-{hash_of(number)}", number, version=hash_of(number)) for number in range(25_000)
    )
    listing = Listing("s3://models/llama/", "", files)
    made = config_maps(world._endpoint(), cache, listing)
    assert len(made) > 1
    packed = [b64decode(value) for one in made for value in one["binaryData"].values()]
    assert all(len(part) <= PART_BYTES for part in packed)
    assert Listing.from_json(gzip.decompress(b"".join(packed))) == listing


def hash_of(number: int) -> str:
    return sha256(str(number).encode()).hexdigest()


def test_every_command_line_that_is_written_is_one_that_cacheprep_takes() -> None:
    variants: list[Json] = [{}, {"modelCacheConfig": {}}, {"cachePolicy": {"mount": "pvc"}}]
    for changed in variants:
        world = serving(**changed)
        assert world.deployment is not None
        pods = [one["spec"]["template"]["spec"] for one in (*applied(world, "Job"), world.deployment)]
        for pod in pods:
            container = (pod.get("initContainers") or pod["containers"])[0]
            name, *args = container["args"]
            command = cacheprep.get_command(click.Context(cacheprep), name)
            assert command is not None
            command.make_context(name, args)
