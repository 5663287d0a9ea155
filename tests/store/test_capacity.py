"""How much a root may still take, and what goes to make room."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cacheprep.store import mounts
from cacheprep.store.capacity import Disk, Limits, measure, need, room
from cacheprep.store.evict import choose
from cacheprep.store.inventory import Entry
from cacheprep.store.layout import State

GB = 10**9
disks = st.builds(
    Disk, st.integers(0, 10**13), st.integers(0, 10**13), st.just(4096), st.none() | st.integers(0, 10**9)
)
limits = st.builds(Limits, st.floats(0.01, 1), st.integers(0, 10**12))


def test_fullness_is_what_df_says() -> None:
    # df leaves what the file system keeps for root out of both parts: 50 of 100 GB here, not of 105.
    assert Disk(50 * GB, 50 * GB, 4096, None).fullness() == 0.5
    assert Disk(50 * GB, 50 * GB, 4096, None).fullness(more=30 * GB) == pytest.approx(0.8)


@given(disks, limits, st.integers(0, 10**12))
def test_whatever_fits_keeps_the_disk_within_its_limits(disk: Disk, limit: Limits, outstanding: int) -> None:
    left = room(disk, limit, outstanding)
    if left > 0:
        assert disk.fullness(more=left + outstanding) <= limit.watermark + 1e-9
        assert disk.available - left - outstanding >= limit.reserve


@given(disks, limits, st.lists(st.integers(0, 10**12), max_size=10))
def test_reservations_made_one_after_the_other_never_overcommit(
    disk: Disk, limit: Limits, wanted: list[int]
) -> None:
    taken = 0
    for amount in wanted:
        if amount <= room(disk, limit, taken):
            taken += amount
    assert taken <= max(0, room(disk, limit, 0))


@given(st.lists(st.integers(0, 10**9), max_size=50), st.integers(1, 20))
def test_a_cache_needs_whole_blocks(sizes: list[int], directories: int) -> None:
    found = need(sizes, directories, 4096)
    assert found.bytes >= sum(sizes)
    assert found.inodes >= len(sizes) + directories


def test_a_real_disk_is_measured_as_df_does(tmp_path: Path) -> None:
    disk = measure(str(tmp_path))
    assert disk.used > 0
    assert disk.available > 0


MOUNTINFO = """\
22 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw
30 22 259:1 / /nvme rw,noatime shared:2 - xfs /dev/nvme1n1 rw
31 30 0:40 / /nvme/over\\040there rw - nfs4 server:/export rw
32 22 0:41 / /fsx rw - lustre 10.0.0.1@tcp:/fsx rw
33 22 0:42 / /ro ro - ext4 /dev/vdb rw
34 22 259:2 / /nvme rw - btrfs /dev/nvme2n1 ro
nonsense
"""


@pytest.mark.parametrize(
    ("path", "point", "kind"),
    [
        ("/", "/", "ext4"),
        ("/nvmeX", "/", "ext4"),
        ("/nvme", "/nvme", "btrfs"),
        ("/nvme/models", "/nvme", "btrfs"),
        ("/nvme/over there/x", "/nvme/over there", "nfs4"),
        ("/fsx/a", "/fsx", "lustre"),
    ],
)
def test_the_mount_of_a_path_is_the_longest_and_the_last(path: str, point: str, kind: str) -> None:
    found = mounts.mount_of(path, mounts.parse(MOUNTINFO))
    assert found is not None
    assert (found.point, found.kind) == (point, kind)


def test_read_only_is_seen_on_the_mount_and_on_the_file_system() -> None:
    table = {mount.point: mount.read_only for mount in mounts.parse(MOUNTINFO)}
    assert table == {
        "/": False,
        "/nvme": True,
        "/nvme/over there": False,
        "/fsx": False,
        "/ro": True,
    }


def entry(key: str, used_at: int | None, size: int = 10, **changes: object) -> Entry:
    made = Entry(key, State.READY, "", "", "", size, size, size, 1, 1, used_at, False, False, "/x", "")
    return made._replace(**changes)  # type: ignore[arg-type]


def test_the_least_recently_used_go_first_and_no_more_than_it_takes() -> None:
    caches = [entry("a", 300), entry("b", 100), entry("c", 200)]
    assert choose(caches, 15, now=10_000) == ["b", "c"]
    assert choose(caches, 10, now=10_000) == ["b"]


def test_nothing_goes_if_all_that_may_go_would_not_do() -> None:
    assert choose([entry("a", 1), entry("b", 2)], 21, now=10_000) == []


def test_what_is_in_use_being_worked_on_wanted_or_just_asked_for_stays() -> None:
    caches = [
        entry("used", 1, in_use=True),
        entry("busy", 1, busy=True),
        entry("kept", 1),
        entry("young", 9_990),
        entry("partial", 1, state=State.PARTIAL),
        entry("may go", 50),
    ]
    assert choose(caches, 10, now=10_000, keep={"kept"}) == ["may go"]


@given(
    st.lists(st.tuples(st.integers(0, 1000), st.integers(0, 100), st.booleans()), max_size=12),
    st.integers(1, 500),
)
def test_an_eviction_frees_enough_and_would_not_without_its_last(
    caches: list[tuple[int, int, bool]], lacking: int
) -> None:
    entries = {
        str(number): entry(str(number), used, size, in_use=used_now)
        for number, (used, size, used_now) in enumerate(caches)
    }
    chosen = choose(entries.values(), lacking, now=10_000)
    freed = [entries[key].allocated for key in chosen]
    assert not any(entries[key].in_use for key in chosen)
    if chosen:
        assert sum(freed) >= lacking > sum(freed[:-1])
