"""Caches as an agent finds them, made up."""

from __future__ import annotations

from typing import Any

from cacheprep.agent.claims import Place
from cacheprep.agent.disks import Found
from cacheprep.store.inventory import Entry
from cacheprep.store.layout import Layout, State

ROOT = "/opt/dlami/nvme"
_EMPTY: dict[str, Any] = dict.fromkeys(("source", "revision", "verification", "path", "problem"), "")


def found(key: str, state: State = State.READY, **said: Any) -> Found:
    """A cache of namespace llm; `key` is one hex digit, repeated."""
    fields: dict[str, Any] = {
        **_EMPTY,
        "bytes": 1000,
        "bytes_done": 1000,
        "allocated": 1000,
        "files": 3,
        "verified_at": 0 if state is State.READY else None,
        "used_at": None,
        "in_use": False,
        "busy": False,
        **said,
    }
    return Found(Place(ROOT, "llm", key * 40), Entry(key=key * 40, state=state, **fields), Layout(ROOT))
