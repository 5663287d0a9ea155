"""`cacheprep fetch`, and what it shares with `ensure`."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from contextlib import closing
from typing import Any, NamedTuple, TypeVar

import click

from cacheprep.commands.named_files import expected_digests, saved_listing
from cacheprep.commands.options import Share, Size, json_option, root_option
from cacheprep.commands.output import print_json, size
from cacheprep.commands.source_options import source_options
from cacheprep.commands.stopping import canceled_by_signals
from cacheprep.failures import Failure, Reason
from cacheprep.filling import Filled, Plan, fill
from cacheprep.listing import Listing
from cacheprep.metrics import FetchMetrics, served
from cacheprep.progress import reporting
from cacheprep.sources import SourceOptions, refuse_credentials, source_of, source_of_listing
from cacheprep.store.capacity import OWN_WATERMARK, SHARED_WATERMARK
from cacheprep.store.evict import Policy
from cacheprep.store.layout import check_key_prefix, key_of
from cacheprep.store.root import Root, Rules, check, make
from cacheprep.transfer.counters import Counters, Phase
from cacheprep.transfer.engine import Edge, Settings
from cacheprep.warm import request_of, split

_Command = TypeVar("_Command", bound=Callable[..., Any])
_DEFAULT = Settings()


class Wanted(NamedTuple):
    """What the command line asks for."""

    source: str | None
    root: str
    listing: str | None
    manifest: str | None
    key: str | None
    link: str | None
    metrics_address: str
    quiet: bool
    as_json: bool
    source_options: SourceOptions
    rules: Rules
    settings: Settings
    policy: Policy
    downloads_per_source: int
    watermark: float | None
    reserve: int


def fetch_options(command: _Command) -> _Command:
    """Every option that `fetch` and `ensure` share; the command gets one `Wanted`."""

    def called(**given: Any) -> None:
        if given["source"] is not None:
            # Before anything is shown.
            refuse_credentials(given["source"])
        options = given.pop("options")
        rules = Rules(
            kubernetes="KUBERNETES_SERVICE_HOST" in os.environ,
            allow_shared_disk=given.pop("allow_shared_disk"),
            allow_file_systems=frozenset(given.pop("allow_file_systems")),
        )
        settings = Settings(
            connections=given.pop("connections"),
            range_bytes=given.pop("range_size"),
            attempts=given.pop("attempts"),
            stall_s=given.pop("stall_timeout"),
            bandwidth=given.pop("bandwidth"),
        )
        given.setdefault("key", None)
        given.setdefault("link", None)
        command(Wanted(source_options=options, rules=rules, settings=settings, **given))

    called.__doc__ = command.__doc__
    decorated: Any = called
    for decorate in reversed(_OPTIONS):
        decorated = decorate(decorated)
    wrapped: _Command = decorated
    return wrapped


_OPTIONS: tuple[Callable[[Any], Any], ...] = (
    click.argument("source", required=False),
    root_option,
    click.option(
        "--listing",
        metavar="FILE",
        help="Fetch exactly this saved listing (`cacheprep sources resolve -o`), or the one whose compressed"
        " parts part-0000.gz, part-0001.gz, ... are in this directory.",
    ),
    click.option(
        "--manifest",
        metavar="FILE",
        help="manifest.json of the node that read first: every file must hash as it says there.",
    ),
    source_options,
    click.option(
        "--connections",
        type=click.IntRange(1, 256),
        default=_DEFAULT.connections,
        help="Connections to the source at once.",
    ),
    click.option(
        "--range-size",
        type=Size("4KiB"),
        default=f"{_DEFAULT.range_bytes >> 20}MiB",
        help="Longest range of one request; what a connection may have to fetch again after a kill.",
    ),
    click.option(
        "--bandwidth",
        type=Size("1B"),
        show_default="no limit",
        help="Bytes per second of all connections together, as 500MB.",
    ),
    click.option(
        "--attempts",
        type=click.IntRange(1, 1000),
        default=_DEFAULT.attempts,
        help="Tries for one range that fail in a row.",
    ),
    click.option(
        "--stall-timeout",
        type=click.FloatRange(1, 3600),
        default=_DEFAULT.stall_s,
        help="Seconds after which a connection that brings all but nothing is given up.",
    ),
    click.option(
        "--downloads-per-source",
        type=click.IntRange(1, 64),
        default=4,
        help="Caches fetched from one source at once on this root; others wait.",
    ),
    click.option(
        "--watermark",
        type=Share(),
        show_default=f"{OWN_WATERMARK:.0%} of a disk of its own, else {SHARED_WATERMARK:.0%}",
        help="How full the disk may get, as df counts.",
    ),
    click.option("--reserve", type=Size(), default=0, help="Bytes to keep free for kubelet beside that."),
    click.option(
        "--evict",
        "policy",
        type=click.Choice([policy.value for policy in Policy]),
        callback=lambda _, __, value: Policy(value),
        default=Policy.NONE.value,
        help="What to remove if room lacks: nothing, or least recently used caches that are not in use.",
    ),
    click.option("--allow-shared-disk", is_flag=True, help="Take a root on the system's disk, in pods too."),
    click.option(
        "--allow-file-system",
        "allow_file_systems",
        multiple=True,
        metavar="TYPE",
        help="Take this file system type (of /proc/mounts), which you know to be local.",
    ),
    click.option(
        "--metrics-address",
        default="",
        show_default="off",
        metavar="HOST:PORT",
        help="Serve Prometheus metrics.",
    ),
    click.option("--quiet", is_flag=True, help="No progress."),
    json_option,
)


@click.command("fetch")
@fetch_options
def command(wanted: Wanted) -> None:
    """Fetch SOURCE, verify it and publish it whole below the cache root; print the directory to load.

    SOURCE is listed anew each time: what changed there is another cache. What is there already is not fetched
    again, be it ready, or left by a run that was killed. Another process that wants the same waits.
    """
    obtain(wanted)


def obtain(wanted: Wanted) -> str:
    """Fetch what is wanted, print where it is, and return that.

    Raises:
        Failure: any reason.
    """
    if wanted.source is None and wanted.listing is None:
        raise Failure(
            Reason.INVALID_REQUEST, "SOURCE: is missing; name one, as s3://bucket/prefix, or a --listing"
        )
    listing = saved_listing(wanted.listing)
    expected = expected_digests(wanted.manifest)
    if wanted.source is not None:
        source = source_of(wanted.source, wanted.source_options)
    else:
        source = source_of_listing(listing.source if listing else "", wanted.source_options)
    root = check(wanted.root, wanted.rules)
    counters = Counters()
    metrics = FetchMetrics(counters, root.layout.root)

    def blocks() -> bool:
        return counters.snapshot().phase is Phase.RESOLVING

    with (
        closing(source),
        served(wanted.metrics_address, metrics),
        canceled_by_signals(blocks) as canceled,
        reporting(counters, wanted.source or "", as_json=wanted.as_json, quiet=wanted.quiet) as tell,
    ):
        for warning in root.warnings:
            tell(f"warning: {warning}")
        if listing is None:
            listing = source.resolve()
        key = key_of(listing.digest())
        if wanted.key is not None and not key.startswith(check_key_prefix(wanted.key)):
            raise Failure(
                Reason.SOURCE_CHANGED, f"--key {wanted.key}: the source has {key} now; list it anew"
            )
        make(root)
        metrics.labels = {"key": key, "source": listing.source, "revision": listing.revision}
        filled = fill(
            root,
            listing,
            source,
            _plan(wanted, root, expected),
            Edge(canceled),
            counters,
            tell,
            request=_request() if wanted.listing is None else b"",
        )
    _print(filled, listing, counters, wanted.as_json)
    return filled.path


def _plan(wanted: Wanted, root: Root, expected: dict[str, str] | None) -> Plan:
    return Plan(
        root.limits(wanted.watermark, wanted.reserve),
        wanted.settings,
        wanted.policy,
        downloads_per_source=wanted.downloads_per_source,
        expected=expected,
    )


def _request() -> bytes:
    _, rest = split(sys.argv[2:])
    return request_of(rest, os.environ, os.getcwd())


def _print(filled: Filled, listing: Listing, counters: Counters, as_json: bool) -> None:
    now = counters.snapshot()
    if as_json:
        print_json(
            {
                "key": filled.key,
                "path": filled.path,
                "how": filled.how,
                "ready": True,
                "source": listing.source,
                "revision": listing.revision,
                "verification": listing.verification.value,
                "bytes": listing.total,
                "files": len(listing.files),
                "bytes_fetched": now.bytes_fetched,
                "bytes_kept": now.bytes_kept,
                "retries": now.retries,
            }
        )
        return
    click.echo(filled.path)
    if sys.stderr.isatty():
        came = f"{size(now.bytes_fetched)} fetched" if now.bytes_fetched else "nothing to fetch"
        click.echo(f"ready: {len(listing.files)} files, {size(listing.total)}, {came}", err=True)
    else:
        click.echo(json.dumps({"event": "ready", "key": filled.key, "how": filled.how}), err=True)
