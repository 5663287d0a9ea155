"""`cacheprep estimate`."""

from __future__ import annotations

from contextlib import closing
from difflib import get_close_matches

import click

from cacheprep.commands.options import Share, Size, json_option
from cacheprep.commands.output import print_json, size
from cacheprep.commands.source_options import source_options
from cacheprep.estimate import BANDWIDTH, DISK_READ, NODE_TYPES, Estimate, estimate
from cacheprep.failures import Failure, Reason
from cacheprep.sources import SourceOptions, source_of
from cacheprep.store.capacity import OWN_WATERMARK


def _print_node_types(context: click.Context, _parameter: click.Parameter, wanted: bool) -> None:
    if wanted and not context.resilient_parsing:
        for name, disk in NODE_TYPES.items():
            click.echo(f"{name:<16}{size(disk):>10}")
        context.exit()


@click.command("estimate")
@click.argument("source", required=False)
@click.option("--size", "model_bytes", type=Size("1B"), help="Of the model, instead of SOURCE: 140GB.")
@click.option("--node-type", metavar="TYPE", help="EC2 instance type: its NVMe is taken as one volume.")
@click.option("--disk", type=Size("1B"), help="Size of the cache's disk, instead of --node-type: 3.8TB.")
@click.option(
    "--bandwidth",
    type=Size("1B"),
    default=f"{BANDWIDTH / 1e9:g}GB",
    help="Bytes per second from the source to a node; 1.25GB are 10 Gbit/s.",
)
@click.option(
    "--disk-read",
    type=Size("1B"),
    default=f"{DISK_READ / 1e9:g}GB",
    help="Bytes per second from the disk.",
)
@click.option(
    "--watermark",
    type=Share(),
    default=f"{OWN_WATERMARK:.0%}",
    help="How full the disk may get.",
)
@click.option(
    "--node-types",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_print_node_types,
    help="Print the node types that are known with their NVMe, and stop.",
)
@source_options
@json_option
def command(
    source: str | None,
    model_bytes: int | None,
    node_type: str | None,
    disk: int | None,
    bandwidth: int,
    disk_read: int,
    watermark: float,
    options: SourceOptions,
    as_json: bool,
) -> None:
    """Estimate what caching a model saves: its share of the disk, time to fill, time saved per scale-out.

    SOURCE is listed for its size, nothing is fetched; with --size no source is asked. A pod on a cold node
    waits for the weights to come from the source, on a warm one for the disk: the difference is what is
    saved for each pod of a scale-out. It says nothing of images, start of the engine and loading to GPUs,
    which take as long either way.
    """
    disk_bytes = _disk(node_type, disk)
    if (source is None) == (model_bytes is None):
        raise Failure(Reason.INVALID_REQUEST, "SOURCE: give either a source or --size")
    if source is not None:
        with closing(source_of(source, options)) as opened:
            listing = opened.resolve()
        source, model_bytes = listing.source, listing.total
    if not model_bytes:
        raise Failure(Reason.INVALID_REQUEST, f"source {source}: all of its files are empty; name another")
    found = estimate(model_bytes, disk_bytes, bandwidth=bandwidth, disk_read=disk_read, watermark=watermark)
    if as_json:
        rates = {"bandwidth": bandwidth, "disk_read": disk_read, "watermark": watermark}
        print_json({"source": source, "node_type": node_type, **found._asdict(), **rates})
        return
    for line in _lines(found, source, node_type, bandwidth, disk_read, watermark):
        click.echo(line)


def _disk(node_type: str | None, disk: int | None) -> int:
    if (node_type is None) == (disk is None):
        raise Failure(Reason.INVALID_REQUEST, "--node-type: give either it or --disk")
    if disk is not None:
        return disk
    name = (node_type or "").removeprefix("ml.")
    if name not in NODE_TYPES:
        near = get_close_matches(name, NODE_TYPES, 1)
        meant = f"did you mean {near[0]}?" if near else "choose another"
        raise Failure(
            Reason.INVALID_REQUEST,
            f"--node-type {node_type!r}: is not known; {meant} (--node-types lists them; --disk needs none)",
        )
    return NODE_TYPES[name]


def _lines(
    found: Estimate,
    source: str | None,
    node_type: str | None,
    bandwidth: int,
    disk_read: int,
    watermark: float,
) -> list[str]:
    fits = f"{found.fits} of them fit" if found.fits else "it does not fit"
    return [
        f"model         {size(found.bytes)}" + (f"  {source}" if source else ""),
        f"disk          {size(found.disk_bytes)}" + (f"  {node_type}" if node_type else ""),
        f"share         {found.share:.1%}, {fits} below the watermark of {watermark:.0%}",
        f"time to fill  {duration(found.fill_s)} at {size(bandwidth)}/s",
        f"time to read  {duration(found.read_s)} at {size(disk_read)}/s from the disk",
        f"time saved    {duration(found.saved_s)} per scale-out: warm instead of cold",
    ]


def duration(seconds: float) -> str:
    """Seconds for a person: 0.4 s, 12 s, 3 min 20 s, 1 h 5 min."""
    if seconds < 10:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    minutes, rest = divmod(whole, 60)
    if minutes < 60:
        return f"{minutes} min {rest} s"
    return f"{minutes // 60} h {minutes % 60} min"
