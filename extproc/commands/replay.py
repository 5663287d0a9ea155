"""`extproc replay`."""

from __future__ import annotations

import gc
import itertools
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import replace as changed
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any

import click

from extproc.replay import events
from extproc.replay.policies import DEFAULT, KINDS, Named, PolicyError, parse
from extproc.replay.traces import MOST_DAYS, OUTPUT_TOKENS, READERS
from extproc.simulation.presets import PRESETS, EngineSpec

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress

    from extproc.replay.arrival import Trace
    from extproc.replay.report import Run
    from extproc.replay.run import Fleet

SHOWN_PROBLEMS = 5
PLAIN_WIDTH = 132
"""Columns where the output goes into a file."""
REFRESH_S = 0.2
"""Time between two looks of the progress bars."""
STOPPED = 130
"""Exit code after Ctrl-C, as shells have it: 128 + SIGINT."""
BEST_BY = ("ttft-mean", "ttft-p50", "ttft-p95", "ttft-p99", "hit-rate", "balance")

SECTIONS = {
    "Traffic": ("join", "pool", "part", "time_scale", "output_tokens", "max_output_tokens", "kind"),
    "Engines": (
        "engines",
        "preset",
        "kv_tokens",
        "blocks",
        "block_tokens",
        "prefill_speed",
        "decode_step",
        "added",
        "removed",
    ),
    "Routing": ("policies", "best_by", "replicas", "shared_picks", "seed"),
    "Output": ("out", "as_json", "jobs"),
}


class _Sectioned(click.Command):
    """A command whose help lists options in sections."""

    def format_options(self, context: click.Context, formatter: click.HelpFormatter) -> None:
        left = {parameter.name or "": parameter for parameter in self.get_params(context)}
        left.pop("traces")
        sections = {title: [left.pop(name) for name in names] for title, names in SECTIONS.items()}
        for title, parameters in [*sections.items(), ("Other", list(left.values()))]:
            records = [parameter.get_help_record(context) for parameter in parameters]
            with formatter.section(title):
                formatter.write_dl([record for record in records if record is not None])


def _epilog() -> str:
    """Policies and presets, one a line; the mark keeps click from filling the lines."""
    lines = ["\b", "Policies and their settings:"]
    for name, kind in KINDS.items():
        lines.append(f"  {name}: {kind.about}")
        lines += [
            f"      {setting}: {rule.least:g} to {rule.most:g}" for setting, rule in kind.settings.items()
        ]
    lines += ["", "\b", "Presets, computed from published figures:"]
    for name, spec in PRESETS.items():
        step, cache = spec.step_s * 1000, spec.blocks * spec.block_tokens
        lines += [
            f"  {name}: {spec.prefill_tokens_per_s:,.0f} prompt tokens/s, decode step {step:.0f} ms",
            f"      KV cache {cache:,} tokens; {spec.source}",
        ]
    return "\n".join(lines)


def _policies(_: click.Context, __: click.Parameter, values: tuple[str, ...]) -> list[Named]:
    try:
        named = [policy for value in values or DEFAULT for policy in parse(value)]
    except PolicyError as error:
        raise click.BadParameter(str(error)) from error
    return list({policy.label: policy for policy in named}.values())


def _adding(_: click.Context, __: click.Parameter, values: tuple[str, ...]) -> list[events.Change]:
    try:
        return [events.adding(value) for value in values]
    except ValueError as error:
        raise click.BadParameter(str(error)) from error


def _removing(_: click.Context, __: click.Parameter, values: tuple[str, ...]) -> list[events.Change]:
    try:
        return [events.removing(value) for value in values]
    except ValueError as error:
        raise click.BadParameter(str(error)) from error


