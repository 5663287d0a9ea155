"""Builds kube-apiserver and etcd from the Go module proxy: `python -m tests.apiserver.build DIRECTORY`.

For machines that can reach no release download. Takes some minutes; nothing is built that is there in the
right version. The versions are those that the rest of the project is tested with.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

KUBERNETES = "1.34.4"
ETCD = "v3.6.15"


def main(target: Path) -> None:
    """Leave both binaries in `target`. Raises CalledProcessError if Go says no; its output tells why."""
    target.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as directory:
        if not _is_there(target / "kube-apiserver", f"v{KUBERNETES}"):
            _apiserver(Path(directory, "apiserver"), target.absolute())
        if not _is_there(target / "etcd", ETCD.removeprefix("v")):
            _etcd(Path(directory, "etcd"), target.absolute())


def _is_there(binary: Path, version: str) -> bool:
    if not binary.exists():
        return False
    said = subprocess.run([binary, "--version"], check=False, text=True, stdout=subprocess.PIPE).stdout
    return version in said.split("\n", 1)[0].split()


def _apiserver(module: Path, target: Path) -> None:
    module.mkdir()
    downloaded = _go(module, "mod", "download", "-json", f"k8s.io/kubernetes@v{KUBERNETES}")
    theirs = Path(json.loads(downloaded)["GoMod"]).read_text()
    # Its parts are modules of their own, replaced there by paths, which a module outside cannot use.
    parts = sorted(set(re.findall(r"^\s+(k8s\.io/\S+) => \./staging", theirs, re.M)))
    version = "v0" + KUBERNETES.removeprefix("1")
    go = re.search(r"^go (\S+)$", theirs, re.M)
    assert go is not None
    (module / "go.mod").write_text(
        f"module build\n\ngo {go[1]}\n\nrequire k8s.io/kubernetes v{KUBERNETES}\n\nreplace (\n"
        + "".join(f"\t{part} => {part} {version}\n" for part in parts)
        + ")\n"
    )
    (module / "main.go").write_text(
        'package main\n\nimport _ "k8s.io/kubernetes/cmd/kube-apiserver/app"\n\nfunc main() {}\n'
    )
    _go(module, "mod", "tidy")
    major, minor, _ = KUBERNETES.split(".")
    said = {"gitVersion": f"v{KUBERNETES}", "gitMajor": major, "gitMinor": minor}
    flags = " ".join(f"-X k8s.io/component-base/version.{key}={value}" for key, value in said.items())
    _build(module, target / "kube-apiserver", "k8s.io/kubernetes/cmd/kube-apiserver", flags)


def _etcd(module: Path, target: Path) -> None:
    module.mkdir()
    _go(module, "mod", "init", "build")
    (module / "main.go").write_text(
        'package main\n\nimport (\n\t"os"\n\n\t"go.etcd.io/etcd/server/v3/etcdmain"\n)\n\n'
        "func main() { etcdmain.Main(os.Args) }\n"
    )
    _go(module, "get", f"go.etcd.io/etcd/server/v3@{ETCD}")
    _go(module, "mod", "tidy")
    _build(module, target / "etcd", ".", "")


def _build(module: Path, binary: Path, package: str, flags: str) -> None:
    _go(module, "build", "-trimpath", "-ldflags", f"-s -w {flags}", "-o", str(binary), package)


def _go(module: Path, *arguments: str) -> str:
    return subprocess.run(
        ["go", *arguments],
        cwd=module,
        check=True,
        text=True,
        stdout=subprocess.PIPE,
        env={**os.environ, "CGO_ENABLED": "0", "GOFLAGS": "-mod=mod"},
    ).stdout


if __name__ == "__main__":
    if len(sys.argv) != 2 or sys.argv[1].startswith("-"):
        sys.exit("usage: python -m tests.apiserver.build DIRECTORY")
    main(Path(sys.argv[1]))
