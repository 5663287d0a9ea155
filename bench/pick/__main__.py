"""`python -m bench.pick`: what one request costs from its body to its endpoint, by the number of endpoints.

An 8 KB chat body: a system prompt that all share, a conversation that comes again, a question. Every stage is
timed in the same loop over the same requests; the least of several rounds counts, since anything else that
runs only adds. `json` is the standard library reading the same body: a yardstick on any machine.
"""

from __future__ import annotations

import json
import random
import time
from collections import deque
from pathlib import Path
from typing import Any

import click
import orjson
from rich.console import Console
from rich.table import Table

from extproc import prompt
from extproc.pool.pool import InFlight, Pool
from extproc.pool.reports import EngineReport
from extproc.prefix import block_keys
from extproc.routing import build

OUT = Path("build/bench/pick.json")
ENDPOINTS = (10, 100, 1000, 5000)
BODIES = 400
ROUNDS = 15
STAGES = ("json", "read", "keys", "snapshot", "pick", "take")
PER_ENDPOINT = 8
"""Requests in flight per endpoint, at most `MOST_IN_FLIGHT` in all."""
MOST_IN_FLIGHT = 4000
RATE = 1000.0
"""Requests per second of the pool's clock."""


def body(number: int) -> bytes:
    """Chat of 8 KB, in JSON: of each 200 one and the same conversation."""
    messages = [
        {"role": "system", "content": _text("system", 2000)},
        {"role": "user", "content": _text(f"conversation {number % 200}", 5800)},
        {"role": "user", "content": _text(f"question {number}", 200)},
    ]
    return json.dumps({"model": "llama", "messages": messages}).encode()


def _text(seed: str, size: int) -> str:
    return random.Random(seed).randbytes(size).hex()[:size]


def measure(endpoints: int, *, reports: bool) -> dict[str, Any]:
    """Microseconds of each stage, least of all rounds. With `reports` engines say that nobody else sends."""
    pool = Pool("bench")
    pool.set_endpoints([f"10.{i >> 16}.{i >> 8 & 255}.{i & 255}:8000" for i in range(endpoints)])
    strategy, draw = build("PREFIX_AWARE"), random.Random(1)
    bodies = [body(number) for number in range(BODIES)]
    live: deque[InFlight] = deque()
    most = min(PER_ENDPOINT * endpoints, MOST_IN_FLIGHT)
    best = dict.fromkeys(STAGES, float("inf"))
    now, clock = 0.0, time.perf_counter
    for _ in range(ROUNDS):
        spent = dict.fromkeys(STAGES, 0.0)
        if reports:
            for address, count in pool.in_flight().items():
                pool.report(address, EngineReport(min(count, 4), max(0, count - 4)), now)
        for one in bodies:
            now += 1.0 / RATE
            times = [clock()]
            json.loads(one)
            times.append(clock())
            read = prompt.read("/v1/chat/completions", one, True)
            times.append(clock())
            assert read is not None
            keys = block_keys(read, None)
            times.append(clock())
            seen = pool.snapshot(now)
            times.append(clock())
            pick = strategy.pick(keys, seen, draw)
            times.append(clock())
            live.append(pool.take(pick.ranked[0], now, pick.uncached))
            times.append(clock())
            if len(live) > most:
                live.popleft().release(now)
            for stage, start, end in zip(STAGES, times, times[1:], strict=False):
                spent[stage] += end - start
        for stage in STAGES:
            best[stage] = min(best[stage], spent[stage] / BODIES * 1e6)
    return {
        "endpoints": endpoints,
        "reports": reports,
        "us": {stage: round(best[stage], 1) for stage in STAGES},
        "total_us": round(sum(best[stage] for stage in STAGES[1:]), 1),
        "to_json": round(sum(best[stage] for stage in STAGES[1:]) / best["json"], 2),
    }


@click.command()
@click.option("--out", type=click.Path(path_type=Path, dir_okay=False), default=OUT, show_default=True)
def main(out: Path) -> None:
    """Microseconds from an 8 KB chat body to an endpoint, at 10 to 5,000 endpoints."""
    found = [measure(endpoints, reports=reports) for reports in (False, True) for endpoints in ENDPOINTS]
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_bytes(orjson.dumps({"rows": found}, option=orjson.OPT_INDENT_2))
    table = Table(title="microseconds per request", title_justify="left")
    for heading in ("endpoints", "engine metrics", *STAGES, "total", "to json"):
        table.add_column(heading, justify="right")
    for row in found:
        table.add_row(
            f"{row['endpoints']:,}",
            "read" if row["reports"] else "none",
            *(f"{row['us'][stage]:.1f}" for stage in STAGES),
            f"{row['total_us']:.1f}",
            f"{row['to_json']:.2f}",
        )
    Console(width=110).print(table)
    click.echo(f"wrote {out}")


if __name__ == "__main__":
    main()
