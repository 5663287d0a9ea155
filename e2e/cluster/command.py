"""Commands run for their output, with an error that says which failed and how."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path


class ClusterError(Exception):
    """The cluster cannot be brought up, asked or taken down; the text says what is missing and the remedy."""


def run(
    *words: str | Path,
    stdin: str | bytes | None = None,
    cwd: Path | None = None,
    environment: Mapping[str, str] | None = None,
    seconds: float | None = None,
) -> str:
    """The standard output of a command. Raises `ClusterError` with what it said if it fails, is not there, or
    takes longer than `seconds`."""
    said = stdin.encode() if isinstance(stdin, str) else stdin
    try:
        done = subprocess.run(
            [str(word) for word in words],
            check=False,
            input=said,
            stdin=subprocess.DEVNULL if said is None else None,
            capture_output=True,
            cwd=cwd,
            env={**os.environ, **(environment or {})},
            timeout=seconds,
        )
    except FileNotFoundError as error:
        raise ClusterError(f"{words[0]}: not found on this machine") from error
    except subprocess.TimeoutExpired as error:
        raise ClusterError(f"{_line(words)}: not done after {seconds:.0f} s") from error
    if done.returncode != 0:
        output = (done.stderr or done.stdout).decode(errors="replace").strip()
        raise ClusterError(f"{_line(words)}: exit code {done.returncode}\n{output[-4000:]}")
    return done.stdout.decode(errors="replace")


def succeeds(*words: str | Path, environment: Mapping[str, str] | None = None) -> bool:
    """Whether a command is there and exits with 0."""
    try:
        run(*words, environment=environment)
    except ClusterError:
        return False
    return True


def _line(words: Sequence[str | Path]) -> str:
    return " ".join(str(word) for word in words)[:300]
