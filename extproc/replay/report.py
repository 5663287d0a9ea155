"""What a replay found: `report.json`, a self-contained `report.html`, and a table for the terminal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from importlib.resources import files
from pathlib import Path
from typing import Any, NamedTuple

import orjson
from rich.table import Table

from extproc import __version__
from extproc.replay.arrival import Trace
from extproc.replay.figures import COLD_S, WINDOW_S, Summary
from extproc.replay.run import REPORT_S, Fleet, Outcome
from extproc.replay.worth import Worth

SHOWN_PROBLEMS = 20
"""Lines left out that are listed one by one."""
SIMULATED = (
    "Engines are simulated and time is virtual: no model runs. Routing is the code that serves; what it "
    "picks is what it would have picked."
)


class Measure(NamedTuple):
    """What policies can be ranked by."""

    about: str
    section: str
    """In a policy's part of the report: the figure, or the figures it is in."""
    name: str = ""
    higher_is_better: bool = False


MEASURES: Mapping[str, Measure] = {
    "ttft-mean": Measure("mean time to first token", "ttft_ms", "mean"),
    "ttft-p50": Measure("median time to first token", "ttft_ms", "p50"),
    "ttft-p95": Measure("95th percentile of the time to first token", "ttft_ms", "p95"),
    "ttft-p99": Measure("99th percentile of the time to first token", "ttft_ms", "p99"),
    "hit-rate": Measure("hit rate", "hit_rate", higher_is_better=True),
    "balance": Measure("balance of the work", "work_max_over_mean"),
}


class Run(NamedTuple):
    """One policy over the trace."""

    policy: str
    outcome: Outcome
    summary: Summary
    replay_s: float
    """Processor seconds that it took."""


def content(trace: Trace, fleet: Fleet, found: Worth, runs: Sequence[Run], best_by: str) -> dict[str, Any]:
    """Content of `report.json`: times in milliseconds (`_ms`) or seconds, shares as fractions.

    `best_by` is one of `MEASURES`.
    """
    requests = len(trace.arrivals)
    taken = sum(run.replay_s for run in runs)
    policies = {run.policy: asdict(run.summary) for run in runs}
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
        "policies": policies,
        "best_by": best_by,
        "ranking": ranking(policies, best_by),
        "settings": {
            "engines": fleet.engines,
            "replicas": fleet.replicas,
            "shared_picks": fleet.shared_picks,
            "changes": [str(change) for change in fleet.changes],
            "time_scale": fleet.time_scale,
            "max_output_tokens": fleet.max_output_tokens,
            "seed": fleet.seed,
            "reports_every_s": REPORT_S,
            "engine": asdict(fleet.spec),
        },
        "notes": [SIMULATED, *trace.notes],
        "replayed_requests_per_s": requests * len(runs) / taken if taken else 0.0,
        "version": __version__,
    }


def ranking(policies: Mapping[str, Mapping[str, Any]], best_by: str) -> list[str]:
    """The policies' names, the best first; those that served nothing last."""
    measure = MEASURES[best_by]

    def key(name: str) -> tuple[bool, float]:
        figure = policies[name][measure.section]
        value = figure.get(measure.name) if measure.name else figure
        if value is None:
            return True, 0.0
        return False, -value if measure.higher_is_better else value

    return sorted(policies, key=key)


def table(report: dict[str, Any]) -> Table:
    """The comparison for the terminal, the best first."""
    rows = {name: report["policies"][name] for name in report["ranking"]}
    shown = Table(title="Same requests, same times, simulated engines", title_justify="left")
    shown.add_column("policy")
    cold = any(row["cold"] for row in rows.values())
    refused = any(row["refused"] for row in rows.values())
    headings = ["hit rate", "TTFT", "p50", "p95", "p99", "requests", "work", "busy"]
    for heading in headings + ["cold", "hit rate"] * cold + ["refused"] * refused:
        shown.add_column(heading, justify="right", no_wrap=True)
    for name, row in rows.items():
        times = [milliseconds(row["ttft_ms"].get(key)) for key in ("mean", "p50", "p95", "p99")]
        cells = [name, f"{row['hit_rate']:.1%}", *times, f"{row['max_over_mean']:.2f}"]
        cells += [f"{row['work_max_over_mean']:.2f}", f"{row['busy']:.0%}"]
        cells += [str(row["cold"]), f"{row['cold_hit_rate']:.1%}"] * cold + [str(row["refused"])] * refused
        shown.add_row(*cells)
    return shown


