"""Leadership by a Lease of coordination.k8s.io: of the controller's replicas one acts.

Whoever holds the lease renews it. Another takes it once it has not seen it renewed for `LEASE_SECONDS` of its
own monotonic clock, so clocks of machines need not agree. The holder stops acting `RENEW_SECONDS` after its
last renewal was sent, which is earlier. The client library's election is not used because it goes on acting
for as long as one renewal hangs, and goes by the time of day.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import datetime
from typing import Any, NamedTuple

import structlog

from cacheprep.objects import CONFLICT, NOT_FOUND, UNDONE, Json, path
from extproc.pool.discovery.kubernetes import ApiError, Cluster

LEASE_SECONDS, RENEW_SECONDS, RETRY_SECONDS = 15, 10.0, 2.0
"""As kube-controller-manager and kube-scheduler have them (--leader-elect-lease-duration and following)."""

_log = structlog.get_logger(__name__)


class Sight(NamedTuple):
    """What a replica last saw of a lease, and since when (monotonic, s) it has been the same."""

    holder: str
    renewed: str
    since: float

    def again(self, lease: Json, now: float) -> Sight:
        """After the lease was read at `now`."""
        spec = lease.get("spec") or {}
        holder, renewed = str(spec.get("holderIdentity") or ""), str(spec.get("renewTime") or "")
        return self if (holder, renewed) == self[:2] else Sight(holder, renewed, now)

    def free(self, identity: str, now: float) -> bool:
        """Whether `identity` may take the lease: nobody else holds it, or has renewed it for long enough."""
        return self.holder in ("", identity) or now - self.since >= LEASE_SECONDS


UNSEEN = Sight("", "-", 0.0)


class Lost(Exception):  # noqa: N818 - says what has happened
    """The lease is another's, or could not be renewed in time."""


class Lease:
    """A lease of this name, for one replica.

    Args:
        cluster: where.
        namespace: of the lease.
        name: of the lease.
        identity: of this replica; unique.
        now: monotonic time, s.
        wall: time of day, UTC; for people who read the lease.
    """

    def __init__(
        self,
        cluster: Cluster,
        namespace: str,
        name: str,
        identity: str,
        now: Callable[[], float],
        wall: Callable[[], datetime],
    ) -> None:
        self._cluster = cluster
        self._namespace = namespace
        self._name = name
        self._identity = identity
        self._now = now
        self._wall = wall
        self._sight = UNSEEN
        self._renewed_at: float | None = None

    async def lead(self, work: Callable[[], Awaitable[None]]) -> None:
        """Wait for the lease, then `work` while it is held; it is given back when the work ends.

        Raises:
            Lost: the work was stopped, because another may have the lease.
        """
        await self._acquire()
        _log.info("leading", lease=self._name, identity=self._identity)
        working = asyncio.ensure_future(work())
        keeping = asyncio.create_task(self._keep(), name="lease")
        try:
            await asyncio.wait((working, keeping), return_when=asyncio.FIRST_COMPLETED)
            if keeping.done():
                keeping.result()
            await working
        finally:
            for task in (working, keeping):
                task.cancel()
            await asyncio.gather(working, keeping, return_exceptions=True)
            await self._give_back()

    async def _acquire(self) -> None:
        while True:
            if await self._try():
                return
            await asyncio.sleep(RETRY_SECONDS)

    async def _keep(self) -> None:
        while True:
            await asyncio.sleep(RETRY_SECONDS)
            if not await self._try() and self._sight.holder not in ("", self._identity):
                raise Lost(f"lease {self._name}: is now held by {self._sight.holder}")
            if self._renewed_at is None or self._now() - self._renewed_at >= RENEW_SECONDS:
                raise Lost(f"lease {self._name}: could not be renewed for {RENEW_SECONDS:.0f} s")

    async def _try(self) -> bool:
        """Take or renew it; False if that did not succeed, for whatever reason."""
        started = self._now()
        since = started if self._renewed_at is None else self._renewed_at
        left = since + RENEW_SECONDS - started
        try:
            async with asyncio.timeout(max(left, 0.1)):
                held = await self._write(started)
        except UNDONE as error:
            _log.warning("the lease cannot be had", lease=self._name, error=str(error) or repr(error))
            return False
        if held:
            self._renewed_at = started
        return held

    async def _write(self, now: float) -> bool:
        lease = await self._read()
        if lease is None:
            made = {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease"}
            metadata = {"name": self._name, "namespace": self._namespace}
            return await self._store("POST", {**made, "metadata": metadata, "spec": self._spec({})}, "")
        self._sight = self._sight.again(lease, now)
        if not self._sight.free(self._identity, now):
            return False
        # With the resourceVersion that was read: whoever writes second is refused.
        return await self._store("PUT", {**lease, "spec": self._spec(lease.get("spec") or {})}, self._name)

    async def _read(self) -> Json | None:
        try:
            return await self._cluster.send("GET", path("Lease", self._name, self._namespace))
        except ApiError as error:
            if error.status != NOT_FOUND:
                raise
            return None

    async def _store(self, method: str, lease: Json, name: str) -> bool:
        try:
            written = await self._cluster.send(method, path("Lease", name, self._namespace), lease)
        except ApiError as error:
            if error.status != CONFLICT:
                raise
            return False
        self._sight = self._sight.again(written, self._now())
        return True

    def _spec(self, before: Json) -> dict[str, Any]:
        now = self._wall().strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        ours = before.get("holderIdentity") == self._identity
        return {
            "holderIdentity": self._identity,
            "leaseDurationSeconds": LEASE_SECONDS,
            "acquireTime": before.get("acquireTime", now) if ours else now,
            "renewTime": now,
            "leaseTransitions": int(before.get("leaseTransitions") or 0) + (not ours),
        }

    async def _give_back(self) -> None:
        """So that the next replica need not wait until it has run out."""
        try:
            async with asyncio.timeout(RETRY_SECONDS):
                lease = await self._read()
                if lease is not None and (lease.get("spec") or {}).get("holderIdentity") == self._identity:
                    spec = {**lease["spec"], "holderIdentity": ""}
                    await self._store("PUT", {**lease, "spec": spec}, self._name)
        except UNDONE as error:
            _log.info("the lease runs out by itself", lease=self._name, error=str(error) or repr(error))
