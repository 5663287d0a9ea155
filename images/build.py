"""The project's images: `python -m images.build`, or `make images`.

What goes into an image is laid ready below build/images: the locked dependencies, the project, and their
compiled modules, with equal times. The same commit gives the same layers.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import re
import shutil
import sys
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from e2e.cluster import debian, engine, golang
from e2e.cluster import images as store
from e2e.cluster.command import ClusterError, run

HERE = Path(__file__).parent
PROJECT = HERE.parent
READY = PROJECT / "build" / "images"

PYTHON = (3, 11)
"""The version of Python in the base image: compiled modules and extensions are for this one alone."""
PUBLISHED = "python:3.11-slim-bookworm"
PULL_SECONDS = 120.0

TIME = 315532800
"""Of every file, in seconds since 1970: the first moment that a zip archive can hold, as wheels use it."""


_RECIPE = Path(__file__).read_bytes()
"""What is laid ready depends on how."""


@dataclass(frozen=True)
class Product:
    """One of the project's programs."""

    name: str
    without: frozenset[str]
    """Distributions of the lock that it never imports."""
    binaries: tuple[str, ...] = ()
    """Static programs that come with it."""

    @property
    def reference(self) -> str:
        """The name and tag by which clusters know it."""
        return f"warmroute/{self.name}:dev"


EXTPROC = Product("extproc", frozenset({"awscrt", "boto3", "botocore", "jmespath", "s3transfer"}))
CACHEPREP = Product(
    "cacheprep",
    frozenset({"betterproto2", "envoy-data-plane", "grpcio", "grpcio-health-checking", "grpclib", "numpy"})
    | {"h2", "hpack", "httptools", "hyperframe", "xds-protos"},
    ("hold",),
)


def main() -> None:
    """Exit code 1, and what is missing, if an image cannot be built."""
    parser = argparse.ArgumentParser(prog="python -m images.build", description=__doc__)
    parser.add_argument(
        "--base", help=f"base image with Python 3.11 [default: {PUBLISHED}, if it can be had]"
    )
    parser.add_argument("--revision", default="", help="the commit, for the images' labels")
    given = parser.parse_args()
    try:
        started = engine.start()
        base = given.base or _base()
        for product in (EXTPROC, CACHEPREP):
            image = build(product, base, given.revision)
            size = int(run("docker", "image", "inspect", "--format", "{{.Size}}", image))
            print(f"{image}  {size / 1e6:.0f} MB on {base}")
        if started:
            print("The Docker engine was started for this; `make e2e-down` stops it.")
    except (ClusterError, golang.BuildError) as error:
        sys.exit(f"images: {error}")


def build(product: Product, base: str, revision: str = "") -> str:
    """Build one, unless it is there, and tag it. Returns its reference. Raises `ClusterError`."""
    files = {"lib": dependencies(product), "app": application()}
    if product.binaries:
        files["bin"] = programs(product)
    arguments = {"BASE": base, "VERSION": _version(), "REVISION": revision}
    image = store.build(product.name, HERE / f"{product.name}.Dockerfile", files, arguments)
    run("docker", "tag", image, product.reference)
    return product.reference


def dependencies(product: Product) -> Path:
    """The directory with its locked dependencies, installed anew when the lock changed.

    Raises `ClusterError`.
    """
    wanted = requirements((HERE / "requirements.lock").read_text(), product.without)
    directory = READY / product.name / hashlib.sha256(_RECIPE + wanted.encode()).hexdigest()[:16]
    if not directory.exists():
        shutil.rmtree(directory.parent, ignore_errors=True)
        listed = READY / f"{product.name}.txt"
        listed.parent.mkdir(parents=True, exist_ok=True)
        listed.write_text(wanted)
        _install(directory, "opt/warmroute/lib", "--require-hashes", "--requirement", str(listed))
    return directory


