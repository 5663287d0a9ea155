"""`python -m bench.sharing`: replicas that share at a steady rate, into `build/bench/sharing.json`.

Each replica is a process. The rate is that of all replicas together; a gateway would spread it evenly. What
a replica spends without sharing, making picks at the same rate, is measured too and taken off. CPU time is
also given as a ratio to what reading one request's body and making its block keys takes on the same machine
at the same time.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from statistics import mean
from typing import Any

import click
import orjson
from rich.console import Console
from rich.table import Table

from bench.latency.processes import free_ports
from bench.sharing.operations import operations
from bench.sharing.prompts import KINDS, Kind, prompts
from bench.sharing.wire import Wire

OUT = Path("build/bench/sharing.json")


async def measure(replicas: int, kind: Kind, rate: float, seconds: float, learns: bool) -> dict[str, Any]:
    """One row of the report."""
    alone = await _run(replicas, kind, rate, seconds, learns, shares=False)
    shared = await _run(replicas, kind, rate, seconds, learns, shares=True)
    spent = mean(one["cpu_s"] / one["seconds"] for one in shared["members"])
    spent -= mean(one["cpu_s"] / one["seconds"] for one in alone["members"])
    took = mean(one["seconds"] for one in shared["members"])
    told = sum(one["told"] for one in shared["members"])
    per_1000 = 1000.0 / (told / took)
    members = shared["members"]
    sent = sum(one["sent_bytes"] for one in members) / took * per_1000
    return {
        "replicas": replicas,
        "prompts": kind,
        "keys_per_prompt": round(mean(len(one.keys) for one in prompts(kind, 500, 0)), 1),
        "learns": learns,
        "requests_per_s": round(told / took, 1),
        "message_bytes_per_s_per_1000": round(sent),
        "message_bytes_per_s_per_1000_per_replica": round(sent / replicas),
        "wire_bytes_per_s_per_1000": round(shared["wire_bytes"] / took * per_1000),
        "bytes_per_pick": round(
            sum(o["sent_bytes"] for o in members) / sum(o["sent_picks"] for o in members), 1
        ),
        "cpu_cores_per_replica_per_1000": round(spent * per_1000, 4),
        "cpu_us_per_request": round(1e6 * spent * replicas / (told / took), 1),
        "cpu_to_reading": round(
            spent * replicas / (told / took) / mean(one["reading_s"] for one in members), 2
        ),
        "lag_ms": round(1000 * sum(o["lag_s"] for o in members) / sum(o["batches"] for o in members)),
        "turn_p999_ms": round(max(one["turn_p999_ms"] for one in members), 2),
        "turn_p999_alone_ms": round(max(one["turn_p999_ms"] for one in alone["members"]), 2),
        "confirmed": round(sum(one["sent_picks"] for one in members) / (told * (replicas - 1)), 3),
    }


async def _run(
    replicas: int, kind: Kind, rate: float, seconds: float, learns: bool, *, shares: bool
) -> dict[str, Any]:
    async with AsyncExitStack() as stack:
        ports = free_ports(replicas)
        wires = [Wire(port) for port in ports]
        for wire in wires:
            await wire.start()
            stack.push_async_callback(wire.stop)
        members = []
        for index, port in enumerate(ports):
            given = {
                "listen": f"127.0.0.1:{port}",
                "peers": [wire.address for wire in wires],
                "others": replicas - 1,
                "shares": shares,
                "learns": learns,
                "kind": kind,
                "seed": index,
                "rate": rate / replicas,
                "seconds": seconds,
            }
            member = await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                "bench.sharing.member",
                orjson.dumps(given).decode(),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
            )
            stack.push_async_callback(_end, member)
            members.append(member)
        for member in members:
            if await _line(member) != b"ready\n":
                raise click.ClickException("a replica did not start")
        before = sum(wire.bytes for wire in wires)
        _go(members)
        found = [orjson.loads(await _line(member)) for member in members]
        carried = sum(wire.bytes for wire in wires) - before
        _go(members)
        await asyncio.gather(*(member.wait() for member in members))
    return {"members": found, "wire_bytes": carried}


async def _line(member: asyncio.subprocess.Process) -> bytes:
    assert member.stdout is not None
    return await asyncio.wait_for(member.stdout.readline(), 180)


def _go(members: Sequence[asyncio.subprocess.Process]) -> None:
    for member in members:
        assert member.stdin is not None
        member.stdin.write(b"\n")


async def _end(member: asyncio.subprocess.Process) -> None:
    if member.returncode is None:
        member.kill()
        await member.wait()


@click.command()
@click.option("--replicas", multiple=True, type=click.IntRange(2, 32), default=(2, 8), show_default=True)
@click.option("--prompts", "kinds", multiple=True, type=click.Choice(KINDS), default=KINDS, show_default=True)
@click.option(
    "--rate", default=1000.0, show_default=True, help="Requests per second of all replicas together."
)
@click.option("--seconds", default=10.0, show_default=True, help="Seconds of each run.")
@click.option("--learn/--no-learn", default=True, show_default=True, help="Enter what is heard, or drop it.")
@click.option("--out", type=click.Path(path_type=Path, dir_okay=False), default=OUT, show_default=True)
def main(
    replicas: tuple[int, ...], kinds: tuple[Kind, ...], rate: float, seconds: float, learn: bool, out: Path
) -> None:
    """Bytes and CPU of sharing picks, for 8 KB chat prompts."""
    steps = {kind: operations(kind) for kind in kinds} if learn else {}
    for kind, found in steps.items():
        click.echo(f"{kind}: CPU us per pick: {found}", err=True)
    rows = []
    for number in replicas:
        for kind in kinds:
            rows.append(asyncio.run(measure(number, kind, rate, seconds, learn)))
            click.echo(orjson.dumps(rows[-1]).decode(), err=True)
            if rows[-1]["confirmed"] < 0.85:  # the last batch is still on its way at the end
                click.echo("this machine is too slow or too busy for that rate; try a lower --rate", err=True)
    out.parent.mkdir(parents=True, exist_ok=True)
    part = out.with_suffix(".part")
    part.write_bytes(
        orjson.dumps({"operations_cpu_us": steps, "rows": rows}, option=orjson.OPT_INDENT_2) + b"\n"
    )
    part.replace(out)
    Console().print(_table(rows))
    click.echo(f"written: {out}")


def _table(rows: list[dict[str, Any]]) -> Table:
    table = Table(title="sharing picks, per 1,000 requests/s of all replicas")
    for name in ("replicas", "prompts", "keys", "bytes per pick", "kB/s per replica", "kB/s on the wire"):
        table.add_column(name, justify="right")
    for name in ("cores per replica", "CPU per request", "to reading it", "oldest pick"):
        table.add_column(name, justify="right")
    for row in rows:
        table.add_row(
            str(row["replicas"]),
            row["prompts"],
            f"{row['keys_per_prompt']:.0f}",
            f"{row['bytes_per_pick']:.0f}",
            f"{row['message_bytes_per_s_per_1000_per_replica'] / 1000:.0f}",
            f"{row['wire_bytes_per_s_per_1000'] / 1000:.0f}",
            f"{row['cpu_cores_per_replica_per_1000']:.3f}",
            f"{row['cpu_us_per_request']:.0f} us",
            f"{row['cpu_to_reading']:.2f}",
            f"{row['lag_ms']} ms",
        )
    return table


if __name__ == "__main__":
    main()
