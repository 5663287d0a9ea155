"""`cacheprep agent`."""

from __future__ import annotations

import random

import click

from cacheprep.api.names import DEFAULT_ROOT
from cacheprep.commands.options import Duration, Size
from cacheprep.commands.service import LISTEN, check_root, serve
from cacheprep.store.root import Rules
from extproc.pool.discovery.kubernetes import Cluster


@click.command("agent")
@click.option("--node", required=True, envvar="NODE_NAME", show_envvar=True, help="Name of the node.")
@click.option(
    "--root",
    "roots",
    multiple=True,
    default=(DEFAULT_ROOT,),
    metavar="PATH",
    help="A directory where caches may be, mounted here where it is on the node; repeat for several.",
)
@click.option("--allow-shared-disk", is_flag=True, help="Take roots on the disk of the system, too.")
@click.option(
    "--deep-every", type=Duration(), default="7d", help="Read and hash every byte of each cache so often."
)
@click.option(
    "--deep-bandwidth",
    type=Size("1B"),
    default="200MB",
    metavar="SIZE",
    help="Bytes per second of that reading.",
)
@click.option(
    "--keep-unclaimed",
    type=Duration(),
    default="15m",
    help="How long a cache stays that no ModelDataCacheConfig names, as after its namespace was deleted.",
)
@click.option("--listen", default=LISTEN, metavar="HOST:PORT", help="Answer /healthz, /readyz and /metrics.")
def command(
    node: str,
    roots: tuple[str, ...],
    allow_shared_disk: bool,
    deep_every: float,
    deep_bandwidth: int,
    keep_unclaimed: float,
    listen: str,
) -> None:
    """Say in NodeModelCache what is on the disks of a node, until SIGTERM.

    Caches are verified: kind, size and mtime of every file at each look, every byte now and then. Removed is
    what no ModelDataCacheConfig wants and no pod of the node uses, and what dead processes left.
    """
    from prometheus_client import CollectorRegistry

    from cacheprep.agent.agent import Agent, Settings
    from cacheprep.agent.metrics import AgentMetrics
    from cacheprep.health import answering

    settings = Settings(
        node=node,
        roots=tuple(check_root(root) for root in roots),
        rules=Rules(kubernetes=True, allow_shared_disk=allow_shared_disk),
        deep_seconds=deep_every,
        deep_bytes_per_second=float(deep_bandwidth),
        orphan_seconds=keep_unclaimed,
    )

    async def work(cluster: Cluster) -> None:
        registry = CollectorRegistry()
        agent = Agent(cluster, settings, AgentMetrics(registry), random.Random())
        async with answering(listen, registry, agent.unhealthy, agent.unready):
            await agent.run()

    serve(work)
