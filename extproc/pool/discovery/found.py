"""What discovery finds: the endpoints of a pool at one moment, and what is known of each but its address."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Literal, NamedTuple

NodeCache = Literal["warm", "cold", "unknown"]
"""Whether the weights are on the endpoint's node."""


class Place(NamedTuple):
    """Where an endpoint runs. Empty where it is not said."""

    pod: str = ""
    node: str = ""
    zone: str = ""


class Found(NamedTuple):
    """The endpoints, canonical (see `extproc.address.parse_endpoint`), in a fixed order, each once."""

    addresses: tuple[str, ...]
    node_caches: Mapping[str, NodeCache] = {}
    """By address; unknown of those that are not in it."""
    places: Mapping[str, Place] = {}
    """By address."""


OnChange = Callable[[Found], None]
