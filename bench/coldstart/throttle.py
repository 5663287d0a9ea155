"""What a container may send per second, by the kernel's token bucket on its way out; and what it did send."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from e2e.cluster import packages
from e2e.cluster.command import run

DEVICE = "eth0"
FRAME, PAYLOAD = 1514, 1448
"""Bytes of a full frame on a link with an MTU of 1500, and what TCP with timestamps carries in it. The bucket
counts frames, people count what arrives."""
BURST = 1 << 20
"""Bytes that may go at once: more than the 64 KiB that the kernel hands down in one piece, and 10 ms at the
lowest rate of interest."""
EDGE = 0.05
"""Part of a transfer at each end that is left out when its rate is measured: connections begin and end
there."""
EVERY = 0.05
"""Seconds between two readings."""


@dataclass(frozen=True)
class Link:
    """The way out of a container on this machine, known by its first process."""

    pid: int

    def limit(self, rate: float | None) -> None:
        """Let through `rate` bytes of payload per second, or all with None. Raises `ClusterError`."""
        packages.need({"tc": "iproute2", "nsenter": "util-linux"})
        inside = ("nsenter", f"--net=/proc/{self.pid}/ns/net", "tc", "qdisc")
        if rate is None:
            # `del` fails where there is none; `replace` by the device's own does not.
            run(*inside, "replace", "dev", DEVICE, "root", "pfifo_fast")
            return
        bits = round(8 * rate * FRAME / PAYLOAD)
        bucket = ("tbf", "rate", f"{bits}bit", "burst", str(BURST), "latency", "50ms")
        run(*inside, "replace", "dev", DEVICE, "root", *bucket)

    def sent(self) -> int:
        """Bytes that have gone out since the container began. Counted where frames are not cut yet, so that
        headers are some thousandths of it."""
        lines = Path(f"/proc/{self.pid}/net/dev").read_text().splitlines()
        (fields,) = (line.split() for line in lines if line.split()[0] == f"{DEVICE}:")
        return int(fields[9])


class Reading(NamedTuple):
    """How much had gone out at a moment (monotonic, s)."""

    at: float
    sent: int


@dataclass
class Transfer:
    """What went out of a link while it was watched."""

    readings: list[Reading] = field(default_factory=list)

    @property
    def sent(self) -> int:
        """Bytes."""
        return self.readings[-1].sent - self.readings[0].sent if self.readings else 0

    @property
    def rate(self) -> float:
        """Bytes per second between the first and the last twentieth of them; 0 if nothing went out."""
        return rate(self.readings)


def rate(readings: Sequence[Reading]) -> float:
    """Bytes per second of a transfer without its edges."""
    if len(readings) < 2 or readings[-1].sent <= readings[0].sent:
        return 0.0
    first, last = readings[0].sent, readings[-1].sent
    low, high = first + EDGE * (last - first), last - EDGE * (last - first)
    inside = [one for one in readings if low <= one.sent <= high]
    if len(inside) < 2:
        return 0.0
    return (inside[-1].sent - inside[0].sent) / (inside[-1].at - inside[0].at)


@asynccontextmanager
async def watched(links: Iterable[Link]) -> AsyncIterator[list[Transfer]]:
    """Read what goes out of each link until the end of the context; one `Transfer` for each."""
    pairs = [(link, Transfer()) for link in links]

    def read() -> None:
        for link, transfer in pairs:
            transfer.readings.append(Reading(time.monotonic(), link.sent()))

    async def keep() -> None:
        while True:
            read()
            await asyncio.sleep(EVERY)

    reading = asyncio.create_task(keep(), name="links")
    try:
        yield [transfer for _, transfer in pairs]
    finally:
        reading.cancel()
        await asyncio.gather(reading, return_exceptions=True)
        read()
