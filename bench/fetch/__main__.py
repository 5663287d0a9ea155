"""`python -m bench.fetch`: cacheprep fetch beside s5cmd, boto3, `hf download` and cp.

Same bytes from the same server on loopback to the same disk, alternating; each time ends when `sync -f` has
returned. The others verify nothing, so each is also shown with the `sha256sum` that would have to follow.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import statistics
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import click
import orjson
from rich.console import Console
from rich.table import Table

from bench.fetch.hub import Blob, Hub
from bench.fetch.tools import KEYS, Tool, of_files, of_hub, of_s3
from tests.sources.servers import nginx, versitygw

OUT = Path("build/bench/fetch.json")
MIB = 1 << 20
BUCKET = "weights"
SETTLE_S = 5.0
"""Between deleting what the last tool left and the next one. Where a hypervisor takes back memory that is
free (free page reporting, every two seconds), memory that was freed just now costs less to write to, and who
starts soonest would get it."""
LARGE_FILES = 4
SMALL_BYTES = 1 << 20
AIMS = {"s3": 0.8, "hub": 0.8, "files": 0.0}
"""Speed over that of the fastest that verifies nothing."""
VERIFIED_AIMS = {"s3": 1.0, "hub": 1.0, "files": 0.9}
"""Speed over that of the fastest followed by sha256sum."""


class Ran(NamedTuple):
    """One run of a tool. Seconds; bytes of memory at most."""

    wall: float
    cpu: float
    resident: int


def run(command: Sequence[str | Path], environment: Mapping[str, str], log: Path) -> Ran:
    """Run to the end. Raises ClickException with the end of its output if it fails."""
    began = time.perf_counter()
    with log.open("wb") as output:
        process = subprocess.Popen(
            command, env={**os.environ, **environment}, stdin=subprocess.DEVNULL, stdout=output, stderr=output
        )
        _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise click.ClickException(
            f"{command[0]} ended with {process.returncode}:\n{log.read_text()[-2000:]}"
        )
    return Ran(time.perf_counter() - began, used.ru_utime + used.ru_stime, used.ru_maxrss * 1024)


def fetch(tool: Tool, to: Path, log: Path) -> tuple[Ran, Ran]:
    """A tool's run with what the disk still takes, and that of a sha256sum over what it left."""
    shutil.rmtree(to, ignore_errors=True)
    subprocess.run(["sync", "-f", to.parent], check=True)
    time.sleep(SETTLE_S)
    ran = run(tool.command, tool.environment, log)
    began = time.perf_counter()
    subprocess.run(["sync", "-f", to], check=True)
    ran = ran._replace(wall=ran.wall + time.perf_counter() - began)
    files = [path for path in to.rglob("*") if path.is_file()]
    return ran, run(["sha256sum", *files], {}, log)


