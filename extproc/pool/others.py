"""What is not known of a pool's traffic, because other router replicas send it.

Replicas that share their picks know of each other's after a second at most; what may have been sent since is
estimated from what was heard lately. Of replicas that do not share them, only the load that they make is
seen, in the engines' reports: the share of it that is one's own tells how much of what engines have in their
caches one knows of.
"""

from __future__ import annotations

REMEMBERED_S = 30.0
"""Half-life of shares and rates."""
SHARING_FOR_S = 5.0
"""Picks are being shared if one was heard that was made so lately: five batches."""
LEAST_LOAD = 20.0
"""Requests that must have been seen before their share says something."""
LEAST_SHARE = 0.01
"""No share is taken to be less, so that nothing grows without bound."""


class Others:
    """Of one pool, from the view of one replica. Times are seconds of one clock."""

    def __init__(self) -> None:
        self._own = 0.0
        self._all = 0.0
        self._sent = 0.0
        self._sent_for = 1.0
        self._reported_at = 0.0
        self._tokens = 0.0
        self._seconds = 1.0
        self._known_until = float("-inf")

    def reported(self, own: float, load: float, now: float) -> None:
        """An endpoint has `load` requests by its own word, of which `own` are from here."""
        if now > self._reported_at:
            since = now - self._reported_at
            keep = 0.5 ** (since / REMEMBERED_S)
            self._own *= keep
            self._all *= keep
            if since > REMEMBERED_S:  # the first report, or the first for long
                self._sent, self._sent_for = 0.0, 1.0
            else:
                self._sent *= keep
                self._sent_for = self._sent_for * keep + since
            self._reported_at = now
        self._own += own
        self._all += max(own, load)

    def sent(self, tokens: float) -> None:
        """This replica sent a request with so many tokens to be computed."""
        self._sent += tokens

    def heard(self, tokens: float, at: float) -> None:
        """Another replica sent, at `at`, a request with so many tokens to be computed."""
        since = at - self._known_until
        if since > 0.0:
            if since > SHARING_FOR_S:
                self._tokens, self._seconds = 0.0, 1.0
            else:
                keep = 0.5 ** (since / REMEMBERED_S)
                self._tokens *= keep
                self._seconds = self._seconds * keep + since
            self._known_until = at
        self._tokens += tokens

    def known_share(self, now: float) -> float:
        """Part of the traffic that is known here: 1 if alone, or if the others tell what they send."""
        if now - self._known_until <= SHARING_FOR_S or self._all < LEAST_LOAD:
            return 1.0
        return max(LEAST_SHARE, self._own / self._all)

    def unseen(self, now: float) -> float:
        """Tokens that others have sent since they, or the engines, last told, by their rate so far."""
        since = now - self._known_until
        if since <= SHARING_FOR_S:
            return self._tokens / self._seconds * max(0.0, since)
        share = self.known_share(now)
        if share >= 1.0:
            return 0.0
        since = min(now - self._reported_at, SHARING_FOR_S)
        return self._sent / self._sent_for * (1.0 / share - 1.0) * max(0.0, since)
