"""What the demo found, as `report.json`, as a self-contained `report.html`, and as a table for the
terminal."""

from __future__ import annotations

import io
import os
import platform
from collections.abc import Callable
from datetime import UTC, datetime
from importlib.resources import files
from pathlib import Path
from typing import Any

import jinja2
import numpy as np
import orjson
from rich.table import Table

from extproc import __version__
from extproc.demo import experiment, figures, stack, traffic
from extproc.demo.experiment import Result
from extproc.demo.traffic import Traffic
from extproc.simulation.presets import PRESETS

COLOURS = {"RANDOM": "#8a8f98", "LEAST_OUTSTANDING_REQUESTS": "#d9822b", "PREFIX_AWARE": "#1f6feb"}
WINDOW_S = 5.0
"""Width of the windows in which the hit rate over time is taken."""
SIMULATED = (
    "The engines are simulated: no model runs, and time to first token is what the engine model says it would be. Envoy, the "
    "router, the HTTP and gRPC between them and the requests' text are real."
)


def content(result: Result, used: Traffic, settings: dict[str, Any]) -> dict[str, Any]:
    """Return the content of `report.json`.

    `strategies` and `router_added_ms` have the documented keys; `settings`, `traffic`, `checks` and `notes`
    say how the figures came about. Times in milliseconds (`_ms`), rates and shares as fractions.
    """
    strategies = {run.strategy: run.summary for run in result.runs}
    added = {
        name: round(value - without, 3)
        for (name, value), without in zip(
            figures.percentiles(result.probes_ms["with_router"], 50, 99).items(),
            figures.percentiles(result.probes_ms["without_router"], 50, 99).values(),
            strict=True,
        )
    }
    checks = _checks(strategies)
    return {
        "simulated_engines": True,
        "strategies": {name: _rounded(summary) for name, summary in strategies.items()},
        "router_added_ms": added,
        "checks": checks,
        "notes": [SIMULATED, *_notes(strategies, checks)],
        "settings": settings,
        "traffic": {
            "requests": len(used.arrivals),
            "seconds": used.seconds,
            "by_source": used.by_source,
            "mooncake_time_scale": round(used.time_scale, 1),
            "body_bytes": _rounded(
                figures.percentiles([len(arrival.body) for arrival in used.arrivals], 50, 95, 100)
            ),
        },
        "engine_model": PRESETS[settings["preset"]].source,
        "router_pick": result.router,
        "probe": {"bytes": experiment.PROBE_BYTES, "pairs": experiment.PROBES},
        "made": datetime.now(UTC).isoformat(timespec="seconds"),
        "version": __version__,
        "machine": {
            "cpus": os.cpu_count(),
            "python": platform.python_version(),
            "system": platform.platform(),
        },
    }


def _checks(strategies: dict[str, Any]) -> dict[str, bool]:
    """Return what prefix-aware routing promises, and whether it held in this run."""
    best_hit = max(strategies, key=lambda name: strategies[name]["hit_rate"])
    medians = {name: summary["ttft_ms"].get("p50", float("inf")) for name, summary in strategies.items()}
    return {
        "prefix_aware_has_highest_hit_rate": best_hit == "PREFIX_AWARE",
        "prefix_aware_has_lowest_median_ttft": min(medians, key=lambda name: medians[name]) == "PREFIX_AWARE",
        "shares_within_15_percent_of_even": all(
            summary["share_furthest_from_even"] <= experiment.EVEN_WITHIN for summary in strategies.values()
        ),
        "no_request_failed": not any(summary["failed"] for summary in strategies.values()),
    }


def _notes(strategies: dict[str, Any], checks: dict[str, bool]) -> list[str]:
    """Return sentences that a reader needs beside the figures."""
    notes = []
    use = ", ".join(
        f"{name} {sum(summary['prefill_utilisation'].values()) / max(1, len(summary['prefill_utilisation'])):.0%}"
        for name, summary in strategies.items()
    )
    notes.append(
        f"Load: all strategies got the same requests at the same times. Share of time in which engines prefilled: {use}. "
        "The rate was chosen for 65 to 80 % without prefix-aware routing, not for the result."
    )
    for name, summary in strategies.items():
        if summary["share_furthest_from_even"] > experiment.EVEN_WITHIN:
            notes.append(_uneven(name, summary))
        if summary["undecided"]:
            notes.append(
                f"{name}: {summary['undecided']} requests passed Envoy without the router, which answered too late."
            )
    lag = max(summary["client_lag_ms"].get("p99", 0.0) for summary in strategies.values())
    notes.append(
        f"The client sent 99 % of the requests at most {lag:.1f} ms late; lateness counts as time to first token."
    )
    if not checks["prefix_aware_has_lowest_median_ttft"]:
        notes.append(
            "PREFIX_AWARE did not have the lowest median in this run; a longer one (--seconds) varies less."
        )
    return notes


