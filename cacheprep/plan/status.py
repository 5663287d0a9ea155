"""Status of objects of the API: written when it differs, and of progress alone not often."""

from __future__ import annotations

from collections.abc import Iterable

from cacheprep.api import InferenceEndpointConfig, JumpStartModel, ModelDataCacheConfig, ModelImageCache
from cacheprep.api.model import Model
from cacheprep.plan.actions import RecordDrift, RecordListing, SetStatus
from cacheprep.plan.draft import Draft

Reported = InferenceEndpointConfig | JumpStartModel | ModelDataCacheConfig | ModelImageCache


def write_status(of: Reported, status: Model, why: str, draft: Draft) -> None:
    """Write the status of an object, if it is another one, and not about to be recorded anyhow."""
    recorded = any(
        isinstance(action, RecordListing | RecordDrift)
        and (action.namespace, action.cache) == (of.namespace, of.name)
        for action in draft.actions
    )
    if status != of.status and not recorded:
        version = of.metadata.resource_version
        draft.add(SetStatus(of.kind, of.namespace, of.name, version, status.write(), why))


def told(text: Iterable[str], most: int = 3, separator: str = ", ") -> str:
    """The first of several, and how many more there are."""
    several = list(text)
    more = f" and {len(several) - most} more" if len(several) > most else ""
    return separator.join(several[:most]) + more
