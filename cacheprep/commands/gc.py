"""`cacheprep gc`."""

from __future__ import annotations

import time

import click

from cacheprep.commands.options import Duration, json_option, root_option
from cacheprep.commands.output import print_json, size
from cacheprep.store.gc import DEFAULT_AGE_S, Found, collect
from cacheprep.store.root import open_to_read, os_failure


@click.command("gc")
@root_option
@click.option(
    "--older-than",
    type=Duration(),
    default=f"{DEFAULT_AGE_S / 3600:g}h",
    help="Age from which what a dead process left is deleted; younger ones may be resumed yet.",
)
@click.option("--dry-run", is_flag=True, help="Only say what would be deleted.")
@json_option
def command(root: str, older_than: float, dry_run: bool, as_json: bool) -> None:
    """Delete what dead processes left: trash, and caches that were not fetched to their end.

    What a living process holds is never touched, nor is any ready cache. What is kept though it is not ready
    is named too. With --json: an object with deleted, kept (path, bytes and why of each) and dry_run.
    """
    layout = open_to_read(root)
    found = []
    deletes = "would delete" if dry_run else "deleted"
    try:
        for one in collect(layout, time.time(), older_than, dry=dry_run):
            found.append(one)
            if not as_json:
                verb = "kept" if one.kept else deletes
                click.echo(f"{verb} {one.path} ({size(one.bytes)}): {one.why}")
    except OSError as error:
        raise os_failure(error, f"cache root {layout.root}") from error
    if as_json:
        print_json(
            {
                "deleted": [_object(one) for one in found if not one.kept],
                "kept": [_object(one) for one in found if one.kept],
                "dry_run": dry_run,
            }
        )


def _object(found: Found) -> dict[str, str | int]:
    return {"path": found.path, "bytes": found.bytes, "why": found.why}
