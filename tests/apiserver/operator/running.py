"""A controller in the test's own process, which can be killed between any two actions."""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from typing import Any

from prometheus_client import CollectorRegistry

from cacheprep.controller.acting import Hand
from cacheprep.controller.controller import keep
from cacheprep.controller.metrics import ControllerMetrics
from cacheprep.controller.reconcile import Reconciler
from cacheprep.objects import Json
from cacheprep.plan.settings import Settings
from extproc.pool.discovery.kubernetes import Cluster

SETTINGS = Settings(first_retry_s=1.0, longest_retry_s=2.0)
"""As installed, but what failed is tried again while a test waits for it."""


class Mortal(Hand):
    """Dies before one of the next actions, or after it and before its answer is known."""

    def __init__(self, cluster: Cluster, draw: random.Random | None) -> None:
        super().__init__(cluster, time.time)
        self._draw = draw
        self._left = -1 if draw is None else draw.randrange(6)
        self.dead = asyncio.Event()
        self.done: list[Any] = []

    async def do(self, action: Any, *rest: Any) -> Json | None:
        if self._left == 0:
            if self._draw is not None and self._draw.random() < 0.5:
                await super().do(action, *rest)
            self.dead.set()
            await asyncio.Event().wait()
        self._left -= 1
        written = await super().do(action, *rest)
        self.done.append(action)
        return written


class Keeper:
    """The controller of a test, and what it has done."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._running: asyncio.Task[None] | None = None
        self.hand = Mortal(cluster, None)

    def start(self, draw: random.Random | None = None) -> None:
        """Anew, knowing nothing. With `draw` it will die soon."""
        self.hand = Mortal(self._cluster, draw)
        metrics = ControllerMetrics(CollectorRegistry())
        reconciler = Reconciler(self._cluster, self.hand, SETTINGS, metrics, time.monotonic, time.time)
        self._running = asyncio.create_task(keep(self._cluster, reconciler))

    async def kill(self) -> None:
        """Gone, whatever it was at."""
        if self._running is not None:
            self._running.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._running

    def check(self) -> None:
        """Fails with what ended it, if it has ended by itself."""
        if self._running is not None and self._running.done():
            self._running.result()
