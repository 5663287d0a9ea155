"""The measured starts as tables, as a plot, and in one line."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl
from rich.console import Console
from rich.table import Table

from bench.coldstart.figures import Line, Sample, Spread, lines, spread
from bench.coldstart.pods import Step

mpl.use("svg")
mpl.rcParams["svg.hashsalt"] = "coldstart"
from matplotlib import pyplot  # noqa: E402  after the backend is chosen

GB = 1e9
MB = 1e6
TARGETS = (57 * GB, 145 * GB, 600 * GB)
"""Bytes of models that no machine of this kind holds: 57 and 145 GB are those of HyperPod's own figures."""


def tables(samples: Sequence[Sample], image_bytes: int) -> None:
    """Print them."""
    console = Console(width=118)
    console.print(_measured(samples, image_bytes))
    console.print(_steps(samples))
    console.print(_extrapolated(samples))
    busy = spread(one.busy for one in samples)
    loading = spread(one.loading_rate for one in samples if one.warm)
    said = (
        "Extrapolated: seconds = intercept + slope x bytes, fitted to the starts above;"
        f" the image stays {image_bytes / GB:.2g} GB.",
        "± is the standard error of the fit alone. Nothing of these sizes was measured.",
        "Where it says not shown, starts differ so much that how seconds grow with bytes is not clear.",
        f"On the prepared node the engine reads the model from this machine's disk, at"
        f" {loading.median / MB:,.0f} MB/s ({loading.least / MB:,.0f} to {loading.most / MB:,.0f}).",
        f"The machine's {os.cpu_count()} processors were busy for {busy.median:.0%} of the time"
        f" ({busy.least:.0%} to {busy.most:.0%}), with this and with whatever else ran there.",
    )
    console.print("\n".join(said), highlight=False)


def figure(samples: Sequence[Sample], image_bytes: int) -> str:
    """What all of it comes to."""
    largest = max(one.model_bytes for one in samples)
    found = [one for one in samples if one.model_bytes == largest]
    warm = spread(one.seconds for one in found if one.warm)
    rates = _rates(samples)
    cold = [
        spread(one.seconds for one in found if not one.warm and one.rate == rate).median for rate in rates
    ]
    return (
        f"coldstart: {largest / GB:.2g} GB of weights, {image_bytes / GB:.2g} GB of image: Ready in"
        f" {warm.median:.1f} s on a prepared node; in {' / '.join(f'{one:.1f}' for one in cold)} s on one"
        f" with nothing, at {' / '.join(f'{rate / MB:.0f}' for rate in rates)} MB/s:"
        f" {' / '.join(f'{one / warm.median:.1f}' for one in cold)} x"
    )


def plot(samples: Sequence[Sample], image_bytes: int, path: Path) -> None:
    """Draw seconds over rates, and over bytes to where nobody has measured."""
    drawn, (over_rate, over_bytes) = pyplot.subplots(1, 2, figsize=(10, 3.8), layout="constrained")
    largest = max(one.model_bytes for one in samples)
    found = [one for one in samples if one.model_bytes == largest]
    for warm, label, marker in ((True, "prepared node", "s"), (False, "node with nothing", "o")):
        mine = [one for one in found if one.warm == warm]
        rates = _rates(mine)
        medians = [spread(one.seconds for one in mine if one.rate == rate).median for rate in rates]
        (curve,) = over_rate.plot([rate / MB for rate in rates], medians, label=label)
        over_rate.scatter(
            [one.rate / MB for one in mine],
            [one.seconds for one in mine],
            marker=marker,
            s=14,
            color=curve.get_color(),
        )
    over_rate.set(
        xlabel="source and registry, MB/s each",
        ylabel="seconds to Ready",
        ylim=0,
        title=f"measured: {largest / GB:.2g} GB weights, {image_bytes / GB:.2g} GB image",
    )
    over_rate.legend(fontsize="small")
    smallest = min(one.model_bytes for one in samples)
    for rate, fitted in sorted(lines(samples).items(), key=lambda one: one[0] or 0.0):
        label = "prepared node" if rate is None else f"nothing, {rate / MB:.0f} MB/s"
        (curve,) = over_bytes.plot(
            [one / GB for one in (smallest, largest)],
            [fitted.at(one) for one in (smallest, largest)],
            label=label,
        )
        sizes = (largest, *TARGETS)
        if not fitted.shown:
            continue
        over_bytes.plot(
            [one / GB for one in sizes],
            [fitted.at(one) for one in sizes],
            linestyle=":",
            marker="x",
            color=curve.get_color(),
        )
    over_bytes.set(
        xlabel="GB of weights", xscale="log", yscale="log", title="dotted: extrapolated, not measured"
    )
    over_bytes.legend(fontsize="small")
    for axis in (over_bytes.xaxis, over_bytes.yaxis):
        axis.set_major_formatter("{x:g}")
    path.parent.mkdir(parents=True, exist_ok=True)
    drawn.savefig(path, metadata={"Date": None})
    pyplot.close(drawn)


