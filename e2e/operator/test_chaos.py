"""Pods of every component are killed when a seed says, while sources change; all comes to its end."""

from __future__ import annotations

import asyncio
import random
from collections import Counter

import pytest

from e2e.operator import installation, nodes, sources
from e2e.operator.installation import AGENT, AGENTS, CONTROLLER, OPERATOR
from e2e.operator.sources import ObjectStore
from e2e.operator.tenant import Tenant, digests, engine
from e2e.operator.waiting import until
from e2e.scenarios import stack

SECONDS = 90.0
"""Of killing."""
MODELS = {
    name: sources.model(seed, files=12, size=1 << 20) for name, seed in (("chaos-a", 80), ("chaos-b", 81))
}


@pytest.mark.long
@pytest.mark.parametrize("seed", [1, 2])
async def test_whatever_is_killed_whenever_all_comes_to_the_end_that_was_asked_for(
    s3: ObjectStore, tenant: Tenant, seed: int
) -> None:
    draw = random.Random(seed)
    for name, model in MODELS.items():
        s3.put(name, model)
    wanted = "chaos-a"
    await tenant.endpoint("llama", s3.source(wanted), replicas=3, template=engine())
    await tenant.serves("llama", 3)
    wanted = "chaos-b"
    await tenant.change("llama", modelSource=s3.source(wanted))
    s3.relay.rate = 6e6
    killed: Counter[str] = Counter()
    loop = asyncio.get_running_loop()
    end = loop.time() + SECONDS
    while loop.time() < end:
        victims = {
            "controller": (OPERATOR, await stack.pods(OPERATOR, CONTROLLER)),
            "agent": (AGENTS, await stack.pods(AGENTS, AGENT)),
            "job": (tenant.namespace, await tenant.all("Pod", "batch.kubernetes.io/job-name")),
            "engine": (tenant.namespace, await tenant.pods("llama")),
        }
        there = sorted(name for name, (_, pods) in victims.items() if pods)
        # Jobs are there for seconds only: whoever was spared most is next.
        component = min(there, key=lambda name: (killed[name], draw.random()))
        namespace, pods = victims[component]
        pod = draw.choice(sorted(pods, key=lambda pod: pod["metadata"]["name"]))
        await installation.kill(namespace, pod["metadata"]["name"])
        killed[component] += 1
        if draw.random() < 0.15:
            wanted = "chaos-b" if wanted == "chaos-a" else "chaos-a"
            await tenant.change("llama", modelSource=s3.source(wanted))
        await asyncio.sleep(draw.uniform(0.5, 5.0))
    s3.relay.rate = None
    assert set(killed) == {"controller", "agent", "job", "engine"}, killed
    await installation.settled()
    # What failed meanwhile waits for its next try.
    await tenant.retry("llama", f"after seed {seed}")
    await tenant.serves("llama", 3, 300)
    cache = await tenant.cache("llama")
    assert cache["spec"]["source"]["s3"]["uri"].endswith(f"{wanted}/")
    await tenant.is_labelled(cache, nodes.workers())
    for pod in await tenant.pods("llama"):
        assert await tenant.loaded(pod) == digests(MODELS[wanted])

    async def one_each() -> bool:
        for node in nodes.workers():
            found = [file for file in await nodes.files(node, tenant.namespace) if "/caches/" in file]
            if {file.split("/caches/")[1].split("/")[0] for file in found} != {cache["status"]["key"]}:
                return False
        return True

    await until(one_each, "each node has that cache and no other", 120)
    await tenant.delete("llama")
    await tenant.nothing_is_left()
