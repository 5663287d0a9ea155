"""What a replay found: `report.json`, a self-contained `report.html`, and a table for the terminal."""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from dataclasses import asdict
from importlib.resources import files
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import orjson
from rich.table import Table

from extproc import __version__
from extproc.replay.arrival import Trace
from extproc.replay.figures import COLD_S, WINDOW_S, Summary, over_time
from extproc.replay.run import REPORT_S, Fleet, Outcome
from extproc.replay.worth import Worth

SHOWN_PROBLEMS = 20
"""Lines left out that are listed one by one."""
SIMULATED = (
    "Engines are simulated and time is virtual: no model runs. Routing is the code that serves; what it "
    "picks is what it would have picked."
)


class Run(NamedTuple):
    """One policy over the trace."""

    policy: str
    outcome: Outcome
    summary: Summary
    replay_s: float
    """Real seconds it took."""


def content(trace: Trace, fleet: Fleet, found: Worth, runs: Sequence[Run]) -> dict[str, Any]:
    """Content of `report.json`: times in milliseconds (`_ms`) or seconds, shares as fractions."""
    requests = len(trace.arrivals)
    taken = sum(run.replay_s for run in runs)
    return {
        "simulated_engines": True,
        "trace": {
            "name": trace.name,
            "requests": requests,
            "seconds": trace.seconds,
            "has_prefixes": trace.has_prefixes,
            "lines_left_out": len(trace.problems),
            "problems": [str(problem) for problem in trace.problems[:SHOWN_PROBLEMS]],
        },
        "worth": asdict(found),
        "policies": {run.policy: asdict(run.summary) for run in runs},
        "settings": {
            "engines": fleet.engines,
            "replicas": fleet.replicas,
            "shared_picks": fleet.shared_picks,
            "changes": [str(change) for change in fleet.changes],
            "time_scale": fleet.time_scale,
            "seed": fleet.seed,
            "reports_every_s": REPORT_S,
            "engine": asdict(fleet.spec),
        },
        "notes": [SIMULATED, *trace.notes],
        "replayed_requests_per_s": requests * len(runs) / taken if taken else 0.0,
        "version": __version__,
    }


def table(report: dict[str, Any]) -> Table:
    """The comparison for the terminal."""
    rows = report["policies"]
    shown = Table(title="Same requests, same times, simulated engines", title_justify="left")
    shown.add_column("policy")
    cold = any(row["cold"] for row in rows.values())
    refused = any(row["refused"] for row in rows.values())
    headings = ["hit rate", "TTFT", "p50", "p95", "p99", "requests", "work", "busy"]
    for heading in headings + ["cold"] * cold + ["refused"] * refused:
        shown.add_column(heading, justify="right", no_wrap=True)
    for name, row in rows.items():
        times = [milliseconds(row["ttft_ms"].get(key)) for key in ("mean", "p50", "p95", "p99")]
        cells = [name, f"{row['hit_rate']:.1%}", *times, f"{row['max_over_mean']:.2f}"]
        cells += [f"{row['work_max_over_mean']:.2f}", f"{row['busy']:.0%}"]
        cells += [str(row["cold"])] * cold + [str(row["refused"])] * refused
        shown.add_row(*cells)
    shown.caption = (
        "TTFT: mean and percentiles. requests, work: busiest engine / mean, of requests and of uncached "
        f"tokens in {WINDOW_S:g} s windows. busy: share of time in which engines prefill."
    )
    shown.caption_justify = "left"
    return shown


def milliseconds(value: float | None) -> str:
    """A time for people."""
    if value is None:
        return "-"
    return f"{value:.0f} ms" if value < 1000 else f"{value / 1000:.2f} s"


def worth_lines(found: Worth) -> list[str]:
    """The analysis as lines of text."""
    depth = ", ".join(f"{name} {share:.1%}" for name, share in found.by_depth.items() if share >= 0.0005)
    age = ", ".join(f"{name} {share:.1%}" for name, share in found.by_age.items() if share >= 0.0005)
    lines = [
        f"{found.verdict}",
        f"Seen before, so reusable by an infinite cache: {found.reusable:.1%} of tokens",
    ]
    if found.prefixes:
        lines += [
            f"  by depth in the prompt: {depth}",
            f"  by time since last use: {age}",
            f"  {found.prefixes} prefixes carry it, {found.carry_half} of them half, "
            f"{found.carry_most} nine tenths",
            f"Within these engines' caches: at best {found.best:.1%}, at random {found.by_chance:.1%}",
        ]
    return lines


