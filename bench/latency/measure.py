"""The targets, side by side, and what one cell of the grid measures."""

from __future__ import annotations

import json
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from bench.latency import envoy
from bench.latency.processes import FailedError, Processes, cpu_seconds, free_ports

ALONE, FLOOR, BARE, ROUTER = "envoy", "floor", "bare", "warmroute"
TARGETS = (ALONE, FLOOR, BARE, ROUTER)

_SETTLE_SECONDS = 0.05
"""After a cell, until the last streams have closed and their CPU is counted."""


class Shape(NamedTuple):
    """What is sent: bytes per request body, and connections that each hold one request at a time."""

    size: int
    connections: int


@dataclass(frozen=True, slots=True)
class Sample:
    """One target under one shape in one round. Times in microseconds, CPU in microseconds per request."""

    target: str
    size: int
    connections: int
    round: int
    requests: int
    errors: int
    requests_per_s: float
    mean_us: float
    p50_us: float
    p90_us: float
    p99_us: float
    cpu_us: float
    envoy_cpu_us: float


@dataclass(frozen=True, slots=True)
class Bench:
    """Everything that runs during a benchmark."""

    processes: Processes
    load: Path
    admin: int
    exchange: envoy.Exchange
    listeners: dict[str, int]
    pids: dict[str, int]
    envoy_pid: int
    pin: str

    def sample(self, target: str, shape: Shape, turn: int, seconds: float) -> Sample:
        """Drives one target for `seconds`. Raises `FailedError` if a request fails or a pin does not hold."""
        servers = [self.envoy_pid, *([self.pids[target]] if target in self.pids else [])]
        before = [cpu_seconds(pid) for pid in servers]
        result = self._drive(target, shape, seconds)
        time.sleep(_SETTLE_SECONDS)
        spent = [cpu_seconds(pid) - start for pid, start in zip(servers, before, strict=True)]
        self.processes.check()
        if result["errors"] or not result["measured"]:
            raise FailedError(f"{target}, {shape}: {result['errors']} errors, first: {result.get('error')}")
        if target in (FLOOR, BARE) and set(result["served"]) != {self.pin}:
            raise FailedError(f"{target}, {shape}: pinned to {self.pin}, served by {result['served']}")
        requests = result["requests"]
        return Sample(
            target=target,
            size=shape.size,
            connections=shape.connections,
            round=turn,
            requests=requests,
            errors=result["errors"],
            requests_per_s=requests / result["seconds"],
            mean_us=result["mean_us"],
            p50_us=result["p50_us"],
            p90_us=result["p90_us"],
            p99_us=result["p99_us"],
            cpu_us=1e6 * sum(spent[1:]) / requests,
            envoy_cpu_us=1e6 * spent[0] / requests,
        )

    def _drive(self, target: str, shape: Shape, seconds: float) -> Any:
        command: list[str | Path] = [
            self.load,
            *("-target", f"127.0.0.1:{self.listeners[target]}"),
            *("-connections", str(shape.connections)),
            *("-size", str(shape.size)),
            *("-seconds", str(seconds)),
        ]
        done = subprocess.run(command, capture_output=True, text=True, timeout=seconds + 30, check=False)
        if done.returncode:
            raise FailedError(f"the load generator failed: {done.stderr}")
        return json.loads(done.stdout)

    def check_exchange(self) -> None:
        """Raises `FailedError` unless Envoy had the same exchange with every processor."""
        stats = self._stats()
        for target in self.pids:
            prefix = f"http.{target}.ext_proc.picker."
            streams = stats[f"{prefix}streams_started"]
            each = stats[f"{prefix}stream_msgs_sent"] / streams
            wrong = {
                name: stats.get(f"{prefix}{name}", 0)
                for name in (
                    "streams_failed",
                    "message_timeouts",
                    "spurious_msgs_received",
                    "failure_mode_allowed",
                )
            }
            if any(wrong.values()) or abs(each - envoy.MESSAGES[self.exchange]) > 0.01:
                raise FailedError(
                    f"{target}: {each:.2f} messages per request over {streams} requests; {wrong}"
                )

    def _stats(self) -> dict[str, int]:
        with urllib.request.urlopen(f"http://127.0.0.1:{self.admin}/stats?format=json", timeout=10) as answer:
            found = json.load(answer)["stats"]
        return {stat["name"]: stat["value"] for stat in found if "name" in stat}


@contextmanager
def running(binaries: Path, into: Path, exchange: envoy.Exchange, targets: Sequence[str]) -> Iterator[Bench]:
    """Starts the upstream, the targets' processors and Envoy; ends them all on the way out."""
    ports = iter(free_ports(16))
    upstream = [next(ports), next(ports)]
    engines = [f"127.0.0.1:{port}" for port in upstream]
    listeners = {target: next(ports) for target in targets}
    processors = {target: next(ports) for target in targets if target != ALONE}
    with Processes(into / "logs") as processes:
        processes.start("upstream", [binaries / "upstream", "-listen", ",".join(engines)], upstream)
        pids = {}
        for target, port in processors.items():
            listen = f"127.0.0.1:{port}"
            if target == FLOOR:
                command: list[str | Path] = [binaries / "floor", "-listen", listen, "-pin", engines[0]]
            elif target == BARE:
                command = [sys.executable, "-m", "bench.latency.bare", listen, engines[0]]
            else:
                settings = into / "warmroute.yaml"
                settings.write_text(_router(listen, next(ports), next(ports), engines))
                command = [Path(sys.prefix, "bin", "extproc"), "serve", "--config", settings]
            pids[target] = processes.start(target, command, [port])
        admin = next(ports)
        bootstrap = into / "envoy.json"
        bootstrap.write_text(
            json.dumps(envoy.configuration(exchange, admin, listeners, processors, upstream), indent=1)
        )
        envoy_pid = processes.start(
            "envoy",
            [
                Path(sys.prefix, "bin", "envoy"),
                *("--config-path", bootstrap),
                *("--concurrency", "1"),
                *("--log-level", "warn"),
                "--disable-hot-restart",
            ],
            [admin, *listeners.values()],
        )
        yield Bench(processes, binaries / "load", admin, exchange, listeners, pids, envoy_pid, pin=engines[0])


def _router(listen: str, health: int, metrics: int, engines: list[str]) -> str:
    pool = {"name": "bench", "strategy": "PREFIX_AWARE", "endpoints": {"static": engines}}
    return yaml.safe_dump(
        {
            "listen": listen,
            "health": f"127.0.0.1:{health}",
            "metrics": f"127.0.0.1:{metrics}",
            "pools": [pool],
        }
    )


def measure(
    bench: Bench, shapes: Sequence[Shape], rounds: int, seconds: float, done: Callable[[str], None]
) -> list[Sample]:
    """Every target under every shape, `rounds` times; `done` is called after each cell.

    Of one shape the targets run right after each other, in an order that turns from round to round, so that
    a change of the machine falls on all of them.
    """
    targets = list(bench.listeners)
    for target in targets:
        bench.sample(target, shapes[-1], 0, min(seconds, 1.0))
        done(f"warm-up, {target}")
    samples = []
    for turn in range(rounds):
        for shape in shapes:
            for index in range(len(targets)):
                target = targets[(turn + index) % len(targets)]
                samples.append(bench.sample(target, shape, turn, seconds))
                done(f"{shape.size >> 10} KB, {shape.connections} connections, {target}")
    bench.check_exchange()
    return samples


def raw(samples: Sequence[Sample]) -> list[dict[str, Any]]:
    """The samples as JSON holds them."""
    return [asdict(sample) for sample in samples]