def make(directory: Path, total: int, size: int) -> dict[str, Blob]:
    """Files of random bytes, `size` each."""
    directory.mkdir(parents=True)
    blobs = {}
    for number in range(total // size):
        name, digest = f"model-{number:05d}.safetensors", hashlib.sha256()
        with (directory / name).open("wb") as file:
            for _ in range(0, size, MIB):
                block = os.urandom(min(MIB, size))
                digest.update(block)
                file.write(block)
        blobs[name] = Blob(size, digest.hexdigest())
    return blobs


@contextmanager
def sources(root: Path, total: int, size: int, to: Path) -> Iterator[dict[str, dict[str, Tool]]]:
    """Every kind of source with the same files, and the tools that fetch from it."""
    data = root / "data"
    blobs = make(data, total, size)
    with versitygw(root / "s3") as s3, nginx(root) as cdn:
        subprocess.run(
            [*of_s3(s3, BUCKET, "model", to)["s5cmd"].command[:2], "mb", f"s3://{BUCKET}"],
            env={**os.environ, **KEYS}, check=True, stdout=subprocess.DEVNULL,
        )  # fmt: skip
        subprocess.run(
            [*of_s3(s3, BUCKET, "model", to)["s5cmd"].command[:2], "cp", f"{data}/*", f"s3://{BUCKET}/model/"],
            env={**os.environ, **KEYS}, check=True, stdout=subprocess.DEVNULL,
        )  # fmt: skip
        for name, blob in blobs.items():
            os.link(data / name, root / "www" / blob.sha256)
        with Hub(blobs, cdn).running() as hub:
            yield {
                "s3": of_s3(s3, BUCKET, "model", to),
                "hub": of_hub(hub, to),
                "files": of_files(data, to),
            }


@click.command()
@click.option("--gb", type=click.FloatRange(0.0625, 64), default=4.0, show_default=True, help="GiB in all.")
@click.option("--rounds", type=click.IntRange(1, 50), default=3, show_default=True)
@click.option("--source", "only", multiple=True, type=click.Choice(list(AIMS)), help="Only these.")
@click.option("--files", multiple=True, type=click.Choice(["large", "small"]), help="Only these.")
@click.option(
    "--directory",
    type=click.Path(path_type=Path, file_okay=False),
    help="On the disk to write to; some 4 times --gb are used. [default: below build/]",
)
@click.option("--out", type=click.Path(path_type=Path, dir_okay=False), default=OUT, show_default=True)
def main(
    gb: float, rounds: int, only: tuple[str, ...], files: tuple[str, ...], directory: Path | None, out: Path
) -> None:
    """Time from a source to verified files on the disk, beside the usual tools."""
    total = int(gb * 1024) * MIB
    rows: list[dict[str, Any]] = []
    base = directory or Path("build")
    base.mkdir(parents=True, exist_ok=True)
    for kind in files or ("large", "small"):
        size = total // LARGE_FILES if kind == "large" else SMALL_BYTES
        with tempfile.TemporaryDirectory(dir=base.absolute()) as made:
            root = Path(made)
            to = root / "to"
            with sources(root, total, size, to) as found:
                for source, tools in found.items():
                    if not only or source in only:
                        rows += _measure(source, kind, total, tools, to, root / "log", rounds)
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_bytes(orjson.dumps({"bytes": total, "rows": rows}, option=orjson.OPT_INDENT_2))
    _show(rows, total)
    click.echo(f"wrote {out}")


def _measure(
    source: str, kind: str, total: int, tools: dict[str, Tool], to: Path, log: Path, rounds: int
) -> list[dict[str, Any]]:
    runs: dict[str, list[tuple[Ran, Ran]]] = {name: [] for name in tools}
    for number in range(rounds):
        for name, tool in tools.items():
            runs[name].append(fetch(tool, to, log))
            click.echo(
                f"{source} {kind} {number + 1}/{rounds} {name}: {runs[name][-1][0].wall:.1f} s", err=True
            )
    shutil.rmtree(to, ignore_errors=True)

    def wall(name: str, verified: bool) -> float:
        hashed = verified and not tools[name].verifies
        return statistics.median(ran.wall + (summed.wall if hashed else 0.0) for ran, summed in runs[name])

    others = [name for name in tools if name != "cacheprep"]
    ours = wall("cacheprep", True)
    return [
        {
            "source": source,
            "files": kind,
            "tool": name,
            "wall_s": round(wall(name, False), 2),
            "verified_s": round(wall(name, True), 2),
            "cpu_s_per_gb": round(statistics.median(ran.cpu for ran, _ in runs[name]) / (total / 1e9), 2),
            "resident_mb": round(max(ran.resident for ran, _ in runs[name]) / 1e6),
            **(
                {
                    "to_fastest": round(min(wall(other, False) for other in others) / ours, 2),
                    "to_fastest_verified": round(min(wall(other, True) for other in others) / ours, 2),
                }
                if name == "cacheprep"
                else {}
            ),
        }
        for name in tools
    ]


def _show(rows: list[dict[str, Any]], total: int) -> None:
    table = Table(title=f"{total / 1e9:.1f} GB, medians", title_justify="left")
    headings = ("source", "files", "tool", "s", "with sha256sum, s", "CPU s/GB", "MB at most")
    for heading in (*headings, "speed / fastest", "/ fastest + sha256sum"):
        table.add_column(heading, justify="left" if heading in headings[:3] else "right")
    for row in rows:
        table.add_row(
            *(str(row[key]) for key in ("source", "files", "tool", "wall_s", "verified_s", "cpu_s_per_gb")),
            str(row["resident_mb"]),
            str(row.get("to_fastest", "")),
            str(row.get("to_fastest_verified", "")),
        )
    Console(width=120).print(table)
    for row in rows:
        if row["tool"] == "cacheprep":
            aims = (AIMS[row["source"]], VERIFIED_AIMS[row["source"]])
            met = row["to_fastest"] >= aims[0] and row["to_fastest_verified"] >= aims[1]
            click.echo(
                f"{row['source']} {row['files']}: {'met' if met else 'NOT MET'}: {row['to_fastest']} x the"
                f" fastest (aim {aims[0]}), {row['to_fastest_verified']} x the fastest + sha256sum (aim"
                f" {aims[1]}), {row['resident_mb']} MB (aim 300)"
            )


if __name__ == "__main__":
    main()
