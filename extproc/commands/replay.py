"""`extproc replay`."""

from __future__ import annotations

from dataclasses import replace as changed
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING

import click

from extproc.replay import events
from extproc.replay.policies import DEFAULT, KINDS, Named, PolicyError, parse
from extproc.replay.traces import READERS
from extproc.simulation.presets import PRESETS, EngineSpec

if TYPE_CHECKING:
    from rich.console import Console

    from extproc.replay.arrival import Trace
    from extproc.replay.report import Run
    from extproc.replay.run import Fleet

SHOWN_PROBLEMS = 5
PLAIN_WIDTH = 132
"""Columns where the output goes into a file."""


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


@click.command(
    "replay", epilog="Policies: " + "; ".join(f"{name}: {kind.about}" for name, kind in KINDS.items())
)
@click.argument(
    "traces", nargs=-1, required=True, type=click.Path(path_type=Path, dir_okay=False, exists=True)
)
@click.option(
    "--policy",
    "policies",
    multiple=True,
    callback=_policies,
    metavar="NAME[:SETTING=VALUE[|VALUE],...]",
    help=f"Policy to run, once per policy; several values run each.  [default: {', '.join(DEFAULT)}]",
)
@click.option(
    "--engines", type=click.IntRange(1, 1000), default=7, show_default=True, help="Engines at the start."
)
@click.option(
    "--replicas",
    type=click.IntRange(1, 100),
    default=1,
    show_default=True,
    help="Router replicas; they share no state.",
)
@click.option("--shared-picks", is_flag=True, help="Replicas tell each other their picks each second.")
@click.option(
    "--preset",
    type=click.Choice(sorted(PRESETS)),
    default="4xh100-70b",
    show_default=True,
    help="Speed and size of each engine.",
)
@click.option("--blocks", type=click.IntRange(1), help="KV cache blocks per engine, of --block-tokens each.")
@click.option(
    "--prefill-speed", type=click.FloatRange(0, min_open=True), help="Prompt tokens per second and engine."
)
@click.option("--decode-step", type=click.FloatRange(0, min_open=True), help="Seconds of a decode step.")
@click.option(
    "--block-tokens",
    type=click.IntRange(16, 4096),
    default=64,
    show_default=True,
    help="Tokens of an engine block where the trace does not fix it.",
)
@click.option(
    "--add",
    "added",
    multiple=True,
    callback=_adding,
    metavar="N@TIME",
    help="N engines join with empty caches, as 1@600s.",
)
@click.option(
    "--remove", "removed", multiple=True, metavar="ENGINE@TIME", help="An engine leaves, as engine-3@900s."
)
@click.option(
    "--time-scale",
    type=click.FloatRange(0, 1e6, min_open=True),
    default=1.0,
    show_default=True,
    help="Seconds of the run per second of the trace: 0.5 is twice the load.",
)
@click.option(
    "--max-output-tokens", type=click.IntRange(0), default=0, help="Cut longer answers.  [default: do not]"
)
@click.option(
    "--part",
    type=(click.FloatRange(0, 1), click.FloatRange(0, 1)),
    default=(0.0, 1.0),
    metavar="FROM TO",
    help="Part of the trace, as fractions of its requests.",
)
@click.option(
    "--format",
    "kind",
    type=click.Choice([reader.NAME for reader in READERS]),
    help="Format of the traces.  [default: as the first line looks]",
)
@click.option("--seed", type=int, default=1, show_default=True, help="Decides replicas and ties.")
@click.option(
    "--out",
    type=click.Path(path_type=Path, file_okay=False),
    help="Directory for report.html and report.json.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the report as JSON instead of tables.")
