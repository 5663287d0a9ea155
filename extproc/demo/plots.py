"""The report's plots as inline SVG."""

from __future__ import annotations

from typing import Any

import numpy as np

from extproc.charts import svg
from extproc.demo.experiment import EVEN_WITHIN, Result

COLOURS = {"RANDOM": "#8a8f98", "LEAST_OUTSTANDING_REQUESTS": "#d9822b", "PREFIX_AWARE": "#1f6feb"}
WINDOW_S = 5.0
"""Width of the windows in which the hit rate over time is taken."""


def plots(result: Result) -> dict[str, str]:
    """Return inline SVG by name: `ttft`, `hit_rate`, `share`, `added`."""

    def distribution(axes: Any) -> None:
        for run in result.runs:
            values = np.sort(
                [1000 * outcome.ttft for outcome in run.outcomes if outcome.done is not None and outcome.ttft]
            )
            if len(values):
                axes.plot(values, np.arange(1, len(values) + 1) / len(values), **_line(run.strategy))
        axes.set(xscale="log", xlabel="time to first token, ms", ylabel="share of requests", ylim=(0, 1))

    def hit_rate(axes: Any) -> None:
        for run in result.runs:
            good = [outcome for outcome in run.outcomes if outcome.done is not None]
            windows: dict[int, list[int]] = {}
            for outcome in good:
                sums = windows.setdefault(int(outcome.due // WINDOW_S), [0, 0])
                sums[0] += outcome.cached_tokens
                sums[1] += outcome.prompt_tokens
            at = sorted(windows)
            rates = [windows[window][0] / windows[window][1] for window in at]
            axes.plot([(window + 0.5) * WINDOW_S for window in at], rates, **_line(run.strategy))
        axes.set(xlabel="time since the start, s", ylabel="KV cache hit rate", ylim=(0, 1))

    def share(axes: Any) -> None:
        width = 0.8 / len(result.runs)
        for index, run in enumerate(result.runs):
            parts = run.summary["share"]
            places = np.arange(len(parts)) + (index - (len(result.runs) - 1) / 2) * width
            axes.bar(places, list(parts.values()), width, color=COLOURS[run.strategy], label=run.strategy)
            axes.set_xticks(range(len(parts)), list(parts))
        even = 1 / max(1, len(result.runs[0].summary["share"]))
        low, high = even * (1 - EVEN_WITHIN), even * (1 + EVEN_WITHIN)
        axes.axhspan(low, high, color="#000", alpha=0.07, lw=0, label=f"even, ± {EVEN_WITHIN:.0%}")
        axes.set(ylabel="share of requests")

    def added(axes: Any) -> None:
        for name, colour in (("without_router", "#8a8f98"), ("with_router", "#1f6feb")):
            values = np.sort(result.probes_ms[name])
            axes.plot(
                values,
                np.arange(1, len(values) + 1) / len(values),
                color=colour,
                label=name.replace("_", " "),
            )
        both = result.probes_ms["with_router"]
        axes.set(
            xlabel="round trip, ms",
            ylabel="share of probes",
            ylim=(0, 1),
            xlim=(0, float(np.percentile(both, 99.5))),
        )

    return {
        "ttft": svg(distribution),
        "hit_rate": svg(hit_rate),
        "share": svg(share),
        "added": svg(added),
    }


def _line(strategy: str) -> dict[str, Any]:
    return {"color": COLOURS[strategy], "label": strategy, "lw": 2}