def _uneven(name: str, summary: dict[str, Any]) -> str:
    share = summary["share"]
    furthest = max(share, key=lambda engine: abs(share[engine] * len(share) - 1))
    reason = {
        "RANDOM": "chance",
        "LEAST_OUTSTANDING_REQUESTS": "an engine that answers faster has fewer requests open and is given more",
        "PREFIX_AWARE": "prefixes stay where they are until an engine has 1.25 times the mean in flight, and an engine that finds "
        "more in its cache answers faster and so may take more; what is balanced is requests in flight, not their number",
    }[name]
    return (
        f"{name}: {furthest} served {share[furthest]:.1%} of the requests where {1 / len(share):.1%} is even "
        f"({summary['requests']} requests in all). The reason: {reason}."
    )


def _rounded(value: Any) -> Any:
    if isinstance(value, float):
        return round(value, 4)
    if isinstance(value, dict):
        return {key: _rounded(inner) for key, inner in value.items()}
    return value


def write(directory: Path, report: dict[str, Any], result: Result) -> tuple[Path, Path]:
    """Write `report.json` and `report.html` below `directory` and return their paths."""
    as_json, as_html = directory / "report.json", directory / "report.html"
    as_json.write_bytes(orjson.dumps(report, option=orjson.OPT_INDENT_2) + b"\n")
    environment = jinja2.Environment(
        autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    template = environment.from_string(files("extproc.demo").joinpath("report.html.j2").read_text())
    as_html.write_text(
        template.render(report=report, plots=plots(result), colours=COLOURS, traffic=traffic, stack=stack)
    )
    return as_json, as_html


def table(report: dict[str, Any]) -> Table:
    """Return the comparison for the terminal."""
    shown = Table(title="Same requests, same times, simulated engines", title_justify="left")
    for heading in (
        "strategy",
        "TTFT p50",
        "p95",
        "p99",
        "KV hit rate",
        "requests/s",
        "share per engine",
        "failed",
    ):
        shown.add_column(heading, justify="left" if heading in ("strategy", "share per engine") else "right")
    for name, summary in report["strategies"].items():
        ttft = [
            f"{summary['ttft_ms'][quantile]:.0f} ms" if summary["ttft_ms"] else "-"
            for quantile in ("p50", "p95", "p99")
        ]
        share = " ".join(f"{part:.1%}" for part in summary["share"].values())
        shown.add_row(
            name,
            *ttft,
            f"{summary['hit_rate']:.1%}",
            f"{summary['requests_per_s']:.1f}",
            share,
            str(summary["failed"]),
        )
    return shown


def plots(result: Result) -> dict[str, str]:
    """Return inline SVG by name: `ttft`, `hit_rate`, `share`, `added`."""
    import matplotlib as mpl

    mpl.use("svg")
    mpl.rcParams.update(
        {
            "svg.fonttype": "none",
            "font.family": "sans-serif",
            "axes.spines.top": False,
            "axes.spines.right": False,
        }
    )

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
        axes.axhspan(even * 0.85, even * 1.15, color="#000", alpha=0.07, lw=0, label="even, ± 15 %")
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
        "ttft": _svg(distribution),
        "hit_rate": _svg(hit_rate),
        "share": _svg(share),
        "added": _svg(added),
    }


def _line(strategy: str) -> dict[str, Any]:
    return {"color": COLOURS[strategy], "label": strategy, "lw": 2}


def _svg(draw: Callable[[Any], None]) -> str:
    """Return one plot as an SVG element without a size of its own, so that it takes its container's width."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6.4, 3.6), layout="constrained")
    axes = figure.add_subplot()
    draw(axes)
    axes.legend(frameon=False, fontsize="small")
    axes.grid(alpha=0.2)
    output = io.StringIO()
    figure.savefig(output, format="svg", metadata={"Date": None, "Creator": None}, transparent=True)
    svg = output.getvalue()
    svg = svg[svg.index("<svg") :]
    head, rest = svg.split(">", 1)
    kept = [part for part in head.split(" ") if not part.startswith(("width=", "height="))]
    return " ".join(kept) + ">" + rest
