"""What takes too long for each change: `make soak`. Not part of `make test`."""

from __future__ import annotations

import pytest

from tests.envoy.conftest import gateways, stacks

__all__ = ["gateways", "stacks"]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if "soak" in item.path.parts:
            item.add_marker(pytest.mark.soak)
            item.add_marker(pytest.mark.timeout(3600))
