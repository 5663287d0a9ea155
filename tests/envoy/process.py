"""Processes that are gone when the test is, whatever becomes of pytest."""

from __future__ import annotations

import asyncio
import ctypes
import os
import random
import signal
import socket
import subprocess
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Self

_PR_SET_PDEATHSIG = 1
_libc = ctypes.CDLL(None)


def _die_with_parent() -> None:
    """Between fork and exec: have the kernel kill this process when pytest dies, also by SIGKILL."""
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


class Process:
    """One child process with its output in a file."""

    def __init__(
        self, name: str, arguments: list[str], log: Path, environment: Mapping[str, str] | None = None
    ) -> None:
        self.name = name
        self.log = log
        with log.open("ab") as output:
            self._popen = subprocess.Popen(
                arguments,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                preexec_fn=_die_with_parent,
                env={**os.environ, **(environment or {})},
            )

    @property
    def pid(self) -> int:
        return self._popen.pid

    @property
    def resident(self) -> int:
        """Bytes of memory that are resident, without files that are only mapped."""
        status = Path(f"/proc/{self.pid}/status").read_text()
        return int(status.partition("RssAnon:")[2].split()[0]) * 1024

    @property
    def running(self) -> bool:
        return self._popen.poll() is None

    def signal(self, number: signal.Signals) -> None:
        if self.running:
            os.killpg(self._popen.pid, number)

    def kill(self) -> None:
        self.signal(signal.SIGKILL)
        self._popen.wait(10)

    async def exit_code(self, seconds: float) -> int:
        """How the process left, which it must do within `seconds`."""
        await eventually(lambda: not self.running, f"{self.name} leaves", seconds)
        return self._popen.wait()

    def tail(self, lines: int = 40) -> str:
        text = self.log.read_text(errors="replace").splitlines()
        return "\n".join(text[-lines:])

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill()


async def eventually(
    holds: Callable[[], bool | Awaitable[bool]],
    what: str,
    seconds: float = 10.0,
    *,
    process: Process | None = None,
) -> None:
    """Wait until `holds()`; fail with `what` after `seconds`, or at once when `process` has died."""
    loop = asyncio.get_running_loop()
    end = loop.time() + seconds
    while True:
        answer = holds()
        if answer if isinstance(answer, bool) else await answer:
            return
        if process is not None and not process.running:
            raise AssertionError(f"{process.name} died while waiting until {what}\n{process.tail()}")
        if loop.time() > end:
            tail = "" if process is None else f"\n{process.tail()}"
            raise AssertionError(f"not within {seconds:g} s: {what}{tail}")
        await asyncio.sleep(0.01)


def _host() -> str:
    """A loopback address of this run's own: its stacks take their ports again and again, and so do those of
    another run on this machine. All of 127.0.0.0/8 is loopback on Linux (RFC 1122, section 3.2.1.3).
    """
    pid = os.getpid()
    return f"127.{1 + (pid >> 16)}.{pid >> 8 & 0xFF}.{pid & 0xFF}"


HOST = _host()
_taken: set[int] = set()


def free_address() -> str:
    """An address nobody listens on, its port below those that the kernel gives to connections."""
    while True:
        port = random.randint(20_000, 32_000)
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((HOST, port))
            except OSError:
                continue
        if port not in _taken:
            _taken.add(port)
            return f"{HOST}:{port}"
