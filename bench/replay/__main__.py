"""`python -m bench.replay`: requests per second of reading, of the analysis and of each policy."""

from __future__ import annotations

import gc
import resource
import tempfile
from collections.abc import Callable
from pathlib import Path
from time import perf_counter, process_time
from typing import TypeVar

import click

from bench.replay.traffic import BLOCK, write
from extproc.replay.policies import parse
from extproc.replay.run import Fleet, replay
from extproc.replay.traces import read
from extproc.replay.worth import worth
from extproc.simulation.presets import EngineSpec

T = TypeVar("T")

ENGINE = EngineSpec(
    prefill_tokens_per_s=14_000,
    prefill_overhead_s=0.008,
    step_s=0.015,
    step_per_request_s=0.00007,
    blocks=(1 << 20) // BLOCK,
    block_tokens=BLOCK,
)


@click.command()
@click.option("--requests", type=click.IntRange(1000), default=1_000_000, show_default=True)
@click.option("--engines", type=click.IntRange(1, 1000), default=7, show_default=True)
@click.option(
    "--rate", type=click.FloatRange(0, min_open=True), default=12.0, show_default=True, help="Requests per s."
)
@click.option(
    "--policy",
    "policies",
    multiple=True,
    default=("PREFIX_AWARE", "LEAST_OUTSTANDING_REQUESTS", "RANDOM", "radix-tree"),
    show_default=True,
)
def main(requests: int, engines: int, rate: float, policies: tuple[str, ...]) -> None:
    """Time a replay of made traffic."""
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "made.jsonl"
        write(path, requests, rate)
        click.echo(f"{requests} requests, {path.stat().st_size / 1e6:.0f} MB")
        trace = _timed("read", requests, lambda: read(path))
    gc.freeze()
    fleet = Fleet(ENGINE, engines)
    found = _timed("analysis", requests, lambda: worth(trace, engines, ENGINE.blocks))
    click.echo(f"  {found.verdict}")
    for text in policies:
        for policy in parse(text):
            outcome = _timed(policy.label, requests, lambda policy=policy: replay(trace, fleet, policy.make))  # type: ignore[misc]
            click.echo(
                f"  hit rate {outcome.cached.sum() / outcome.prompt.sum():.1%}, "
                f"TTFT {outcome.ttft.mean():.3f} s"
            )


def _timed(what: str, requests: int, act: Callable[[], T]) -> T:
    wall, cpu = perf_counter(), process_time()
    made = act()
    wall, cpu = perf_counter() - wall, process_time() - cpu
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    click.echo(
        f"{what:<28} {requests / cpu:8.0f} requests per processor second, {cpu:6.1f} s ({wall:.1f} s on the "
        f"clock), peak {peak:.0f} MB"
    )
    return made


if __name__ == "__main__":
    main()
