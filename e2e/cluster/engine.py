"""A Docker engine: the one that runs, else one of our own, which `stop` ends again.

Ours keeps its images below the cache, so that they outlive it.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from pathlib import Path

from e2e.cluster import cache, capped_runc, packages
from e2e.cluster.command import ClusterError, succeeds

START_SECONDS = 60.0


def start() -> bool:
    """See that a Docker engine answers. Whether it had to be started.

    Raises `ClusterError` if none answers and none may be started.
    """
    if answers():
        return False
    if os.geteuid() != 0:
        raise ClusterError(
            "no Docker engine answers: start one, or point DOCKER_HOST at one; as root one is started here"
        )
    packages.need({"dockerd": "docker.io", "docker": "docker.io", "iptables": "iptables"})
    if answers():
        return False
    directory = _directory()
    directory.mkdir(parents=True, exist_ok=True)
    _pid_file().unlink(missing_ok=True)
    with (directory / "dockerd.log").open("wb") as log:
        process = subprocess.Popen(
            ["dockerd", "--data-root", directory / "data", "--pidfile", _pid_file(), *_runtime()],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    deadline = time.monotonic() + START_SECONDS
    while not answers():
        if process.poll() is not None or time.monotonic() > deadline:
            tail = (directory / "dockerd.log").read_text(errors="replace")[-2000:]
            raise ClusterError(f"dockerd does not come up; {directory / 'dockerd.log'} ends with:\n{tail}")
        time.sleep(0.2)
    return True


def answers() -> bool:
    """Whether a Docker engine can be asked."""
    return succeeds("docker", "version", "--format", "{{.Server.Version}}")


def stop() -> bool:
    """End the engine if it is the one that `start` started. Whether it was."""
    try:
        pid = int(_pid_file().read_text())
        if Path(f"/proc/{pid}/comm").read_text().strip() != "dockerd":
            return False
        os.kill(pid, signal.SIGTERM)
    except (OSError, ValueError):
        return False
    deadline = time.monotonic() + START_SECONDS
    while Path(f"/proc/{pid}").exists() and time.monotonic() < deadline:
        time.sleep(0.1)
    return True


def _runtime() -> list[str]:
    """The wrapper around runc, where this machine lacks a capability that privileged containers ask for."""
    mask = capped_runc.capabilities()
    last = int(Path("/proc/sys/kernel/cap_last_cap").read_text())
    if mask == (1 << last + 1) - 1:
        return []
    wrapper = Path(capped_runc.__file__)
    return ["--add-runtime", f"capped={wrapper}", "--default-runtime", "capped"]


def _directory() -> Path:
    return cache.root() / "docker"


def _pid_file() -> Path:
    return _directory() / "dockerd.pid"
