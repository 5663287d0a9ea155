"""One endpoint after the other: observe, plan, carry out. Level-based; it remembers nothing that matters.

Endpoints take turns, and one plan is carried out at a time: so what two of them do at one source is counted,
and none goes by a view of the cluster from before the other's writes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from itertools import groupby

import aiohttp
import structlog

from cacheprep.controller.acting import Hand, Unreadable
from cacheprep.controller.metrics import ControllerMetrics
from cacheprep.controller.refusals import Refusal, Told, status_with
from cacheprep.controller.turns import RESYNC_SECONDS, Turns
from cacheprep.controller.world import Parent, World
from cacheprep.objects import CONFLICT, NOT_FOUND, UNDONE, Json, path
from cacheprep.plan.actions import (
    Action,
    Apply,
    Delete,
    Event,
    LabelNode,
    RecordDrift,
    RecordListing,
    SetStatus,
)
from cacheprep.plan.events import events_of
from cacheprep.plan.labels import orphans
from cacheprep.plan.observed import Observed
from cacheprep.plan.plan import Plan, plan
from cacheprep.plan.settings import Settings
from extproc.pool.discovery.kubernetes import FORBIDDEN, ApiError, Cluster

SEEN_SECONDS = 5.0
"""Longest wait until the watches bring what was written."""
_TERMINATING = "because it is being terminated"
"""In a refusal to create something: k8s.io/apiserver, admission/plugin/namespace/lifecycle."""
AT_ONCE = 16
"""Requests that are under way at once at most."""
STUCK_SECONDS = 1800.0
"""Carrying out one plan takes minutes where thousands of nodes are labelled, but not that long."""
_TAKEN = ("Deployment", "Service", "ConfigMap", "HorizontalPodAutoscaler")
"""Kinds of which an endpoint takes a name that somebody else may have."""

_log = structlog.get_logger(__name__)


class Reconciler:
    """Plans for all endpoints, and has them carried out.

    Args:
        cluster: where names are looked up.
        hand: what carries actions out.
        settings: of the operator.
        metrics: what is counted.
        now: monotonic time, s.
        wall: Unix time, s.
    """

    def __init__(
        self,
        cluster: Cluster,
        hand: Hand,
        settings: Settings,
        metrics: ControllerMetrics,
        now: Callable[[], float],
        wall: Callable[[], float],
    ) -> None:
        self._heard = asyncio.Event()
        self.world = World(self.changed, self._heard.set, wall)
        self._cluster = cluster
        self._hand = hand
        self._settings = settings
        self._metrics = metrics
        self._now = now
        self._wall = wall
        self._turns: Turns[Parent] = Turns()
        self._swept = float("-inf")
        self._looking_since: float | None = None

    def changed(self, parent: Parent) -> None:
        """Something changed that an endpoint's plan may go by."""
        self._turns.ask(parent, self._now())

    async def run(self) -> None:
        """Work until cancelled, once all is known."""
        while self.world.unknown:
            await self._heard.wait()
            self._heard.clear()
        _log.info("all is known", endpoints=len(self.world.parents), nodes=len(self.world.nodes.values))
        while True:
            self._metrics.endpoints.set(len(self.world.parents))
            if self.world.lost_caches or self._now() - self._swept >= RESYNC_SECONDS:
                await self._sweep()
            parent = self._turns.take(self._now())
            if parent is None:
                await self._hear(self._turns.next_at())
            else:
                self._looking_since = self._now()
                await self._look(parent)
                self._looking_since = None

    def stuck(self) -> str:
        """Why the controller should be started anew; "" if it should not."""
        since = self._looking_since
        if since is not None and self._now() - since > STUCK_SECONDS:
            return f"one endpoint was looked at for {self._now() - since:.0f} s"
        return ""

    async def _hear(self, until: float | None) -> None:
        """Wait until something changes, or this time (monotonic, s) or the next sweep has come."""
        sweep = max(self._swept, self._now() - RESYNC_SECONDS) + RESYNC_SECONDS
        wait = min(sweep, sweep if until is None else until) - self._now()
        with suppress(TimeoutError):
            async with asyncio.timeout(max(0.0, wait)):
                await self._heard.wait()
        self._heard.clear()

    async def _look(self, parent: Parent) -> None:
        observed = self.world.observed(parent, self._wall())
        if observed is None:
            self._turns.forget(parent)
            return
        try:
            started = self._now()
            made = plan(observed, self._settings)
            planning = self._now() - started
            self._metrics.planning.observe(planning)
            foreign = await self._foreign(observed, made.actions)
            if foreign:
                made = plan(replace(observed, foreign=foreign), self._settings)
            await self._carry_out(observed, made)
        except asyncio.CancelledError:
            raise
        except Exception as error:
            self._fail(parent, error)
            return
        wake = None if made.wake_at is None else self._now() + max(0.0, made.wake_at - self._wall())
        self._turns.looked(parent, planning, self._now(), wake)

    def _fail(self, parent: Parent, error: Exception) -> None:
        wait = self._turns.failed(parent, self._now())
        about = {**parent._asdict(), "again_in_seconds": wait, "error": str(error) or repr(error)}
        match error:
            case ApiError(status=status) if status == CONFLICT:
                kind = "conflict"
            case ApiError() | aiohttp.ClientError() | OSError():
                kind = "unreachable" if getattr(error, "status", 0) == 0 else "refused"
            case Unreadable():
                kind = "unreadable"
            case _:
                kind = "defect"
        self._metrics.failures.labels(kind).inc()
        if kind == "defect":
            # Others are to be kept whatever is wrong with this one.
            _log.exception("an endpoint cannot be planned for", **about)
        else:
            _log.warning("a plan could not be carried out", **about)

    async def _foreign(self, observed: Observed, actions: Iterable[Action]) -> frozenset[str]:
        """Names that a plan would take and that are somebody else's, as Service/llama."""
        found = set()
        for action in actions:
            if not isinstance(action, Apply) or action.kind not in _TAKEN or _is_ours(observed, action):
                continue
            where = path(action.kind, action.name, observed.endpoint.namespace)
            try:
                item = await self._cluster.send("GET", where)
            except ApiError as error:
                if error.status not in (NOT_FOUND, FORBIDDEN):
                    raise
                continue
            owners = item["metadata"].get("ownerReferences") or ()
            wanted = {owner["uid"] for owner in action.manifest["metadata"].get("ownerReferences") or ()}
            if not any(owner.get("uid") in wanted for owner in owners):
                found.add(f"{action.kind}/{action.name}")
        return frozenset(found)

    async def _carry_out(self, observed: Observed, made: Plan) -> None:
        endpoint = observed.endpoint
        changed: dict[tuple[str, str], str] = {}
        refusals: list[Refusal] = []
        status: SetStatus | None = None
        events: list[Event] = []
        for together in _steps(made.actions):
            action = together[0]
            if isinstance(action, SetStatus) and (action.kind, action.name) == (endpoint.kind, endpoint.name):
                # Last: it tells what of the rest was refused.
                status = action
                continue
            if isinstance(action, Event):
                events.append(action)
                continue
            if refusals and isinstance(action, Delete):
                # What was to take its place may be what was refused.
                continue
            try:
                written, *_ = await asyncio.gather(*(self._do(observed, one) for one in together))
            except ApiError as error:
                if error.status != FORBIDDEN:
                    raise
                # In a namespace that goes nothing new is wanted.
                if _TERMINATING not in str(error):
                    refusals.append(Refusal(str(error)))
                continue
            if written is not None:
                changed[written["kind"], written["metadata"]["name"]] = written["metadata"]["resourceVersion"]
        version = changed.get((endpoint.kind, endpoint.name), endpoint.metadata.resource_version)
        told = status_with(
            endpoint, endpoint.status.write() if status is None else status.status, refusals, observed.now
        )
        said = await self._say(observed, status, told, version)
        if said is not None:
            changed[endpoint.kind, endpoint.name] = said["metadata"]["resourceVersion"]
        # After the status: one that was not written tells of the same transition again.
        await self._tell(observed, [*events, *events_of(endpoint, told.changes)])
        await self._seen(endpoint.namespace, made.actions, changed)

    async def _tell(self, observed: Observed, events: Iterable[Event]) -> None:
        """Write Events. One that cannot be written is lost: what it tells is in the status."""
        for event in events:
            try:
                await self._do(observed, event)
            except UNDONE as error:
                _log.warning("an Event is not written", reason=event.reason, error=str(error) or repr(error))

    async def _say(
        self, observed: Observed, planned: SetStatus | None, told: Told, version: str
    ) -> Json | None:
        endpoint = observed.endpoint
        if told.status == endpoint.status.write():
            return None
        why = planned.why if planned is not None else "what is refused has changed"
        return await self._do(
            observed, SetStatus(endpoint.kind, endpoint.namespace, endpoint.name, version, told.status, why)
        )

    async def _do(self, observed: Observed, action: Action) -> Json | None:
        name = type(action).__name__
        _log.info("action", action=name, endpoint=observed.endpoint.name, **_about(action))
        try:
            written = await self._hand.do(
                action,
                observed.endpoint,
                lambda cache: self.world.data_cache(observed.endpoint.namespace, cache),
                self.world.job_pods,
            )
        except Unreadable:
            if isinstance(action, RecordListing | RecordDrift):
                # Another Job prints it again.
                gone = Delete("Job", action.namespace, action.job, "what it printed cannot be had")
                await self._do(observed, gone)
            raise
        self._metrics.actions.labels(name).inc()
        return written

    async def _seen(
        self, namespace: str, actions: Iterable[Action], changed: Mapping[tuple[str, str], str]
    ) -> None:
        """Wait until what was written is in view: Jobs, by which downloads are counted, and versions of
        objects of ours, without which the next write would be refused."""
        jobs = {one.name for one in actions if isinstance(one, Apply) and one.kind == "Job"}

        def missing() -> bool:
            if jobs - {job.name for job in self.world.jobs.values if job.namespace == namespace}:
                return True
            views = (
                (self.world.version(kind, namespace, name), new) for (kind, name), new in changed.items()
            )
            # Versions are numbers that rise: Kubernetes API concepts, "Resource versions".
            return any(view and int(view) < int(new) for view, new in views)

        with suppress(TimeoutError):
            async with asyncio.timeout(SEEN_SECONDS):
                while missing():
                    self._heard.clear()
                    await self._heard.wait()

    async def _sweep(self) -> None:
        """Remove labels of caches that are no more."""
        self._swept, self.world.lost_caches = self._now(), False
        for action in orphans(self.world.nodes.values, self.world.cache_uids):
            try:
                await self._hand.label(action)
            except UNDONE as error:
                _log.warning("a label stays", node=action.node, label=action.label, error=str(error))


def _steps(actions: Iterable[Action]) -> Iterator[tuple[Action, ...]]:
    """Actions in their order; labels of nodes, of which there may be thousands, some at once."""
    for labels, several in groupby(actions, lambda action: isinstance(action, LabelNode)):
        run = tuple(several)
        step = AT_ONCE if labels else 1
        yield from (run[at : at + step] for at in range(0, len(run), step))


def _is_ours(observed: Observed, action: Apply) -> bool:
    if action.kind == "Deployment":
        return observed.deployment is not None and observed.deployment.ours
    return observed.object(action.kind, action.name) is not None


def _about(action: Action) -> dict[str, str]:
    """What an action is about, for the log."""
    if isinstance(action, Apply):
        return {"kind": action.kind, "name": action.name, "why": action.why}
    fields = ("kind", "name", "node", "label", "job", "why")
    return {name: str(getattr(action, name)) for name in fields if hasattr(action, name)}
