"""A hash of the session: what a gateway does with a session header or cookie (Envoy's RING_HASH, HAProxy,
vLLM production-stack's `session` routing). A request without session goes anywhere.
"""

from __future__ import annotations

import random

import numpy as np

from extproc.pool.snapshot import Snapshot
from extproc.replay.arrival import Arrival
from extproc.replay.policy import Policy
from extproc.routing.rendezvous import weights


class SessionHash(Policy):
    """HRW of the session, no guard against load."""

    def pick(self, request: Arrival, endpoints: Snapshot, now: float, draw: random.Random) -> str:
        """As in `Policy`."""
        if not request.session:
            return draw.choice(endpoints.addresses)
        return endpoints.addresses[int(np.argmax(weights(request.session, endpoints.hashes)))]
