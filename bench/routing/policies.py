"""The policies of the study, by the names that the report uses."""

from __future__ import annotations

from extproc.replay.policies import Named, parse

OURS = "PREFIX_AWARE"
IDEAL = "ideal"
"""Not a policy: what none could do better than by much, see `ideal`."""
THRESHOLD = 1024
"""Requests in flight at which an engine comes last: high, so that the rule is seen and not the bound."""
PEERS = {
    "least in-flight": "least-in-flight",
    "fixed prefix 512": "fixed-prefix:length=2048",
    "fixed prefix 2048": "fixed-prefix:length=8192",
    "CHWBL": "bounded-hash:length=8192",
    "radix tree": "radix-tree",
    "scored": "scored",
    "mean+sigma": "mean-sigma",
    "session hash": "session-hash",
}
"""Peers; lengths in bytes, four to a token."""


def policies() -> dict[str, Named]:
    """Ours first, then the peers."""
    texts = {OURS: f"{OURS}:concurrencyThreshold={THRESHOLD}", **PEERS}
    return {name: parse(text)[0] for name, text in texts.items()}
