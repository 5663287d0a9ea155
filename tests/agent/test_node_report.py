"""What an agent says of its node, and when it says it again."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from cacheprep.agent.claims import Claims
from cacheprep.agent.disks import Disks, Found
from cacheprep.agent.report import Node, status_of, worth_writing, written
from cacheprep.api.caches import (
    HEARTBEAT_SECONDS,
    MOST_CACHES_OF_A_NODE,
    NodeCacheStatus,
    NodeModelCache,
    RootStatus,
)
from cacheprep.store.layout import State
from tests.agent.found import ROOT, found

AT = datetime(2026, 1, 31, 12, tzinfo=UTC)
NODE = Node("node-1", "uid-1", "boot-1")
NOBODY = Claims(frozenset(), frozenset(), frozenset())


def status(
    *caches: Found, after: float = 0, available: int = 500, node: Node = NODE, claims: Claims = NOBODY
) -> NodeCacheStatus:
    root = RootStatus(path=ROOT, usable=True, total_bytes=1000, available_bytes=available)
    disks = Disks((root,), caches, frozenset())
    return status_of(disks, node, claims, AT + timedelta(seconds=after), "0.1.0")


FETCHING = found("a", State.PARTIAL, bytes_done=100)


def test_what_was_never_written_is_written() -> None:
    assert worth_writing(None, status())


def test_nothing_is_written_while_nothing_changes() -> None:
    assert not worth_writing(status(found("a")), status(found("a"), after=HEARTBEAT_SECONDS - 1))


def test_but_what_is_said_never_gets_older_than_the_heartbeat() -> None:
    assert worth_writing(status(found("a")), status(found("a"), after=HEARTBEAT_SECONDS))


@pytest.mark.parametrize(
    "changed",
    [
        status(found("a"), after=1),
        status(found("a", State.UNMARKED, problem="x: modified"), after=1),
        status(after=1),
        status(FETCHING, found("b"), after=1),
        status(FETCHING, after=1, node=NODE._replace(boot_id="boot-2")),
        status(FETCHING, after=1, claims=NOBODY._replace(used=frozenset({("llm", "a" * 40)}))),
    ],
    ids=["ready", "damaged", "gone", "another", "reboot", "in use"],
)
def test_a_change_is_written_at_once(changed: NodeCacheStatus) -> None:
    assert worth_writing(status(FETCHING), changed)


@pytest.mark.parametrize(("done", "after", "told"), [(150, 30, True), (149, 30, False), (900, 29, False)])
def test_progress_is_told_after_30_s_and_5_percent(done: int, after: float, told: bool) -> None:
    now = status(found("a", State.PARTIAL, bytes_done=done), after=after)
    assert worth_writing(status(FETCHING), now) is told


def fetching(rate: int | None, after: float = 0) -> NodeCacheStatus:
    return status(found("a", State.PARTIAL, bytes_done=100, bytes_per_second=rate), after=after)


def test_that_somebody_fetches_is_told_at_once_and_how_fast_with_the_progress_only() -> None:
    assert worth_writing(fetching(None), fetching(5, after=1))
    assert worth_writing(fetching(5), fetching(None, after=1))
    assert not worth_writing(fetching(5), fetching(50, after=60))
    assert fetching(5).caches[0].bytes_per_second == 5


@pytest.mark.parametrize(("available", "told"), [(490, True), (491, False)])
def test_room_is_told_once_a_hundredth_of_the_disk_has_gone(available: int, told: bool) -> None:
    assert worth_writing(status(), status(available=available, after=30)) is told


def test_a_cache_that_a_pod_uses_is_in_use() -> None:
    used = NOBODY._replace(used=frozenset({("llm", "a" * 40)}))
    said = status(found("a"), found("b"), claims=used)
    assert [one.in_use for one in said.caches] == [True, False]


def test_of_too_many_caches_the_ready_ones_are_named() -> None:
    many = [found("a", State.UNMARKED)] * MOST_CACHES_OF_A_NODE
    said = status(*many, found("b"))
    assert len(said.caches) == MOST_CACHES_OF_A_NODE
    assert said.caches[0].key == "b" * 40


def test_the_object_goes_with_its_node() -> None:
    item, said = written(NODE, status(found("a")))
    assert item["metadata"]["ownerReferences"] == [
        {"apiVersion": "v1", "kind": "Node", "name": "node-1", "uid": "uid-1"}
    ]
    assert NodeModelCache.read(said).status == status(found("a"))
