"""Tools of the operating system, from Debian's packages where they are missing."""

from __future__ import annotations

import os
import shutil

from e2e.cluster.command import ClusterError, run


def need(tools: dict[str, str]) -> None:
    """Install those of the `tools` (name of the binary: Debian's package of it) that are not on PATH.

    Raises `ClusterError` that names what is missing where it may not be installed here.
    """
    lacking = sorted({package for tool, package in tools.items() if _lacks(tool)})
    if not lacking:
        return
    if os.geteuid() != 0 or shutil.which("apt-get") is None:
        raise ClusterError(
            f"this machine lacks {', '.join(lacking)}: install them, or run as root where apt-get can"
        )
    quiet = {"DEBIAN_FRONTEND": "noninteractive"}
    run("apt-get", "update", "-qq", environment=quiet)
    run("apt-get", "install", "-y", "-qq", "--no-install-recommends", *lacking, environment=quiet)


def _lacks(tool: str) -> bool:
    # Not every user's PATH has the administrator's directories.
    return shutil.which(tool, path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin") is None
