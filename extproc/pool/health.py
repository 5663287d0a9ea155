"""Passive health: an endpoint that was first choice and did not serve is suspect.

A suspect is not first choice again until its back-off is over. Then it is half-open: it is eligible for one
pick, and from that pick on it is kept out until the outcome is known. Served: healthy. Missed: a longer
back-off. Outcome never known (the client went away): after `PROBE_TIMEOUT` the next request may try.

Never the last one: when every endpoint is suspect nothing is kept out, since a try that fails costs no more
than refusing. Time is passed in (seconds, monotonic); a clock that jumps can end an exclusion early, never
prolong it.
"""

from __future__ import annotations

from collections.abc import Collection

FIRST_BACK_OFF = 1.0
"""Seconds. A miss costs its request a retry: one each second is what a dead endpoint may cost at first, and
an engine that only dropped a connection is back before its KV cache has gone cold."""
LONGEST_BACK_OFF = 30.0
"""Seconds, reached by doubling. As long as Envoy's default `base_ejection_time`; loading a model takes
longer than that anyway, and an engine that came back waits at most this long for traffic."""
PROBE_TIMEOUT = 10.0
"""Seconds that one probe may take before another is allowed; a long prompt's first token can take
seconds."""

_NONE: frozenset[str] = frozenset()


class _Suspect:
    """Since when, and until when, one endpoint is kept out."""

    __slots__ = ("back_off", "probing", "since", "until")

    def __init__(self, now: float, back_off: float) -> None:
        self.since = now
        self.back_off = back_off
        self.until = now + back_off
        self.probing = False

    def kept_out(self, now: float) -> bool:
        left = self.until - now
        if left > (PROBE_TIMEOUT if self.probing else self.back_off):
            # More than it was given: the clock was set back, and what is left means nothing.
            self.until = now
            return False
        return left > 0.0


class PassiveHealth:
    """Which endpoints of one pool are suspect, learnt from requests alone."""

    def __init__(self) -> None:
        self._members: frozenset[str] = _NONE
        self._suspects: dict[str, _Suspect] = {}
        self._recovered: dict[str, float] = {}

    def set_members(self, addresses: Collection[str]) -> None:
        """These are the pool's endpoints now. One that left is forgotten: it comes back healthy."""
        self._members = frozenset(addresses)
        for state in (self._suspects, self._recovered):
            for address in state.keys() - self._members:
                del state[address]

    def missed(self, address: str, now: float, picked_at: float | None = None) -> None:
        """`address` was first choice of a request picked at `picked_at` (default: now) and did not serve
        it.

        Many requests fail in one outage and are known at different times. Those picked before the endpoint
        became suspect or recovered, or that fail while it is kept out, say nothing new: they do not
        lengthen the back-off.
        """
        if address not in self._members:
            return
        picked_at = now if picked_at is None else picked_at
        suspect = self._suspects.get(address)
        if suspect is None:
            if picked_at >= self._recovered.get(address, picked_at):
                self._suspects[address] = _Suspect(now, FIRST_BACK_OFF)
        elif picked_at >= suspect.since and (suspect.probing or not suspect.kept_out(now)):
            self._suspects[address] = _Suspect(now, min(2 * suspect.back_off, LONGEST_BACK_OFF))

    def served(self, address: str, now: float) -> None:
        """`address` served a request, as first choice or as retry: it is healthy."""
        if self._suspects and self._suspects.pop(address, None) is not None:
            self._recovered[address] = now

    def picked(self, address: str, now: float) -> None:
        """`address` is first choice of a request. If it is half-open, that request is its probe."""
        if not self._suspects:
            return
        suspect = self._suspects.get(address)
        if suspect is not None and not suspect.kept_out(now) and not self._all_suspect():
            suspect.probing = True
            suspect.until = now + PROBE_TIMEOUT

    def probing(self, address: str) -> bool:
        """Whether `address` is suspect and the outcome of a probe is awaited."""
        suspect = self._suspects.get(address)
        return suspect is not None and suspect.probing

    def suspects(self) -> frozenset[str]:
        """Every endpoint that missed and has not served since, kept out or half-open."""
        return frozenset(self._suspects)

    def excluded(self, now: float) -> frozenset[str]:
        """The endpoints that must not be first choice now; never all of them."""
        if not self._suspects or self._all_suspect():
            return _NONE
        return frozenset(address for address, suspect in self._suspects.items() if suspect.kept_out(now))

    def _all_suspect(self) -> bool:
        return len(self._suspects) == len(self._members)
