"""`cacheprep ls`."""

from __future__ import annotations

from typing import Any

import click

from cacheprep.commands.options import json_option, root_option
from cacheprep.commands.output import print_json, print_table, size, state, when, when_or_none
from cacheprep.store.inventory import Entry, inventory
from cacheprep.store.root import open_to_read


@click.command("ls")
@root_option
@json_option
def command(root: str, as_json: bool) -> None:
    """List the caches of a root: published ones, and those being fetched.

    READY is yes only if the marker is good and size and mtime of every file are as it says. STATE has how
    much of a partial cache has come, and how fast it comes if a process fetches it. With --json: a list of
    objects with key, state, source, revision, verification, bytes, bytes_done, bytes_per_second, allocated,
    files, ready, verified_at, used_at, in_use, busy, path and problem.
    """
    entries = inventory(open_to_read(root))
    if as_json:
        print_json([as_object(entry) for entry in entries])
        return
    rows = [
        (
            entry.key,
            "yes" if entry.ready else "no",
            state(entry),
            size(entry.bytes),
            when(entry.verified_at),
            entry.source,
        )
        for entry in entries
    ]
    print_table(("KEY", "READY", "STATE", "SIZE", "VERIFIED", "SOURCE"), rows)


def as_object(entry: Entry) -> dict[str, Any]:
    """A cache as JSON has it."""
    return {
        **entry._asdict(),
        "ready": entry.ready,
        "verified_at": when_or_none(entry.verified_at),
        "used_at": when_or_none(entry.used_at),
    }
