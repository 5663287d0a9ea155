"""What an agent counts."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge

from cacheprep.agent.disks import Disks
from cacheprep.store.layout import State

_STATES = (State.READY, State.PARTIAL, State.UNMARKED)


class AgentMetrics:
    """The metrics of one agent. Labels are roots of the operator, and words of this file."""

    def __init__(self, registry: CollectorRegistry) -> None:
        def gauge(name: str, text: str, *labels: str) -> Gauge:
            return Gauge(f"cacheprep_agent_{name}", text, labels, registry=registry)

        def counter(name: str, text: str, *labels: str) -> Counter:
            return Counter(f"cacheprep_agent_{name}", text, labels, registry=registry)

        self._caches = gauge("caches", "Caches on the disks.", "root", "state")
        self._bytes = gauge("cache_bytes", "Bytes that they take.", "root", "state")
        self._available = gauge("root_available_bytes", "Bytes available to a root, as df says.", "root")
        self._total = gauge("root_total_bytes", "Bytes of the disk of a root.", "root")
        self._usable = gauge("root_usable", "1 if a root may be used.", "root")
        self.removed = counter("removed", "Caches that were removed.")
        self.verified = counter("verified", "Caches of which every byte was read.", "result")
        self.writes = counter("writes", "Writes to NodeModelCache.", "result")
        self.looked_at = gauge("looked_at_seconds", "Unix time of the last look at the disks.")
        for result in ("good", "bad"):
            self.verified.labels(result)
        for result in ("done", "failed"):
            self.writes.labels(result)

    def looked(self, disks: Disks, at: float) -> None:
        """The disks were looked at, at this Unix time (s)."""
        self.looked_at.set(at)
        for root in disks.roots:
            self._available.labels(root.path).set(root.available_bytes)
            self._total.labels(root.path).set(root.total_bytes)
            self._usable.labels(root.path).set(root.usable)
            for state in _STATES:
                entries = [
                    found.entry
                    for found in disks.caches
                    if found.place.root == root.path and found.entry.state is state
                ]
                self._caches.labels(root.path, state.value).set(len(entries))
                self._bytes.labels(root.path, state.value).set(sum(entry.allocated for entry in entries))
