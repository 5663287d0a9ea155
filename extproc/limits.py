"""What the operating system grants this process: file descriptors, and a core file or none."""

from __future__ import annotations

import resource

import structlog

FEW_DESCRIPTORS = 1024
"""A router needs some for itself, one for each connection of a gateway (one per Envoy worker), for each
engine that it asks for its load, and for each replica."""

_log = structlog.get_logger(__name__)


def prepare() -> None:
    """Raise the soft limit of file descriptors to the hard one, and have no core file written.

    A core holds the process's memory, and with it the prompts that pass.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        # Some systems grant less than they promise.
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        except (OSError, ValueError):
            pass
        else:
            soft = hard
    if soft != resource.RLIM_INFINITY and soft < FEW_DESCRIPTORS:
        _log.warning(
            "few file descriptors; raise the hard limit (ulimit -Hn, LimitNOFILE)",
            limit=soft,
            wanted=FEW_DESCRIPTORS,
        )
    # 1 and not 0: the one limit that is also kept where cores are piped to a program (core(5)).
    _, hard = resource.getrlimit(resource.RLIMIT_CORE)
    least = 1 if hard == resource.RLIM_INFINITY else min(1, hard)
    resource.setrlimit(resource.RLIMIT_CORE, (least, hard))
