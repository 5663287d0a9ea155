"""A Debian base image by debootstrap, where the published one cannot be pulled."""

from __future__ import annotations

import subprocess
import tempfile
from pathlib import Path

from e2e.cluster import cache, images, packages, versions
from e2e.cluster.command import ClusterError, run

IMAGE = f"warmroute-e2e/debian:{versions.DEBIAN}"


def image() -> str:
    """The image, made if it is not there: what `debian:bookworm-slim` is, for as much as is used here.

    Raises `ClusterError`.
    """
    with cache.alone("image-debian"):
        if images.exists(IMAGE):
            return IMAGE
        packages.need({"debootstrap": "debootstrap"})
        with tempfile.TemporaryDirectory() as directory:
            root = Path(directory, "root")
            run("debootstrap", "--variant=minbase", versions.DEBIAN, root)
            _slim(root)
            with subprocess.Popen(["tar", "-C", root, "-c", "."], stdout=subprocess.PIPE) as tar:
                done = subprocess.run(
                    ["docker", "import", "--change", 'CMD ["bash"]', "-", IMAGE],
                    stdin=tar.stdout,
                    check=False,
                    capture_output=True,
                    text=True,
                )
            if tar.returncode or done.returncode:
                raise ClusterError(f"docker import of the Debian base: {done.stderr}")
    return IMAGE


def python() -> str:
    """An image with Debian's Python, in the place of `python:3.11-slim`. Raises `ClusterError`."""
    return images.build("python", images.DOCKERFILES / "python.Dockerfile", arguments={"BASE": image()})


def _slim(root: Path) -> None:
    """Leave out what no container reads."""
    for place in ("var/cache/apt/archives", "var/lib/apt/lists", "usr/share/doc", "usr/share/man"):
        run("find", root / place, "-mindepth", "1", "-delete")
    unread = "".join(f"path-exclude /usr/share/{place}/*\n" for place in ("doc", "man", "locale"))
    (root / "etc/dpkg/dpkg.cfg.d/slim").write_text(unread)
