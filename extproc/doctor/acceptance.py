"""What gateways say of the policies that they were given (Gateway API, GEP-713: `status.ancestors`)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from extproc.doctor.findings import Finding, error
from extproc.doctor.inventory import Json, entries, titled


def check(policies: Iterable[Json]) -> Iterator[Finding]:
    """Whether each policy is taken."""
    for policy in policies:
        yield from _of(policy, entries(policy, "status", "ancestors"), ("Accepted",))


def check_pool(pool: Json) -> Iterator[Finding]:
    """Whether an InferencePool is taken, and its picker found."""
    # Until a gateway uses it, an InferencePool of the extension's own controllers says Status/NotSupported.
    parents = [
        one
        for one in entries(pool, "status", "parents")
        if (one.get("parentRef") or {}).get("kind") != "Status"
    ]
    yield from _of(pool, parents, ("Accepted", "ResolvedRefs"))


def _of(item: Json, parents: list[Json], wanted: tuple[str, ...]) -> Iterator[Finding]:
    where = titled(item)
    if not parents:
        yield error(
            "not-taken-up",
            where,
            "no gateway has said anything of it",
            "see that what it names exists, and that the gateway's controller runs and has its kinds",
        )
        return
    said = dict.fromkeys(
        f"{condition['type']} is {condition['status']} ({condition.get('reason', '')}): "
        f"{condition.get('message', '')}"
        for parent in parents
        for condition in entries(parent, "conditions")
        if condition["type"] in wanted and condition["status"] != "True"
    )
    for words in said:
        yield error("not-accepted", where, words, "mend what the gateway says")
