"""An autoscaler's new pods: on nodes that have the weights, and on one that has not when no other is left."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from e2e.cluster import kind
from e2e.operator import nodes, sources
from e2e.operator.routed import NAME, routed
from e2e.operator.sources import ObjectStore
from e2e.operator.tenant import Json, Tenant, digests, engine, is_ready
from e2e.operator.waiting import until
from e2e.scenarios import stack
from e2e.scenarios.load import Outcome, all_served, load, more

COLD = kind.WORKERS[2]
LOAD: Json = {
    "type": "Resource",
    "resource": {"name": "cpu", "target": {"type": "AverageValue", "averageValue": "5m"}},
}


@pytest.mark.long
async def test_pods_go_to_warm_nodes_and_then_to_a_cold_one_where_they_fetch_and_serve(
    s3: ObjectStore, tenant: Tenant
) -> None:
    model = sources.model(50, files=4, size=8 << 20)
    s3.put("scaled", model)
    # Two pods fit a node. Where no agent is no Job fetches: the third node is cold, and may be used all the
    # same.
    template = engine(gpus=4, drains=True)
    scaling = {"horizontalPodAutoscaler": {"minReplicas": 2, "maxReplicas": 5, "metrics": [LOAD]}}
    try:
        await nodes.no_agent(COLD)
        await nodes.wipe(COLD, stack.ENGINES)
        before = s3.relay.passed
        said = {"template": template, "autoscaling": scaling, "cachePolicy": {"gate": 2}}
        async with routed(s3.source("scaled"), None, **said) as (llm, gateway):
            async with load(gateway) as outcomes:

                async def scaled() -> bool:
                    pods = await llm.pods(NAME)
                    return len(pods) == 5 and all(map(is_ready, pods))

                await until(scaled, "the autoscaler has five pods, and all are ready", 240)
                grown = len(outcomes)
                await until(lambda: _each_serves(outcomes, grown), "each of five pods serves", 120)
                await more(outcomes, 60)
                cold = await stack.of_router("extproc_requests_total", "node_cache=cold")
                hot = await stack.of_router("extproc_requests_total", "node_cache=warm")
            all_served(outcomes)
            pods = await llm.pods(NAME)
            there = [pod["spec"]["nodeName"] for pod in pods]
            # The fourth still went to a node that has the weights.
            assert there.count(COLD) == 1, there
            on_cold = pods[there.index(COLD)]
            assert await llm.warm(NAME) == {pod["metadata"]["uid"]: pod is not on_cold for pod in pods}
            assert await llm.loaded(on_cold) == digests(model)
            # Two Jobs fetched, and the pod there by itself.
            assert 3 <= (s3.relay.passed - before) / sources.total(model) < 3.3
            assert sum(cold.values()) > 0
            assert sum(hot.values()) > sum(cold.values())
    finally:
        await nodes.keep_agent_away(COLD, away=False)


async def _each_serves(outcomes: Sequence[Outcome], since: int) -> bool:
    return len({outcome.engine for outcome in outcomes[since:]}) == 5
