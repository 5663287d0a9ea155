"""Which caches an agent may remove."""

from __future__ import annotations

import pytest

from cacheprep.agent.claims import ORPHAN_SECONDS, Claims, Place, removable, unclaimed

ROOT = "/opt/dlami/nvme"
LLAMA, QWEN = Place(ROOT, "llm", "a" * 40), Place(ROOT, "llm", "b" * 40)
ELSEWHERE = LLAMA._replace(namespace="other")
NOW = 10_000.0


def claims(
    wanted: tuple[Place, ...] = (), released: tuple[Place, ...] = (), used: tuple[Place, ...] = ()
) -> Claims:
    return Claims(frozenset(wanted), frozenset(released), frozenset((one.namespace, one.key) for one in used))


def gone(
    there: tuple[Place, ...], said: Claims, since: float = NOW, pressure: tuple[str, ...] = ()
) -> set[Place]:
    seen = unclaimed(there, said, dict.fromkeys(there, since), NOW)
    return {one.place for one in removable(there, said, seen, NOW, pressure=pressure)}


def test_a_released_cache_goes_and_a_wanted_one_stays() -> None:
    assert gone((LLAMA, QWEN), claims(wanted=(LLAMA,), released=(QWEN,))) == {QWEN}


def test_a_cache_that_two_endpoints_share_stays_when_one_releases_it() -> None:
    assert gone((LLAMA,), claims(wanted=(LLAMA,), released=(LLAMA,))) == set()


@pytest.mark.parametrize("pressure", [(), (ROOT,)])
def test_a_cache_that_a_pod_of_the_node_uses_stays_whatever_else_is_said(pressure: tuple[str, ...]) -> None:
    said = claims(released=(LLAMA,), used=(LLAMA,))
    assert gone((LLAMA,), said, since=0.0, pressure=pressure) == set()


def test_another_namespaces_claim_on_the_same_key_keeps_nothing_of_this_one() -> None:
    assert gone((LLAMA, ELSEWHERE), claims(wanted=(ELSEWHERE,), released=(LLAMA,))) == {LLAMA}


def test_what_nobody_claims_stays_for_15_min_and_then_goes() -> None:
    assert gone((LLAMA,), claims(), since=NOW - ORPHAN_SECONDS + 1) == set()
    assert gone((LLAMA,), claims(), since=NOW - ORPHAN_SECONDS) == {LLAMA}


def test_what_nobody_claims_goes_at_once_from_a_full_disk_and_only_there() -> None:
    other = LLAMA._replace(root="/mnt/other")
    assert gone((LLAMA, other), claims(), pressure=(ROOT,)) == {LLAMA}


def test_what_is_claimed_stays_on_a_full_disk() -> None:
    assert gone((LLAMA,), claims(wanted=(LLAMA,)), since=0.0, pressure=(ROOT,)) == set()


def test_the_time_begins_anew_when_a_cache_was_claimed_meanwhile() -> None:
    long_ago = {LLAMA: 0.0}
    assert unclaimed((LLAMA,), claims(wanted=(LLAMA,)), long_ago, NOW) == {}
    assert unclaimed((LLAMA,), claims(), {}, NOW) == {LLAMA: NOW}
