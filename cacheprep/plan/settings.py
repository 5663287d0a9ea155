"""What the operator is set to, by whoever installs it. Times are seconds."""

from __future__ import annotations

from dataclasses import dataclass

from cacheprep.api.names import DEFAULT_ROOT


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Settings of the controller that rules go by."""

    image: str = "warmroute/cacheprep"
    """The image of `cacheprep`, for Jobs and init containers."""
    roots: tuple[str, ...] = (DEFAULT_ROOT,)
    """Where caches may be; `hostPath` of an object only chooses one."""
    downloads_at_once: int = 8
    """Nodes that read one source at once, in the whole cluster."""
    allow_shared_disk: bool = False
    """Let Jobs fill a root on the disk of the system, too. Pods on cold nodes may in any case."""
    first_retry_s: float = 60.0
    longest_retry_s: float = 3600.0
    job_kept_s: int = 7200
    """How long a Job stays after its end: longer than any wait for the next try, which is counted from it."""
    deadline_s: int = 24 * 3600
    """After which a fill Job is ended that has not come to an end."""
