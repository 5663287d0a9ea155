"""`python -m bench.routing.plots`: the plots of docs/strategies.md, from replays of a published trace."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace as changed
from pathlib import Path

import click
import matplotlib as mpl
import numpy as np
from matplotlib.axis import Axis

from bench.routing.rows import Row, load
from extproc.replay.events import Change
from extproc.replay.figures import Summary, summary
from extproc.replay.policies import parse
from extproc.replay.run import Outcome, replay

mpl.use("svg")
mpl.rcParams["svg.hashsalt"] = "docs"
from matplotlib import pyplot  # noqa: E402  after the backend is chosen

IMAGES = Path("docs/images")
ROW = Row("conversation", 7, "ample", 1, False, 0.85, "second")
STRATEGIES = ("RANDOM", "LEAST_OUTSTANDING_REQUESTS", "PREFIX_AWARE")
LOADS = (0.45, 0.65, 0.75, 0.85)
THRESHOLDS = (4, 8, 16, 32, 64, 128, 256, 1024)


def outcome(row: Row, policy: str, join_at: float | None = None) -> Outcome:
    """One replay of the row's trace; one more engine joins at that part of the trace."""
    trace, fleet = load(row)
    if join_at is not None:
        fleet = changed(fleet, changes=[Change(join_at * trace.seconds * fleet.time_scale, add=1)])
    return replay(trace, fleet, parse(policy)[0].make)


def by_load() -> None:
    """Time to first token and hit rate of each strategy as load grows."""
    figure, (times, hits) = pyplot.subplots(1, 2, figsize=(9, 3.2), layout="constrained")
    for strategy in STRATEGIES:
        found = [summary(outcome(ROW._replace(utilisation=load), strategy)) for load in LOADS]
        times.plot(LOADS, [one.ttft_ms["mean"] / 1000 for one in found], marker="o", label=strategy)
        hits.plot(LOADS, [one.hit_rate for one in found], marker="o", label=strategy)
    times.set(xlabel="load", ylabel="mean TTFT, seconds", yscale="log")
    _plain(times.yaxis)
    hits.set(xlabel="load", ylabel="hit rate", ylim=0)
    times.legend(fontsize="small")
    _save(figure, "strategies.svg")


def by_threshold() -> None:
    """What concurrencyThreshold does."""
    found: Sequence[Summary] = [
        summary(outcome(ROW, f"PREFIX_AWARE:concurrencyThreshold={threshold}")) for threshold in THRESHOLDS
    ]
    figure, times = pyplot.subplots(figsize=(6, 3.2), layout="constrained")
    times.plot(THRESHOLDS, [one.ttft_ms["mean"] / 1000 for one in found], marker="o", label="mean TTFT")
    times.plot(THRESHOLDS, [one.ttft_ms["p95"] / 1000 for one in found], marker="s", label="p95 TTFT")
    times.set(xlabel="concurrencyThreshold", ylabel="seconds", xscale="log", yscale="log")
    _plain(times.xaxis)
    _plain(times.yaxis)
    hits = times.twinx()
    hits.plot(THRESHOLDS, [one.hit_rate for one in found], color="grey", linestyle=":", label="hit rate")
    hits.set(ylabel="hit rate (dotted)", ylim=0)
    times.legend(fontsize="small")
    _save(figure, "concurrency-threshold.svg")


def by_slow_start() -> None:
    """Requests on an engine that joins in the middle of the trace, with and without slow start."""
    figure, axes = pyplot.subplots(figsize=(6, 3.2), layout="constrained")
    for window in (0, 30, 120):
        made = outcome(ROW, f"PREFIX_AWARE:slowStart={window}", join_at=0.5)
        joined = made.engines[-1].joined
        late = made.at[made.engine == len(made.engines) - 1] - joined
        edges = np.arange(0.0, 181.0, 15.0)
        everyone, _ = np.histogram(made.at - joined, edges)
        its, _ = np.histogram(late, edges)
        axes.plot(edges[1:], its / np.maximum(everyone, 1), marker="o", label=f"window {window} s")
    axes.axhline(1 / 8, color="grey", linestyle=":")
    axes.set(xlabel="seconds since the eighth engine joined", ylabel="its share of requests", ylim=0)
    axes.legend(fontsize="small")
    _save(figure, "slow-start.svg")


def _plain(axis: Axis) -> None:
    """Numbers as they are written, not as powers of ten."""
    axis.set_major_formatter("{x:g}")
    axis.set_minor_formatter("{x:g}")


def _save(figure: pyplot.Figure, name: str) -> None:
    IMAGES.mkdir(parents=True, exist_ok=True)
    figure.savefig(IMAGES / name, metadata={"Date": None})
    pyplot.close(figure)
    click.echo(str(IMAGES / name))


@click.command()
def main() -> None:
    """Draw the plots of docs/strategies.md."""
    for draw in (by_load, by_threshold, by_slow_start):
        draw()


if __name__ == "__main__":
    main()
