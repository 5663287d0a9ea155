"""Real servers on free ports of 127.0.0.1: versitygw, moto, nginx. Each is gone when its context ends."""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from bench.latency.golang import toolchain

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client

VERSITYGW = "github.com/versity/versitygw/cmd/versitygw@v1.8.0"
ACCESS, SECRET, REGION = "access", "secret-of-the-tests", "us-east-1"
START_S = 20


def cache() -> Path:
    """Where programs that were built are kept, outside the repository."""
    root = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return root / "warmroute"


def versitygw_binary() -> Path:
    """versitygw, built once from the Go module proxy; the test is skipped where it cannot be."""
    binary = cache() / "bin" / "versitygw"
    if not binary.exists():
        binary.parent.mkdir(parents=True, exist_ok=True)
        environment = {**os.environ, "GOBIN": str(binary.parent), "CGO_ENABLED": "0"}
        command = [str(toolchain(cache())), "install", "-trimpath", "-ldflags", "-s -w", VERSITYGW]
        built = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        if built.returncode:
            pytest.skip(f"versitygw cannot be built: {built.stderr.strip()[-300:]}")
    return binary


@contextlib.contextmanager
def versitygw(root: Path, *, versions: bool = False) -> Iterator[str]:
    """A gateway over `root`, with buckets as its directories; yields its URL."""
    port = free_port()
    data, meta = root / "data", root / "meta"
    data.mkdir(parents=True)
    command = [str(versitygw_binary()), "--access", ACCESS, "--secret", SECRET, "--region", REGION]
    command += ["--port", f"127.0.0.1:{port}", "--quiet", "--keep-alive", "posix"]
    if versions:
        (root / "versions").mkdir()
        command += ["--versioning-dir", str(root / "versions")]
    else:
        meta.mkdir()
        command += ["--sidecar", str(meta)]
    with _running([*command, str(data)], port, root / "versitygw.log"):
        yield f"http://127.0.0.1:{port}"


def s3_client(url: str) -> S3Client:
    """A client of boto3 for a gateway of `versitygw`."""
    import boto3  # slow, and most tests need none

    return boto3.client(
        "s3", endpoint_url=url, region_name=REGION, aws_access_key_id=ACCESS, aws_secret_access_key=SECRET
    )


@contextlib.contextmanager
def moto(root: Path) -> Iterator[str]:
    """moto's server, for what versitygw has not; yields its URL."""
    port = free_port()
    command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
    with _running(command, port, root / "moto.log"):
        yield f"http://127.0.0.1:{port}"


def nginx_binary() -> str:
    """nginx, installed from Debian where that is possible; else the test is skipped."""
    found = shutil.which("nginx") or shutil.which("nginx", path="/usr/sbin:/usr/local/sbin")
    if found is None and os.geteuid() == 0 and shutil.which("apt-get"):
        environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
        for command in ("update -qq", "install -y -qq --no-install-recommends nginx-light"):
            subprocess.run(["apt-get", *command.split()], env=environment, capture_output=True, check=False)
        found = shutil.which("nginx", path="/usr/sbin:/usr/bin")
    if found is None:
        pytest.skip("nginx is missing: apt-get install nginx-light")
    return found


@contextlib.contextmanager
def nginx(root: Path, location: str = "") -> Iterator[str]:
    """nginx over `root`/www, with directives of a location; yields its URL."""
    port = free_port()
    (root / "www").mkdir(exist_ok=True)
    user = "user root;" if os.geteuid() == 0 else ""
    temporary = "".join(
        f"{kind}_temp_path {root}/{kind};" for kind in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    )
    (root / "nginx.conf").write_text(
        f"daemon off; {user} pid {root}/nginx.pid; error_log {root}/error.log; worker_processes 1;"
        f"events {{}} http {{ access_log off; {temporary} default_type application/octet-stream;"
        f"server {{ listen 127.0.0.1:{port}; root {root}/www; location / {{ {location} }} }} }}"
    )
    command = [nginx_binary(), "-e", f"{root}/error.log", "-c", f"{root}/nginx.conf"]
    with _running(command, port, root / "nginx.log"):
        yield f"http://127.0.0.1:{port}"


def sha256sums(files: Mapping[str, bytes]) -> str:
    """The manifest that sha256sum(1) would print of files by name."""
    lines = (f"{hashlib.sha256(content).hexdigest()}  {name}\n" for name, content in files.items())
    return "".join(lines)


def free_port() -> int:
    """A TCP port of 127.0.0.1 that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@contextlib.contextmanager
def _running(command: Sequence[str], port: int, log: Path) -> Iterator[None]:
    with log.open("wb") as output:
        process = subprocess.Popen(command, stdout=output, stderr=output)
        try:
            _await(process, port, log)
            yield
        finally:
            process.terminate()
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _await(process: subprocess.Popen[bytes], port: int, log: Path) -> None:
    until = time.monotonic() + START_S
    while time.monotonic() < until and process.poll() is None:
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
            return
        except OSError:
            time.sleep(0.02)
    raise AssertionError(f"{process.args!r} does not listen: {log.read_text()[-2000:]}")
