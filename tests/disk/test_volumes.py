"""Roots on real file systems: which are taken, and what happens when one is full."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from cacheprep.failures import Failure, Reason
from cacheprep.listing import Digest, File, Listing
from cacheprep.store.capacity import Limits, measure
from cacheprep.store.inventory import inventory
from cacheprep.store.layout import Layout, key_of
from cacheprep.store.reservation import Piece, allocated, reserve
from cacheprep.store.root import Rules, open_to_write
from tests.disk.volumes import MB, SIZES, command, mounted, recorder, volume
from tests.sources.fault_proxy import Fault
from tests.store.origin import Origin, Request, same, wait_until
from tests.store.running import FAST, fetch, listed, run, running

KINDS = ["ext4", "xfs", "btrfs"]


@pytest.fixture(params=KINDS)
def disk(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Path]:
    with volume(request.param, tmp_path) as point:
        yield point


def fill_up(point: Path, leave: int) -> None:
    """Take all of a disk but so many bytes."""
    free = measure(str(point)).available - leave
    command("fallocate", "-l", str(free), point / "ballast")
    command("sync", "-f", point)


def clear(point: Path) -> None:
    (point / "ballast").unlink()
    command("sync", "-f", point)


def test_a_disk_of_its_own_is_taken_without_a_warning_also_in_kubernetes(
    disk: Path, origin: Origin, model: Path
) -> None:
    assert open_to_write(str(disk / "root"), Rules(kubernetes=True)).warnings == ()
    done = fetch(origin.url, disk / "root", KUBERNETES_SERVICE_HOST="10.0.0.1")
    assert done.returncode == 0, done.stderr
    assert same(model, Path(done.stdout.strip()))


def test_what_does_not_fit_is_refused_before_the_first_byte_with_all_figures(
    disk: Path, origin: Origin
) -> None:
    fill_up(disk, leave=6 * MB)
    done = fetch(origin.url, disk / "root")
    assert done.returncode == Reason.INSUFFICIENT_CAPACITY.exit_code, done.stderr
    assert "available" in done.stderr
    assert origin.total_sent == 0
    assert listed(disk / "root") == []


def test_a_full_disk_is_refused_by_name_and_is_good_again_when_there_is_room(
    disk: Path, origin: Origin, model: Path
) -> None:
    open_to_write(str(disk / "root"), Rules())
    subprocess.run(
        ["dd", "if=/dev/zero", f"of={disk / 'ballast'}", "bs=64k"], capture_output=True, check=False
    )
    done = fetch(origin.url, disk / "root")
    assert done.returncode == Reason.INSUFFICIENT_CAPACITY.exit_code, done.stderr
    clear(disk)
    done = fetch(origin.url, disk / "root")
    assert same(model, Path(done.stdout.strip()))


def test_a_disk_that_others_fill_midway_does_not_hurt_what_was_reserved(
    disk: Path, origin: Origin, model: Path
) -> None:
    origin.hold_after = 10
    with running("fetch", origin.url, "--to", disk / "root", *FAST) as process:
        wait_until(lambda: origin.requests > 10)
        subprocess.run(
            ["dd", "if=/dev/zero", f"of={disk / 'ballast'}", "bs=64k"], capture_output=True, check=False
        )
        origin.release()
        _, err = process.communicate(timeout=60)
    # The bytes were allocated; what lacks for names and metadata has its reason.
    if process.returncode != 0:
        assert process.returncode == Reason.INSUFFICIENT_CAPACITY.exit_code, err
        assert not any(entry["ready"] for entry in listed(disk / "root"))
        clear(disk)
    done = fetch(origin.url, disk / "root")
    assert done.returncode == 0, done.stderr
    assert same(model, Path(done.stdout.strip()))


def test_ten_keys_that_do_not_all_fit_are_never_overcommitted(disk: Path, tmp_path: Path) -> None:
    """All ask at once; as many as fit succeed, the others are refused, and no write ever fails."""
    source = tmp_path / "source"
    source.mkdir()
    (source / "weights").write_bytes(os.urandom(4 * MB))
    leave = 18 * MB
    if measure(str(disk)).available > leave:
        fill_up(disk, leave)
    root = disk / "root"
    open_to_write(str(root), Rules())
    watermark = ("--watermark", "97%", "--downloads-per-source", "16")
    with Origin(source) as server:
        listing = server.listing()
        done: list[subprocess.CompletedProcess[str]] = []
        lock = threading.Lock()

        def want(number: int) -> None:
            saved = tmp_path / f"{number}.json"
            saved.write_bytes(Listing(listing.source, str(number), listing.files).to_json())
            one = run("fetch", "--listing", str(saved), server.url, "--to", root, *FAST, *watermark)
            with lock:
                done.append(one)

        threads = [threading.Thread(target=want, args=(number,)) for number in range(10)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    codes = [one.returncode for one in done]
    assert set(codes) == {0, Reason.INSUFFICIENT_CAPACITY.exit_code}, [one.stderr for one in done]
    ready = [entry for entry in listed(root) if entry["ready"]]
    assert len(ready) == codes.count(0) >= 2
    assert len(listed(root)) == len(ready)
    command("sync", "-f", disk)
    assert measure(str(disk)).fullness() <= 0.97 + 0.01


def test_room_is_made_by_evicting_what_is_idle_and_never_what_is_in_use(disk: Path, tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.mkdir()
    (source / "weights").write_bytes(os.urandom(5 * MB))
    fill_up(disk, leave=14 * MB)
    root = disk / "root"
    keys = []
    with Origin(source) as server:
        listing = server.listing()

        def want(number: int, *more: str) -> subprocess.CompletedProcess[str]:
            saved = tmp_path / f"{number}.json"
            saved.write_bytes(Listing(listing.source, str(number), listing.files).to_json())
            return run("fetch", "--listing", str(saved), server.url, "--to", root, *FAST, "--json", *more)

        for number in range(2):
            done = want(number)
            assert done.returncode == 0, done.stderr
            keys.append(json.loads(done.stdout)["key"])
            os.utime(Layout(str(root)).use_lock(keys[-1]), (number, number))
        # The oldest is in use, so the other one goes.
        with subprocess.Popen(
            [sys.executable, "-c", _HOLD, Layout(str(root)).use_lock(keys[0])],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        ) as user:
            assert user.stdout is not None
            user.stdout.readline()
            refused = want(2)
            assert refused.returncode == Reason.INSUFFICIENT_CAPACITY.exit_code
            done = want(2, "--evict", "lru")
            assert done.returncode == 0, done.stderr
            user.communicate()
    assert f"evicted cache {keys[1]}" in done.stderr
    left = {entry["key"] for entry in listed(root) if entry["ready"]}
    assert left == {keys[0], json.loads(done.stdout)["key"]}


_HOLD = """
import sys
from cacheprep.store.locks import try_lock
held = try_lock(sys.argv[1], shared=True)
print(flush=True)
sys.stdin.read()
"""


def test_a_reservation_is_allocated_at_once(disk: Path) -> None:
    root = open_to_write(str(disk / "root"), Rules())
    listing = Listing("s3://bucket/x", "", (File("weights", 5 * MB, (Digest("sha256", "0" * 64),)),))
    key = key_of(listing.digest())
    os.makedirs(root.layout.future_model(key))
    pieces = [Piece("weights", 5 * MB), Piece("sub/other", 3 * MB + 1), Piece("small", 1000)]
    reserve(root.layout, key, pieces, Limits(1.0), lambda _: None)
    assert 8 * MB <= allocated(root.layout.partial(key)) < 10 * MB


def test_a_reservation_that_fails_leaves_nothing(disk: Path) -> None:
    root = open_to_write(str(disk / "root"), Rules())
    key = "0" * 40
    os.makedirs(root.layout.future_model(key))
    before = allocated(root.layout.partial(key))
    # The check lets it through, as if another root on the same disk had been quicker: the disk refuses.
    huge = [Piece("small", 1 * MB), Piece("weights", SIZES["xfs"])]
    from cacheprep.store import reservation

    check, reservation._check = reservation._check, lambda *_, **__: None
    try:
        with pytest.raises(Failure) as caught:
            reserve(root.layout, key, huge, Limits(1.0), lambda _: None)
    finally:
        reservation._check = check
    assert caught.value.reason is Reason.INSUFFICIENT_CAPACITY
    assert allocated(root.layout.partial(key)) <= before + 2 * MB
    assert os.listdir(root.layout.future_model(key)) == []


def test_a_disk_without_inodes_is_insufficient_capacity(tmp_path: Path, origin: Origin) -> None:
    with volume("ext4", tmp_path) as point:
        open_to_write(str(point / "root"), Rules())
        left = measure(str(point)).free_inodes
        assert left is not None
        (point / "many").mkdir()
        for number in range(left - 8):
            (point / "many" / str(number)).touch()
        done = fetch(origin.url, point / "root")
        assert done.returncode == Reason.INSUFFICIENT_CAPACITY.exit_code
        assert "inodes" in done.stderr


def test_a_quota_is_insufficient_capacity(tmp_path: Path, origin: Origin) -> None:
    with volume("btrfs", tmp_path) as point:
        command("btrfs", "quota", "enable", point)
        command("btrfs", "subvolume", "create", point / "root")
        command("btrfs", "qgroup", "limit", "5M", point / "root")
        done = fetch(origin.url, point / "root")
        assert done.returncode == Reason.INSUFFICIENT_CAPACITY.exit_code, done.stderr
        assert not any(entry["ready"] for entry in listed(point / "root"))


def test_a_disk_that_is_mounted_read_only_is_refused_but_can_be_read(disk: Path, origin: Origin) -> None:
    done = fetch(origin.url, disk / "root")
    assert done.returncode == 0, done.stderr
    command("mount", "-o", "remount,ro", disk)
    refused = fetch(origin.url, disk / "other")
    assert refused.returncode == Reason.INVALID_REQUEST.exit_code
    assert "read-only" in refused.stderr
    assert listed(disk / "root")[0]["ready"] is True
    assert run("verify", "--deep", "--to", disk / "root").returncode == 0
    assert run("ensure", origin.url, "--to", disk / "root", *FAST).returncode == 0


def test_a_file_system_in_user_space_is_refused(tmp_path: Path, origin: Origin) -> None:
    with recorder(tmp_path, MB) as (file, _):
        done = fetch(origin.url, file.parent)
    assert done.returncode == Reason.INVALID_REQUEST.exit_code
    assert "fuse" in done.stderr


def test_a_directory_in_memory_is_taken(tmp_path: Path, origin: Origin, model: Path) -> None:
    with mounted("tmpfs", tmp_path / "tmpfs", "size=64m", kind="tmpfs") as point:
        done = fetch(origin.url, point / "root")
        assert done.returncode == 0, done.stderr
        assert same(model, Path(done.stdout.strip()))


def test_bits_that_flip_on_the_disk_are_found_by_a_deep_verification_and_only_that_file_is_fetched_again(
    tmp_path: Path, origin: Origin, model: Path
) -> None:
    """The file's blocks change below the file system: size and mtime stay as they were."""
    with volume("ext4", tmp_path) as point:
        path = Path(fetch(origin.url, point / "root").stdout.strip())
    image = tmp_path / "ext4.img"
    content = (model / "model-00002.safetensors").read_bytes()
    whole = bytearray(image.read_bytes())
    at = whole.find(content[2 * MB : 2 * MB + 4096])
    assert at > 0
    whole[at + 5] ^= 1
    image.write_bytes(whole)
    origin.forget()
    from tests.disk.volumes import loop

    with loop(image) as device, mounted(device, tmp_path / "ext4") as point:
        assert run("verify", "--to", point / "root").returncode == 0
        done = run("verify", "--deep", "--to", point / "root", "--json")
        assert done.returncode == Reason.INTEGRITY_MISMATCH.exit_code
        assert json.loads(done.stdout)[0]["problems"][0].startswith("model-00002.safetensors: its sha256")
        assert not any(entry.ready for entry in inventory(Layout(str(point / "root"))))
        done = fetch(origin.url, point / "root")
        assert done.returncode == 0, done.stderr
        assert same(model, path)
    assert set(origin.sent) == {"model-00002.safetensors"}


def test_nothing_is_ready_after_any_failure_on_a_small_disk(disk: Path, origin: Origin) -> None:
    def fault(request: Request) -> Fault | None:
        return Fault(status=403) if request.number > 15 else None

    origin.fault = fault
    assert fetch(origin.url, disk / "root").returncode == Reason.ACCESS_DENIED.exit_code
    (entry,) = listed(disk / "root")
    assert (entry["ready"], entry["state"]) == (False, "partial")
