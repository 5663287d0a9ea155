"""The built images, in containers of the Docker engine that runs. `make images` builds them."""

from __future__ import annotations

import os

import docker
import pytest

# The image of testcontainers' reaper may not be had; every container here is removed by its fixture.
os.environ.setdefault("TESTCONTAINERS_RYUK_DISABLED", "true")

EXTPROC, CACHEPREP = "warmroute/extproc:dev", "warmroute/cacheprep:dev"


@pytest.fixture(scope="session")
def engine() -> docker.DockerClient:
    """The Docker engine, with both images."""
    try:
        client = docker.from_env()
        client.ping()
    except docker.errors.DockerException as error:
        pytest.skip(f"no Docker engine answers: {error}")
    for image in (EXTPROC, CACHEPREP):
        try:
            client.images.get(image)
        except docker.errors.ImageNotFound:
            pytest.skip(f"there is no image {image}: run `make images`")
    return client
