"""What a strategy sees of a pool: the endpoints of one moment as aligned arrays."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
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

    def __len__(self) -> int:
        return len(self.addresses)
