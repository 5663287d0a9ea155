"""What a strategy sees of a pool: the endpoints of one moment as aligned arrays."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray


class Queues(NamedTuple):
    """What waits to be computed, endpoint by endpoint as in the snapshot."""

    tokens: NDArray[np.float64]
    """Prompt tokens predicted to wait."""
    typical: float
    """Tokens that a request costs on average."""
    known_share: float = 1.0
    """Part of the traffic that this replica knows of."""
    unseen: float = 0.0
    """Tokens that other replicas may have sent, all endpoints together, of which this one does not know
    yet."""


@dataclass(slots=True, eq=False)
class Snapshot:
    """The endpoints of a pool at one moment; index i means the same endpoint in every field.

    Strategies only read: the arrays may be shared between snapshots.
    """

    addresses: tuple[str, ...]
    """`ip:port`, IPv6 in brackets."""
    hashes: NDArray[np.uint64]
    """xxh3_64 of each address with a fixed seed: equal in every process and replica."""
    in_flight: NDArray[np.int64]
    """Requests in flight: the larger of the own count, and the engine's last report plus own picks
    since."""
    eligible: NDArray[np.bool_]
    """False for an endpoint that must not be first choice now. At least one is True unless there is no
    endpoint."""
    queues: Queues | None = None
    """None: nothing is known of them."""
    ease: NDArray[np.float64] | None = None
    """Share of what it could take that an endpoint should get, above 0: less than 1 while it is new. None:
    all are 1."""
    members: tuple[str, ...] | None = None
    """The whole pool, of which this may be a part; the same object until it changes. None: this is the
    pool."""

    def __len__(self) -> int:
        return len(self.addresses)