def write(directory: Path, report: dict[str, Any], runs: Sequence[Run]) -> tuple[Path, Path]:
    """Write `report.json` and `report.html` below `directory` and return their paths."""
    import jinja2

    directory.mkdir(parents=True, exist_ok=True)
    as_json, as_html = directory / "report.json", directory / "report.html"
    as_json.write_bytes(orjson.dumps(report, option=orjson.OPT_INDENT_2) + b"\n")
    environment = jinja2.Environment(
        autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    template = environment.from_string(files("extproc.replay").joinpath("report.html.j2").read_text())
    as_html.write_text(
        template.render(
            report=report,
            plots=plots(runs),
            worth=worth_lines_of(report),
            milliseconds=milliseconds,
            window=WINDOW_S,
            cold=COLD_S,
        )
    )
    return as_json, as_html


def worth_lines_of(report: dict[str, Any]) -> list[str]:
    """As `worth_lines`, from the content of a report."""
    return worth_lines(Worth(**report["worth"]))


def plots(runs: Sequence[Run]) -> dict[str, str]:
    """Inline SVG by name: `ttft`, `hit_rate`, `share`, `load`."""
    import matplotlib as mpl

    mpl.use("svg")
    mpl.rcParams.update(
        {
            "svg.fonttype": "none",
            "svg.hashsalt": "replay",
            "font.family": "sans-serif",
            "axes.spines.top": False,
            "axes.spines.right": False,
        }
    )

    def ttft(axes: Any) -> None:
        for at, run in enumerate(runs):
            values = np.sort(run.outcome.ttft[run.outcome.engine >= 0]) * 1000
            if len(values):
                # A thousand points draw the curve; a million would be a page that no browser opens.
                shares = np.linspace(0, 1, min(len(values), 1000))
                axes.plot(np.quantile(values, shares), shares, **_line(at, run))
        axes.set(xscale="log", xlabel="time to first token, ms", ylabel="share of requests", ylim=(0, 1))

    def hit_rate(axes: Any) -> None:
        for at, run in enumerate(runs):
            axes.plot(*over_time(run.outcome), **_line(at, run))
        _mark_changes(axes, runs)
        axes.set(xlabel="time, s", ylabel="hit rate", ylim=(0, 1))

    def share(axes: Any) -> None:
        width = 0.8 / max(1, len(runs))
        for at, run in enumerate(runs):
            parts = run.summary.share
            places = np.arange(len(parts)) + (at - (len(runs) - 1) / 2) * width
            axes.bar(places, list(parts.values()), width, color=_colour(at), label=run.policy)
            axes.set_xticks(range(len(parts)), [name.removeprefix("engine-") for name in parts])
        axes.set(xlabel="engine", ylabel="share of requests")

    def load(axes: Any) -> None:
        for at, run in enumerate(runs):
            times, loads = np.array(run.outcome.load_at), np.array(run.outcome.load).reshape(-1, 2)
            if len(times):
                step = max(1, len(times) // 500)
                axes.plot(times[::step], loads[::step, 1], **_line(at, run))
        _mark_changes(axes, runs)
        axes.set(xlabel="time, s", ylabel="requests on the busiest engine", ylim=(0, None))

    return {"ttft": _svg(ttft), "hit_rate": _svg(hit_rate), "share": _svg(share), "load": _svg(load)}


def _mark_changes(axes: Any, runs: Sequence[Run]) -> None:
    for change in runs[0].outcome.changes if runs else ():
        axes.axvline(change.at, color="#000", alpha=0.4, lw=1, ls=":")
        axes.annotate(
            str(change), (change.at, 1), xycoords=("data", "axes fraction"), fontsize="x-small", rotation=90,
            va="top", ha="right", alpha=0.7,
        )  # fmt: skip


def _colour(at: int) -> str:
    return ("#1f6feb", "#d9822b", "#8a8f98", "#2da44e", "#cf222e", "#8250df", "#bf3989", "#1b7c83")[at % 8]


def _line(at: int, run: Run) -> dict[str, Any]:
    return {"color": _colour(at), "label": run.policy, "lw": 1.6, "ls": "-" if at < 8 else "--"}


def _svg(draw: Callable[[Any], None]) -> str:
    """One plot as an SVG element without a size of its own, so that it takes its container's width."""
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