def command(
    traces: tuple[Path, ...],
    policies: list[Named],
    engines: int,
    replicas: int,
    shared_picks: bool,
    preset: str,
    blocks: int | None,
    prefill_speed: float | None,
    decode_step: float | None,
    block_tokens: int,
    added: list[events.Change],
    removed: tuple[str, ...],
    time_scale: float,
    max_output_tokens: int,
    part: tuple[float, float],
    kind: str | None,
    seed: int,
    out: Path | None,
    as_json: bool,
) -> None:
    """Replay recorded traffic through the routing code and simulated engines, and compare policies.

    Reads Mooncake JSONL, Azure CSV, tau-bench sessions, JSONL of your own request bodies with timestamps, and
    the router's log. Says first what the traffic has to gain. Exit codes: 0 done; 1 a trace is not usable;
    2 the command line is wrong.
    """
    from rich.console import Console

    from extproc.replay.run import Fleet
    from extproc.replay.traces import read
    from extproc.replay.traces.lines import TraceError

    try:
        leaving = [events.removing(value, engines) for value in removed]
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint="--remove") from error
    if part[0] >= part[1]:
        raise click.BadParameter(f"{part[0]:g} is not before {part[1]:g}", param_hint="--part")
    console = Console(highlight=False, stderr=as_json)
    if not console.is_terminal:
        console.width = PLAIN_WIDTH
    for path in traces:
        try:
            trace = read(path, block_tokens, kind or "").part(*part)
        except TraceError as error:
            raise click.ClickException(str(error)) from error
        spec = _spec(preset, trace.block_tokens, blocks, prefill_speed, decode_step)
        fleet = Fleet(
            spec, engines, replicas, shared_picks, [*added, *leaving], time_scale, max_output_tokens, seed
        )
        _replay(
            trace,
            fleet,
            policies,
            out if out is None or len(traces) == 1 else out / trace.name,
            console,
            as_json,
        )


def _spec(
    preset: str, block_tokens: int, blocks: int | None, prefill_speed: float | None, step: float | None
) -> EngineSpec:
    """The preset with the trace's blocks, the KV cache as many tokens large as before."""
    spec = PRESETS[preset]
    return changed(
        spec,
        block_tokens=block_tokens,
        blocks=blocks or max(1, spec.blocks * spec.block_tokens // block_tokens),
        prefill_tokens_per_s=prefill_speed or spec.prefill_tokens_per_s,
        step_s=step or spec.step_s,
    )


def _replay(
    trace: Trace, fleet: Fleet, policies: list[Named], out: Path | None, console: Console, as_json: bool
) -> None:
    import orjson

    from extproc.replay import report
    from extproc.replay.worth import worth

    console.print(f"[bold]{trace.name}[/bold]: {len(trace.arrivals)} requests over {trace.seconds:.0f} s")
    if trace.problems:
        console.print(f"{len(trace.problems)} lines left out:")
        for problem in trace.problems[:SHOWN_PROBLEMS]:
            console.print(f"  {problem}", markup=False)
    for note in trace.notes:
        console.print(note, markup=False)
    found = worth(trace, fleet.engines, fleet.spec.blocks, fleet.time_scale)
    for line in report.worth_lines(found):
        console.print(line, markup=False)
    try:
        runs = _runs(trace, fleet, policies, console)
    except ValueError as error:
        raise click.ClickException(str(error)) from error
    content = report.content(trace, fleet, found, runs)
    if as_json:
        click.echo(orjson.dumps(content, option=orjson.OPT_INDENT_2))
    else:
        console.print(report.table(content))
        console.print(f"{content['replayed_requests_per_s']:.0f} requests replayed per second")
    if out is not None:
        try:
            _, page = report.write(out, content, runs)
        except ModuleNotFoundError as error:
            raise click.ClickException(f"{error.name} is missing: pip install 'warmroute[demo]'") from error
        console.print(str(page), markup=False)


def _runs(trace: Trace, fleet: Fleet, policies: list[Named], console: Console) -> list[Run]:
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    from extproc.replay import report
    from extproc.replay.figures import summary
    from extproc.replay.run import replay

    runs = []
    columns = (TextColumn("{task.description:<28}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, disable=not console.is_terminal, transient=True) as bars:
        for policy in policies:
            task = bars.add_task(policy.label, total=len(trace.arrivals))
            began = perf_counter()
            outcome = replay(trace, fleet, policy.make, lambda done, task=task: bars.advance(task, done))  # type: ignore[misc]
            runs.append(report.Run(policy.label, outcome, summary(outcome), perf_counter() - began))
    return runs
