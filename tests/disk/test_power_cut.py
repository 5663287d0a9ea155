"""Loss of power at any moment: what was said to be ready is, and nothing else is.

A fetch runs on a real file system on a disk that records writes and flushes (`recorder.py`). Then, for many
moments of the record, the disk is made as it may be after power was lost there, mounted, and looked at.
"""

from __future__ import annotations

import json
import os
import random
import time
from pathlib import Path
from typing import NamedTuple

import pytest

from cacheprep.store.inventory import inventory
from cacheprep.store.layout import Layout, State
from cacheprep.store.publish import MANY
from cacheprep.store.verify import deep
from tests.disk.recorder import Log
from tests.disk.volumes import MAKERS, SIZES, command, loop, mounted, recorder
from tests.store.origin import Origin, make_model, same, wait_until
from tests.store.running import CONNECTIONS, FAST, RANGE, fetch, run, running

CUTS = int(os.environ.get("CUTS", "24"))


class Moment(NamedTuple):
    """Until which event of the record something was so."""

    events: int
    ready: bool
    """Whether `cacheprep` had said that the cache is ready."""


def record(kind: str, directory: Path, origin: Origin) -> tuple[Log, list[Moment]]:
    """Fetch, killed once and resumed, then remove and fetch again, on a recorded disk."""
    moments = []
    with recorder(directory, SIZES[kind]) as (disk, written):
        with loop(disk) as device:
            command(*MAKERS[kind], device)
            with mounted(device, directory / "mounted") as point:
                command("sync", "-f", point)
                root = point / "root"

                def now(ready: bool) -> None:
                    moments.append(Moment(len(Log(written, 0).events), ready))

                now(ready=False)
                with running("fetch", origin.url, "--to", root, *FAST, "--bandwidth", "9MB") as process:
                    wait_until(lambda: origin.total_sent > 4_000_000)
                    process.kill()
                now(ready=False)
                done = fetch(origin.url, root, "--json")
                assert done.returncode == 0, done.stderr
                now(ready=True)
                key = json.loads(done.stdout)["key"]
                assert run("rm", key, "--to", root).returncode == 0
                now(ready=False)
                assert fetch(origin.url, root).returncode == 0
                now(ready=True)
                # Idle for a while: the kernel writes back what it likes.
                command("sync", "-f", point)
                now(ready=True)
        return Log(written, SIZES[kind]), moments


def check(root: Path, origin: Origin, model: Path, must_be_ready: bool) -> State | None:
    """What a node finds when it is up again, and that it gets from there to a whole cache."""
    state = None
    if root.joinpath("warmroute-store").exists():
        for entry in inventory(Layout(str(root))):
            state = entry.state
            if entry.ready:
                verdict, _ = deep(Layout(str(root)), entry.key, time.time, lambda _: None)
                assert verdict.ready, verdict
                assert same(model, Path(entry.path))
    if must_be_ready:
        assert state is State.READY
    origin.forget()
    done = fetch(origin.url, root, "--json")
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert same(model, Path(result["path"]))
    assert origin.total_sent == result["bytes_fetched"] <= origin.listing().total
    if state is State.READY or state is State.UNMARKED:
        # All of it was on the disk before it came there.
        assert result["bytes_fetched"] == 0
    return state


def cut_everywhere(
    kind: str, directory: Path, cuts: int, chance: random.Random, small: int = 12
) -> set[State | None]:
    model = directory / "model"
    model.mkdir()
    make_model(model, small=small)
    seen = set()
    with Origin(model) as origin:
        log, moments = record(kind, directory, origin)
        first, last = moments[0].events, moments[-1].events
        assert last - first > 100
        flushes = [index + 1 for index, event in enumerate(log.events) if event is None and index >= first]
        # Half of the moments right at a flush, where the order of things is decided.
        chosen = [
            chance.choice(flushes) if chance.random() < 0.5 else chance.randint(first, last)
            for _ in range(cuts)
        ]
        for number, moment in enumerate([*chosen, last]):
            image = directory / f"cut{number}.img"
            log.cut(moment, image, chance)
            with loop(image) as device, mounted(device, directory / f"cut{number}") as point:
                seen.add(check(point / "root", origin, model, must_be_ready(moments, moment)))
            image.unlink()
    return seen


def must_be_ready(moments: list[Moment], at: int) -> bool:
    """Whether the last thing that was said before was `ready`, and nothing was begun since."""
    said = [index for index, moment in enumerate(moments) if moment.events <= at]
    latest = said[-1] if said else 0
    done_after = latest + 1 < len(moments) and not moments[latest + 1].ready
    # What follows a ready cache here is its removal: from then on it may be gone.
    return moments[latest].ready and not done_after


@pytest.mark.timeout(900)
@pytest.mark.parametrize("kind", ["ext4", "xfs", "btrfs"])
def test_power_may_be_lost_at_any_moment(kind: str, tmp_path: Path) -> None:
    cuts = CUTS if kind == "ext4" else CUTS // 3
    seen = cut_everywhere(kind, tmp_path, cuts, random.Random(os.environ.get("SEED", "1")))
    assert State.READY in seen
    assert seen != {State.READY}


@pytest.mark.timeout(900)
def test_it_may_be_lost_too_where_many_files_are_synced_at_once(tmp_path: Path) -> None:
    cut_everywhere("ext4", tmp_path, CUTS // 3, random.Random(os.environ.get("SEED", "1")), small=2 * MANY)


@pytest.mark.soak
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("kind", ["ext4", "xfs", "btrfs"])
def test_power_may_be_lost_at_two_hundred_random_moments(kind: str, tmp_path: Path) -> None:
    cut_everywhere(kind, tmp_path, 200, random.Random())


def test_a_resume_after_a_power_cut_fetches_no_range_that_was_on_the_disk(tmp_path: Path) -> None:
    """Synced by chance or by another program's sync(2), as after minutes of fetching."""
    model = tmp_path / "model"
    model.mkdir()
    make_model(model)
    with Origin(model) as origin, recorder(tmp_path, SIZES["ext4"]) as (disk, written):
        with loop(disk) as device:
            command(*MAKERS["ext4"], device)
            with mounted(device, tmp_path / "mounted") as point:
                slow = ("fetch", origin.url, "--to", point / "root", *FAST, "--bandwidth", "6MB")
                with running(*slow) as process:
                    wait_until(lambda: origin.total_sent > 5_000_000)
                    process.kill()
                sent = origin.total_sent
                command("sync", "-f", point)
                moment = len(Log(written, 0).events)
        log = Log(written, SIZES["ext4"])
        log.cut(moment, tmp_path / "cut.img", random.Random(1))
        origin.forget()
        with loop(tmp_path / "cut.img") as device, mounted(device, tmp_path / "cut") as point:
            done = fetch(origin.url, point / "root", "--json")
            assert same(model, Path(json.loads(done.stdout)["path"]))
        assert sent > 2 * CONNECTIONS * RANGE
        assert origin.total_sent <= origin.listing().total - sent + CONNECTIONS * RANGE
