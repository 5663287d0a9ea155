"""What the API server refused, as conditions of the endpoint. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from cacheprep.api import Endpoint
from cacheprep.api.conditions import Condition, ConditionType, Reason
from cacheprep.api.model import JsonObject
from cacheprep.plan.conditions import Changes

_POD_SECURITY = "violates PodSecurity"
"""In the message of a refusal: k8s.io/pod-security-admission/admission."""

_TYPES = (ConditionType.POD_SECURITY_FORBIDDEN, ConditionType.FORBIDDEN)


class Refusal(NamedTuple):
    """A request that was refused (403), and the words of the API server."""

    message: str

    @property
    def type(self) -> ConditionType:
        """What it is about."""
        security = _POD_SECURITY in self.message
        return ConditionType.POD_SECURITY_FORBIDDEN if security else ConditionType.FORBIDDEN

    @property
    def reason(self) -> Reason:
        """Its reason."""
        security = self.type is ConditionType.POD_SECURITY_FORBIDDEN
        return Reason.POD_SECURITY if security else Reason.RIGHT_MISSING


class Told(NamedTuple):
    """A status with its refusals, and how their conditions have changed."""

    status: JsonObject
    changes: Changes


def status_with(endpoint: Endpoint, status: JsonObject, refusals: Iterable[Refusal], now: float) -> Told:
    """The status of an endpoint, with a condition for each kind of refusal; those of before are left out.

    Args:
        endpoint: as it was read.
        status: as it is to be written.
        refusals: of this time.
        now: Unix time, s.
    """
    changes = Changes(endpoint.status.conditions, endpoint.metadata.generation, now)
    for refusal in refusals:
        changes.set(refusal.type, True, refusal.reason, refusal.message)
    others = [one for one in status.get("conditions") or () if one["type"] not in _TYPES]
    said = [*others, *(condition.write() for condition in changes.conditions)]
    return Told({**status, "conditions": sorted(said, key=lambda one: str(one["type"]))}, changes)


def refused(conditions: Iterable[Condition]) -> bool:
    """Whether conditions tell of a refusal."""
    return any(condition.type in _TYPES for condition in conditions)
