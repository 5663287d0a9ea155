"""`python -m bench.scrape`: weigh it, print tables and whether the aim is met; build/bench/scrape.json."""

from __future__ import annotations

import asyncio
import signal
import sys
from dataclasses import asdict
from pathlib import Path

import click
import orjson
from rich.console import Console
from rich.table import Table

from bench.scrape.measure import AIOHTTP, OURS, Rendering, Scraping, ports, rendering, scraping
from extproc.pool.scraping.scraper import Settings

INTO = Path("build/bench")
AIM = 0.25
"""Cores for the endpoints of `python -m bench.scrape`, half of them loaded, one engine each."""


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--endpoints", type=click.IntRange(1, 5000), default=500, show_default=True)
@click.option("--seconds", type=click.FloatRange(1), default=2.0, show_default=True, help="For each round.")
@click.option(
    "--rounds",
    type=click.IntRange(1),
    default=8,
    show_default=True,
    help="How often each row is measured. The round that took the least CPU is shown, since what else runs"
    " on the machine only ever adds to it.",
)
@click.option("--quick", is_flag=True, help="A look in half a minute: one row, two rounds.")
def main(endpoints: int, seconds: float, rounds: int, quick: bool) -> None:
    """What reading engines' metrics costs the router and the engines, with pages as large as vLLM's.

    Engines and router share this machine: sending over loopback does the receiver's part too, so the
    figures are upper bounds.
    """
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # unwind, so that the ports' process is ended
    console, settings = Console(width=110), Settings()
    if quick:
        rounds = 2
    INTO.mkdir(parents=True, exist_ok=True)
    pages = [rendering(engines, repeats=3, rounds=3 * rounds) for engines in ((1,) if quick else (1, 4))]
    _print_pages(console, pages, settings)
    plan = [(OURS, pages[0], 0.5), (AIOHTTP, pages[0], 0.5)]
    if not quick:
        plan += [(OURS, pages[0], share) for share in (0.0, 1.0)]
        plan += [(OURS, pages[1], share) for share in (0.0, 0.5, 1.0)]
    rows = []
    for client, page, share in plan:
        loaded = round(endpoints * share)
        with ports(page.engines, loaded, INTO) as port:
            measured = scraping(endpoints, loaded, port, page.page_bytes, rounds, seconds, settings, client)
            rows.append(asyncio.run(measured))
    _print_rows(console, rows, settings)
    mixed, theirs = rows[:2]
    console.print(f"CPU for a read: {mixed.cpu_us_per_scrape / theirs.cpu_us_per_scrape:.2f} of aiohttp's")
    met = mixed.core_share < AIM
    console.print(
        f"Aim: {endpoints} endpoints, half of them loaded, under {AIM:.0%} of one core:"
        f" {'met' if met else 'MISSED'} ({mixed.core_share:.1%})"
    )
    report = {
        "settings": {key: value for key, value in asdict(settings).items() if key.endswith("interval")},
        "engines": [page._asdict() for page in pages],
        "router": [row._asdict() for row in rows],
        "aim": {"core_share": AIM, "measured": mixed.core_share, "met": met},
    }
    (INTO / "scrape.json").write_bytes(orjson.dumps(report, option=orjson.OPT_INDENT_2) + b"\n")


def _print_pages(console: Console, pages: list[Rendering], settings: Settings) -> None:
    table = Table(title="One page: what a read costs", title_justify="left")
    for name in ("engines in it", "KB", "engine: ms CPU", "core, loaded", "router: µs to parse"):
        table.add_column(name, justify="right")
    for page in pages:
        share = page.render_ms / 1e3 / settings.interval
        table.add_row(
            str(page.engines),
            f"{page.page_bytes / 1e3:.0f}",
            f"{page.render_ms:.1f}",
            f"{share:.2%} per replica",
            f"{page.parse_us:.0f}",
        )
    console.print(table)


def _print_rows(console: Console, rows: list[Scraping], settings: Settings) -> None:
    often = f"every {settings.interval:g} s where loaded, {settings.idle_interval:g} s where idle"
    title = f"The router, {rows[0].endpoints} endpoints: {often}"
    table = Table(title=title, title_justify="left")
    for name in (
        "HTTP by",
        "loaded",
        "page, KB",
        "reads/s",
        "MB/s",
        "core",
        "µs a read",
        "delay p50",
        "p99, ms",
    ):
        table.add_column(name, justify="right")
    for row in rows:
        table.add_row(
            row.client,
            str(row.loaded),
            f"{row.page_bytes / 1e3:.0f}",
            f"{row.scrapes_per_s:.0f}",
            f"{row.megabytes_per_s:.1f}",
            f"{row.core_share:.1%}",
            f"{row.cpu_us_per_scrape:.0f}",
            f"{row.delay_p50_ms:.2f}",
            f"{row.delay_p99_ms:.2f}",
        )
    console.print(table)


if __name__ == "__main__":
    main()
