"""Who hears how it goes with objects that are followed in Kubernetes."""

from __future__ import annotations

from typing import Literal, Protocol

Trouble = Literal["unreachable", "forbidden", "refused"]
"""Why objects cannot be followed: no answer, a right is missing, another answer than was asked for."""


class Observer(Protocol):
    """Hears of the objects of one pool, by their resource's plural: `endpointslices`, `pods`."""

    def watching(self, resource: str) -> None:
        """A watch has begun."""

    def failed(self, resource: str, trouble: Trouble) -> None:
        """An attempt failed. What is known stays."""
