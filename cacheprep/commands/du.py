"""`cacheprep du`."""

from __future__ import annotations

import click

from cacheprep.commands.options import json_option, root_option
from cacheprep.commands.output import print_json, print_table, size, state
from cacheprep.store.capacity import measure
from cacheprep.store.inventory import inventory
from cacheprep.store.reservation import allocated_below, outstanding
from cacheprep.store.root import open_to_read


@click.command("du")
@root_option
@json_option
def command(root: str, as_json: bool) -> None:
    """Say what each cache takes on the disk, and how full the disk is, as df computes it.

    A cache that is being fetched takes all of its space from the start. `reserved` is what such caches
    will take beyond what the disk shows yet.
    """
    layout = open_to_read(root)
    entries, disk = inventory(layout), measure(layout.root)
    trash, reserved = allocated_below(layout.trash), outstanding(layout)
    if as_json:
        print_json(
            {
                "caches": [
                    {
                        "key": entry.key,
                        "state": entry.state,
                        "allocated": entry.allocated,
                        "bytes": entry.bytes,
                        "bytes_done": entry.bytes_done,
                    }
                    for entry in entries
                ],
                "trash": trash,
                "reserved": reserved,
                "disk": {
                    "used": disk.used,
                    "available": disk.available,
                    "fullness": round(disk.fullness(), 4),
                    "free_inodes": disk.free_inodes,
                },
            }
        )
        return
    rows = [(size(entry.allocated), state(entry), entry.key, entry.source) for entry in entries]
    if trash:
        rows.append((size(trash), "removing", "-", layout.trash))
    if reserved:
        rows.append((size(reserved), "reserved", "-", "not allocated yet"))
    print_table(("TAKES", "STATE", "KEY", "SOURCE"), rows)
    click.echo(f"disk: {size(disk.used)} used, {size(disk.available)} available, {disk.fullness():.1%} full")
