"""What the operating system grants, and what becomes of a router when it runs out."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import grpc
import httpx
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from tests.test_serve import SERVE, configuration, free_ports

PREPARED = """
import json, resource, logging
from extproc import limits
resource.setrlimit(resource.RLIMIT_NOFILE, (64, 512))
limits.prepare()
print(json.dumps([resource.getrlimit(resource.RLIMIT_NOFILE), resource.getrlimit(resource.RLIMIT_CORE)[0]]))
"""


def test_a_process_takes_the_descriptors_that_it_may_have_and_leaves_no_core() -> None:
    ended = subprocess.run([sys.executable, "-c", PREPARED], capture_output=True, text=True, check=True)
    said, (descriptors, core) = ended.stdout, json.loads(ended.stdout.splitlines()[-1])
    assert descriptors == [512, 512]
    assert core <= 1
    assert "few file descriptors" in said


CRASH = """
import os, resource
_, hard = resource.getrlimit(resource.RLIMIT_CORE)
resource.setrlimit(resource.RLIMIT_CORE, (hard, hard))
from extproc import limits
limits.prepare()
os.abort()
"""


def test_a_core_is_not_written_when_the_process_is_killed_by_a_fault(tmp_path: Path) -> None:
    """The limit of 1 is also honoured where cores are piped to a program."""
    ended = subprocess.run([sys.executable, "-c", CRASH], cwd=tmp_path, check=False, capture_output=True)
    assert ended.returncode == -signal.SIGABRT, ended.stderr
    assert list(tmp_path.iterdir()) == []


FEW = 64


@pytest.fixture
def starved(tmp_path: Path) -> Iterator[tuple[subprocess.Popen[bytes], list[int], Path]]:
    """A router that may open no more than `FEW` files, its ports, and its log."""
    ports = free_ports(3)
    path, log = tmp_path / "router.yaml", tmp_path / "log"
    path.write_text(configuration(ports))
    with (
        log.open("wb") as output,
        subprocess.Popen(
            ["sh", "-c", f'ulimit -n {FEW}; exec "$@"', "sh", *SERVE, str(path)],
            stderr=output,
        ) as process,
    ):
        try:
            until(lambda: b'"serving"' in log.read_bytes())
            yield process, ports, log
        finally:
            process.kill()


def until(condition: object, seconds: float = 30.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():  # type: ignore[operator]
        assert time.monotonic() < deadline
        time.sleep(0.02)


def answers(port: int) -> bool:
    try:
        reply = httpx.get(f"http://127.0.0.1:{port}/metrics", trust_env=False, timeout=2)
    except httpx.TransportError:
        return False
    return reply.status_code == 200


async def serves(port: int) -> bool:
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        stub = health_pb2_grpc.HealthStub(channel)
        answer = await stub.Check(health_pb2.HealthCheckRequest(), wait_for_ready=True, timeout=20)
        return bool(answer.status == health_pb2.HealthCheckResponse.SERVING)


def test_without_descriptors_it_says_so_waits_without_spinning_and_serves_again(
    starved: tuple[subprocess.Popen[bytes], list[int], Path],
) -> None:
    process, ports, log = starved
    with contextlib.ExitStack() as connections:
        for port in (ports[0], ports[2]):
            for _ in range(FEW):
                one = connections.enter_context(socket.socket())
                one.settimeout(0.5)
                try:
                    one.connect(("127.0.0.1", port))
                except TimeoutError:
                    break
        until(lambda: b"metrics cannot accept a connection" in log.read_bytes())
        assert b"File descriptor limit reached" in log.read_bytes()
        assert not answers(ports[2])
        before = _processor_seconds(process.pid)
        time.sleep(1)
        assert _processor_seconds(process.pid) - before < 0.2
    until(lambda: answers(ports[2]))
    assert asyncio.run(serves(ports[0]))
    assert process.poll() is None


def _processor_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
