"""`python -m bench.memory`: whether what strategies learn stays bounded.

Each strategy runs in a process of its own, so that none uses what another has freed.
"""

from __future__ import annotations

import multiprocessing
import os
from concurrent.futures import ProcessPoolExecutor
from typing import Any

import click
import orjson
from rich.console import Console
from rich.table import Table

from bench.memory.drive import MOST_KEYS, STRATEGIES, Grown, drive


@click.command()
@click.option("--requests", type=click.IntRange(1000), default=10_000_000, show_default=True)
@click.option(
    "--most-keys",
    type=click.IntRange(1, 1024),
    default=MOST_KEYS,
    show_default=True,
    help="Keys of the longest prompts.",
)
@click.option("--strategy", "only", multiple=True, type=click.Choice(list(STRATEGIES)), help="Only these.")
@click.option("--jobs", type=click.IntRange(1, 64), default=1, show_default=True, help="Processes.")
@click.option("--json", "as_json", is_flag=True)
def main(requests: int, most_keys: int, only: tuple[str, ...], jobs: int, as_json: bool) -> None:
    """Measure the memory of each strategy over very many prompts."""
    names = only or tuple(STRATEGIES)
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(jobs, context, os.nice, (10,), max_tasks_per_child=1) as processes:
        runs = [processes.submit(drive, name, requests, most_keys) for name in names]
        found = {name: run.result() for name, run in zip(names, runs, strict=True)}
    if as_json:
        click.echo(orjson.dumps({name: _figures(one) for name, one in found.items()}))
        return
    table = Table(title=f"{requests} requests of 1 to {most_keys} block keys", title_justify="left")
    for heading in ("strategy", "state MB", "keys", "bytes per key", "process grew MB", "in second half MB"):
        table.add_column(heading, justify="left" if heading == "strategy" else "right")
    for name, one in found.items():
        row = _figures(one)
        table.add_row(
            name,
            f"{row['state_mb']:.2f}",
            f"{row['keys']}",
            f"{row['bytes_per_key']:.0f}" if row["keys"] else "-",
            f"{row['most_mb']:.1f}",
            f"{row['second_half_mb']:+.1f}",
        )
    Console(width=110).print(table)


def _figures(one: Grown) -> dict[str, Any]:
    return {
        "requests": one.requests,
        "state_mb": one.state.bytes / 1e6,
        "keys": one.state.keys,
        "bytes_per_key": one.state.bytes / one.state.keys if one.state.keys else 0.0,
        "most_mb": one.most_mb,
        "second_half_mb": one.second_half_mb,
        "resident_mb": one.resident_mb,
    }


if __name__ == "__main__":
    main()
