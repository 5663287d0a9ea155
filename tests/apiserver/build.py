"""Puts kube-apiserver, etcd, kubectl and the kinds that they are to know into a directory.

`python -m tests.apiserver.build DIRECTORY`.

For machines that can reach no release download: Go builds them, which takes some minutes once.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

from e2e.cluster import golang
from tests.apiserver import kinds


def main(target: Path) -> None:
    """Leave everything in `target`. Raises `golang.BuildError`, which tells what Go said."""
    target.mkdir(parents=True, exist_ok=True)
    kinds.collect(target)
    for built in (*golang.kubernetes(["kube-apiserver", "kubectl"]), golang.etcd()):
        kept = target / built.name
        if not (kept.exists() and kept.samefile(built)):
            kept.unlink(missing_ok=True)
            try:
                kept.hardlink_to(built)
            except OSError:
                shutil.copy2(built, kept)


if __name__ == "__main__":
    if len(sys.argv) != 2 or sys.argv[1].startswith("-"):
        sys.exit("usage: python -m tests.apiserver.build DIRECTORY")
    try:
        main(Path(sys.argv[1]))
    except golang.BuildError as error:
        sys.exit(str(error))
