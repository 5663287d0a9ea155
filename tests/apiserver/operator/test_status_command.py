"""`cacheprep status` against a real API server."""

from __future__ import annotations

import asyncio
import json
import re
from pathlib import Path

import pytest

from tests.apiserver.cluster import ADMIN, ApiServer
from tests.apiserver.operator.actors import Actors, key
from tests.apiserver.operator.running import Keeper
from tests.apiserver.operator.stories import loads, until
from tests.store.running import run


@pytest.fixture
def config(operated: ApiServer) -> Path:
    return operated.kubeconfig(ADMIN)


async def status(config: Path, *words: str) -> tuple[int, str, str]:
    done = await asyncio.to_thread(lambda: run("status", *words, KUBECONFIG=str(config)))
    return done.returncode, done.stdout, done.stderr


async def test_each_node_has_its_state_and_a_node_that_failed_its_reason_and_what_to_do(
    actors: Actors, keeper: Keeper, config: Path
) -> None:
    actors.failing["node-b"] = 3
    note = '{"event": "note", "message": "warning: the disk is shared"}'
    actors.last_words = f"{note}\nAccessDenied: s3://weights/llama/: 403 Forbidden"
    await actors.endpoint(cachePolicy={"gate": 1})
    await until(actors, keeper, lambda: failed(actors), "node-b failed and node-a serves")
    await keeper.kill()
    code, shown, said = await status(config, "llama", "-n", actors.namespace)
    assert code == 0, said
    (ready,) = (line for line in shown.splitlines() if line.startswith("node-a"))
    (lacking,) = (line for line in shown.splitlines() if line.startswith("node-b"))
    assert ready.split()[1] == "ready"
    assert "AccessDenied" in lacking
    assert re.search(r"^  node-b: Job fill-\S+: s3://weights/llama/: 403 Forbidden$", shown, re.M)
    assert "-> Give the ServiceAccount or Secret" in shown
    assert "Next:" in shown
    code, shown, _ = await status(config, "llama", "-n", actors.namespace, "--json")
    (one,) = json.loads(shown)
    assert {node["node"]: node["reason"] for node in one["nodes"]} == {"node-a": "", "node-b": "AccessDenied"}


async def failed(actors: Actors) -> bool:
    (cache,) = await actors.all("ModelDataCacheConfig") or [{}]
    reasons = [one["reason"] for one in (cache.get("status") or {}).get("notReady") or ()]
    found = await actors.get("InferenceEndpointConfig", "llama")
    return "AccessDenied" in reasons and ((found or {}).get("status") or {}).get("phase") == "Serving"


async def test_a_settled_endpoint_has_nothing_next(actors: Actors, keeper: Keeper, config: Path) -> None:
    await actors.endpoint()
    await until(actors, keeper, loads(actors, key(actors.source)), "it serves")
    for _ in range(200):
        _, shown, _ = await status(config, "llama", "-n", actors.namespace)
        if "Next: nothing" in shown:
            break
        await actors.act()
    assert "Next: nothing" in shown


async def test_a_name_that_is_not_there_is_refused_with_the_nearest_one(actors: Actors, config: Path) -> None:
    await actors.endpoint()
    code, _, said = await status(config, "lama", "-n", actors.namespace)
    assert code == 2
    assert "endpoint 'lama': there is no such" in said
    assert "did you mean llama?" in said
    code, _, said = await status(config, "llama", "-n", "elsewhere")
    assert code == 2
    assert re.search(r"there is one in namespace \S+; ", said)
