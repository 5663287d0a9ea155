"""Install what the disk tests need and this machine lacks: `python -m tests.disk.tools`."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from ctypes.util import find_library

PACKAGES = {
    "mkfs.ext4": "e2fsprogs",
    "mkfs.xfs": "xfsprogs",
    "mkfs.btrfs": "btrfs-progs",
    "losetup": "mount",
    "fusermount3": "fuse3",
}
"""Tool to Debian's package of it."""


def main() -> None:
    """Exits 0 once all are there, 1 if they cannot be installed."""
    lacking = sorted({package for tool, package in PACKAGES.items() if shutil.which(tool) is None})
    if find_library("fuse3") is None and "fuse3" not in lacking:
        lacking.append("fuse3")
    if not lacking:
        return
    if os.geteuid() != 0 or shutil.which("apt-get") is None:
        sys.exit(f"these tests need {', '.join(lacking)}, and root to mount file systems")
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    for words in (["update", "-qq"], ["install", "-y", "-qq", "--no-install-recommends", *lacking]):
        done = subprocess.run(
            ["apt-get", *words], env=environment, capture_output=True, text=True, check=False
        )
        if done.returncode != 0:
            sys.exit(f"apt-get {words[0]}: {done.stderr}")


if __name__ == "__main__":
    main()
