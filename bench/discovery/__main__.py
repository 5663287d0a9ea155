"""`python -m bench.discovery`: weigh it, print tables, say if the aim is met; build/bench/discovery.json."""

from __future__ import annotations

import asyncio
import os
import statistics
import tempfile
from pathlib import Path

import click
import orjson
from rich.console import Console
from rich.table import Table

from bench.discovery.measure import Cost, measure
from bench.discovery.writer import SLICE
from extproc import logs
from extproc.config import LogConfig
from tests.apiserver import cluster
from tests.apiserver.cluster import ADMIN, ApiServer

INTO = Path("build/bench")
AIM_SECONDS = 1.0
"""Within which every change reaches routing."""


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "--slices",
    "sizes",
    multiple=True,
    type=click.IntRange(1, 1000),
    default=(1, 10, 50),
    show_default=True,
    help="Slices of 100 endpoints; may be given several times.",
)
@click.option("--changes", type=click.IntRange(2, 99), default=20, show_default=True, help="One by one.")
def main(sizes: tuple[int, ...], changes: int) -> None:
    """What a change of a large Service costs the router, against a real kube-apiserver on this machine.

    It is found as the tests find it: in the directory KUBEBUILDER_ASSETS, or on PATH.
    """
    logs.set_up(LogConfig(level="warning"))
    if reason := cluster.missing():
        raise click.ClickException(reason)
    with tempfile.TemporaryDirectory() as directory:
        server = ApiServer(Path(directory))
        try:
            costs = asyncio.run(_all(server, sizes, changes))
        finally:
            server.kill()
    _print(costs)
    INTO.mkdir(parents=True, exist_ok=True)
    report = [cost._asdict() for cost in costs]
    (INTO / "discovery.json").write_bytes(orjson.dumps(report, option=orjson.OPT_INDENT_2) + b"\n")


async def _all(server: ApiServer, sizes: tuple[int, ...], changes: int) -> list[Cost]:
    await server.ready()
    os.environ["KUBECONFIG"] = str(server.kubeconfig(ADMIN))
    costs = []
    async with cluster.admin(server) as client:
        for slices in sizes:
            namespace = cluster.Namespace(f"bench-{slices}", client)
            await namespace.core.create_namespace({"metadata": {"name": namespace.name}})
            costs.append(await measure(namespace.name, slices, changes))
    return costs


def _print(costs: list[Cost]) -> None:
    console = Console(width=110)
    table = Table(title=f"One of a Service's slices of {SLICE} endpoints changes", title_justify="left")
    for heading in ("endpoints", "known in s", "to routing, ms", "most", "CPU, ms", "held, ms", "of it pick"):
        table.add_column(heading, justify="right")
    for cost in costs:
        table.add_row(
            f"{cost.endpoints}",
            f"{cost.start_seconds:.2f}",
            f"{1000 * statistics.median(cost.seconds):.0f}",
            f"{1000 * max(cost.seconds):.0f}",
            f"{cost.cpu_ms:.1f}",
            f"{cost.held_ms:.1f}",
            f"{cost.pick_ms:.1f}",
        )
    console.print(table)
    table = Table(title="All its slices change at once", title_justify="left")
    for heading in ("endpoints", "last to routing, ms", "CPU, ms", "steps"):
        table.add_column(heading, justify="right")
    for cost in costs:
        row = (cost.endpoints, 1000 * cost.burst_seconds, cost.burst_cpu_ms, cost.burst_steps)
        table.add_row(*(f"{value:.0f}" for value in row))
    console.print(table)
    slowest = max(max(*cost.seconds, cost.burst_seconds) for cost in costs)
    said = "met" if slowest < AIM_SECONDS else "MISSED"
    console.print(f"Aim: every change reaches routing within {AIM_SECONDS:g} s: {said} ({slowest:.2f} s)")


if __name__ == "__main__":
    main()