def legend(report: dict[str, Any]) -> list[str]:
    """What the columns of the table mean, one sentence each."""
    rows = report["policies"].values()
    sentences = [
        f"Best first, by {MEASURES[report['best_by']].about}.",
        "Hit rate: prompt tokens found in a KV cache.",
        "TTFT: time from arrival to first token, queueing included; mean and percentiles.",
        "Requests, work: busiest engine / mean, of requests and of uncached tokens in windows of "
        f"{WINDOW_S:g} s.",
        "Busy: share of time in which engines prefill.",
    ]
    if any(row["cold"] for row in rows):
        sentences.append(
            f"Cold: requests within {COLD_S:g} s of their engine's joining, and the hit rate of these."
        )
    if any(row["refused"] for row in rows):
        sentences.append("Refused: by the policy, or because no engine's KV cache can hold the request.")
    return sentences


def milliseconds(value: float | None) -> str:
    """A time for people."""
    if value is None:
        return "-"
    return f"{value:.0f} ms" if value < 1000 else f"{value / 1000:.2f} s"


def worth_lines(found: Worth, fleet: Fleet) -> list[str]:
    """The analysis as lines of text, the verdict first."""
    depth = ", ".join(f"{name} {share:.1%}" for name, share in found.by_depth.items() if share >= 0.0005)
    age = ", ".join(f"{name} {share:.1%}" for name, share in found.by_age.items() if share >= 0.0005)
    spec = fleet.spec
    lines = [
        found.verdict,
        f"Seen before, so found by an infinite cache: {found.reusable:.1%} of prompt tokens.",
    ]
    if found.prefixes:
        lines += [
            f"  By depth in the prompt: {depth}.",
            f"  By time since last use: {age}.",
            f"  Carried by {found.prefixes} prefixes: {found.carry_half} of them carry half of it, "
            f"{found.carry_most} nine tenths.",
            f"Found by {fleet.engines} engines with {spec.blocks * spec.block_tokens:,} tokens of KV cache "
            f"each ({spec.blocks:,} blocks of {spec.block_tokens}):",
            f"  {found.by_chance:.1%} when requests go anywhere;",
            f"  {found.pooled:.1%} if all were one cache, which very good routing comes near to;",
            f"  {found.ceiling:.1%} if that knew the future: more, no routing can reach.",
        ]
    return lines


def write(directory: Path, report: dict[str, Any], worth: Sequence[str], runs: Sequence[Run]) -> Path:
    """Write `report.json` and `report.html` below `directory` and return the page's path.

    `worth` are the lines of the analysis. Raises OSError, and ModuleNotFoundError without the packages of
    `warmroute[demo]`.
    """
    import jinja2

    from extproc.replay.plots import COLOURS, Drawn, plots

    directory.mkdir(parents=True, exist_ok=True)
    page = directory / "report.html"
    (directory / "report.json").write_bytes(orjson.dumps(report, option=orjson.OPT_INDENT_2) + b"\n")
    by_name = {run.policy: run for run in runs}
    shown = [by_name[name] for name in report["ranking"][: len(COLOURS)]]
    environment = jinja2.Environment(
        autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    template = environment.from_string(files("extproc.replay").joinpath("report.html.j2").read_text())
    page.write_text(
        template.render(
            report=report,
            plots=plots(
                [Drawn(run.outcome, run.summary.share) for run in shown],
                report["worth"]["pooled"],
            ),
            colours=dict(zip(report["ranking"], COLOURS, strict=False)),
            worth=worth,
            legend=legend(report),
            milliseconds=milliseconds,
        )
    )
    return page
