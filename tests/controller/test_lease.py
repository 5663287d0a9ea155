"""Who may take a lease, by what was seen of it."""

from __future__ import annotations

from typing import Any

from cacheprep.controller.lease import LEASE_SECONDS, RENEW_SECONDS, RETRY_SECONDS, UNSEEN


def lease(holder: str | None, renewed: str = "2026-01-31T12:00:00.000000Z") -> dict[str, Any]:
    return {"spec": {"holderIdentity": holder, "renewTime": renewed}}


def test_a_lease_that_nobody_holds_is_free() -> None:
    assert UNSEEN.again({}, 0.0).free("me", 0.0)
    assert UNSEEN.again(lease(""), 0.0).free("me", 0.0)


def test_ones_own_lease_is_free() -> None:
    assert UNSEEN.again(lease("me"), 0.0).free("me", 0.0)


def test_anothers_lease_is_free_once_it_was_seen_unchanged_for_its_time() -> None:
    seen = UNSEEN.again(lease("other"), 100.0)
    for now in (101.0, 100.0 + LEASE_SECONDS - 0.1):
        seen = seen.again(lease("other"), now)
        assert not seen.free("me", now)
    assert seen.free("me", 100.0 + LEASE_SECONDS)


def test_by_ones_own_clock_whatever_time_the_holder_writes() -> None:
    long_ago = "1999-01-01T00:00:00.000000Z"
    assert not UNSEEN.again(lease("other", long_ago), 100.0).free("me", 101.0)


def test_each_renewal_begins_the_time_anew() -> None:
    seen = UNSEEN.again(lease("other"), 100.0)
    seen = seen.again(lease("other", "2026-01-31T12:00:02.000000Z"), 114.0)
    assert not seen.free("me", 120.0)


def test_the_holder_stops_before_another_may_begin() -> None:
    assert RENEW_SECONDS + RETRY_SECONDS < LEASE_SECONDS