def programs(product: Product) -> Path:
    """The directory with its static programs. Raises `golang.BuildError`."""
    root = READY / f"{product.name}-bin"
    shutil.rmtree(root, ignore_errors=True)
    place = root / "usr/local/bin"
    place.mkdir(parents=True)
    for name in product.binaries:
        shutil.copy(golang.hold(), place / name)
    _same_times(root)
    return root


def application() -> Path:
    """The directory with the project itself, installed anew when its files changed. Raises `ClusterError`."""
    digest = hashlib.sha256(_RECIPE)
    for file in sorted(_sources()):
        digest.update(f"{file.relative_to(PROJECT)}\0".encode() + file.read_bytes() + b"\0")
    directory = READY / "app" / digest.hexdigest()[:16]
    if not directory.exists():
        shutil.rmtree(directory.parent, ignore_errors=True)
        _install(directory, "opt/warmroute/app", str(PROJECT))
    return directory


def _sources() -> Iterator[Path]:
    """What the wheel of the project is made of."""
    yield from (PROJECT / name for name in ("pyproject.toml", "README.md", "LICENSE"))
    for package in ("extproc", "cacheprep"):
        for file in (PROJECT / package).rglob("*"):
            if file.is_file() and "__pycache__" not in file.parts:
                yield file


def requirements(lock: str, without: frozenset[str]) -> str:
    """A lock file (name==version with hashes, as `uv pip compile` writes it) without some distributions."""
    blocks = re.split(r"^(?=[a-z0-9])", lock, flags=re.M)
    return "".join(block for block in blocks if re.split(r"[=\[ ]", block, maxsplit=1)[0] not in without)


def _base() -> str:
    if store.exists(PUBLISHED):
        return PUBLISHED
    try:
        run("docker", "pull", "--quiet", PUBLISHED, seconds=PULL_SECONDS)
    except ClusterError as error:
        print(f"{PUBLISHED} cannot be pulled, so a base is made of Debian's packages ({error})", flush=True)
        return debian.python()
    return PUBLISHED


def _install(directory: Path, place: str, *what: str) -> None:
    """Install without dependencies, and make what is installed the same each time.

    `directory` then is a root with `place` in it: copied whole, the directories above keep their times too.
    """
    if sys.version_info[:2] != PYTHON:
        wanted = ".".join(map(str, PYTHON))
        raise ClusterError(
            f"images hold Python {wanted}: run this with {wanted}, PYTHON=python{wanted} for make"
        )
    root = directory.with_suffix(".new")
    shutil.rmtree(root, ignore_errors=True)
    scratch = root / place
    pip = (sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check")
    run(*pip, "--no-deps", "--no-compile", "--target", scratch, *what)
    # Scripts name the interpreter of this machine.
    shutil.rmtree(scratch / "bin", ignore_errors=True)
    # One names the directory that was installed from, the other has digests of the scripts.
    for record in [*scratch.glob("*.dist-info/direct_url.json"), *scratch.glob("*.dist-info/RECORD")]:
        record.unlink()
    for unused in [*scratch.glob("*/**/tests"), *scratch.rglob("*.pyi"), *scratch.rglob("*.h")]:
        if unused.is_dir():
            shutil.rmtree(unused)
        else:
            unused.unlink(missing_ok=True)
    # In a process of its own with a fixed seed: what holds sets is else compiled differently each time.
    run(
        *(sys.executable, "-m", "compileall", "-q", "--invalidation-mode", "unchecked-hash"),
        *("-s", scratch, "-p", f"/{place}", scratch),
        environment={"PYTHONHASHSEED": "0"},
    )
    _same_times(root)
    directory.parent.mkdir(parents=True, exist_ok=True)
    root.replace(directory)


def _same_times(directory: Path) -> None:
    for place in (directory, *directory.rglob("*")):
        os.utime(place, (TIME, TIME), follow_symlinks=False)


def _version() -> str:
    project = tomllib.loads((PROJECT / "pyproject.toml").read_text())["project"]
    return str(project["version"])


if __name__ == "__main__":
    main()
