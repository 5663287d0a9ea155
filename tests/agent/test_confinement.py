"""What pods of a namespace put into its store leads an agent nowhere else."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from pathlib import Path

import pytest

from cacheprep.agent.claims import Claims
from cacheprep.agent.confinement import confined
from cacheprep.agent.disks import dismantle, look
from cacheprep.failures import Failure, Reason
from cacheprep.plan.identity import store_path
from cacheprep.store.gc import collect
from cacheprep.store.layout import Layout, State
from cacheprep.store.remove import remove
from cacheprep.store.root import Rules, check, make
from tests.store.origin import make_model
from tests.store.running import fetch

NOBODY = Claims(frozenset(), frozenset(), frozenset())

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root may change its root directory")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A root with a cache of namespace victim, and an empty store of namespace tenant."""
    make_model(tmp_path / "model")
    done = fetch(
        f"file://{tmp_path}/model", Path(store_path(str(tmp_path), "victim")), "--verification", "first-read"
    )
    assert done.returncode == 0, done.stderr
    make(check(store_path(str(tmp_path), "tenant"), Rules()))
    return tmp_path


@pytest.fixture
def key(root: Path) -> str:
    (found,) = look([str(root)], Rules()).caches
    return found.place.key


def tree(directory: str) -> dict[str, bytes | None]:
    """Everything below a directory, and what the files hold."""
    return {
        str(path.relative_to(directory)): path.read_bytes() if path.is_file() else None
        for path in Path(directory).rglob("*")
    }


PLANTED = ["caches/KEY", "caches", "trash", "partial/KEY", "locks", "locks/KEY.use", "locks/KEY.fill"]


@pytest.mark.parametrize("planted", PLANTED)
def test_a_link_in_a_tenants_store_has_nothing_of_another_tenant_changed(
    root: Path, key: str, planted: str
) -> None:
    victim, tenant = store_path(str(root), "victim"), store_path(str(root), "tenant")
    before = tree(victim)
    place = Path(tenant, planted.replace("KEY", key))
    if place.is_dir():
        place.rmdir()
    # The same place of the other's store, for locks a file that is not there yet.
    target = Path(victim, planted.replace("KEY", key))
    os.symlink(target if target.exists() else f"{target}.made", place)
    if planted == "trash":
        Path(tenant, "caches", key, "model").mkdir(parents=True)

    disks = look([str(root)], Rules())
    assert [one.place.namespace for one in disks.caches if one.entry.state is State.READY] == ["victim"]
    for work, given in ((remove, key), (collected, 4e9)):
        with contextlib.suppress(Failure, OSError):
            confined(tenant, work, given)
    dismantle([str(root)], NOBODY._replace(used=frozenset({("victim", key)})))

    assert tree(victim) == before


def test_a_store_that_is_none_any_more_hides_no_other(root: Path, key: str) -> None:
    caches = Path(store_path(str(root), "tenant"), "caches")
    caches.rmdir()
    caches.write_text("a file")
    assert [one.place.namespace for one in look([str(root)], Rules()).caches] == ["victim"]


def sight(inside: Layout) -> tuple[str, list[str]]:
    return inside.root, sorted(os.listdir("/"))


def test_from_inside_there_is_nothing_but_the_store(root: Path) -> None:
    tenant = store_path(str(root), "tenant")
    everything = ["caches", "locks", "partial", "requests", "trash", "warmroute-store"]
    assert confined(tenant, sight) == ("/", everything)
    assert Path(tenant).is_dir()


def fails(inside: Layout) -> None:
    raise Failure(Reason.INVALID_REQUEST, f"seen from {inside.root}")


def test_what_the_work_raises_is_raised(root: Path) -> None:
    with pytest.raises(Failure, match=r"seen from /$"):
        confined(store_path(str(root), "tenant"), fails)


def dies(inside: Layout) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def test_work_that_dies_is_said_and_ends_nobody_else(root: Path) -> None:
    with pytest.raises(OSError, match="ended without a word"):
        confined(store_path(str(root), "tenant"), dies)


def hangs(inside: Layout) -> None:
    threading.Event().wait()


def test_work_that_hangs_is_ended_when_told_to_stop(root: Path) -> None:
    stop = threading.Event()
    threading.Timer(0.5, stop.set).start()
    with pytest.raises(Failure, match="stopped"):
        confined(store_path(str(root), "tenant"), hangs, stop=stop)


def collected(inside: Layout, now: float) -> int:
    return len(list(collect(inside, now, 0.0)))
