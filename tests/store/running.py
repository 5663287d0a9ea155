"""Processes of `cacheprep` for tests: each ends with its test."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.store.origin import Origin, wait_until

FAST = ("--connections", "4", "--range-size", "256KiB", "--quiet", "--watermark", "100%")
"""Options of fetches in tests; whatever else fills the disk of the machine is not their matter."""
RANGE, CONNECTIONS = 256 << 10, 4
HELD_AFTER = 12
"""Requests of a fetch that are answered before the origin holds it."""


def start(*arguments: str | Path, **environment: str) -> subprocess.Popen[str]:
    """Start `cacheprep` with these arguments."""
    return subprocess.Popen(
        [sys.executable, "-m", "tests.store.process", *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, **environment},
        start_new_session=True,
    )


@contextmanager
def running(*arguments: str | Path, **environment: str) -> Iterator[subprocess.Popen[str]]:
    """A process of `cacheprep`, killed with all its children when the block ends."""
    process = start(*arguments, **environment)
    try:
        yield process
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


def run(*arguments: str | Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run `cacheprep` to its end."""
    with running(*arguments, **environment) as process:
        out, err = process.communicate(timeout=120)
    return subprocess.CompletedProcess(process.args, process.returncode, out, err)


def fetch(url: str, root: Path, *more: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """`cacheprep fetch`."""
    return run("fetch", url, "--to", root, *FAST, *more, **environment)


@contextmanager
def held_fetch(origin: Origin, root: Path, *more: str) -> Iterator[subprocess.Popen[str]]:
    """A fetch that has fetched some ranges, and gets no more until `origin.release()`."""
    origin.hold_after = HELD_AFTER
    with running("fetch", origin.url, "--to", root, *FAST, *more) as process:
        wait_until(lambda: origin.requests > HELD_AFTER)
        yield process


def listed(root: Path) -> list[dict[str, Any]]:
    """`cacheprep ls --json`."""
    done = run("ls", "--to", root, "--json")
    assert done.returncode == 0, done.stderr
    entries: list[dict[str, Any]] = json.loads(done.stdout)
    return entries
