"""`cacheprep verify`."""

from __future__ import annotations

import os
import threading
import time

import click

from cacheprep.commands.options import json_option, key_of_prefix, root_option
from cacheprep.commands.output import print_json, when, when_or_none
from cacheprep.commands.stopping import canceled_by_signals
from cacheprep.failures import Failure, Reason
from cacheprep.progress import reporting
from cacheprep.store.inventory import keys as keys_in
from cacheprep.store.layout import Layout
from cacheprep.store.locks import lock
from cacheprep.store.manifest import Manifest
from cacheprep.store.root import open_to_read, os_failure
from cacheprep.store.verify import Verdict, deep, quick, read_manifest, settle
from cacheprep.transfer.counters import Counters, Phase


@click.command("verify")
@click.argument("keys", nargs=-1, metavar="[KEY]...")
@root_option
@click.option("--deep", "deeply", is_flag=True, help="Read and hash every byte, past the page cache.")
@json_option
def command(keys: tuple[str, ...], root: str, deeply: bool, as_json: bool) -> None:
    """Verify published caches: all, or those of KEY... (or the front of one).

    Quickly: the marker, and kind, size and mtime of every file. With --deep: sha256 of every byte against the
    manifest. A cache that fails is not ready from then on, and `cacheprep fetch` of its source repairs
    it. One that lost its marker and passes --deep is ready again. Exits with IntegrityMismatch if any
    fails.
    """
    layout = open_to_read(root)
    wanted = [key_of_prefix(layout, key) for key in keys] or list(keys_in(layout.caches))
    verdicts = []
    counters = Counters()
    with canceled_by_signals() as canceled, reporting(counters, "verify", as_json=as_json, quiet=not deeply):
        counters.set(phase=Phase.CHECKING, bytes_total=_total(layout, wanted) if deeply else 0)
        for key in wanted:
            if not os.path.isdir(layout.cache(key)):
                raise Failure(
                    Reason.INVALID_REQUEST, f"cache {key}: is not published; `cacheprep fetch` its source"
                )
            verdicts.append(_verify(layout, key, deeply, canceled, counters))
    bad = [verdict for verdict in verdicts if not verdict.ready]
    if as_json:
        print_json(
            [
                {
                    **verdict._asdict(),
                    "ready": verdict.ready,
                    "verified_at": when_or_none(verdict.verified_at),
                }
                for verdict in verdicts
            ]
        )
    else:
        for verdict in verdicts:
            click.echo(f"{verdict.key}  {'ok' if verdict.ready else 'FAILED'}  {when(verdict.verified_at)}")
            for problem in verdict.problems:
                click.echo(f"    {problem}")
    if bad:
        raise Failure(
            Reason.INTEGRITY_MISMATCH, f"{len(bad)} of {len(verdicts)} caches failed: {bad[0].problems[0]}"
        )


def _verify(layout: Layout, key: str, deeply: bool, canceled: threading.Event, counters: Counters) -> Verdict:
    def read(amount: int) -> None:
        if canceled.is_set():
            raise Failure(Reason.CANCELED, "stopped while verifying; nothing was changed")
        counters.add(bytes_done=amount)

    def wait(seconds: float) -> None:
        if canceled.wait(seconds):
            raise Failure(Reason.CANCELED, "stopped while another process works on the cache")

    def look() -> tuple[Verdict, Manifest | None]:
        return deep(layout, key, time.time, read) if deeply else (quick(layout, key), None)

    try:
        if os.stat(layout.store_file).st_uid != os.geteuid() or not os.access(layout.cache(key), os.W_OK):
            # Another user, or a read-only mount: look, and leave the marker to its owner.
            return look()[0]
        with lock(layout.fill_lock(key), wait):
            verdict, manifest = look()
            settle(layout, verdict, manifest)
            return verdict
    except OSError as error:
        raise os_failure(error, f"cache {key}") from error


def _total(layout: Layout, wanted: list[str]) -> int:
    total = 0
    for key in wanted:
        try:
            manifest, _ = read_manifest(layout.manifest(key))
            total += manifest.listing.total
        except Failure:
            continue
    return total
