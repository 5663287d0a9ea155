"""How an endpoint is, on one screen: each target node, and what will be done next and why. Pure."""

from __future__ import annotations

from collections import Counter
from typing import NamedTuple

from cacheprep.api import ModelDataCacheConfig
from cacheprep.api.caches import NodeProgress
from cacheprep.api.conditions import Reason, reason_named
from cacheprep.plan.actions import Action, Apply, LabelNode, SetStatus
from cacheprep.plan.images import target_nodes, unfit_architectures
from cacheprep.plan.observed import Node, Observed
from cacheprep.plan.plan import plan
from cacheprep.plan.possession import entry, report, verified
from cacheprep.plan.progress import progress
from cacheprep.plan.settings import Settings
from cacheprep.plan.targets import why_not
from cacheprep.plan.versions import versions
from cacheprep.store.layout import State

UNKNOWN = "unknown"


class NodeLine(NamedTuple):
    """A target node; times are s since the epoch."""

    node: str
    state: str
    """As the store has it; `fetching` while a process does, `UNKNOWN` if no agent says it."""
    bytes_done: int
    bytes_total: int
    bytes_per_second: int | None
    """How fast it is being fetched; None if nothing fetches it."""
    eta_seconds: int | None
    verified_at: float | None
    reason: str
    """A reason of docs/model-cache.md; "" on a node that is ready."""
    message: str
    remedy: str
    next_attempt: float | None


class Step(NamedTuple):
    """Something that the controller will do."""

    what: str
    why: str


class Overview(NamedTuple):
    """An endpoint. `others` are reasons for which nodes are no targets, and how many they are."""

    kind: str
    namespace: str
    name: str
    phase: str
    cache: str
    key: str
    conditions: tuple[tuple[str, str, str, str], ...]
    """Type, status, reason and message of each."""
    nodes: tuple[NodeLine, ...]
    others: tuple[tuple[str, int], ...]
    steps: tuple[Step, ...]
    wake_at: float | None
    """When the controller looks again though nothing changes."""


def overview(observed: Observed, settings: Settings) -> Overview:
    """What is to be said of an endpoint.

    Args:
        observed: as the controller sees it.
        settings: of the operator, as far as they are known.
    """
    endpoint = observed.endpoint
    made = plan(observed, settings)
    which = versions(observed)
    cache = which.wanted or which.active
    spec = endpoint.spec.engine.template.spec
    wanted, unfit = target_nodes(observed), unfit_architectures(observed)
    kept_off = Counter(why for node in observed.nodes if (why := why_not(spec, node, unfit)))
    return Overview(
        kind=endpoint.kind,
        namespace=endpoint.namespace,
        name=endpoint.name,
        phase=endpoint.status.phase.value,
        cache=cache.name if cache is not None else "",
        key=(cache.status.key or "") if cache is not None else "",
        conditions=tuple(
            (one.type, one.status, one.reason, one.message) for one in endpoint.status.conditions
        ),
        nodes=_nodes(observed, cache, wanted, settings) if cache is not None else (),
        others=tuple(kept_off.most_common()),
        steps=tuple(step for action in made.actions if (step := _step(action)) is not None),
        wake_at=made.wake_at,
    )


def _nodes(
    observed: Observed, cache: ModelDataCacheConfig, wanted: tuple[Node, ...], settings: Settings
) -> tuple[NodeLine, ...]:
    lacking = {one.node: one for one in progress(observed, cache, wanted, settings)}
    total = cache.status.total_bytes or 0
    lines = []
    for node in wanted:
        found = entry(report(observed, node), cache)
        at = found.verified_at.timestamp() if found is not None and found.verified_at is not None else None
        one = lacking.get(node.name)
        if one is None or verified(observed, node, cache):
            lines.append(
                NodeLine(node.name, State.READY.value, total, total, None, None, at, "", "", "", None)
            )
            continue
        after = one.next_attempt.timestamp() if one.next_attempt is not None else None
        lines.append(
            NodeLine(
                node=node.name,
                state=_state(one),
                bytes_done=one.bytes_done,
                bytes_total=total,
                bytes_per_second=one.bytes_per_second,
                eta_seconds=one.eta_seconds,
                verified_at=at,
                reason=one.reason,
                message=one.message,
                remedy=reason_named(one.reason).remedy,
                next_attempt=after,
            )
        )
    return tuple(lines)


def _state(one: NodeProgress) -> str:
    if one.reason in (Reason.AGENT_SILENT, Reason.AGENT_MISSING):
        return UNKNOWN
    return "fetching" if one.bytes_per_second is not None else one.state.value


def _step(action: Action) -> Step | None:
    """Writing down what is known is no step."""
    match action:
        case SetStatus():
            return None
        case Apply():
            return Step(f"write {action.kind} {action.name}", action.why)
        case LabelNode():
            verb = "label" if action.value is not None else "unlabel"
            return Step(f"{verb} node {action.node}", action.why)
    word = type(action).__name__.lower()
    about = " ".join(str(getattr(action, name)) for name in ("kind", "name") if hasattr(action, name))
    return Step(f"{word} {about}".strip(), action.why)
