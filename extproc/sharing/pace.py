"""How often and how long: every duration of sharing, in seconds."""

from __future__ import annotations

from typing import NamedTuple


class Pace(NamedTuple):
    """Durations in seconds."""

    batch: float = 1.0
    """Between batches. Twice as often would cost twice the calls and gain little: routing with picks that are
    five seconds old is nearly as good."""
    confirm: float = 5.0
    """In which a call must be confirmed; else its picks are lost and the connection is made anew."""
    idle: float = 5.0
    """Without picks, after which a call is made all the same, to see whether the peer is still there."""
    first_pause: float = 0.5
    longest_pause: float = 5.0
    """Between attempts to connect: doubled after each failure up to the second, less a random half."""
    look_up: float = 3.0
    """Between look-ups of names. Kubernetes' name server answers up to 5 s from memory (the `ttl` of CoreDNS'
    plugin kubernetes), so a new replica is known after 8 s at most."""
    meet: float = 30.0
    """After which a replica that has met no peer stops waiting for one to learn from."""
    gather: float = 0.3
    """From the first peer that answers to the choice of the one that has run longest."""
    answer: float = 5.0
    """That the answer to a replica that starts may take. What has come by then is used."""


PACE = Pace()
