"""Conditions as they are to be written: the time of a transition stays until there is another one."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from cacheprep.api.conditions import Condition, ConditionType, Reason, Status
from cacheprep.api.model import MOST_MESSAGE, moment


class Transition(NamedTuple):
    """A condition that was not so before."""

    type: str
    status: Status
    reason: str
    message: str


class Changes:
    """Conditions of an object, while they are set anew. Those that are not set are left out."""

    def __init__(self, before: Iterable[Condition], generation: int, now: float) -> None:
        self._before = {condition.type: condition for condition in before}
        self._generation = generation
        self._now = moment(now)
        self._made: dict[str, Condition] = {}
        self.transitions: list[Transition] = []

    @property
    def conditions(self) -> tuple[Condition, ...]:
        """All that were set, by type."""
        return tuple(self._made[name] for name in sorted(self._made))

    def set(self, kind: ConditionType, true: bool | None, reason: Reason, message: str) -> None:
        """A condition is so, now; with `true` None it is not known. Where there is something to do about it,
        the message ends with that."""
        self._put(kind.value, _STATUSES[true], reason.value, _with_remedy(message, reason))

    def copy(self, of_another: Condition) -> None:
        """A condition is as that of another object."""
        self._put(of_another.type, of_another.status, of_another.reason, of_another.message)

    def before(self, kind: ConditionType) -> Condition | None:
        """The condition of this type as it was."""
        return self._before.get(kind.value)

    def _put(self, kind: str, status: Status, reason: str, message: str) -> None:
        before = self._before.get(kind)
        same = before is not None and before.status == status
        if before is None or (before.status, before.reason) != (status, reason):
            self.transitions.append(Transition(kind, status, reason, message))
        self._made[kind] = Condition(
            type=kind,
            status=status,
            reason=reason,
            message=message,
            observed_generation=self._generation,
            last_transition_time=before.last_transition_time if before and same else self._now,
        )


_MOST = MOST_MESSAGE - 64
"""Characters of a message. An Event has type and status of the condition before it."""
_STATUSES: Mapping[bool | None, Status] = {True: "True", False: "False", None: "Unknown"}


def _with_remedy(message: str, reason: Reason) -> str:
    if reason.nothing_to_do:
        return message[:_MOST]
    # Whatever is cut off, what to do is not.
    remedy = f". {reason.remedy}"
    return message.rstrip(".")[: _MOST - len(remedy)] + remedy
