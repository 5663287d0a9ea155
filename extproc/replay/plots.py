"""The plots of a replay's report, as inline SVG."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from extproc.charts import svg
from extproc.replay.events import Change
from extproc.replay.figures import over_time
from extproc.replay.run import Outcome

COLOURS = ("#1f6feb", "#d9822b", "#8a8f98", "#2da44e", "#cf222e", "#8250df", "#bf3989", "#1b7c83")
"""One for each policy that is drawn: more lines than these nobody tells apart."""
POINTS = 1000
"""Points of a distribution at most: a million would be a page that no browser opens."""
NEAR = 0.03
"""Changes closer than this share of the run have one label."""
STRETCHES = 120
"""Points of a line over time."""


class Drawn(NamedTuple):
    """A policy in the plots; its colour is that of its place among them."""

    outcome: Outcome
    share: dict[str, float]
    """Share of requests by engine."""


def plots(runs: Sequence[Drawn], pooled: float) -> dict[str, str]:
    """SVG by name: `ttft`, `hit_rate`, `share`, `load`, and `joiners` if any engine joined.

    `pooled` is what one cache as large as all engines' would find, for comparison. At most as many `runs` as
    there are `COLOURS`, one or more.
    """

    def ttft(axes: Any) -> None:
        for at, run in enumerate(runs):
            values = run.outcome.ttft[run.outcome.engine >= 0] * 1000
            if len(values):
                shares = np.linspace(0, 1, min(len(values), POINTS))
                axes.plot(np.quantile(values, shares), shares, color=COLOURS[at], lw=1.6)
        axes.set(xscale="log", xlabel="time to first token, ms", ylabel="share of requests", ylim=(0, 1))

    def hit_rate(axes: Any) -> None:
        highest = pooled
        for at, run in enumerate(runs):
            found = over_time(run.outcome)
            axes.plot(found.at, found.hit_rate, color=COLOURS[at], lw=1.6)
            highest = max(highest, float(np.nanmax(found.hit_rate, initial=0.0)))
        axes.axhline(pooled, color="#000", alpha=0.4, lw=1, ls="--")
        _mark_changes(axes, runs[0].outcome)
        axes.set(xlabel="time, s", ylabel="hit rate", ylim=(0, min(1.0, 1.2 * highest + 0.02)))

    def share(axes: Any) -> None:
        for at, run in enumerate(runs):
            places = np.arange(len(run.share)) + (at - (len(runs) - 1) / 2) * 0.6 / len(runs)
            axes.plot(places, list(run.share.values()), "o", ms=4, color=COLOURS[at])
        names = list(runs[0].share)
        step = -(-len(names) // 16)
        axes.set_xticks(range(0, len(names), step), [name.removeprefix("engine-") for name in names[::step]])
        axes.axhline(1 / max(1, len(names)), color="#000", alpha=0.4, lw=1, ls="--")
        axes.set(xlabel="engine", ylabel="share of requests", ylim=(0, None))

    def load(axes: Any) -> None:
        for at, run in enumerate(runs):
            _, most = _loads(run.outcome)
            axes.plot(*most, color=COLOURS[at], lw=1.6)
        for at, run in enumerate(runs):
            mean, _ = _loads(run.outcome)
            axes.plot(*mean, color=COLOURS[at], lw=1, ls=":")
        _mark_changes(axes, runs[0].outcome)
        axes.set(xlabel="time, s", ylabel="requests on an engine", ylim=(0, None))

    def joiners(axes: Any) -> None:
        for at, run in enumerate(runs):
            found = over_time(run.outcome)
            axes.plot(found.at, found.on_joiners, color=COLOURS[at], lw=1.6)
        even = _share_of_joiners(runs[0].outcome)
        axes.step(*even, where="post", color="#000", alpha=0.4, lw=1, ls="--")
        _mark_changes(axes, runs[0].outcome)
        axes.set(xlabel="time, s", ylabel="share of requests on joiners", ylim=(0, None))

    drawn = {"ttft": ttft, "hit_rate": hit_rate, "share": share, "load": load}
    if any(engine.joined > 0 for engine in runs[0].outcome.engines):
        drawn["joiners"] = joiners
    return {name: svg(draw, legend=False) for name, draw in drawn.items()}


def _loads(outcome: Outcome) -> tuple[tuple[Any, Any], tuple[Any, Any]]:
    """Times and mean load of the engines, times and load of the busiest; the highest of each stretch."""
    times = np.array(outcome.load_at)
    loads = np.array(outcome.load, dtype=np.float64).reshape(-1, 2)
    if not len(times):
        return (times, times), (times, times)
    present = np.array(
        [sum(one.joined <= at < one.left for one in outcome.engines) for at in outcome.load_at], dtype=float
    )
    starts = np.arange(0, len(times), -(-len(times) // STRETCHES))
    mean = np.maximum.reduceat(loads[:, 0] / np.maximum(1.0, present), starts)
    return (times[starts], mean), (times[starts], np.maximum.reduceat(loads[:, 1], starts))


def _share_of_joiners(outcome: Outcome) -> tuple[list[float], list[float]]:
    """Share of the engines present that joined during the run, from each change to the next."""
    end = float(outcome.at[-1])
    times = sorted({0.0, end, *(change.at for change in outcome.changes)})
    shares = []
    for time in times:
        present = [one for one in outcome.engines if one.joined <= time < one.left]
        shares.append(sum(one.joined > 0 for one in present) / max(1, len(present)))
    return times, shares


def _mark_changes(axes: Any, outcome: Outcome) -> None:
    near = outcome.at[-1] * NEAR if len(outcome.at) else 0.0
    groups: list[list[Change]] = []
    for change in sorted(outcome.changes, key=lambda one: one.at):
        axes.axvline(change.at, color="#000", alpha=0.4, lw=1, ls=":")
        if groups and change.at - groups[-1][0].at < near:
            groups[-1].append(change)
        else:
            groups.append([change])
    for group in groups:
        text = ", ".join(map(str, group[:2])) + (f" and {len(group) - 2} more" if len(group) > 2 else "")
        axes.annotate(
            text, (group[0].at, 1), xycoords=("data", "axes fraction"), fontsize="x-small", rotation=90,
            va="top", ha="right", alpha=0.7,
        )  # fmt: skip
