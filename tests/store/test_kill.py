"""kill -9 at any moment: no false ready, equal content in the end, one range per connection fetched again.

`pytest -m soak tests/store` takes 200 moments for each kind of source; KILLS=N sets how many of each the
ordinary run takes.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import NamedTuple

import pytest

from cacheprep.store.inventory import inventory
from cacheprep.store.layout import Layout, State
from cacheprep.store.verify import deep
from tests.store.origin import Origin, same, wait_until
from tests.store.places import Place
from tests.store.running import CONNECTIONS, FAST, RANGE, fetch, run, running

KILLS = int(os.environ.get("KILLS", "2"))
BANDWIDTH = ("--bandwidth", "12MB")
"""Makes a fetch take most of a second, so that moments differ."""


def check_no_false_ready(root: Path, model: Path) -> list[State]:
    """The states of all caches; one that says it is ready must be, to the last byte."""
    states = []
    for entry in inventory(Layout(str(root))):
        states.append(entry.state)
        if entry.ready:
            assert same(model, Path(entry.path))
            verdict, _ = deep(Layout(str(root)), entry.key, time.time, lambda _: None)
            assert verdict.ready, verdict
    return states


class Moment(NamedTuple):
    """When a fetch is killed: so many seconds after the place has sent so many bytes, over all runs."""

    sent: float
    seconds: float


def killed_after(seconds: float, process: subprocess.Popen[str]) -> bool:
    """Kill a process after some time; False if it had ended before."""
    try:
        process.wait(seconds)
    except subprocess.TimeoutExpired:
        process.kill()
        return True
    return False


def killed_at(moment: Moment, process: subprocess.Popen[str], place: Place) -> bool:
    """Kill a process at a moment; False if it had ended before."""
    wait_until(lambda: place.total_sent >= moment.sent or process.poll() is not None)
    return killed_after(moment.seconds, process)


def fetching(place: Place, root: Path, *more: str) -> AbstractContextManager[subprocess.Popen[str]]:
    """A fetch of all that the place has, slowly."""
    return running("fetch", place.url, *place.options, "--to", root, *FAST, *BANDWIDTH, *more)


def fetch_through_kills(place: Place, model: Path, root: Path, moments: list[Moment]) -> set[State]:
    """Kill a fetch at each moment, then let it end; returns the states that were seen in between."""
    place.forget()
    seen: set[State] = set()
    kills = 0
    for moment in moments:
        with fetching(place, root) as process:
            kills += killed_at(moment, process, place)
        seen.update(check_no_false_ready(root, model))
    done = fetch(place.url, root, *place.options, "--json")
    assert done.returncode == 0, done.stderr
    assert same(model, Path(json.loads(done.stdout)["path"]))
    assert State.READY in check_no_false_ready(root, model)
    assert place.total_sent <= total(model) + kills * CONNECTIONS * RANGE
    return seen


def total(model: Path) -> int:
    """Bytes of all its files."""
    return sum(path.stat().st_size for path in model.rglob("*") if path.is_file())


def test_a_fetch_survives_kills_while_its_bytes_come(place: Place, model: Path, tmp_path: Path) -> None:
    chance = random.Random(os.environ.get("SEED", "1"))
    for number in range(KILLS // 2):
        shares = sorted(chance.uniform(0.1, 0.8) for _ in range(2))
        moments = [Moment(share * total(model), 0.0) for share in shares]
        assert State.PARTIAL in fetch_through_kills(place, model, tmp_path / str(number), moments)


@pytest.mark.soak
@pytest.mark.timeout(7200)
def test_a_fetch_survives_kills_at_two_hundred_random_moments(
    place: Place, model: Path, tmp_path: Path
) -> None:
    """Of its whole life: from before it asks the source until after it is published."""
    begun = time.monotonic()
    with fetching(place, tmp_path / "whole") as process:
        assert process.wait() == 0
    life_s = time.monotonic() - begun
    chance, seen = random.Random(), set()
    for number in range(100):
        moments = [Moment(0, chance.uniform(0.0, 1.1) * life_s) for _ in range(2)]
        seen |= fetch_through_kills(place, model, tmp_path / str(number), moments)
    assert seen >= {State.PARTIAL, State.READY}


def steps(*arguments: str | Path, least: int = 1) -> Iterator[int]:
    """Kill a command before its first change of the file system, its second, and so on to its last."""
    for number in range(least, 10_000):
        done = run(*arguments, KILL_AT=str(number))
        if done.returncode != -9:
            assert done.returncode == 0, done.stderr
            return
        yield number


def test_a_publish_survives_a_kill_before_each_of_its_steps(tmp_path: Path) -> None:
    """The last steps of a fetch: manifest, fsyncs, rename, marker, what is left over."""
    (tmp_path / "model").mkdir()
    for name in ("a", "b"):
        (tmp_path / "model" / name).write_bytes(name.encode() * 5000)
    with Origin(tmp_path / "model") as origin:
        count = tmp_path / "count"
        assert fetch(origin.url, tmp_path / "whole", COUNT_TO=str(count)).returncode == 0
        last = int(count.read_text())
        seen = set()
        for number in range(last - 12, last + 1):
            root = tmp_path / f"root{number}"
            assert fetch(origin.url, root, KILL_AT=str(number)).returncode == -9
            seen.update(check_no_false_ready(root, tmp_path / "model"))
            done = fetch(origin.url, root)
            assert done.returncode == 0, done.stderr
            assert same(tmp_path / "model", Path(done.stdout.strip()))
    assert seen == {State.PARTIAL, State.UNMARKED, State.READY}


def test_gc_and_rm_survive_a_kill_before_each_of_their_steps(tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    for name in ("a", "b"):
        (tmp_path / "model" / name).write_bytes(name.encode() * 5000)
    root = tmp_path / "root"
    with Origin(tmp_path / "model") as origin:
        key = json.loads(fetch(origin.url, root, "--json").stdout)["key"]
        # Each run of `rm` makes the change before which the last one was killed.
        for number in range(1, 20):
            run("rm", key, "--to", root, KILL_AT=str(number))
            check_no_false_ready(root, tmp_path / "model")
        for _ in steps("gc", "--to", root, "--older-than", "0s"):
            check_no_false_ready(root, tmp_path / "model")
        assert inventory(Layout(str(root))) == []
        assert list((root / "trash").iterdir()) == []
        done = fetch(origin.url, root)
        assert same(tmp_path / "model", Path(done.stdout.strip()))


def test_a_verification_that_is_killed_changes_nothing_that_is_good(
    origin: Origin, model: Path, tmp_path: Path
) -> None:
    root = tmp_path / "root"
    assert fetch(origin.url, root).returncode == 0
    for _ in steps("verify", "--deep", "--to", root):
        assert check_no_false_ready(root, model) == [State.READY]


def test_a_repair_survives_kills(origin: Origin, model: Path, tmp_path: Path) -> None:
    """A published cache that lost a file: its good files are kept, and only the bad one is fetched."""
    root = tmp_path / "root"
    path = Path(fetch(origin.url, root).stdout.strip())
    bad = path / "model-00003.safetensors"
    content = bytearray(bad.read_bytes())
    content[77] ^= 1
    bad.write_bytes(content)
    assert run("verify", "--deep", "--to", root).returncode == 6
    origin.forget()
    chance = random.Random(3)
    for _ in range(4):
        with fetching(origin, root, "--bandwidth", "2MB") as process:
            killed_after(chance.uniform(0.3, 0.9), process)
        check_no_false_ready(root, model)
    done = fetch(origin.url, root)
    assert same(model, Path(done.stdout.strip()))
    assert set(origin.sent) == {"model-00003.safetensors"}