@click.command("replay", cls=_Sectioned, epilog=_epilog())
@click.argument(
    "traces", nargs=-1, required=True, type=click.Path(path_type=Path, dir_okay=False, exists=True)
)
@click.option(
    "--join",
    is_flag=True,
    help="Take all files as one trace, as the logs of several routers or the files of a rotated one.",
)
@click.option("--pool", default="", help="Only requests of this pool, of a router's log.  [default: all]")
@click.option(
    "--part",
    type=(click.FloatRange(0, 1), click.FloatRange(0, 1)),
    default=(0.0, 1.0),
    metavar="FROM TO",
    help="Part of the trace, as fractions of its requests, as 0.5 1.",
)
@click.option(
    "--time-scale",
    type=click.FloatRange(0, 1e6, min_open=True, max_open=True),
    default=1.0,
    show_default=True,
    help="Seconds of the run per second of the trace: 0.5 is twice the load.",
)
@click.option(
    "--output-tokens",
    type=click.IntRange(1, 1_000_000),
    default=OUTPUT_TOKENS,
    show_default=True,
    help="Length of answers where the trace does not say it.",
)
@click.option(
    "--max-output-tokens", type=click.IntRange(0), default=0, help="Cut longer answers.  [default: do not]"
)
@click.option(
    "--format",
    "kind",
    type=click.Choice([reader.NAME for reader in READERS]),
    help="Format of the traces.  [default: as the first line looks]",
)
@click.option(
    "--engines", type=click.IntRange(1, 1000), default=7, show_default=True, help="Engines at the start."
)
@click.option(
    "--preset",
    type=click.Choice(sorted(PRESETS)),
    default="4xh100-70b",
    show_default=True,
    help="Speed and size of each engine; see below.",
)
@click.option(
    "--kv-tokens",
    type=click.IntRange(1),
    help="KV cache per engine in tokens, as vLLM logs it at start.  [default: the preset's]",
)
@click.option(
    "--blocks", type=click.IntRange(1), help="Instead: KV cache per engine in blocks of --block-tokens."
)
@click.option(
    "--block-tokens",
    type=click.IntRange(16, 4096),
    default=64,
    show_default=True,
    help="Tokens of an engine block where the trace does not fix it.",
)
@click.option(
    "--prefill-speed",
    type=click.FloatRange(0, min_open=True),
    help="Prompt tokens per second and engine.  [default: the preset's]",
)
@click.option(
    "--decode-step",
    type=click.FloatRange(0, min_open=True),
    help="Seconds of a decode step.  [default: the preset's]",
)
@click.option(
    "--add",
    "added",
    multiple=True,
    callback=_adding,
    metavar="N@TIME",
    help="N engines join with empty caches, as 1@600s (seconds of the run; also m, h). May be repeated.",
)
@click.option(
    "--remove",
    "removed",
    multiple=True,
    callback=_removing,
    metavar="ENGINE@TIME",
    help="An engine leaves, as engine-3@900s; joiners are counted on. May be repeated.",
)
@click.option(
    "--policy",
    "policies",
    multiple=True,
    callback=_policies,
    metavar="NAME[:SETTING=VALUE,...]",
    help="Policy to run; see below. May be repeated. Several values of a setting, as in "
    f"PREFIX_AWARE:prefixLength=1024|8192, run each combination.  [default: {', '.join(DEFAULT)}]",
)
@click.option(
    "--best-by",
    type=click.Choice(BEST_BY),
    default=BEST_BY[0],
    show_default=True,
    help="What policies are ranked by.",
)
@click.option(
    "--replicas",
    type=click.IntRange(1, 100),
    default=1,
    show_default=True,
    help="Router replicas, each with a state of its own.",
)
@click.option("--shared-picks", is_flag=True, help="Replicas tell each other their picks each second.")
@click.option("--seed", type=int, default=1, show_default=True, help="Decides replicas and ties.")
@click.option(
    "--out",
    type=click.Path(path_type=Path, file_okay=False),
    help="Directory for report.html and report.json, one below it for each of several traces.",
)
@click.option(
    "--json",
    "as_json",
    is_flag=True,
    help="Print the report as JSON, a list for several traces; the rest goes to standard error.",
)
@click.option(
    "--jobs", type=click.IntRange(1, 256), help="Policies run at once.  [default: one per processor]"
)
def command(
    traces: tuple[Path, ...],
    join: bool,
    pool: str,
    part: tuple[float, float],
    time_scale: float,
    output_tokens: int,
    max_output_tokens: int,
    kind: str | None,
    engines: int,
    preset: str,
    kv_tokens: int | None,
    blocks: int | None,
    block_tokens: int,
    prefill_speed: float | None,
    decode_step: float | None,
    added: list[events.Change],
    removed: list[events.Change],
    policies: list[Named],
    best_by: str,
    replicas: int,
    shared_picks: bool,
    seed: int,
    out: Path | None,
    as_json: bool,
    jobs: int | None,
) -> None:
    """Replay recorded traffic through the routing code and simulated engines, and compare policies.

    Reads Mooncake JSONL, Azure CSV, tau-bench sessions, JSONL of your own request bodies with timestamps, and
    the router's log. Says first what the traffic has to gain. Exit codes: 0 done; 1 a trace is not usable;
    2 the command line is wrong; 130 stopped by Ctrl-C, after what was done by then is shown.
    """
    import orjson
    from rich.console import Console

    from extproc.replay.jobs import most
    from extproc.replay.run import Fleet

    if part[0] >= part[1]:
        raise click.BadParameter(f"{part[0]:g} is not before {part[1]:g}", param_hint="--part")
    if kv_tokens and blocks:
        raise click.UsageError("--kv-tokens and --blocks say the same: give one of them")
    if out is not None:
        _prepare(out)
    console = Console(highlight=False, stderr=as_json)
    if not console.is_terminal:
        console.width, console.soft_wrap = PLAIN_WIDTH, True
    spec = PRESETS[preset]
    spec = changed(
        spec,
        prefill_tokens_per_s=prefill_speed or spec.prefill_tokens_per_s,
        step_s=decode_step or spec.step_s,
    )
    fleet = Fleet(
        spec, engines, replicas, shared_picks, [*added, *removed], time_scale, max_output_tokens, seed
    )
    several = len(traces) > 1 and not join
    directories = _directories(out, several)
    reports: list[dict[str, Any]] = []
    finished = True
    try:
        for trace in _read(traces, join, block_tokens, kind or "", pool, output_tokens):
            used = trace.part(*part)
            # What was read stays: the collector need not look at it again, and forked processes share it.
            gc.freeze()
            here = changed(fleet, spec=_with_cache(spec, trace.block_tokens, kv_tokens, blocks))
            _check_times(here, used)
            reports.append(
                _replay(used, here, policies, jobs or most(), best_by, directories(used.name), console)
            )
            finished = len(reports[-1]["policies"]) == len(policies)
            if not as_json:
                _show(reports[-1], console)
            if not finished:
                break
    except KeyboardInterrupt:
        finished = False
    if as_json and reports:
        click.echo(orjson.dumps(reports if several else reports[0], option=orjson.OPT_INDENT_2))
    if not finished:
        click.echo("Stopped.", err=True)
        raise SystemExit(STOPPED)


