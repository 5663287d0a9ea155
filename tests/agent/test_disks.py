"""What an agent finds on real disks, with caches that `cacheprep fetch` has made."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from cacheprep.agent.claims import Claims, Place
from cacheprep.agent.disks import dismantle, look, prepare
from cacheprep.agent.verification import read_all
from cacheprep.failures import Failure, Reason
from cacheprep.plan.identity import store_path
from cacheprep.store.layout import State
from cacheprep.store.locks import try_lock
from cacheprep.store.root import Rules
from tests.store.origin import make_model
from tests.store.running import fetch

NOBODY = Claims(frozenset(), frozenset(), frozenset())
FAST = 1e12


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("model")
    make_model(directory)
    return directory


@pytest.fixture
def root(tmp_path: Path, model: Path) -> str:
    """A root with a cache of namespace llm."""
    done = fetch(f"file://{model}", Path(store_path(str(tmp_path), "llm")), "--verification", "first-read")
    assert done.returncode == 0, done.stderr
    return str(tmp_path)


def test_a_cache_is_found_below_its_namespace(root: str) -> None:
    (found,) = look([root], Rules()).caches
    assert (found.place.root, found.place.namespace, found.entry.state) == (root, "llm", State.READY)


def test_capacity_is_what_df_says(root: str) -> None:
    (status,) = look([root], Rules()).roots
    disk = os.statvfs(root)
    assert status.usable
    assert status.total_bytes == (disk.f_blocks - disk.f_bfree + disk.f_bavail) * disk.f_frsize
    assert abs(status.available_bytes - disk.f_bavail * disk.f_frsize) < 1 << 30


def test_a_root_on_the_disk_of_the_system_is_said_not_to_be_usable(root: str) -> None:
    (status,) = look(["/etc"], Rules(kubernetes=True)).roots
    assert not status.usable
    assert status.reason == Reason.INVALID_REQUEST
    assert "allow a shared disk" in status.message


def test_a_link_out_of_the_root_is_not_followed(root: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    outside = tmp_path_factory.mktemp("outside")
    os.rename(store_path(root, "llm"), outside / "store")
    os.symlink(outside / "store", store_path(root, "llm"))
    assert look([root], Rules()).caches == ()


def test_reading_a_good_cache_keeps_it_ready_and_says_when(root: str) -> None:
    (found,) = look([root], Rules()).caches
    assert read_all(found, FAST, threading.Event(), 4e9).ready
    (again,) = look([root], Rules()).caches
    assert (again.entry.state, again.entry.verified_at) == (State.READY, 4_000_000_000)


def test_a_byte_that_the_disk_lost_unseen_makes_the_cache_not_ready(root: str) -> None:
    (found,) = look([root], Rules()).caches
    file = next(path for path in Path(found.entry.path).rglob("*.safetensors"))
    before = file.stat()
    with file.open("r+b") as damaged:
        byte = damaged.read(1)
        damaged.seek(0)
        damaged.write(bytes([byte[0] ^ 1]))
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert look([root], Rules()).caches[0].entry.ready
    assert not read_all(found, FAST, threading.Event(), 4e9).ready
    assert look([root], Rules()).caches[0].entry.state is State.UNMARKED


def test_reading_stops_when_told_and_changes_nothing(root: str) -> None:
    (found,) = look([root], Rules()).caches
    stop = threading.Event()
    stop.set()
    with pytest.raises(Failure, match="stopped"):
        read_all(found, FAST, stop, 4e9)
    assert look([root], Rules()).caches[0].entry == found.entry


def test_a_cache_that_somebody_works_on_is_not_read(root: str) -> None:
    (found,) = look([root], Rules()).caches
    held = try_lock(found.layout.fill_lock(found.place.key))
    assert held is not None
    with held, pytest.raises(Failure, match="another process works on it"):
        read_all(found, FAST, threading.Event(), 4e9)


def test_an_empty_store_that_nobody_claims_goes_and_another_stays(root: str) -> None:
    empty = Path(store_path(root, "empty"))
    for name in ("caches", "partial", "trash", "locks", "requests"):
        (empty / name).mkdir(parents=True)
    (empty / "warmroute-store").write_text("warmroute-store 1\n")
    (found,) = look([root], Rules()).caches
    using = NOBODY._replace(used=frozenset({("empty", "a" * 40)}))
    assert dismantle([root], using) == []
    assert dismantle([root], NOBODY) == [str(empty)]
    assert [one.place for one in look([root], Rules()).caches] == [found.place]


def test_a_directory_that_kubelet_made_and_nobody_used_goes_when_nobody_claims_it(root: str) -> None:
    made = Path(store_path(root, "unused"))
    made.mkdir()
    (found,) = look([root], Rules()).caches
    assert dismantle([root], NOBODY._replace(wanted=frozenset({Place(root, "unused", "a" * 40)}))) == []
    assert dismantle([root], NOBODY) == [str(made)]
    other = Path(store_path(root, "other"))
    other.mkdir()
    (other / "file").touch()
    assert dismantle([root], NOBODY) == []
    assert [one.place for one in look([root], Rules()).caches] == [found.place]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may give a directory away")
def test_a_directory_for_a_claim_is_of_the_user_who_fetches_there_and_is_made_once(tmp_path: Path) -> None:
    place = store_path(str(tmp_path), "llm")
    assert prepare(place, 65532)
    assert os.stat(place).st_uid == 65532
    assert not prepare(place, 65532)


def test_a_store_that_is_there_stays_whose_it_is(root: str) -> None:
    place = store_path(root, "llm")
    owner = os.stat(place).st_uid
    assert not prepare(place, 65532)
    assert os.stat(place).st_uid == owner
