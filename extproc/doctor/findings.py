"""What a check says."""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple


class Severity(StrEnum):
    """How bad it is."""

    ERROR = "error"
    """Requests are refused, or not routed by the router, or a client can do what it must not; or it cannot be
    told whether they are."""
    WARNING = "warning"
    """It works, and will not in a busy minute, when something fails, or as well as it could."""


class Finding(NamedTuple):
    """One thing that is wrong."""

    name: str
    """Which check, always the same for the same fault: `pin-not-stripped`."""
    severity: Severity
    object: str
    """Where: `Gateway llm/llm`."""
    what: str
    remedy: str


def error(name: str, where: str, what: str, remedy: str) -> Finding:
    """A finding of that severity."""
    return Finding(name, Severity.ERROR, where, what, remedy)


def warning(name: str, where: str, what: str, remedy: str) -> Finding:
    """A finding of that severity."""
    return Finding(name, Severity.WARNING, where, what, remedy)
