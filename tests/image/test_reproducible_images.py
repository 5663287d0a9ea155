"""The same code makes the same layers, wherever and whenever it is built: a registry keeps them once, and who
builds an image again can compare."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import docker
import pytest

from e2e.cluster import debian
from e2e.cluster import images as store
from images import build

pytestmark = [pytest.mark.long, pytest.mark.timeout(600)]


@pytest.mark.parametrize("product", [build.EXTPROC, build.CACHEPREP], ids=lambda product: product.name)
def test_built_from_nothing_elsewhere_the_layers_are_the_same(
    engine: docker.DockerClient, product: build.Product, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    before = build.build(product, base())
    layers = engine.images.get(before).attrs["RootFS"]["Layers"]

    monkeypatch.setattr(build, "READY", tmp_path / "ready")
    # The same interpreter by another name.
    python = Path(sys.executable)
    monkeypatch.setattr(sys, "executable", str(python.parent / ".." / python.parent.name / python.name))
    context = tmp_path / "context"
    shutil.copytree(build.dependencies(product), context / "lib", symlinks=True)
    shutil.copytree(build.application(), context / "app", symlinks=True)
    shutil.copy2(build.HERE / f"{product.name}.Dockerfile", context / "Dockerfile")
    if product.binaries:
        shutil.copytree(build.programs(product), context / "bin", symlinks=True)
    tag = f"warmroute-test/{product.name}:again"
    engine.images.build(path=str(context), tag=tag, nocache=True, rm=True, buildargs={"BASE": base()})
    try:
        assert engine.images.get(tag).attrs["RootFS"]["Layers"] == layers
    finally:
        engine.images.remove(tag, force=True)


def base() -> str:
    return build.PUBLISHED if store.exists(build.PUBLISHED) else debian.python()
