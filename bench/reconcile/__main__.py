"""`python -m bench.reconcile`: many nodes, each with all caches; build/bench/reconcile.json.

Nodes and what their agents say are written by the bench; nobody runs pods. Measured is the controller: until
all is settled, a change of one node, and a time in which nothing changes.
"""

from __future__ import annotations

import asyncio
import os
import tempfile
import time
from collections import Counter
from pathlib import Path

import click
import orjson
import yaml
from kubernetes_asyncio import client as api
from prometheus_client import CollectorRegistry

from bench.reconcile.counting import Counting
from cacheprep.api.names import WEIGHTS_READY
from cacheprep.controller.acting import Hand
from cacheprep.controller.controller import keep
from cacheprep.controller.metrics import ControllerMetrics
from cacheprep.controller.reconcile import Reconciler
from cacheprep.plan.settings import Settings
from cacheprep.store.layout import State
from extproc import logs
from extproc.config import LogConfig
from extproc.pool.discovery.kubernetes import connected
from tests.apiserver import cluster
from tests.apiserver.attachment.kubectl import ROOT
from tests.apiserver.cluster import ADMIN, ApiServer
from tests.apiserver.operator.actors import Actors, kubelet, listing
from tests.apiserver.operator.actors import key as key_of
from tests.envoy.process import eventually

INTO = Path("build/bench")
NAMESPACE = "bench"
AT_ONCE = 16


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--nodes", type=click.IntRange(1, 5000), default=1000, show_default=True)
@click.option("--caches", type=click.IntRange(1, 100), default=20, show_default=True)
@click.option("--idle", type=click.IntRange(10, 3600), default=60, show_default=True, help="Seconds.")
def main(nodes: int, caches: int, idle: int) -> None:
    """Measure, and print what was measured."""
    if reason := cluster.missing():
        raise SystemExit(reason)
    logs.set_up(LogConfig(level="error"))
    with tempfile.TemporaryDirectory() as directory:
        server = ApiServer(Path(directory))
        os.environ["KUBECONFIG"] = str(server.kubeconfig(ADMIN))
        try:
            result = asyncio.run(_measure(server, nodes, caches, idle, Path(directory)))
        finally:
            server.kill()
    INTO.mkdir(parents=True, exist_ok=True)
    (INTO / "reconcile.json").write_bytes(orjson.dumps(result, option=orjson.OPT_INDENT_2))
    for name, value in result.items():
        print(f"{name:>28}  {value}")


async def _measure(
    server: ApiServer, nodes: int, caches: int, idle: int, directory: Path
) -> dict[str, object]:
    await server.ready()
    await _define(server)
    async with connected() as admin, connected() as own:
        await admin.send("POST", "/api/v1/namespaces", {"metadata": {"name": NAMESPACE}})
        actors = Actors(admin, NAMESPACE)
        actors.sources = {f"llama-{number}": listing(str(number)) for number in range(caches)}
        keys = [key_of(found) for found in actors.sources.values()]
        async with kubelet(actors, directory):
            names = [f"node-{number}" for number in range(nodes)]
            actors.disks = {name: dict.fromkeys(keys, State.READY) for name in names}
            for at in range(0, nodes, AT_ONCE):
                await asyncio.gather(*map(actors.node, names[at : at + AT_ONCE]))
            for name in actors.sources:
                await actors.endpoint(name, modelCacheConfig={"weightsCache": {"enabled": True}})
            counting = Counting(own)
            metrics = ControllerMetrics(CollectorRegistry())
            hand = Hand(counting, time.time)
            reconciler = Reconciler(counting, hand, Settings(), metrics, time.monotonic, time.time)
            running = asyncio.create_task(keep(counting, reconciler), name="controller")
            try:
                return await _watch(actors, counting, metrics, running, nodes, caches, idle)
            finally:
                running.cancel()
                await asyncio.gather(running, return_exceptions=True)


async def _watch(
    actors: Actors,
    counting: Counting,
    metrics: ControllerMetrics,
    running: asyncio.Task[None],
    nodes: int,
    caches: int,
    idle: int,
) -> dict[str, object]:
    began, used = time.monotonic(), time.process_time()

    async def labelled() -> bool:
        if running.done():
            running.result()
        await actors.jobs()
        await asyncio.sleep(1)
        return bool(await _labels(actors) == nodes * caches)

    await eventually(labelled, "every node has every label", 1800)
    # Deployments would now be rolled out; here nobody does.
    before: Counter[str] = Counter()
    while before != counting.calls:
        before = Counter(counting.calls)
        await asyncio.sleep(5)
    result: dict[str, object] = {"nodes": nodes, "caches": caches}
    result["settled_seconds"] = round(time.monotonic() - began, 1)
    result["settled_cpu_seconds"] = round(time.process_time() - used, 1)
    result["settled_calls"] = dict(counting.calls)
    plans = next(iter(metrics.planning.collect())).samples
    total = {sample.name.rpartition("_")[2]: sample.value for sample in plans if not sample.labels}
    result["plan_mean_ms"] = round(1000 * total["sum"] / total["count"], 1)

    before = Counter(counting.calls)
    disk = actors.disks["node-0"]
    lost = next(iter(disk))
    disk[lost] = State.UNMARKED
    began = time.monotonic()
    await actors.report("node-0")

    async def unlabelled() -> bool:
        node = await actors.get("Node", "node-0")
        labels = (node or {})["metadata"]["labels"]
        return bool(sum(name.startswith(WEIGHTS_READY) for name in labels) == caches - 1)

    await eventually(unlabelled, "the label has gone", 60)
    result["one_change_seconds"] = round(time.monotonic() - began, 2)
    await asyncio.sleep(5)
    result["one_change_calls"] = dict(counting.calls - before)

    disk[lost] = State.READY
    await actors.jobs()
    await actors.report("node-0")
    await asyncio.sleep(15)
    before, used = Counter(counting.calls), time.process_time()
    await asyncio.sleep(idle)
    minutes = idle / 60
    result["idle_calls_per_minute"] = {
        verb: round(count / minutes, 1) for verb, count in (counting.calls - before).items()
    }
    result["idle_cpu_percent"] = round(100 * (time.process_time() - used) / idle, 2)
    return result


async def _labels(actors: Actors) -> int:
    return sum(
        name.startswith(WEIGHTS_READY)
        for node in await actors.all("Node")
        for name in node["metadata"]["labels"]
    )


async def _define(server: ApiServer) -> None:
    async with cluster.admin(server) as client:
        known = api.ApiextensionsV1Api(client)
        for file in sorted((ROOT / "manifests" / "operator" / "crds").glob("warmroute.dev_*.yaml")):
            await known.create_custom_resource_definition(yaml.safe_load(file.read_text()))

        async def established() -> bool:
            listed = await known.list_custom_resource_definition()
            return all(
                any(
                    one.type == "Established" and one.status == "True" for one in item.status.conditions or ()
                )
                for item in listed.items
            )

        await eventually(established, "the kinds are known", 60)


if __name__ == "__main__":
    main()
