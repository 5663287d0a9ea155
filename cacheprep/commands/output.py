"""What commands print: results on standard output, everything else on standard error."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import click

from cacheprep.failures import Failure
from cacheprep.store.inventory import Entry
from cacheprep.store.layout import State


def print_json(value: Any) -> None:
    """One JSON value, on lines that a person can read."""
    click.echo(json.dumps(value, indent=2, ensure_ascii=False))


def say(text: str) -> None:
    """A sentence for whoever watches."""
    click.echo(text, err=True)


def failed(failure: Failure, *, as_json: bool) -> None:
    """Why the command ends; as one JSON line, last on standard error, if that is wanted."""
    if as_json:
        event = {
            "event": "failed",
            "reason": str(failure.reason),
            "message": failure.message,
            "retriable": failure.reason.retriable,
            "exit_code": failure.reason.exit_code,
        }
        click.echo(json.dumps(event, ensure_ascii=False), err=True)
    else:
        click.echo(f"{failure.reason}: {failure.message}", err=True)


def print_table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Columns, as wide as what is in them."""
    widths = [max(len(cell) for cell in column) for column in zip(head, *rows, strict=True)]
    for row in (head, *rows):
        click.echo("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


def size(amount: float) -> str:
    """Bytes for a person: decimal units as on a disk's label, as 139.8 GB."""
    for unit in ("B", "kB", "MB", "GB"):
        if abs(amount) < 999.95 or (unit == "B" and abs(amount) < 1000):
            return f"{amount:.0f} B" if unit == "B" else f"{amount:.1f} {unit}"
        amount /= 1000
    return f"{amount:.2f} TB"


def state(entry: Entry) -> str:
    """What a cache is at, and how far."""
    if entry.state is State.PARTIAL:
        share = entry.bytes_done / entry.bytes if entry.bytes else 0.0
        speed = "" if entry.bytes_per_second is None else f" {size(entry.bytes_per_second)}/s"
        return f"{'fetching' if entry.busy else entry.state.value} {int(100 * share)}%{speed}"
    return "in use" if entry.in_use else entry.state.value


def when(at: float | None) -> str:
    """A Unix time for a person and for JSON: RFC 3339 in UTC, or `-`."""
    return "-" if at is None else datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def when_or_none(at: float | None) -> str | None:
    """A Unix time for JSON."""
    return None if at is None else when(at)
