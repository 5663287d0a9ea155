"""What an image must be for a cluster that trusts nobody, and that nothing was left out of it."""

from __future__ import annotations

import docker
import pytest

from tests.image.conftest import CACHEPREP, EXTPROC

HARDENED = {
    "read_only": True,
    "cap_drop": ["ALL"],
    "security_opt": ["no-new-privileges"],
    "network_mode": "none",
    "remove": True,
}

IMPORT_ALL = """
import importlib, pkgutil, sys
package = importlib.import_module(sys.argv[1])
for module in pkgutil.walk_packages(package.__path__, package.__name__ + "."):
    if not module.name.endswith("__main__"):
        try:
            importlib.import_module(module.name)
        except ModuleNotFoundError as error:
            # Of the extra `demo`, which no image has.
            if error.name.partition(".")[0] not in ("jinja2", "matplotlib"):
                raise
"""


@pytest.mark.parametrize("image", [EXTPROC, CACHEPREP])
def test_an_image_runs_as_a_number_that_is_not_root_and_without_a_shell(
    engine: docker.DockerClient, image: str
) -> None:
    settings = engine.images.get(image).attrs["Config"]
    user, _, group = settings["User"].partition(":")
    assert int(user) > 0
    assert int(group) > 0
    assert settings["Entrypoint"][0] == "python3"
    labels = settings["Labels"]
    assert labels["org.opencontainers.image.licenses"] == "Apache-2.0"
    assert labels["org.opencontainers.image.version"]


@pytest.mark.parametrize(("image", "package"), [(EXTPROC, "extproc"), (CACHEPREP, "cacheprep")])
def test_every_module_finds_what_it_imports_on_a_root_that_cannot_be_written(
    engine: docker.DockerClient, image: str, package: str
) -> None:
    said = engine.containers.run(
        image, entrypoint=["python3", "-c", IMPORT_ALL], command=[package], stderr=True, **HARDENED
    )
    assert said == b""


@pytest.mark.parametrize(("image", "package"), [(EXTPROC, "extproc"), (CACHEPREP, "cacheprep")])
def test_modules_come_compiled_as_nothing_can_be_written_beside_them(
    engine: docker.DockerClient, image: str, package: str
) -> None:
    check = f"import {package}.cli as one; print(one.__spec__.cached); open(one.__spec__.cached).close()"
    said = engine.containers.run(image, entrypoint=["python3", "-c", check], command=[], **HARDENED)
    assert b"/opt/warmroute/app/" in said


def test_hold_waits_reaps_and_leaves_when_told(engine: docker.DockerClient) -> None:
    container = engine.containers.run(
        CACHEPREP, entrypoint=["hold"], command=[], detach=True, **{**HARDENED, "remove": False}
    )
    try:
        # A child that outlives its parent falls to process 1.
        orphan = "import os; os.fork() or os._exit(0) if os.fork() == 0 else os.wait()"
        assert container.exec_run(["python3", "-c", orphan]).exit_code == 0
        left = "import os; print([one for one in os.listdir('/proc') if one.isdigit()])"
        seen = [container.exec_run(["python3", "-c", left]).output for _ in range(3)]
        assert seen[-1].count(b"'") == 4, f"beside hold and the one that asks there are others: {seen}"
        container.stop(timeout=10)
        assert container.wait()["StatusCode"] == 0
    finally:
        container.remove(force=True)
