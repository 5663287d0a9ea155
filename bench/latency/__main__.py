"""`python -m bench.latency`: measure, print tables and whether the aims are met, write build/bench/."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from bench.latency import golang, report
from bench.latency.envoy import MESSAGES, Exchange
from bench.latency.measure import ALONE, TARGETS, Shape, measure, raw, running
from bench.latency.processes import FailedError

INTO = Path("build/bench")


class Numbers(click.ParamType[list[int]]):
    """Whole numbers separated by commas."""

    name = "numbers"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> list[int]:
        if isinstance(value, list):
            return value
        try:
            numbers = sorted({int(number) for number in str(value).split(",")})
        except ValueError:
            self.fail(f"{value!r} is not a list of whole numbers such as 8,64,400", param, ctx)
        if numbers[0] < 1:
            self.fail("all must be above 0", param, ctx)
        return numbers


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--rounds", default=6, show_default=True, help="How often every cell is measured.")
@click.option("--seconds", default=2.0, show_default=True, help="Seconds per cell and round.")
@click.option(
    "--sizes", type=Numbers(), default="8,64,400", show_default=True, help="Bodies, in KB of 1024 bytes."
)
@click.option("--connections", type=Numbers(), default="1,16", show_default=True, help="Connections.")
@click.option("--exchange", type=click.Choice(list(MESSAGES)), default="two-message", show_default=True)
@click.option(
    "--quick", is_flag=True, help="A look in half a minute: 3 rounds of 0.5 s, smallest and largest body."
)
@click.option("--only", multiple=True, type=click.Choice(TARGETS), help="With Envoy alone; repeatable.")
def main(
    rounds: int,
    seconds: float,
    sizes: list[int],
    connections: list[int],
    exchange: Exchange,
    quick: bool,
    only: tuple[str, ...],
) -> None:
    """Compare Envoy alone, a Go server, a bare handler and the router: added latency and CPU per request.

    All have the same Envoy, upstream, exchange and load, and are measured in turns.
    """
    # As Ctrl-C does: unwind, so that every process that was started is ended.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    if quick:
        rounds, seconds, sizes = 3, 0.5, sorted({sizes[0], sizes[-1]})
    targets = [target for target in TARGETS if not only or target in (ALONE, *only)]
    shapes = [Shape(size << 10, count) for size in sizes for count in connections]
    console, status = Console(), Console(stderr=True)
    INTO.mkdir(parents=True, exist_ok=True)
    try:
        with status.status("Building the Go programs"):
            binaries = golang.build(INTO.absolute()).absolute()
        columns = (BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TextColumn("{task.description}"))
        with (
            running(binaries, INTO, exchange, targets) as bench,
            Progress(*columns, console=status, transient=True) as progress,
        ):
            task = progress.add_task("starting", total=len(targets) * (len(shapes) * rounds + 1))
            samples = measure(
                bench,
                shapes,
                rounds,
                seconds,
                lambda cell: progress.update(task, advance=1, description=cell),
            )
    except (FailedError, subprocess.SubprocessError, OSError) as error:
        sys.exit(f"bench/latency failed: {error}")
    found = report.report(samples)
    settings = {"exchange": exchange, "rounds": rounds, "seconds": seconds}
    document = {"settings": settings, **report.as_json(found), "samples": raw(samples)}
    (INTO / "latency.json").write_text(json.dumps(document, indent=1) + "\n")
    (INTO / "latency.md").write_text(report.markdown(found, exchange, rounds, seconds))
    for table in report.tables(found):
        console.print(table)
    console.print(
        f"{report.NOTE} Exchange: {exchange}. Written: {INTO}/latency.json, {INTO}/latency.md", style="dim"
    )
    for aim in found.aims:
        console.print(str(aim), soft_wrap=True, style="green" if aim.met else "yellow", highlight=False)


if __name__ == "__main__":
    main()
