"""Why a cache is not there: the reasons, which are also the exit codes of the `cacheprep` command."""

from __future__ import annotations

from enum import StrEnum


class Reason(StrEnum):
    """A named reason, its exit code, and whether the same request may succeed later without a change.

    Exit codes are part of the interface: a Job's podFailurePolicy tells reasons apart by them. 2 is what a
    wrong command line ends with as well, 130 what a shell says after Ctrl-C, and 1 is left for defects.
    """

    exit_code: int
    retriable: bool

    def __new__(cls, word: str, exit_code: int, retriable: bool) -> Reason:
        """A member from its row of the table below."""
        reason = str.__new__(cls, word)
        reason._value_ = word
        reason.exit_code = exit_code
        reason.retriable = retriable
        return reason

    INVALID_REQUEST = "InvalidRequest", 2, False
    """The request cannot be carried out as it is: a wrong name, a source without such a thing, a bad root."""
    ACCESS_DENIED = "AccessDenied", 3, False
    """The source refused these credentials, or the disk refused this user."""
    SOURCE_UNAVAILABLE = "SourceUnavailable", 4, True
    """The source does not answer, or not as it should, and did not after retries."""
    SOURCE_CHANGED = "SourceChanged", 5, False
    """The source has other content now than was listed; list it anew."""
    INTEGRITY_MISMATCH = "IntegrityMismatch", 6, True
    """Bytes are not those that the digest or size promised."""
    INSUFFICIENT_CAPACITY = "InsufficientCapacity", 7, True
    """The disk has not the room, counting what others reserved and what is kept for kubelet."""
    CANCELED = "Canceled", 130, True
    """Stopped by a signal, or by whoever asked."""


class Failure(Exception):  # noqa: N818 - the field says failure reason
    """What a request ends with when it does not succeed; `message` names field, value and remedy.

    `retry_after_s` is how many seconds the source asked to be left alone (HTTP's Retry-After), None if it
    did not say.
    """

    def __init__(self, reason: Reason, message: str, retry_after_s: float | None = None) -> None:
        super().__init__(message)
        self.reason = reason
        self.message = message
        self.retry_after_s = retry_after_s

    def __str__(self) -> str:
        return f"{self.reason}: {self.message}"

    def __reduce__(self) -> tuple[type[Failure], tuple[Reason, str, float | None]]:
        return Failure, (self.reason, self.message, self.retry_after_s)
