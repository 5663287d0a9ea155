"""`python -m bench.routing`: every policy on every row, into `build/bench/routing.json`.

Rows that the file has are not run again, so a run may be stopped and gone on with at any time. One process
unless `--jobs` says otherwise.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace as changed
from pathlib import Path
from typing import Any

import click
import orjson

from bench.routing.ideal import ideal
from bench.routing.moved import moved
from bench.routing.policies import IDEAL, OURS, policies
from bench.routing.rows import Half, Row, load, rows
from extproc.replay.events import Change
from extproc.replay.figures import summary
from extproc.replay.run import replay

OUT = Path("build/bench/routing.json")
QUICK = re.compile(r"(arxiv|synthetic) \w+ N=7 scarce .*u=0.65")


def measure(row: Row, name: str) -> dict[str, Any]:
    """One policy on one row: the row of the report."""
    used, where = load(row)
    of = {
        "trace": row.trace,
        "half": row.half,
        "engines": row.engines,
        "capacity": row.capacity,
        "R": row.replicas,
        "shared_picks": row.shared_picks,
        "utilisation": row.utilisation,
        "policy": name,
    }
    if name == IDEAL:
        best = ideal(used, where)
        return {**of, "hit_rate": round(best.hit_rate, 4), "ttft_ms": _rounded(best.ttft_ms)}
    policy = policies()[name]
    outcome = replay(used, where, policy.make)
    found = summary(outcome)
    middle = float(outcome.at[-1]) / 2
    leaving = changed(where, changes=[Change(middle, remove="engine-1")])
    return {
        **of,
        "hit_rate": round(found.hit_rate, 4),
        "ttft_ms": _rounded(found.ttft_ms),
        "max_over_mean": round(found.max_over_mean, 3),
        "work_max_over_mean": round(found.work_max_over_mean, 3),
        "moved": round(moved(used, replay(used, leaving, policy.make), outcome, middle), 4),
        "moved_ideal": round(1 / row.engines, 4),
        "busy": round(found.busy, 3),
        "refused": found.refused,
    }


def _rounded(times: Mapping[str, float]) -> dict[str, float]:
    return {key: round(times[key], 1) for key in ("mean", "p50", "p95")}


def _measure_all(row: Row, names: list[str]) -> list[dict[str, Any]]:
    return [measure(row, name) for name in names]


def _key(found: dict[str, Any]) -> tuple[Any, ...]:
    names = ("trace", "engines", "capacity", "R", "shared_picks", "utilisation", "half", "policy")
    return tuple(found[name] for name in names)


def _missing(
    chosen: list[Row], names: list[str], have: set[tuple[Any, ...]]
) -> Iterator[tuple[Row, list[str]]]:
    for row in chosen:
        # Peers hear no shared picks: they would be measured twice. The ideal has no replicas.
        wanted = [
            name
            for name in names
            if name == OURS or (not row.shared_picks and (name != IDEAL or row.replicas == 1))
        ]
        if left := [name for name in wanted if (*row, name) not in have]:
            yield row, left


@click.command()
@click.option(
    "--rows", "pattern", default="", help="Only rows whose text this regular expression is found in."
)
@click.option(
    "--policy", "only", multiple=True, type=click.Choice([*policies(), IDEAL]), help="Only these policies."
)
@click.option(
    "--half",
    type=click.Choice(["first", "second"]),
    default="second",
    show_default=True,
    help="Half of each trace: the first is for choosing, the second for reporting.",
)
@click.option("--quick", is_flag=True, help="A few short rows.")
@click.option("--jobs", type=click.IntRange(1, 64), default=1, show_default=True, help="Processes.")
@click.option("--again", is_flag=True, help="Run the chosen rows again though the file has them.")
@click.option("--list", "listing", is_flag=True, help="Only list the rows.")
@click.option("--out", type=click.Path(path_type=Path, dir_okay=False), default=OUT, show_default=True)
def main(
    pattern: str,
    only: tuple[str, ...],
    half: Half,
    quick: bool,
    jobs: int,
    again: bool,
    listing: bool,
    out: Path,
) -> None:
    """Compare routing policies on published traces."""
    try:
        wanted = re.compile(pattern)
    except re.error as error:
        raise click.BadParameter(f"{pattern!r}: {error}", param_hint="--rows") from error
    chosen = [row for row in rows(half) if wanted.search(str(row)) and (not quick or QUICK.search(str(row)))]
    if listing:
        for row in chosen:
            click.echo(str(row))
        return
    names = list(only) or [*policies(), IDEAL]
    found: list[dict[str, Any]] = orjson.loads(out.read_bytes())["rows"] if out.exists() else []
    if again:
        redone = {(*row, name) for row in chosen for name in names}
        found = [one for one in found if _key(one) not in redone]
    todo = list(_missing(chosen, names, {_key(one) for one in found}))
    click.echo(f"{len(chosen)} rows, {sum(len(left) for _, left in todo)} runs to do")
    out.parent.mkdir(parents=True, exist_ok=True)
    for made in _run(todo, jobs):
        found += made
        part = out.with_suffix(".part")
        part.write_bytes(orjson.dumps({"rows": found}, option=orjson.OPT_INDENT_2) + b"\n")
        part.replace(out)
        for one in made:
            click.echo(_line(one))


def _run(todo: list[tuple[Row, list[str]]], jobs: int) -> Iterator[list[dict[str, Any]]]:
    if jobs == 1:
        for row, names in todo:
            yield _measure_all(row, names)
        return
    with ProcessPoolExecutor(jobs, initializer=os.nice, initargs=(10,)) as pool:
        for future in [pool.submit(_measure_all, row, names) for row, names in todo]:
            yield future.result()


def _line(one: dict[str, Any]) -> str:
    shared = "s" if one["shared_picks"] else " "
    times = one["ttft_ms"]
    even = (
        f"requests {one['max_over_mean']:.2f} work {one['work_max_over_mean']:.2f} " if "moved" in one else ""
    )
    moves = f"moved {one['moved']:.3f}" if "moved" in one else ""
    return (
        f"{one['trace']:<12} N={one['engines']:<2} {one['capacity']:<6} R={one['R']}{shared} "
        f"u={one['utilisation']:.2f} {one['policy']:<18} hit {one['hit_rate']:.3f} "
        f"TTFT mean {times['mean']:7.0f} p95 {times['p95']:7.0f} ms  {even}{moves}"
    )


if __name__ == "__main__":
    main()
