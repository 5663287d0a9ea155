"""`python -m bench.agreement`: how often router replicas would send the same request to the same engine.

Traffic is split over the replicas. For each request one of them picks; each of the others is asked, at the
same time and without effect on it, where it would have sent the request. At rest queues are short and what is
cached decides; near capacity requests spill, and replicas see different queues.
"""

from __future__ import annotations

import os
import random
from collections import Counter
from collections.abc import Iterable
from concurrent.futures import ProcessPoolExecutor
from itertools import product
from pathlib import Path
from typing import Any

import click
import orjson
from rich.console import Console
from rich.table import Table

from bench.routing.policies import THRESHOLD
from bench.routing.rows import FILES, Row, load
from extproc.pool.pool import Pool
from extproc.pool.snapshot import Snapshot
from extproc.replay.arrival import Arrival
from extproc.replay.policy import Serving
from extproc.replay.run import replay
from extproc.routing import build

OUT = Path("build/bench/agreement.json")
ENGINES = 7
REPLICAS = (2, 8)
UTILISATIONS = {0.1: "at rest", 0.85: "under spill"}


class Asked(Serving):
    """A replica that asks the others where they would have sent what it picks."""

    def __init__(self, everyone: list[Asked], answers: Counter[tuple[str, bool]]) -> None:
        super().__init__(build("PREFIX_AWARE", concurrency_threshold=THRESHOLD))
        everyone.append(self)
        self._everyone = everyone
        self._answers = answers
        self.pool: Pool | None = None

    def attach(self, pool: Pool) -> None:
        super().attach(pool)
        self.pool = pool

    def pick(self, request: Arrival, endpoints: Snapshot, now: float, draw: random.Random) -> str:
        theirs = [other.would_pick(request, now) for other in self._everyone if other is not self]
        mine = self.strategy.foresee(request.keys, endpoints, random.Random(0)).pick
        chosen = super().pick(request, endpoints, now, draw)
        for address in theirs:
            self._answers[mine.reason, address == chosen] += 1
        return chosen

    def would_pick(self, request: Arrival, now: float) -> str:
        """Where this replica would send the request; it learns nothing."""
        assert self.pool is not None
        return self.strategy.foresee(request.keys, self.pool.snapshot(now), random.Random(0)).pick.ranked[0]


def measure(row: Row) -> dict[str, Any]:
    """One row of the report. Shares are of pairs of replicas, over all requests."""
    trace, fleet = load(row)
    everyone: list[Asked] = []
    answers: Counter[tuple[str, bool]] = Counter()
    replay(trace, fleet, lambda: Asked(everyone, answers))

    def share(reasons: Iterable[str]) -> float | None:
        same = sum(answers[reason, True] for reason in reasons)
        asked = same + sum(answers[reason, False] for reason in reasons)
        return round(same / asked, 4) if asked else None

    asked = sum(answers.values())
    return {
        "trace": row.trace,
        "engines": row.engines,
        "R": row.replicas,
        "shared_picks": row.shared_picks,
        "utilisation": row.utilisation,
        "agree": share(("prefix", "new", "spill")),
        "agree_by_reason": {reason: share((reason,)) for reason in ("prefix", "new", "spill")},
        "of_picks": {
            reason: round((answers[reason, True] + answers[reason, False]) / asked, 4)
            for reason in ("prefix", "new", "spill")
        },
    }


@click.command()
@click.option("--trace", "only", multiple=True, type=click.Choice(list(FILES)), help="Only these traces.")
@click.option("--jobs", type=click.IntRange(1, 64), default=1, show_default=True, help="Processes.")
@click.option("--out", type=click.Path(path_type=Path, dir_okay=False), default=OUT, show_default=True)
def main(only: tuple[str, ...], jobs: int, out: Path) -> None:
    """Share of picks on which 2 and 8 replicas agree, with and without shared picks."""
    rows = [
        Row(trace, ENGINES, "ample", replicas, shared, utilisation, "second")
        for trace, utilisation, replicas, shared in product(
            only or tuple(FILES), UTILISATIONS, REPLICAS, (True, False)
        )
    ]
    with ProcessPoolExecutor(jobs, initializer=os.nice, initargs=(10,)) as processes:
        found = list(processes.map(measure, rows))
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_bytes(orjson.dumps({"rows": found}, option=orjson.OPT_INDENT_2))
    table = Table(title=f"{ENGINES} engines; by chance {1 / ENGINES:.2f}", title_justify="left")
    for heading in ("trace", "load", "replicas", "picks", "agree", "prefix", "new", "spill", "spilt"):
        table.add_column(heading, justify="left" if heading in ("trace", "load", "picks") else "right")
    for row in found:
        by = row["agree_by_reason"]
        table.add_row(
            row["trace"],
            UTILISATIONS[row["utilisation"]],
            str(row["R"]),
            "shared" if row["shared_picks"] else "alone",
            f"{row['agree']:.3f}",
            *("" if by[reason] is None else f"{by[reason]:.3f}" for reason in ("prefix", "new", "spill")),
            f"{row['of_picks']['spill']:.3f}",
        )
    Console(width=110).print(table)
    click.echo(f"wrote {out}")


if __name__ == "__main__":
    main()
