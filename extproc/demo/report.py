"""What the demo found, as `report.json`, as a self-contained `report.html`, and as a table for the
terminal."""

from __future__ import annotations

import os
import platform
from collections.abc import Collection
from datetime import UTC, datetime
from importlib.resources import files
from pathlib import Path
from typing import Any

import jinja2
import orjson
from rich import box
from rich.table import Table

from extproc import __version__
from extproc.demo import experiment, figures, stack, traffic
from extproc.demo.experiment import Result
from extproc.demo.plots import COLOURS, plots
from extproc.demo.traffic import Traffic
from extproc.simulation.presets import PRESETS

SIMULATED = (
    "The engines are simulated: no model runs, and time to first token is what the engine model says it "
    "would be. Envoy, the router, the HTTP and gRPC between them and the requests' text are real."
)
JSON = "report.json"
HTML = "report.html"
BUSY_LAG_MS = 20.0
"""Lateness of the client above which a report says that the machine was busy."""


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
        "probe_ms": {
            name: _rounded(figures.percentiles(times, 50, 99)) for name, times in result.probes_ms.items()
        },
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
    use = ", ".join(
        f"{name} {_mean(summary['prefill_utilisation'].values()):.0%}" for name, summary in strategies.items()
    )
    notes = [
        "Load: all strategies got the same requests at the same times. Share of time in which engines "
        f"prefilled: {use}. The default rate is chosen for 65 to 80 % without prefix-aware routing, not for "
        "the result."
    ]
    for name, summary in strategies.items():
        if summary["share_furthest_from_even"] > experiment.EVEN_WITHIN:
            notes.append(_uneven(name, summary))
        if summary["undecided"]:
            notes.append(
                f"{name}: {summary['undecided']} requests passed Envoy without the router: it was late."
            )
    if not checks["prefix_aware_has_lowest_median_ttft"]:
        notes.append("PREFIX_AWARE did not have the lowest median here; longer runs (--seconds) vary less.")
    tails = {name: summary["ttft_ms"].get("p95", 0.0) for name, summary in strategies.items()}
    if (best := min(tails, key=lambda name: tails[name])) != "PREFIX_AWARE":
        notes.append(
            f"The slowest requests were served best by {best} (p95): holding a prefix to its engine "
            "costs a queue there now and then."
        )
    lags = {name: summary["client_lag_ms"].get("p99", 0.0) for name, summary in strategies.items()}
    late = max(summary["engine_lag_ms_mean"] for summary in strategies.values())
    notes.append(
        f"The client sent 99 % of the requests at most {max(lags.values()):.1f} ms late, which counts as "
        f"time to first token; the engines answered {late:.1f} ms later than their model on average."
    )
    if busy := [name for name, lag in lags.items() if lag > BUSY_LAG_MS]:
        notes.append(
            f"This machine was busy with other work while {' and '.join(busy)} ran: the times there are too "
            "long. Run it again on a quiet machine."
        )
    return notes


def _mean(values: Collection[float]) -> float:
    return sum(values) / len(values) if values else 0.0


def _uneven(name: str, summary: dict[str, Any]) -> str:
    share = summary["share"]
    furthest = max(share, key=lambda engine: abs(share[engine] * len(share) - 1))
    reason = {
        "RANDOM": "chance",
        "LEAST_OUTSTANDING_REQUESTS": "an engine that answers faster has fewer open and is given more",
        "PREFIX_AWARE": "a prefix stays where it is cached until the queue there costs more than computing"
        " it elsewhere: what is balanced is work that waits, not the number of requests over time",
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
    as_json, as_html = directory / JSON, directory / HTML
    as_json.write_bytes(orjson.dumps(report, option=orjson.OPT_INDENT_2) + b"\n")
    environment = jinja2.Environment(
        autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    template = environment.from_string(files("extproc.demo").joinpath("report.html.j2").read_text())
    as_html.write_text(
        template.render(report=report, plots=plots(result), colours=COLOURS, traffic=traffic, stack=stack)
    )
    return as_json, as_html


def discard(directory: Path) -> None:
    """Remove the reports of an earlier demo below `directory`, if there are any."""
    for name in (JSON, HTML):
        (directory / name).unlink(missing_ok=True)


def table(report: dict[str, Any]) -> Table:
    """Return the comparison for the terminal: milliseconds and percent, 80 columns with four engines."""
    shown = Table(
        title="Same requests at the same times, simulated engines; TTFT in ms",
        title_justify="left",
        box=box.SIMPLE_HEAD,
        show_edge=False,
        padding=(0, 1, 0, 0),
    )
    shown.add_column("strategy", no_wrap=True)
    for heading in ("TTFT\np50", "\np95", "\np99", "KV\nhit %", "req/s", "failed"):
        shown.add_column(heading, justify="right", no_wrap=True)
    shown.add_column("share of\nengines %", no_wrap=True)
    for name, summary in report["strategies"].items():
        shown.add_row(
            name,
            *(
                f"{summary['ttft_ms'][key]:.0f}" if summary["ttft_ms"] else "-"
                for key in ("p50", "p95", "p99")
            ),
            f"{100 * summary['hit_rate']:.1f}",
            f"{summary['requests_per_s']:.1f}",
            str(summary["failed"]),
            " ".join(f"{100 * part:.0f}" for part in summary["share"].values()),
        )
    return shown
