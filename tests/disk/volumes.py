"""Small file systems on loop devices; every mount and device ends with its block."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.store.origin import wait_until

MB = 1 << 20
MAKERS = {
    "ext4": ("mkfs.ext4", "-q", "-F"),
    "xfs": ("mkfs.xfs", "-q", "-f"),
    "btrfs": ("mkfs.btrfs", "-q", "-f"),
}
SIZES = {"ext4": 64 * MB, "xfs": 320 * MB, "btrfs": 160 * MB}
"""About the least that each can be."""


def missing() -> str:
    """Why these tests cannot run here; "" if they can."""
    if os.environ.get("TEST_DISK") != "1":
        return "mounts file systems: run it with `make test-disk`"
    if os.geteuid() != 0:
        return "mounts file systems: needs root"
    tools = [maker[0] for maker in MAKERS.values()] + ["losetup", "mount", "umount"]
    lacking = [tool for tool in tools if shutil.which(tool) is None]
    if lacking:
        return f"needs {', '.join(lacking)}"
    lacking = [device for device in ("/dev/fuse", "/dev/loop-control") if not os.path.exists(device)]
    return f"needs {', '.join(lacking)}" if lacking else ""


def command(*words: str | Path) -> str:
    """Run a command that must succeed; what it printed."""
    done = subprocess.run([str(word) for word in words], capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{words}: {done.stderr}"
    return done.stdout


@contextmanager
def loop(image: Path) -> Iterator[str]:
    """A loop device over a file."""
    device = command("losetup", "--find", "--show", image).strip()
    try:
        yield device
    finally:
        command("losetup", "--detach", device)
        # A container that starts meanwhile has the mount too for a moment, and the device still writes then.
        attached = Path("/sys/block", Path(device).name, "loop")
        wait_until(lambda: not attached.exists(), within_s=60)


@contextmanager
def mounted(device: str | Path, point: Path, *options: str, kind: str = "") -> Iterator[Path]:
    """A file system, mounted."""
    point.mkdir(parents=True, exist_ok=True)
    words = ["mount", *(("-t", kind) if kind else ()), *(("-o", ",".join(options)) if options else ())]
    command(*words, device, point)
    try:
        yield point
    finally:
        # A process that was killed may not be gone yet.
        wait_until(
            lambda: subprocess.run(["umount", str(point)], capture_output=True, check=False).returncode == 0
        )


@contextmanager
def volume(kind: str, directory: Path, *options: str, size: int | None = None) -> Iterator[Path]:
    """A fresh file system of a kind, mounted below a directory."""
    image = directory / f"{kind}.img"
    with image.open("wb") as file:
        file.truncate(size or SIZES[kind])
    command(*MAKERS[kind], image)
    with loop(image) as device, mounted(device, directory / kind, *options) as point:
        yield point


@contextmanager
def recorder(directory: Path, size: int) -> Iterator[tuple[Path, Path]]:
    """The file of a recorded disk, and its log."""
    point, log = directory / "recorder", directory / "log"
    point.mkdir()
    with subprocess.Popen(
        [sys.executable, "-m", "tests.disk.recorder", str(point), str(size), str(log)]
    ) as server:
        try:
            wait_until(lambda: (point / "disk").exists() or server.poll() is not None)
            yield point / "disk", log
        finally:
            command("umount", point)
            server.wait(20)