def _prepare(out: Path) -> None:
    """Find out before a long run that its report cannot be made."""
    try:
        import jinja2  # noqa: F401
        import matplotlib  # noqa: F401
    except ModuleNotFoundError as error:
        raise click.ClickException(f"{error.name} is missing: pip install 'warmroute[demo]'") from error
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise click.BadParameter(f"{out}: {error.strerror}", param_hint="--out") from error
    if not os.access(out, os.W_OK):
        raise click.BadParameter(f"{out}: cannot be written to", param_hint="--out")


def _directories(out: Path | None, several: bool) -> Callable[[str], Path | None]:
    """Where the report of a trace goes, given the trace's name; no two get the same."""
    taken: set[str] = set()

    def directory(name: str) -> Path | None:
        if out is None or not several:
            return out
        names = itertools.chain([name], (f"{name}-{number}" for number in itertools.count(2)))
        chosen = next(one for one in names if one not in taken)
        taken.add(chosen)
        return out / chosen

    return directory


def _read(
    paths: Sequence[Path], join: bool, block_tokens: int, kind: str, pool: str, output_tokens: int
) -> Iterator[Trace]:
    from extproc.replay.traces import joined, read
    from extproc.replay.traces.lines import TraceError

    traces = (read(path, block_tokens, kind, pool=pool, output_tokens=output_tokens) for path in paths)
    try:
        yield from [joined(list(traces))] if join else traces
    except TraceError as error:
        raise click.ClickException(str(error)) from error


