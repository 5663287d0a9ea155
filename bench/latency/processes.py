"""Child processes that end with this one, and the CPU time they have used."""

from __future__ import annotations

import ctypes
import signal
import socket
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

_PR_SET_PDEATHSIG = 1
"""prctl(2): the signal that a process gets when its parent dies: a killed benchmark leaves nothing."""


class FailedError(Exception):
    """Something did not run; the message says what, and ends with the last lines of its log."""


class Processes:
    """Every process of one run. Leaving the context ends them all, whatever has happened."""

    def __init__(self, logs: Path) -> None:
        self._logs = logs
        self._running: dict[str, subprocess.Popen[bytes]] = {}
        logs.mkdir(parents=True, exist_ok=True)

    def start(self, name: str, command: Sequence[str | Path], listens: Sequence[int]) -> int:
        """Starts `command`, waits until it accepts connections on its ports, and returns its pid."""
        libc = ctypes.CDLL(None)
        with self._log(name).open("wb") as log:
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                preexec_fn=lambda: libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL),
            )
        self._running[name] = process
        deadline = time.monotonic() + 30
        for port in listens:
            while not _accepts(port):
                if process.poll() is not None:
                    raise FailedError(f"{name} ended with {process.returncode}:\n{self.tail(name)}")
                if time.monotonic() > deadline:
                    raise FailedError(f"{name} does not listen on port {port}:\n{self.tail(name)}")
                time.sleep(0.05)
        return process.pid

    def check(self) -> None:
        """Raises `FailedError` if one of them has ended."""
        for name, process in self._running.items():
            if process.poll() is not None:
                raise FailedError(f"{name} ended with {process.returncode}:\n{self.tail(name)}")

    def tail(self, name: str, lines: int = 15) -> str:
        """The last lines of its log."""
        return "\n".join(self._log(name).read_text(errors="replace").splitlines()[-lines:])

    def _log(self, name: str) -> Path:
        return self._logs / f"{name.replace(' ', '-')}.log"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for process in self._running.values():
            process.terminate()
        for process in self._running.values():
            try:
                process.wait(5)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def cpu_seconds(pid: int) -> float:
    """User and system time that a process and its live descendants have used, in seconds.

    Read from the process's CPU clock, which has nanoseconds where /proc/PID/stat has ticks of 10 ms. The
    clock's number is made as clock_getcpuclockid(3) does: MAKE_PROCESS_CPUCLOCK in Linux,
    include/linux/posix-timers.h.
    """
    spent = time.clock_gettime((~pid << 3) | 2)
    for children in Path(f"/proc/{pid}/task").glob("*/children"):
        spent += sum(cpu_seconds(int(child)) for child in children.read_text().split())
    return spent


def free_ports(count: int) -> list[int]:
    """Loopback ports that nothing listens on."""
    held = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports: list[int] = [listener.getsockname()[1] for listener in held]
    for listener in held:
        listener.close()
    return ports


def _accepts(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), timeout=1).close()
    except OSError:
        return False
    return True
