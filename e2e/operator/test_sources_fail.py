"""Sources that are away, that refuse, and that come back."""

from __future__ import annotations

from e2e.cluster import kind
from e2e.operator import sources
from e2e.operator.sources import SECRET_NAME, ObjectStore, credentials
from e2e.operator.tenant import Tenant, digests, engine, on_node
from e2e.operator.waiting import until

ONE = engine(**on_node(kind.WORKERS[0]))


async def test_a_source_that_is_gone_is_said_and_what_it_had_given_is_kept_until_it_is_back(
    s3: ObjectStore, tenant: Tenant
) -> None:
    model = sources.model(40)
    s3.put("gone", model)
    s3.relay.gone = True
    await tenant.endpoint("llama", s3.source("gone"), replicas=1, template=ONE)
    said = await tenant.says("llama", "Resolved", "SourceUnavailable")
    assert "did not answer" in said["message"]
    assert (await tenant.cache("llama"))["status"]["state"] == "Failed"
    assert await tenant.get("Deployment", "llama") is None
    s3.relay.gone = False
    await tenant.retry("llama", "the source is back")
    await tenant.serves("llama", 1)
    # Pods that serve do not need it any more, wherever on nodes that are ready they start.
    s3.relay.gone = True
    (pod,) = await tenant.pods("llama")
    await tenant.kubectl("delete", "pod", pod["metadata"]["name"])
    await tenant.serves("llama", 1)
    (other,) = await tenant.pods("llama")
    assert other["metadata"]["uid"] != pod["metadata"]["uid"]
    assert await tenant.loaded(other) == digests(model)


async def test_wrong_credentials_are_said_with_what_to_do_and_right_ones_are_taken_up(
    s3: ObjectStore, tenant: Tenant
) -> None:
    s3.put("denied", sources.model(41))
    await tenant.secret(SECRET_NAME, credentials("wrong"))
    await tenant.endpoint("llama", s3.source("denied"), replicas=1, template=ONE)
    said = await tenant.says("llama", "Resolved", "AccessDenied")
    assert "give credentials that may read it" in said["message"]
    (job,) = await tenant.jobs("resolve")
    assert job["status"].get("failed") == 1, "what cannot succeed was tried again"
    events = await tenant.kubectl("get", "events", "--field-selector=reason=AccessDenied,type=Warning")
    assert "llama" in events
    await tenant.secret(SECRET_NAME, credentials())
    await tenant.retry("llama", "right")
    await tenant.serves("llama", 1)


async def test_credentials_that_are_taken_away_between_listing_and_fetching_fail_nodes_and_say_which(
    s3: ObjectStore, tenant: Tenant
) -> None:
    s3.put("late", sources.model(42))
    await tenant.endpoint("first", s3.source("late"), replicas=1, template=ONE)
    await tenant.serves("first", 1)
    await tenant.secret(SECRET_NAME, credentials("wrong"))
    # Another node is to have it, and may not read it any more.
    both = engine(
        affinity={
            "nodeAffinity": {
                "requiredDuringSchedulingIgnoredDuringExecution": {
                    "nodeSelectorTerms": [
                        {
                            "matchExpressions": [
                                {
                                    "key": "kubernetes.io/hostname",
                                    "operator": "In",
                                    "values": list(kind.WORKERS[:2]),
                                }
                            ]
                        }
                    ]
                }
            }
        }
    )
    await tenant.endpoint("first", s3.source("late"), replicas=1, template=both)

    async def degraded() -> bool:
        status = (await tenant.cache("first"))["status"]
        lacking = [(one["node"], one["reason"]) for one in status["notReady"]]
        return status["state"] == "Degraded" and lacking == [(kind.WORKERS[1], "AccessDenied")]

    await until(degraded, "the node that may not read is named")
    await tenant.secret(SECRET_NAME, credentials())
    await tenant.retry("first", "right")
    await tenant.is_labelled(await tenant.cache("first"), set(kind.WORKERS[:2]))
