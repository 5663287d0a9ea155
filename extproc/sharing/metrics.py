"""What sharing says of itself to Prometheus."""

from __future__ import annotations

from collections.abc import Callable

from prometheus_client import CollectorRegistry, Gauge

from extproc.tally import Durations, Tallies

LAG_BUCKETS = (0.1, 0.25, 0.5, 1.0, 2.0, 3.0, 5.0, 10.0)
"""Seconds. Batches go out once a second, so half of them is what picks wait on average."""

DROPPED = (
    "outbox_full",
    "peer_slow",
    "undelivered",
    "unknown_pool",
    "unknown_endpoint",
    "stale",
    "too_many",
    "failed",
)
"""Why picks were dropped. Not told: more waited than the limit, a peer did not keep up, or a peer did not
confirm. Heard and not used: no such pool here, no such endpoint in it, too old, more than is accepted in a
second. Either way: an error of ours."""

REFUSED = ("malformed", "other_scheme", "own", "duplicate")
"""Why whole messages were ignored: not made by a replica, block keys made in another way (another version),
made by this process, or received before."""


class SharingMetrics:
    """The counters of sharing, in `registry`. Made where sharing is on."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._sent = Tallies(
            "extproc_sharing_sent_picks",
            "Own picks that a peer has confirmed, counted for each peer.",
            [],
            registry,
        ).labels()
        self._heard = Tallies(
            "extproc_sharing_heard_picks",
            "Picks of other replicas that were entered, by pool.",
            ["pool"],
            registry,
        )
        dropped = Tallies(
            "extproc_sharing_dropped_picks",
            "Picks that were not told (outbox_full, peer_slow, undelivered) or heard and not used"
            " (unknown_pool, unknown_endpoint, stale, too_many), or lost by an error (failed), by reason.",
            ["reason"],
            registry,
        )
        self._dropped = {reason: dropped.labels(reason) for reason in DROPPED}
        refused = Tallies(
            "extproc_sharing_refused_messages",
            "Messages that were ignored as a whole, by reason: malformed, other_scheme (block keys of another"
            " version), own, or duplicate.",
            ["reason"],
            registry,
        )
        self._refused = {reason: refused.labels(reason) for reason in REFUSED}
        self._sent_bytes = Tallies(
            "extproc_sharing_sent_bytes", "Bytes of messages that peers have confirmed.", [], registry
        ).labels()
        self._received_bytes = Tallies(
            "extproc_sharing_received_bytes", "Bytes of messages from peers.", [], registry
        ).labels()
        self._lag = Durations(
            "extproc_sharing_lag_seconds",
            "Age of a message's oldest pick when its peer has confirmed it, in seconds.",
            LAG_BUCKETS,
            registry,
        )
        self._peers = Gauge(
            "extproc_sharing_peers",
            "Other replicas by state: connected, or unreachable.",
            ["state"],
            registry=registry,
        )
        self._learnt = Tallies(
            "extproc_sharing_warm_up_picks", "Picks learnt from a peer at start.", [], registry
        ).labels()

    def watch(self, counts: Callable[[], tuple[int, int]]) -> None:
        """`counts` gives the numbers of peers, connected and unreachable, at each scrape, in its thread."""
        self._peers.labels("connected").set_function(lambda: counts()[0])
        self._peers.labels("unreachable").set_function(lambda: counts()[1])

    def sent(self, picks: int, size: int) -> None:
        """A peer has confirmed so many picks in so many bytes."""
        self._sent.inc(picks)
        self._sent_bytes.inc(size)

    def lagged(self, seconds: float) -> None:
        """A batch was confirmed so long after its oldest pick."""
        self._lag.observe(seconds)

    def received(self, size: int) -> None:
        """A message of so many bytes has come."""
        self._received_bytes.inc(size)

    def heard(self, pool: str, picks: int) -> None:
        """So many picks were entered. `pool` is the name of one that runs."""
        self._heard.labels(pool).inc(picks)

    def learnt(self, picks: int) -> None:
        """So many picks were learnt at start."""
        self._learnt.inc(picks)

    def dropped(self, reason: str, picks: int = 1) -> None:
        """So many picks were dropped, for one of `DROPPED`."""
        self._dropped[reason].inc(picks)

    def refused(self, reason: str) -> None:
        """A message was ignored, for one of `REFUSED`."""
        self._refused[reason].inc()
