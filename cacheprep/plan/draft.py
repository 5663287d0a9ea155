"""A plan while its rules write to it."""

from __future__ import annotations

from cacheprep.api.model import JsonObject
from cacheprep.api.names import APPLIED
from cacheprep.plan.actions import Action, Apply
from cacheprep.plan.identity import checksum


class Draft:
    """Actions in their order, and when to plan again though nothing has changed."""

    def __init__(self, now: float) -> None:
        self._now = now
        self.actions: list[Action] = []
        self.wake_at: float | None = None

    def add(self, action: Action) -> None:
        """To be done after what was added before."""
        self.actions.append(action)

    def wake(self, at: float) -> None:
        """Plan again at this time (s since the epoch), or before."""
        if at > self._now and (self.wake_at is None or at < self.wake_at):
            self.wake_at = at

    def apply(self, manifest: JsonObject, applied: str, why: str) -> None:
        """Write an object unless what was written last, by its annotation `APPLIED`, is the same."""
        stamped = stamp(manifest)
        if stamped["metadata"]["annotations"][APPLIED] != applied:
            self.add(Apply(stamped, why))


def stamp(manifest: JsonObject) -> JsonObject:
    """The object with the annotation `APPLIED`."""
    metadata = manifest["metadata"]
    annotations = {**metadata.get("annotations", {}), APPLIED: checksum(manifest, 16)}
    return {**manifest, "metadata": {**metadata, "annotations": annotations}}