def _with_cache(spec: EngineSpec, block_tokens: int, kv_tokens: int | None, blocks: int | None) -> EngineSpec:
    """The engine with blocks of this size, its KV cache as large as before or as given."""
    tokens = kv_tokens or spec.blocks * spec.block_tokens
    return changed(spec, block_tokens=block_tokens, blocks=blocks or max(1, tokens // block_tokens))


def _check_times(fleet: Fleet, trace: Trace) -> None:
    seconds = trace.seconds * fleet.time_scale
    if seconds > MOST_DAYS * 86_400:
        raise click.BadParameter(f"the run would take more than {MOST_DAYS} days", param_hint="--time-scale")
    try:
        events.check(fleet.changes, fleet.engines, seconds)
    except ValueError as error:
        raise click.UsageError(f"{trace.name}: {error}") from error


def _replay(
    trace: Trace,
    fleet: Fleet,
    policies: list[Named],
    jobs: int,
    best_by: str,
    directory: Path | None,
    console: Console,
) -> dict[str, Any]:
    """The content of the trace's report, of fewer policies than asked for after Ctrl-C."""
    from extproc.replay import report
    from extproc.replay.worth import worth

    rate = f", {len(trace.arrivals) / trace.seconds:.1f} per second" if trace.seconds else ""
    console.print(
        f"[bold]{trace.name}[/bold]: {len(trace.arrivals)} requests over {trace.seconds:.0f} s{rate}"
    )
    if trace.problems:
        number = "1 line was" if len(trace.problems) == 1 else f"{len(trace.problems)} lines were"
        console.print(f"{number} left out:")
        for problem in trace.problems[:SHOWN_PROBLEMS]:
            console.print(f"  {problem}", markup=False)
        if len(trace.problems) > SHOWN_PROBLEMS:
            console.print(f"  and {len(trace.problems) - SHOWN_PROBLEMS} more")
    for note in trace.notes:
        console.print(note, markup=False)
    found = worth(trace, fleet.engines, fleet.spec.blocks, fleet.time_scale)
    lines = report.worth_lines(found, fleet)
    for line in lines:
        console.print(line, markup=False)
    runs = _runs(trace, fleet, policies, jobs, console)
    made = report.content(trace, fleet, found, runs, best_by)
    if directory is not None and runs:
        try:
            page = report.write(directory, made, lines, runs)
        except OSError as error:
            raise click.ClickException(f"the report cannot be written: {error}") from error
        console.print(str(page), markup=False)
    return made


def _show(made: dict[str, Any], console: Console) -> None:
    from extproc.replay import report

    if made["policies"]:
        console.print(report.table(made))
        for sentence in report.legend(made):
            console.print(sentence, style="dim")
        console.print(f"{made['replayed_requests_per_s']:.0f} requests replayed per second of processor time")


def _runs(trace: Trace, fleet: Fleet, policies: list[Named], jobs: int, console: Console) -> list[Run]:
    """The policies that were done, in the order in which they were asked for: all, unless Ctrl-C came."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    from extproc.replay import report
    from extproc.replay.figures import summary
    from extproc.replay.jobs import JobError, each

    done: dict[int, Run] = {}
    columns = (TextColumn("{task.description:<28}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    # Without a thread of its own that refreshes it: processes are forked meanwhile.
    bars = Progress(
        *columns, console=console, disable=not console.is_terminal, transient=True, auto_refresh=False
    )
    try:
        with (
            bars,
            closing(
                each(
                    trace,
                    fleet,
                    policies,
                    min(jobs, len(policies)),
                    _progress(bars, policies, len(trace.arrivals)),
                )
            ) as finished,
        ):
            for index, (outcome, seconds) in finished:
                done[index] = report.Run(policies[index].label, outcome, summary(outcome), seconds)
    except KeyboardInterrupt:
        pass
    except JobError as error:
        raise click.ClickException(str(error)) from error
    return [done[index] for index in sorted(done)]


def _progress(bars: Progress, policies: list[Named], requests: int) -> Callable[[int, int], None]:
    tasks = [bars.add_task(policy.label, total=requests, start=False) for policy in policies]
    shown = 0.0

    def progress(index: int, done: int) -> None:
        nonlocal shown
        if done and not bars.tasks[index].started:
            bars.start_task(tasks[index])
        bars.update(tasks[index], completed=done)
        if (now := perf_counter()) - shown > REFRESH_S:
            shown = now
            bars.refresh()

    return progress
