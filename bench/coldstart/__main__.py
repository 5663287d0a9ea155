"""`python -m bench.coldstart`: time to Ready of a new pod, on a prepared node and on one with nothing.

In the cluster of `make e2e-up`. One worker is prepared as the operator prepares nodes; another is emptied
before each pod. Source and registry are throttled at their way out to each rate in turn, page caches are
dropped before each pod, and prepared and empty nodes take turns. Two sizes of model make the line by which
larger ones are extrapolated.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import click
import orjson

from bench.coldstart import nodes, objects, pods, report, servers
from bench.coldstart.figures import Sample
from bench.coldstart.objects import Workload
from bench.coldstart.servers import Servers
from bench.coldstart.throttle import Transfer, watched
from cacheprep.commands.options import Size
from cacheprep.plan.settings import Settings
from e2e.cluster import engine, golang, images, kind, published
from e2e.cluster.command import ClusterError
from extproc.pool.discovery.kubernetes import ApiError, Cluster, connected
from images import build as product

OUT = Path("build/bench/coldstart.json")
MB = 1e6
PARTS = {"third": 3, "whole": 1}
"""The models: names, and which part of --model-bytes each has."""
HOLDS = 1.05
"""A throttle that lets through more than this is none."""
NOTHING = 0.02
"""Part of the bytes that may be asked for on a prepared node."""
SLACK_SECONDS = 180.0


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--rates", default="100,200,400", show_default=True, help="MB/s of source and registry, each.")
@click.option("--rounds", type=click.IntRange(1, 50), default=3, show_default=True)
@click.option(
    "--model-bytes",
    type=Size("1MB"),
    default="3GB",
    show_default=True,
    help="Of the larger model; the other has a third.",
)
@click.option(
    "--image-bytes",
    type=Size("1MB"),
    default="1GB",
    show_default=True,
    help="Of the image, over the router's.",
)
@click.option(
    "--json", "out", type=click.Path(path_type=Path, dir_okay=False), default=OUT, show_default=True,
    help="Where figures go; the plot goes beside it.",
)  # fmt: skip
def main(rates: str, rounds: int, model_bytes: int, image_bytes: int, out: Path) -> None:
    """Seconds to Ready, prepared against not: measured, and extrapolated to models of 57, 145 and 600 GB."""
    wanted = _rates(rates)
    if not (engine.answers() and kind.runs()):
        sys.exit("coldstart: there is no cluster: run `make e2e-up`")
    os.environ["KUBECONFIG"] = str(kind.kubeconfig())
    # Told to end, it tidies up as it does after Ctrl-C.
    signal.signal(signal.SIGTERM, lambda number, _frame: sys.exit(128 + number))
    try:
        samples = _measured(wanted, rounds, model_bytes, image_bytes)
    except (ClusterError, ApiError, golang.BuildError) as error:
        sys.exit(f"coldstart: {error}")
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_bytes(orjson.dumps(report.summary(samples, image_bytes), option=orjson.OPT_INDENT_2))
    report.plot(samples, image_bytes, out.with_suffix(".svg"))
    report.tables(samples, image_bytes)
    print(f"wrote {out} and {out.with_suffix('.svg')}")
    print(report.figure(samples, image_bytes))


def _rates(text: str) -> list[float]:
    try:
        rates = [float(one) * MB for one in text.split(",")]
    except ValueError:
        rates = []
    if not rates or min(rates) <= 0:
        raise click.BadParameter(
            f"{text!r}: give numbers above 0 with commas, as 100,200,400", param_hint="--rates"
        )
    return rates


def _measured(rates: Sequence[float], rounds: int, model_bytes: int, image_bytes: int) -> list[Sample]:
    servers.check_memory(sum(model_bytes // part for part in PARTS.values()) + image_bytes)
    cacheprep = product.build(product.CACHEPREP, published.base())
    images.load([cacheprep], (nodes.WARM, nodes.COLD))
    nodes.leave()
    with servers.running() as there:
        workloads: list[Workload] = []
        try:
            _say("models and image into source and registry")
            image = servers.push(image_bytes)
            kind.apply(objects.base(there.source))
            for name, part in PARTS.items():
                listing = servers.upload(there.source, name, model_bytes // part)
                workloads.append(
                    objects.workload(name, image, there.source, listing, Settings(image=cacheprep))
                )
            _say(f"both models and the image onto {nodes.WARM}, without throttle")
            nodes.prepare(workloads)
            kind.apply([one.pods() for one in workloads])
            return asyncio.run(_rounds(there, workloads, image, image_bytes, rates, rounds))
        finally:
            there.limit(None)
            nodes.leave()


async def _rounds(
    there: Servers,
    workloads: Sequence[Workload],
    image: str,
    image_bytes: int,
    rates: Sequence[float],
    rounds: int,
) -> list[Sample]:
    samples = []
    async with connected() as cluster:
        for number in range(rounds):
            for rate in rates:
                there.limit(rate)
                for workload in workloads:
                    # Who is first has no advantage that stays.
                    for warm in (True, False) if number % 2 == 0 else (False, True):
                        one = await _start(cluster, there, workload, image, image_bytes, rate, warm)
                        samples.append(one)
                        _say(f"round {number + 1}/{rounds}, {one}")
    return samples


async def _start(
    cluster: Cluster,
    there: Servers,
    workload: Workload,
    image: str,
    image_bytes: int,
    rate: float,
    warm: bool,
) -> Sample:
    """One pod, from nothing to Ready and away again.

    Raises `ClusterError` if what was measured is not what was meant: a throttle that does not hold, a
    prepared node that asks the source, an empty one that does not.
    """
    node = nodes.WARM if warm else nodes.COLD
    total = workload.listing.total
    await asyncio.to_thread(nodes.empty, image)
    await asyncio.to_thread(nodes.admit, node)
    await asyncio.to_thread(nodes.drop_caches)
    idle, ticks = nodes.processors()
    async with watched((there.source_link, there.registry_link)) as (source, registry):
        started = await pods.start(cluster, workload.name, SLACK_SECONDS + 3 * (total + image_bytes) / rate)
    idle_after, ticks_after = nodes.processors()
    await pods.stop(cluster, workload.name)
    if started.node != node or started.loaded_bytes != total:
        raise ClusterError(f"{workload.name}: ran on {started.node} and loaded {started.loaded_bytes} bytes")
    for name, transfer, whole in (("source", source, total), ("registry", registry, image_bytes)):
        _check(f"{workload.name} on {node}: the {name}", transfer, whole, rate, warm)
    return Sample(
        warm=warm,
        rate=rate,
        model_bytes=total,
        seconds=started.seconds,
        spans=started.spans(),
        source_bytes=source.sent,
        source_rate=source.rate,
        registry_bytes=registry.sent,
        registry_rate=registry.rate,
        loading_rate=started.loaded_bytes / started.loading_seconds,
        busy=1 - (idle_after - idle) / (ticks_after - ticks),
    )


def _check(what: str, transfer: Transfer, whole: int, rate: float, warm: bool) -> None:
    if warm and transfer.sent > NOTHING * whole:
        raise ClusterError(f"{what} sent {transfer.sent / MB:.1f} MB: the node was not prepared")
    if not warm and transfer.sent < whole:
        raise ClusterError(
            f"{what} sent {transfer.sent / MB:.1f} MB of {whole / MB:.1f} MB: the node had some"
        )
    if not warm and transfer.rate > HOLDS * rate:
        raise ClusterError(f"{what} sent {transfer.rate / MB:.0f} MB/s and was throttled to {rate / MB:.0f}")


def _say(text: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {text}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
