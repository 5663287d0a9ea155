"""When the metrics of each endpoint of a pool are read, and whether they are known.

An endpoint that has work is read each `interval`, an idle one each `idle_interval`, and one that fails ever
less often. Reads are spread: a new endpoint's first falls anywhere within an interval, and each interval is
shortened at random, so that neither endpoints nor replicas fall into step.

Known and unknown have hysteresis, since an engine under load misses a read now and then: `FAILURES` in a row
make an endpoint unknown, and then it takes `ANSWERS` in a row. This is what people are told; whether a report
still counts is decided by its age, in `reports`.

Pure: time (seconds, monotonic) and randomness are passed in.
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Collection, Iterable
from math import inf

FAILURES = 3
"""Reads that must fail in a row before an endpoint's metrics are said to be unknown, or unknown for another
reason than before."""
ANSWERS = 2
"""Reads that must then succeed in a row before they are said to be known again."""
LONGEST_BACK_OFF = 15.0
"""Seconds between reads of an endpoint that keeps failing, reached by doubling."""
JITTER = 0.1
"""An interval is shortened by up to this part of itself, at random."""


class _Endpoint:
    """What is remembered of one endpoint."""

    __slots__ = ("answers", "due", "failures", "idle", "known", "read_at", "reason", "said", "same")

    def __init__(self, due: float) -> None:
        self.due = due
        """When it is to be read; infinity while it is."""
        self.read_at = -inf
        """When it was read last, whatever came of it."""
        self.idle = False
        """Whether it had no requests when it was read last."""
        self.failures = 0
        self.answers = 0
        self.known: bool | None = None
        """None: not yet told either way."""
        self.reason = ""
        """Why the last read failed, and how often in a row for that reason."""
        self.same = 0
        self.said = ""
        """The reason that was told."""


class Cadence:
    """The reads of one pool's endpoints: `take_due` -> (`answered` or `failed`), again and again."""

    def __init__(self, interval: float, idle_interval: float, draw: random.Random) -> None:
        """Seconds between reads of an endpoint that has work, and of one that has none."""
        self._interval = interval
        self._idle_interval = idle_interval
        self._draw = draw
        self._endpoints: dict[str, _Endpoint] = {}
        self._queue: list[tuple[float, str]] = []
        """A heap. An entry whose time is not its endpoint's is a leftover."""

    @property
    def next_due(self) -> float:
        """When `take_due` will next have something to return; infinity: nothing is due until a read ends."""
        queue, endpoints = self._queue, self._endpoints
        while queue and not (queue[0][1] in endpoints and endpoints[queue[0][1]].due == queue[0][0]):
            heapq.heappop(queue)
        return queue[0][0] if queue else inf

    def known(self, address: str) -> bool | None:
        """Whether the endpoint's metrics are known, as it was told; None: not yet told, or no endpoint."""
        endpoint = self._endpoints.get(address)
        return None if endpoint is None else endpoint.known

    def set_addresses(self, addresses: Collection[str], now: float) -> None:
        """These are the endpoints now. New ones are read within an interval; others are forgotten."""
        wanted = set(addresses)
        for address in self._endpoints.keys() - wanted:
            del self._endpoints[address]
        for address in addresses:
            if address not in self._endpoints:
                self._endpoints[address] = _Endpoint(inf)
                self._plan(address, now + self._interval * self._draw.random())

    def change(self, interval: float, idle_interval: float, now: float) -> None:
        """How engines are read, or how often, has changed: each is read anew within an interval."""
        self._interval, self._idle_interval = interval, idle_interval
        for address, endpoint in self._endpoints.items():
            if endpoint.due != inf:
                self._plan(address, now + interval * self._draw.random())

    def take_due(self, now: float, most: int) -> list[str]:
        """At most `most` endpoints whose time has come, the earliest first. Each is being read from here on
        and not due again until `answered` or `failed`.
        """
        due: list[str] = []
        while len(due) < most and self.next_due <= now:
            _, address = heapq.heappop(self._queue)
            self._endpoints[address].due = inf
            due.append(address)
        return due

    def has_work(self, addresses: Iterable[str]) -> None:
        """Requests were sent to these endpoints: none of them waits for longer than `interval`."""
        for address in addresses:
            endpoint = self._endpoints.get(address)
            if endpoint is None or endpoint.failures or endpoint.due == inf:
                continue
            sooner = endpoint.read_at + self._interval
            if sooner < endpoint.due:
                self._plan(address, sooner)

    def again(self, address: str, now: float) -> None:
        """The endpoint's read came to nothing that counts: it is read anew within an interval."""
        if address in self._endpoints:
            self._plan(address, now + self._interval * self._draw.random())

    def answered(self, address: str, busy: bool, now: float) -> bool:
        """The endpoint's metrics were read. `busy`: it has requests. True: they are known *again*, after
        they were told to be unknown.
        """
        endpoint = self._endpoints.get(address)
        if endpoint is None:
            return False
        endpoint.failures = endpoint.same = 0
        endpoint.answers += 1
        endpoint.read_at = now
        again = endpoint.known is False
        unsure = again and endpoint.answers < ANSWERS
        if busy or unsure:
            wait = self._shortened(self._interval)
        elif endpoint.idle:
            wait = self._shortened(self._idle_interval)
        else:
            # Many become idle at once, at the start or when traffic ebbs: spread over the longer time.
            wait = self._interval + (self._idle_interval - self._interval) * self._draw.random()
        endpoint.idle = not busy
        self._plan(address, now + wait)
        if unsure:
            return False
        endpoint.known = True
        return again

    def failed(self, address: str, reason: str, now: float) -> bool:
        """The endpoint's metrics could not be read. True: from here on they are unknown, or unknown for
        another reason than was told.
        """
        endpoint = self._endpoints.get(address)
        if endpoint is None:
            return False
        endpoint.answers = 0
        endpoint.failures += 1
        endpoint.same = endpoint.same + 1 if reason == endpoint.reason else 1
        endpoint.reason = reason
        endpoint.read_at = now
        wait = self._interval * 2.0 ** min(max(0, endpoint.failures - FAILURES), 16)
        self._plan(address, now + self._shortened(min(wait, max(LONGEST_BACK_OFF, self._interval))))
        if endpoint.failures < FAILURES:
            return False
        if endpoint.known is False and (endpoint.same < FAILURES or reason == endpoint.said):
            return False
        endpoint.known = False
        endpoint.said = reason
        return True

    def _plan(self, address: str, due: float) -> None:
        self._endpoints[address].due = due
        heapq.heappush(self._queue, (due, address))

    def _shortened(self, seconds: float) -> float:
        return seconds * (1.0 - JITTER * self._draw.random())
