"""Events: one about the endpoint whenever a condition of it is another than before."""

from __future__ import annotations

from collections.abc import Iterator

from cacheprep.api import Endpoint
from cacheprep.api.conditions import Reason, reason_named
from cacheprep.plan.actions import Event
from cacheprep.plan.conditions import Changes
from cacheprep.plan.draft import Draft
from cacheprep.plan.observed import Observed

_WARNINGS = frozenset(
    {
        Reason.INVALID_REQUEST,
        Reason.ACCESS_DENIED,
        Reason.SOURCE_UNAVAILABLE,
        Reason.SOURCE_CHANGED,
        Reason.INTEGRITY_MISMATCH,
        Reason.INSUFFICIENT_CAPACITY,
        Reason.DEFECT,
        Reason.NODES_FAILED,
        Reason.JOB_PENDING,
        Reason.AGENT_MISSING,
        Reason.AGENT_SILENT,
        Reason.GATE_TIMED_OUT,
        Reason.HOST_PATH_NOT_ALLOWED,
        Reason.NAME_TAKEN,
        Reason.PULL_FAILED,
        Reason.ARCHITECTURE_MISMATCH,
        Reason.DIGEST_MISMATCH,
        Reason.POD_SECURITY,
        Reason.RIGHT_MISSING,
        Reason.CLEANUP_TIMED_OUT,
    }
)


def tell(observed: Observed, changes: Changes, draft: Draft) -> None:
    """Write an Event about the endpoint for each transition."""
    for event in events_of(observed.endpoint, changes):
        draft.add(event)


def events_of(endpoint: Endpoint, changes: Changes) -> Iterator[Event]:
    """An Event about an endpoint for each of its transitions."""
    for one in changes.transitions:
        message = f"{one.type} is {one.status}: {one.message}"
        place = (endpoint.kind, endpoint.namespace, endpoint.name, endpoint.uid)
        warning = reason_named(one.reason) in _WARNINGS
        yield Event(*place, warning, one.reason, message, f"{one.type} has changed")
