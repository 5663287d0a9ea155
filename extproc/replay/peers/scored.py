"""Weighted scores of prefix match, queue and KV usage: as the llm-d inference scheduler does.

Each endpoint is scored from 0 to 1 by the share of the prompt's blocks it was sent, by its queue (waiting
requests, scaled between the shortest and the longest) and by its free KV cache; the highest weighted sum
wins, ties by chance. Source: the plugins `prefix-cache-scorer`, `queue-scorer` and
`kv-cache-utilization-scorer` of the Gateway API Inference Extension and llm-d, weights as in their default
configuration (prefix 3, queue 2, KV usage 2), `lruCapacityPerServer` 31,250 blocks. One replica is usual;
with several each has its own index.
"""

from __future__ import annotations

import random

from extproc.pool.reports import EngineReport
from extproc.pool.snapshot import Snapshot
from extproc.replay.arrival import Arrival
from extproc.replay.peers.load import one_of_the_highest
from extproc.replay.peers.match_index import Matching

_UNKNOWN = EngineReport(0, 0, 0.0)


class Scored(Matching):
    """Weights of the three scores; `capacity` in blocks per endpoint."""

    reads_reports = True

    def __init__(
        self, prefix: float = 3.0, queue: float = 2.0, kv_usage: float = 2.0, capacity: int = 31_250
    ) -> None:
        super().__init__(capacity)
        self._weights = (prefix, queue, kv_usage)
        self._reports: dict[str, EngineReport] = {}

    def reported(self, address: str, report: EngineReport, now: float) -> None:
        """As in `Policy`."""
        self._reports[address] = report

    def pick(self, request: Arrival, endpoints: Snapshot, now: float, draw: random.Random) -> str:
        """As in `Policy`."""
        keys = request.keys.keys
        prefix, queue, kv_usage = self._weights
        reports = [self._reports.get(address, _UNKNOWN) for address in endpoints.addresses]
        shortest = min(report.waiting for report in reports)
        spread = max(report.waiting for report in reports) - shortest
        count = max(1, len(keys))
        scores = []
        for match, report in zip(self.matches(keys, endpoints), reports, strict=True):
            idle = 1 - (report.waiting - shortest) / spread if spread else 1.0
            scores.append(prefix * (match / count) + queue * idle + kv_usage * (1 - report.kv_usage))
        return self.send(keys, endpoints.addresses[one_of_the_highest(scores, draw)])