def summary(samples: Sequence[Sample], image_bytes: int) -> dict[str, Any]:
    """All of it as JSON."""
    return {
        "image_bytes": image_bytes,
        "samples": [one.json() for one in samples],
        "lines": [
            {
                "warm": rate is None,
                "rate": rate,
                "intercept_s": fitted.intercept,
                "slope_s_per_byte": fitted.slope,
                "shown": fitted.shown,
                "extrapolated": [
                    {
                        "model_bytes": int(size),
                        "seconds": fitted.at(size),
                        "standard_error_s": fitted.error(size),
                    }
                    for size in TARGETS
                ],
            }
            for rate, fitted in lines(samples).items()
        ],
        "figure": figure(samples, image_bytes),
    }


def _measured(samples: Sequence[Sample], image_bytes: int) -> Table:
    table = _table(
        f"Seconds to Ready, measured; image of {image_bytes / GB:.2g} GB",
        (
            "weights, GB",
            "throttled to, MB/s",
            "source gave",
            "registry gave",
            "prepared node, s",
            "nothing, s",
            "times",
        ),
    )
    for size in _sizes(samples):
        for rate in _rates(samples):
            mine = [one for one in samples if (one.model_bytes, one.rate) == (size, rate)]
            cold = [one for one in mine if not one.warm]
            waits = [spread(one.seconds for one in of) for of in ([one for one in mine if one.warm], cold)]
            table.add_row(
                f"{size / GB:.2g}",
                f"{rate / MB:.0f}",
                f"{spread(one.source_rate for one in cold).median / MB:.0f}",
                f"{spread(one.registry_rate for one in cold).median / MB:.0f}",
                *map(_said, waits),
                f"{waits[1].median / waits[0].median:.1f}",
            )
    return table


def _steps(samples: Sequence[Sample]) -> Table:
    table = _table(
        "Where the seconds go, medians",
        (
            "weights, GB",
            "node",
            "MB/s",
            "scheduled",
            "weights there",
            "engine's image there",
            "loaded, Ready",
        ),
    )
    for size in _sizes(samples):
        for warm, rates in ((True, [None]), (False, _rates(samples))):
            for rate in rates:
                mine = [
                    one
                    for one in samples
                    if (one.model_bytes, one.warm) == (size, warm) and rate in (None, one.rate)
                ]
                table.add_row(
                    f"{size / GB:.2g}",
                    "prepared" if warm else "nothing",
                    "" if rate is None else f"{rate / MB:.0f}",
                    *(f"{spread(one.spans[step] for one in mine).median:.1f}" for step in Step),
                )
    return table


def _extrapolated(samples: Sequence[Sample]) -> Table:
    fitted = lines(samples)
    table = _table(
        "EXTRAPOLATED seconds to Ready",
        ("weights, GB", "prepared node", *(f"nothing, {rate / MB:.0f} MB/s" for rate in _rates(samples))),
    )
    table.add_row("intercept, s", *(f"{fitted[rate].intercept:.1f}" for rate in (None, *_rates(samples))))
    table.add_row("slope, s/GB", *(f"{fitted[rate].slope * GB:.2f}" for rate in (None, *_rates(samples))))
    for size in TARGETS:
        table.add_row(f"{size / GB:.0f}", *(_led(fitted[rate], size) for rate in (None, *_rates(samples))))
    return table


def _led(fitted: Line, size: float) -> str:
    if not fitted.shown:
        return "not shown"
    error = fitted.error(size)
    return f"{fitted.at(size):,.0f}" + ("" if error is None else f" ± {error:,.0f}")


def _said(of: Spread) -> str:
    return f"{of.median:.1f} ({of.least:.1f} to {of.most:.1f})" if of.number > 1 else f"{of.median:.1f}"


def _sizes(samples: Sequence[Sample]) -> list[int]:
    return sorted({one.model_bytes for one in samples})


def _rates(samples: Sequence[Sample]) -> list[float]:
    return sorted({one.rate for one in samples})


def _table(title: str, headings: tuple[str, ...]) -> Table:
    table = Table(title=title, title_justify="left")
    for heading in headings:
        table.add_column(heading, justify="right")
    return table
