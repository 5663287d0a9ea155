"""Conditions as they are to be written: the time of a transition stays until there is another one."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime
from typing import NamedTuple

from cacheprep.api.conditions import Condition, ConditionType, Reason
from cacheprep.api.model import MOST_MESSAGE


class Transition(NamedTuple):
    """A condition that was not so before."""

    type: ConditionType
    true: bool
    reason: Reason
    message: str


class Changes:
    """Conditions of an object, while they are set anew. Those that are not set are left out."""

    def __init__(self, before: Iterable[Condition], generation: int, now: float) -> None:
        self._before = {condition.type: condition for condition in before}
        self._generation = generation
        self._now = datetime.fromtimestamp(int(now), UTC)
        self._made: dict[str, Condition] = {}
        self.transitions: list[Transition] = []

    @property
    def conditions(self) -> tuple[Condition, ...]:
        """All that were set, by type."""
        return tuple(self._made[name] for name in sorted(self._made))

    def set(self, kind: ConditionType, true: bool, reason: Reason, message: str) -> None:
        """A condition is so, now."""
        status = "True" if true else "False"
        before = self._before.get(kind.value)
        same = before is not None and before.status == status
        if before is None or (before.status, before.reason) != (status, reason.value):
            self.transitions.append(Transition(kind, true, reason, message))
        self._made[kind.value] = Condition(
            type=kind.value,
            status="True" if true else "False",
            reason=reason.value,
            message=message[:MOST_MESSAGE],
            observed_generation=self._generation,
            last_transition_time=before.last_transition_time if before and same else self._now,
        )
