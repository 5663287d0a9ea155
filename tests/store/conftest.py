"""A model and the server that has it, for tests of the store and of its disks."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.store.origin import Origin, make_model


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("model")
    make_model(directory)
    return directory


@pytest.fixture
def origin(model: Path) -> Iterator[Origin]:
    with Origin(model) as server:
        yield server
