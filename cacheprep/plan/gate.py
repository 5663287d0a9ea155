"""The gate: whether pods that load a cache may exist.

Once it was open for a cache it stays open: a node that is lost later must not take pods with it.
"""

from __future__ import annotations

from typing import NamedTuple

from cacheprep.api import ModelDataCacheConfig
from cacheprep.api.conditions import Reason
from cacheprep.api.model import seconds
from cacheprep.api.serving import CachePolicy, OnGateTimeout


class Gate(NamedTuple):
    """Whether it is open, and why."""

    open: bool
    reason: Reason
    message: str


def gate(
    policy: CachePolicy, cache: ModelDataCacheConfig, target: int, ready: int, now: float, *, was_open: bool
) -> Gate:
    """The gate of a cache.

    Args:
        policy: of the endpoint.
        cache: that the pods are to load.
        target: number of target nodes.
        ready: how many of these have it, verified.
        now: s since the epoch.
        was_open: pods that load this cache were allowed before.
    """
    if cache.status.key is None or cache.status.resolved_at is None:
        return Gate(False, Reason.RESOLVING, "the source is not listed yet")
    if policy.gate == "none":
        return Gate(True, Reason.NOT_GATED, "gate: none")
    if target == 0:
        return Gate(True, Reason.NO_TARGET_NODES, "no node is there that pods could be put on")
    wanted = target if policy.gate == "all" else min(policy.gate, target)
    said = f"{ready} of {target} target nodes are ready, {wanted} are wanted"
    if ready >= wanted:
        return Gate(True, Reason.ENOUGH_NODES_READY, said)
    if was_open:
        return Gate(True, Reason.ENOUGH_NODES_READY, f"{said}; it was open before, and stays open")
    waited = now - cache.status.resolved_at.timestamp()
    if waited >= seconds(policy.gate_timeout):
        if policy.on_gate_timeout is OnGateTimeout.OPEN:
            return Gate(True, Reason.GATE_TIMED_OUT, f"{said}; gateTimeout {policy.gate_timeout} is over")
        said += f"; gateTimeout {policy.gate_timeout} is over, and onGateTimeout: wait"
    return Gate(False, Reason.WAITING_FOR_NODES, said)
