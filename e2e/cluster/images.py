"""Images, each built when its content is new: Dockerfile, arguments and files make the tag."""

from __future__ import annotations

import hashlib
import io
import os
import shutil
import tarfile
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path

from e2e.cluster import cache
from e2e.cluster.command import run, succeeds

DOCKERFILES = Path(__file__).parent / "dockerfiles"

KEPT = 3
"""Versions of an image that stay: another checkout may use one, and a change taken back finds its own."""

LEGACY = {"DOCKER_BUILDKIT": "0"}
"""The builder that needs no plugin, and takes base images that are only here."""


def build(
    name: str,
    dockerfile: Path,
    files: Mapping[str, Path] | None = None,
    arguments: Mapping[str, str] | None = None,
    *,
    salt: str = "",
) -> str:
    """An image `warmroute-e2e/NAME:KEY`, built unless it is there.

    `files` (path in the context: file or directory here) are what the Dockerfile can copy, `arguments` its
    ARGs. `salt` is what else it depends on. Raises `ClusterError`.
    """
    files, arguments = files or {}, arguments or {}
    text = dockerfile.read_bytes()
    tag = f"warmroute-e2e/{name}:{_key(text, files, arguments, salt)}"
    with cache.alone(f"image-{name}"):
        if not exists(tag):
            with tempfile.TemporaryDirectory(dir=_scratch()) as directory:
                context = Path(directory)
                for place, source in files.items():
                    _stage(source, context / place)
                given = [word for key in arguments for word in ("--build-arg", f"{key}={arguments[key]}")]
                # The host's network: its name servers are the ones known to work.
                run(
                    *("docker", "build", "--quiet", "--network", "host", "--tag", tag, *given),
                    *("--file", dockerfile, context),
                    environment=LEGACY,
                )
            prune(name)
    return tag


def program(binary: Path) -> str:
    """An image of one static binary, its entry point, and on PATH under its name. Raises `ClusterError`."""
    entry = f"/usr/local/bin/{binary.name}"
    tag = f"warmroute-e2e/{binary.name}:{_key(b'', {'program': binary}, {}, entry)}"
    with cache.alone(f"image-{binary.name}"):
        if not exists(tag):
            with tempfile.NamedTemporaryFile(dir=_scratch(), suffix=".tar") as file:
                with tarfile.open(fileobj=file, mode="w") as tar:
                    tar.add(binary, entry.removeprefix("/"), filter=_runnable)
                file.flush()
                changes = (f'ENTRYPOINT ["{entry}"]', "ENV PATH=/usr/local/bin")
                given = [word for change in changes for word in ("--change", change)]
                run("docker", "import", *given, file.name, tag)
            prune(binary.name)
    return tag


def _runnable(member: tarfile.TarInfo) -> tarfile.TarInfo:
    member.mode, member.uid, member.gid, member.mtime = 0o755, 0, 0, 0
    return member


def prune(name: str) -> None:
    """Remove all but the newest versions of an image. What a container uses stays."""
    repository = f"warmroute-e2e/{name}"
    # Newest first.
    tags = run("docker", "image", "ls", "--format", "{{.Repository}}:{{.Tag}}", repository).split()
    for old in tags[KEPT:]:
        succeeds("docker", "image", "rm", old)


def exists(reference: str) -> bool:
    """Whether the engine has this image."""
    return succeeds("docker", "image", "inspect", reference)


def identity(reference: str) -> str:
    """The image's id: a digest of its configuration, and so of all it holds. Raises `ClusterError`."""
    return run("docker", "image", "inspect", "--format", "{{.Id}}", reference).strip()


def archive(files: Mapping[str, bytes]) -> bytes:
    """A tar archive of these files, for `docker cp` into a container without a shell."""
    held = io.BytesIO()
    with tarfile.open(fileobj=held, mode="w") as tar:
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    return held.getvalue()


def load(references: Iterable[str], nodes: Iterable[str]) -> None:
    """Put images into the nodes' own stores, those that are not there in this very version.

    Raises `ClusterError`.
    """
    wanted = {reference: identity(reference) for reference in references}
    for node in nodes:
        for reference, image in wanted.items():
            record = f"/kind/images/{hashlib.sha256(reference.encode()).hexdigest()[:16]}"
            if not succeeds("docker", "exec", node, "grep", "-qx", image, record):
                piped = 'docker save "$0" | docker exec -i "$1" ctr -n k8s.io images import -'
                run("bash", "-o", "pipefail", "-c", piped, reference, node)
                kept = 'mkdir -p /kind/images && echo "$0" > "$1"'
                run("docker", "exec", node, "sh", "-c", kept, image, record)


def _key(text: bytes, files: Mapping[str, Path], arguments: Mapping[str, str], salt: str) -> str:
    digest = hashlib.sha256(text)
    for key, value in sorted(arguments.items()):
        # A base is known by what it is: the same name may come to mean another image.
        what = identity(value) if key == "BASE" and exists(value) else value
        digest.update(f"\0{key}={what}".encode())
    for place, source in sorted(files.items()):
        inside = sorted(source.rglob("*")) if source.is_dir() else [source]
        for file in inside:
            digest.update(f"\0{place}/{file.relative_to(source)}:{file.lstat().st_mode:o}".encode())
            if file.is_symlink():
                digest.update(os.readlink(file).encode())
            elif file.is_file():
                with file.open("rb") as opened:
                    digest.update(hashlib.file_digest(opened, "sha256").digest())
    digest.update(f"\0{salt}".encode())
    return digest.hexdigest()[:16]


def _stage(source: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    if source.is_dir():
        shutil.copytree(source, target, symlinks=True)
        # Modules' directories are read-only, and could neither be removed nor be such in an image.
        for directory in (target, *(one for one in target.rglob("*") if one.is_dir())):
            directory.chmod(0o755)
    else:
        shutil.copy2(source, target)


def _scratch() -> Path:
    directory = cache.root() / "scratch"
    directory.mkdir(parents=True, exist_ok=True)
    return directory
