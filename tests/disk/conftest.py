"""These tests mount file systems; `make test-disk` runs them."""

from __future__ import annotations

import pytest

from tests.disk.volumes import missing
from tests.store.conftest import model, origin

__all__ = ["model", "origin"]


@pytest.fixture(autouse=True)
def _can_mount() -> None:
    if reason := missing():
        pytest.skip(reason)
