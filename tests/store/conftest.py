"""A model and the servers that have it, for tests of the store and of its disks."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.sources.conftest import environment
from tests.store.origin import Origin, make_model
from tests.store.places import KINDS, Place, opening

__all__ = ["environment"]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("model")
    make_model(directory)
    return directory


@pytest.fixture
def origin(model: Path) -> Iterator[Origin]:
    with Origin(model) as server:
        yield server


@pytest.fixture(scope="module", params=KINDS)
def _opened(
    request: pytest.FixtureRequest, model: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Place]:
    with opening(request.param, model, tmp_path_factory.mktemp("place")) as place:
        yield place


@pytest.fixture
def place(_opened: Place) -> Iterator[Place]:
    """The model at each kind of place in turn."""
    _opened.forget()
    yield _opened
    _opened.fault = lambda _: None
