"""`cacheprep demo`: weights that come to a node, are interrupted, and go on; an engine that joins cold.

The store, the fetches and the kill are real, and so are Envoy and the router; the source is a web server on
this machine, and the engines are simulated.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import math
import os
import shutil
import signal
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

import yaml
from aiohttp import web
from rich.console import Console

FILES = 4
BLOCK = 1 << 20
MARK = ".cacheprep-demo"
"""A file in the directory of a demo: what is in one without it was made by somebody else, and stays."""
KILL_AT = 0.5
"""Share of the bytes after which the first fetch is killed."""
ENGINES = 4
JOINS_AT = 0.25
"""Share of the traffic's time after which the last engine joins."""
RATE = 20.0
SLICE = 5.0
"""Seconds for which the share of requests on the cold engine is shown."""
SLOW_START = {"window": "5s", "coldWindow": "60s"}


class Source:
    """A directory with SHA256SUMS, served over http with ranges, and how much of it was sent."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self.sent = 0
        """Bytes of all files so far."""
        self.url = ""
        self._progress = asyncio.Condition()

    async def until(self, sent: float) -> None:
        """Wait until so many bytes were sent."""
        async with self._progress:
            await self._progress.wait_for(lambda: self.sent >= sent)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[Source]:
        """Serve on a free port of 127.0.0.1."""
        application = web.Application()
        application.router.add_get("/model/{name}", self._file)
        runner = web.AppRunner(application, access_log=None, shutdown_timeout=0.5)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        self.url = f"http://127.0.0.1:{runner.addresses[0][1]}/model"
        try:
            yield self
        finally:
            await runner.cleanup()

    async def _file(self, request: web.Request) -> web.StreamResponse:
        path = self._directory / request.match_info["name"]
        if not path.is_file():
            raise web.HTTPNotFound
        asked = request.http_range
        size = path.stat().st_size
        start, end = asked.start or 0, min(asked.stop or size, size)
        response = web.StreamResponse(status=206 if request.headers.get("Range") else 200)
        response.content_length = end - start
        response.headers["ETag"] = f'"{size}-{path.stat().st_mtime_ns}"'
        response.headers["Accept-Ranges"] = "bytes"
        if response.status == 206:
            response.headers["Content-Range"] = f"bytes {start}-{end - 1}/{size}"
        await response.prepare(request)
        with suppress(ConnectionError), path.open("rb") as file:  # of a client that was killed
            file.seek(start)
            while start < end:
                block = await asyncio.to_thread(file.read, min(BLOCK, end - start))
                await response.write(block)
                start += len(block)
                async with self._progress:
                    self.sent += len(block)
                    self._progress.notify_all()
        return response


class Slice(NamedTuple):
    """Some seconds of traffic."""

    begins: float
    requests: int
    on_cold: int
    state: str


def empty(out: Path) -> None:
    """Make the directory, without what an earlier demo left in it.

    Raises RuntimeError if anything else is there: it may be somebody's only copy.
    """
    if out.is_dir() and any(out.iterdir()) and not (out / MARK).exists():
        raise RuntimeError(f"--out {out}: has files that no demo made; name another directory, or empty it")
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)
    (out / MARK).touch()


def make_model(directory: Path, size: int) -> None:
    """Files of random bytes and their SHA256SUMS: `size` bytes, less what makes no whole block of a file."""
    directory.mkdir(parents=True)
    lines = []
    for number in range(1, FILES + 1):
        name, digest = f"model-{number:05d}-of-{FILES:05d}.safetensors", hashlib.sha256()
        with (directory / name).open("wb") as file:
            for _ in range(size // FILES // BLOCK):
                block = os.urandom(BLOCK)
                digest.update(block)
                file.write(block)
        lines.append(f"{digest.hexdigest()}  {name}\n")
    (directory / "SHA256SUMS").write_text("".join(lines))


async def run(out: Path, size: int, bandwidth: int, seconds: float, console: Console) -> dict[str, Any]:
    """Tell the story, with `seconds` of traffic, and return its figures.

    Raises RuntimeError or `StackError` that says what failed, also if `out` has what no demo made.
    """
    empty(out)
    await asyncio.to_thread(make_model, out / "source", size)
    async with Source(out / "source").running() as source:
        weights = await _interrupted(source, out / "node-1", size, bandwidth, console)
        cold = await _cold(source, out, bandwidth, seconds, console)
    shutil.rmtree(out / "source")
    report = {"weights": weights, "cold": [one._asdict() for one in cold]}
    (out / "report.json").write_text(json.dumps(report, indent=2))
    return report


async def _interrupted(
    source: Source, root: Path, size: int, bandwidth: int, console: Console
) -> dict[str, Any]:
    fetch = ["fetch", source.url, "--to", str(root), "--bandwidth", str(bandwidth), *_ANY_DISK]
    console.print(f"\n[bold]1. Fetch[/bold] {size >> 20} MiB over http, and kill -9 half way")
    process = await _start(fetch)
    await source.until(KILL_AT * size)
    process.send_signal(signal.SIGKILL)
    await process.wait()
    console.print(await _output("ls", "--to", str(root)))
    before = source.sent
    console.print("[bold]2. The same command again[/bold] goes on where it stopped")
    process = await _start([*fetch, "--json"], stdout=asyncio.subprocess.PIPE)
    said, _ = await process.communicate()
    if process.returncode:
        raise RuntimeError(f"cacheprep fetch ended with {process.returncode}")
    found: dict[str, Any] = json.loads(said)
    console.print(
        f"kept {found['bytes_kept'] >> 20} MiB that hash to what the journal says, fetched"
        f" {source.sent - before >> 20} MiB"
    )
    console.print(await _output("ls", "--to", str(root)))
    console.print("[bold]3. Verify[/bold] every byte on the disk")
    console.print(await _output("verify", "--deep", "--to", str(root)))
    return {"size": size, "kept": found["bytes_kept"], "fetched_again": found["bytes_fetched"]}


async def _cold(source: Source, out: Path, bandwidth: int, seconds: float, console: Console) -> list[Slice]:
    from extproc.demo import load, stack
    from extproc.demo.traffic import traffic

    console.print(
        f"\n[bold]4. An engine joins[/bold] after {JOINS_AT * seconds:g} s of {seconds:g} on a node without"
        f" the weights, which come meanwhile ({ENGINES} simulated engines behind a real Envoy)"
    )
    endpoints = out / "endpoints.yaml"
    async with stack.running(out, ENGINES, "demo", 1) as running:
        addresses = list(running.engines.values())
        endpoints.write_text(yaml.safe_dump(addresses[:-1]))
        running.write_config(
            "PREFIX_AWARE", endpoints={"file": str(endpoints.absolute())}, slowStart=SLOW_START
        )
        states = [(0.0, "not there")]
        loop = asyncio.get_running_loop()
        began = loop.time()

        async def join() -> None:
            await asyncio.sleep(JOINS_AT * seconds)
            _replace(endpoints, [*addresses[:-1], {"address": addresses[-1], "cold": True}])
            states.append((loop.time() - began, "cold"))
            arguments = ["fetch", source.url, "--to", str(out / "node-4"), "--bandwidth", str(bandwidth)]
            process = await _start([*arguments, "--quiet", *_ANY_DISK], stdout=asyncio.subprocess.DEVNULL)
            if await process.wait():
                raise RuntimeError(f"cacheprep fetch ended with {process.returncode}")
            _replace(endpoints, addresses)
            states.append((loop.time() - began, "warm"))

        async with load.session() as client, asyncio.TaskGroup() as tasks:
            tasks.create_task(join())
            sending = tasks.create_task(
                load.replay(client, running.gateway, traffic(seconds, RATE, 1).arrivals)
            )
        outcomes = sending.result()
        newcomer = list(running.engines)[-1]
        slices = []
        for number in range(math.ceil(seconds / SLICE)):
            begins = number * SLICE
            of = [one for one in outcomes if begins <= one.due < begins + SLICE]
            on = [one for one in of if one.engine == newcomer and _state(states, one.sent) == "cold"]
            slices.append(Slice(begins, len(of), len(on), _state(states, begins + SLICE / 2)))
    console.print(" seconds  node 4     requests  on a cold engine")
    for one in slices:
        share = one.on_cold / one.requests if one.requests else 0.0
        span = f"{one.begins:3.0f} - {one.begins + SLICE:2.0f}"
        console.print(f"{span}  {one.state:9}  {one.requests:8}  {share:6.1%} {'█' * round(40 * share)}")
    total = sum(one.requests for one in slices)
    console.print(
        f"{sum(one.on_cold for one in slices) / total:.1%} of {total} requests ran on a cold engine; an even"
        f" share of one of {ENGINES} would be {1 / ENGINES:.0%}"
    )
    return slices


_ANY_DISK = ("--allow-shared-disk", "--watermark", "99%", "--connections", "4", "--range-size", "4MiB")


def _state(states: Sequence[tuple[float, str]], at: float) -> str:
    return [state for since, state in states if since <= at][-1]


def _replace(path: Path, content: object) -> None:
    draft = path.with_suffix(".tmp")
    draft.write_text(yaml.safe_dump(content))
    draft.replace(path)


async def _start(arguments: list[str], stdout: int | None = None) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        sys.executable, "-m", "cacheprep", *arguments, stdin=asyncio.subprocess.DEVNULL, stdout=stdout
    )


async def _output(*arguments: str) -> str:
    process = await _start(list(arguments), stdout=asyncio.subprocess.PIPE)
    said, _ = await process.communicate()
    if process.returncode:
        raise RuntimeError(f"cacheprep {arguments[0]} ended with {process.returncode}")
    return said.decode().rstrip()
