"""Where pods get weights and image from: an S3 server and an image registry, on the nodes' network.

Both keep what they serve in memory, so that no disk but the nodes' is part of what is measured, and each has
a link of its own to be throttled.
"""

from __future__ import annotations

import os
import secrets
import socket
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from bench.coldstart.objects import Source, uri
from bench.coldstart.throttle import Link
from cacheprep.listing import Listing
from e2e.cluster import golang, images, registry
from e2e.cluster.command import ClusterError, run, succeeds
from e2e.cluster.registry import Registry
from images.build import EXTPROC

HERE = Path(__file__).parent
S3 = "warmroute-coldstart-s3"
S3_PORT = 7070
REGISTRY = Registry("warmroute-coldstart-registry", f"coldstart.e2e:{registry.PORT}", in_memory=True)
BUCKET = "models"
SHARDS = 4
"""Files of a model."""
LAYERS = 4
"""Of the image, over the router's; as engine.Dockerfile has them."""
BLOCK = 1 << 20
START_SECONDS = 20.0
SPARE = 4 << 30
"""Bytes of memory that are left for the nodes."""


class Servers(NamedTuple):
    """The running servers."""

    source: Source
    source_link: Link
    registry_link: Link

    def limit(self, rate: float | None) -> None:
        """Throttle each to `rate` bytes per second, or neither. Raises `ClusterError`."""
        for link in (self.source_link, self.registry_link):
            link.limit(rate)


@contextmanager
def running() -> Iterator[Servers]:
    """Both, empty; gone at the end. Raises `ClusterError` or `golang.BuildError`."""
    try:
        source = _start_s3()
        registry.stop(REGISTRY)
        registry.start(REGISTRY)
        yield Servers(source, _link(S3), _link(REGISTRY.container))
    finally:
        _remove_s3()
        registry.stop(REGISTRY)


def check_memory(wanted: int) -> None:
    """Raises `ClusterError` where this machine cannot hold so many bytes beside the nodes."""
    lines = Path("/proc/meminfo").read_text().splitlines()
    available = next(int(line.split()[1]) << 10 for line in lines if line.startswith("MemAvailable:"))
    if available < wanted + SPARE:
        raise ClusterError(
            f"{wanted / 1e9:.1f} GB of models and image are served from memory, and of"
            f" {available / 1e9:.1f} GB {SPARE / 1e9:.1f} GB are left for the nodes: give --model-bytes or"
            " --image-bytes less"
        )


def upload(source: Source, name: str, total: int) -> Listing:
    """Put a model of `total` random bytes into the source; what is there then. Raises `ClusterError`."""
    with tempfile.TemporaryDirectory(prefix="coldstart-") as directory:
        place = Path(directory)
        for number in range(SHARDS):
            _random(
                place / f"model-{number + 1:05}-of-{SHARDS:05}.safetensors", _share(total, number, SHARDS)
            )
        _s5cmd(source, "cp", f"{place}/*", uri(source, name))
    listed = run(
        *(_beside("cacheprep"), "sources", "resolve", uri(source, name), "--output=-"),
        *(f"--endpoint-url={source.url}", f"--region={source.region}"),
        environment=source.credentials(),
    )
    return Listing.from_json(listed.strip().encode())


def push(total: int) -> str:
    """Build and push the engine's image: `total` random bytes over the router's. Returns the reference for
    pods. Raises `ClusterError`."""
    with tempfile.TemporaryDirectory(prefix="coldstart-") as directory:
        layers = Path(directory)
        for number in range(LAYERS):
            _random(layers / str(number), _share(total, number, LAYERS))
        files = {"layers": layers, "engine.py": HERE / "engine.py"}
        image = images.build(
            "coldstart-engine", HERE / "engine.Dockerfile", files, {"BASE": EXTPROC.reference}
        )
    try:
        return registry.push(image, "engine:1", REGISTRY)
    finally:
        # Random, so that no later run could use it again.
        run("docker", "image", "rm", "--force", images.identity(image))


def _start_s3() -> Source:
    _remove_s3()
    access, secret = secrets.token_hex(8), secrets.token_hex(16)
    image = images.program(golang.program(golang.VERSITYGW))
    memory = [word for place in ("/data", "/meta", "/tmp") for word in ("--tmpfs", place)]
    run(
        *("docker", "run", "--detach", "--name", S3, "--network", "kind", *memory, image),
        *("--access", access, "--secret", secret, "--region", "us-east-1", "--port", f":{S3_PORT}"),
        *("--quiet", "--keep-alive", "posix", "--sidecar", "/meta", "/data"),
    )
    address = run("docker", "inspect", "--format", "{{.NetworkSettings.Networks.kind.IPAddress}}", S3).strip()
    _await(address, S3_PORT)
    source = Source(f"http://{address}:{S3_PORT}", "us-east-1", BUCKET, access, secret)
    _s5cmd(source, "mb", f"s3://{BUCKET}")
    return source


def _s5cmd(source: Source, *words: str) -> None:
    environment = {**source.credentials(), "AWS_REGION": source.region}
    run(_beside("s5cmd"), "--endpoint-url", source.url, *words, environment=environment)


def _await(address: str, port: int) -> None:
    deadline = time.monotonic() + START_SECONDS
    while True:
        try:
            socket.create_connection((address, port), 1).close()
            return
        except OSError as error:
            if time.monotonic() > deadline:
                said = run("docker", "logs", S3)
                raise ClusterError(f"{S3} does not listen at {address}:{port} ({error}): {said}") from error
        time.sleep(0.05)


def _remove_s3() -> None:
    succeeds("docker", "rm", "--force", "--volumes", S3)


def _link(container: str) -> Link:
    return Link(int(run("docker", "inspect", "--format", "{{.State.Pid}}", container)))


def _share(total: int, number: int, parts: int) -> int:
    return total * (number + 1) // parts - total * number // parts


def _random(path: Path, size: int) -> None:
    with path.open("wb") as file:
        for at in range(0, size, BLOCK):
            file.write(os.urandom(min(BLOCK, size - at)))


def _beside(name: str) -> Path:
    return Path(sys.executable).parent / name
