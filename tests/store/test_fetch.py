"""`cacheprep fetch` from real servers that misbehave: success or the named reason, and no false ready."""

from __future__ import annotations

import json
import signal
import stat
import subprocess
import threading
import time
from collections.abc import Callable
from contextlib import closing, suppress
from dataclasses import fields
from pathlib import Path

import pytest

from cacheprep.failures import Failure, Reason
from cacheprep.filling import Filled, Plan, fill
from cacheprep.listing import Digest, File, Listing
from cacheprep.store.capacity import Limits
from cacheprep.store.inventory import inventory
from cacheprep.store.layout import Layout, State, key_of
from cacheprep.store.root import Root, Rules, open_to_write
from cacheprep.transfer.counters import Counters, Snapshot
from cacheprep.transfer.engine import Edge, Settings
from cacheprep.transfer.pace import BURST_S
from tests.sources.fault_proxy import EXPIRED, Fault
from tests.store.origin import Origin, Request, make_model, same, wait_until
from tests.store.places import KINDS, Place, opening
from tests.store.running import CONNECTIONS, FAST, RANGE, fetch, listed, run, running

SETTINGS = Settings(connections=CONNECTIONS, range_bytes=RANGE, attempts=4, stall_s=20)
STALL_S = 0.5
"""Soon enough for tests of what stalls; too soon for a busy machine elsewhere."""
LIMITS = Limits(1.0)


@pytest.fixture
def root(tmp_path: Path) -> Root:
    return open_to_write(str(tmp_path / "root"), Rules())


def filled(
    root: Root, place: Place, listing: Listing | None = None, **changes: object
) -> tuple[Filled, Snapshot]:
    """Fill in this process, for faults of which each must be hit."""
    counters = Counters()
    plan = Plan(LIMITS, SETTINGS._replace(**changes))  # type: ignore[arg-type]
    edge = Edge(threading.Event())
    with closing(place.source()) as source:
        # Lists anew even so: what the client of a store takes to start is no stall.
        now = source.resolve()
        done = fill(root, listing or now, source, plan, edge, counters, lambda _: None)
    return done, counters.snapshot()


def nothing_ready(root: Root) -> bool:
    return not any(entry.ready for entry in inventory(root.layout))


def test_what_is_fetched_is_published_whole_with_modes_that_others_can_read(
    origin: Origin, model: Path, tmp_path: Path
) -> None:
    done = fetch(origin.url, tmp_path / "root")
    assert done.returncode == 0, done.stderr
    path = Path(done.stdout.strip())
    assert same(model, path)
    assert origin.total_sent == origin.listing().total
    for published in [path, *path.rglob("*")]:
        mode = published.lstat().st_mode
        assert stat.S_ISDIR(mode) or stat.S_ISREG(mode)
        assert stat.S_IMODE(mode) == (0o755 if stat.S_ISDIR(mode) else 0o644)
    (entry,) = listed(tmp_path / "root")
    assert entry["ready"] is True
    assert entry["bytes"] == origin.listing().total
    assert entry["source"] == origin.url
    assert entry["verified_at"].endswith("Z")
    assert list((tmp_path / "root" / "partial").iterdir()) == []


def test_a_second_fetch_fetches_nothing(origin: Origin, root: Root) -> None:
    filled(root, origin)
    origin.forget()
    done, _ = filled(root, origin)
    assert done.how == "found"
    assert origin.total_sent == 0


def test_a_changed_source_is_another_cache(model: Path, root: Root, tmp_path: Path) -> None:
    with Origin(tmp_path / "other") as other:
        make_model(tmp_path / "other")
        first, _ = filled(root, other)
        (tmp_path / "other" / "empty").write_bytes(b"no longer")
        second, _ = filled(root, other)
    assert first.key != second.key


def named(fault: Fault) -> str:
    """A fault as a test's name has it."""
    on = [field.name for field in fields(fault) if getattr(fault, field.name) is True]
    return f"{fault.status or on[0]}@{fault.after}"


def once(fault: Fault) -> Callable[[Request], Fault | None]:
    """The fault for every file's first request."""
    seen: set[str] = set()

    def look(request: Request) -> Fault | None:
        if request.name in seen:
            return None
        seen.add(request.name)
        return fault

    return look


@pytest.mark.parametrize(
    "fault",
    [
        Fault(status=429),
        Fault(status=500),
        Fault(status=503),
        Fault(cut=True, after=100),
        Fault(reset=True, after=100),
        Fault(reset=True),
        Fault(flip=True),
    ],
    ids=named,
)
def test_what_goes_wrong_once_ends_in_success(place: Place, model: Path, root: Root, fault: Fault) -> None:
    place.fault = once(fault)
    done, counts = filled(root, place)
    assert same(model, Path(done.path))
    assert counts.retries > 0


@pytest.mark.parametrize("fault", [Fault(stall=True, after=100_000), Fault(drip=True, after=100_000)])
def test_a_connection_that_stalls_is_given_up_and_another_goes_on(
    place: Place, model: Path, root: Root, fault: Fault
) -> None:
    place.fault = lambda request: fault if request.number in (2, 3) else None
    done, counts = filled(root, place, stall_s=STALL_S)
    assert same(model, Path(done.path))
    assert counts.stalls >= 1
    # What it had brought is not fetched again.
    assert counts.bytes_fetched == counts.bytes_total


@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        (Fault(status=403), Reason.ACCESS_DENIED),
        (Fault(status=404), Reason.SOURCE_CHANGED),
        (Fault(status=500), Reason.SOURCE_UNAVAILABLE),
        (Fault(cut=True, after=100), Reason.SOURCE_UNAVAILABLE),
        (Fault(stall=True, after=100), Reason.SOURCE_UNAVAILABLE),
        (Fault(flip=True, after=100), Reason.INTEGRITY_MISMATCH),
    ],
    ids=lambda value: named(value) if isinstance(value, Fault) else str(value),
)
def test_what_goes_wrong_for_good_has_its_reason_and_nothing_is_ready(
    place: Place, root: Root, fault: Fault, reason: Reason
) -> None:
    place.fault = lambda request: fault if request.name == "model-00002.safetensors" else None
    with pytest.raises(Failure) as caught:
        filled(root, place, attempts=2, stall_s=STALL_S if fault.stall else 20)
    assert caught.value.reason is reason
    assert nothing_ready(root)
    if reason is Reason.SOURCE_UNAVAILABLE:
        assert caught.value.message.endswith("what has come is kept: fetch again when the source answers")


def test_credentials_that_expire_midway_are_read_anew_and_denied_if_they_still_are_no_good(
    model: Path, root: Root, tmp_path: Path
) -> None:
    with opening("s3", model, tmp_path / "place") as place:
        place.fault = lambda _: EXPIRED
        with pytest.raises(Failure, match="have expired") as caught:
            filled(root, place)
        assert caught.value.reason is Reason.ACCESS_DENIED
        assert nothing_ready(root)
        place.fault = once(EXPIRED)
        done, _ = filled(root, place)
        assert same(model, Path(done.path))


def test_a_signed_url_that_expires_midway_is_asked_for_again(model: Path, root: Root, tmp_path: Path) -> None:
    with opening("hub", model, tmp_path / "place") as place:
        place.fault = once(Fault(status=403))
        done, counts = filled(root, place)
        assert same(model, Path(done.path))
    assert counts.retries == 0


@pytest.mark.parametrize("kind", KINDS)
def test_an_object_that_is_replaced_midway_is_source_changed(
    kind: str, model: Path, root: Root, tmp_path: Path
) -> None:
    with opening(kind, model, tmp_path / "place") as place:

        def replace(request: Request) -> None:
            if request.number == 8:
                place.replace("model-00001.safetensors")

        place.fault = replace
        with pytest.raises(Failure) as caught:
            filled(root, place, connections=1)
    assert caught.value.reason is Reason.SOURCE_CHANGED
    assert nothing_ready(root)


def test_after_a_failure_a_fetch_goes_on_where_it_stopped(place: Place, model: Path, root: Root) -> None:
    place.fault = lambda request: Fault(status=403) if request.number > 20 else None
    with pytest.raises(Failure):
        filled(root, place)
    place.fault = lambda _: None
    done, counts = filled(root, place)
    assert same(model, Path(done.path))
    assert counts.bytes_kept > 0
    assert counts.bytes_fetched + counts.bytes_kept == counts.bytes_total


def test_bytes_that_were_damaged_on_the_disk_meanwhile_are_not_trusted(
    origin: Origin, model: Path, root: Root
) -> None:
    origin.fault = lambda request: Fault(status=403) if request.number > 20 else None
    with pytest.raises(Failure):
        filled(root, origin)
    (entry,) = inventory(root.layout)
    assert entry.state is State.PARTIAL
    for path in Path(root.layout.future_model(entry.key)).rglob("*.safetensors"):
        with path.open("r+b") as file:
            file.seek(RANGE // 2)
            byte = file.read(1)
            file.seek(RANGE // 2)
            file.write(bytes([byte[0] ^ 1]))
    origin.fault = lambda _: None
    done, _ = filled(root, origin)
    assert same(model, Path(done.path))


def test_a_digest_that_is_wrong_twice_is_told_with_both_values(origin: Origin, root: Root) -> None:
    listing = origin.listing()
    wrong = File("empty", 0, (Digest("sha256", "0" * 64),), "v1")
    files = tuple(wrong if file.name == "empty" else file for file in listing.files)
    with pytest.raises(Failure, match="0000"):
        filled(root, origin, Listing(listing.source, "", files))
    assert nothing_ready(root)


def test_every_digest_of_the_listing_is_compared(origin: Origin, root: Root) -> None:
    listing = origin.listing()
    files = tuple(
        File(file.name, file.size, (*file.digests, Digest("git-blob-sha1", "0" * 40)), file.version)
        for file in listing.files
    )
    with pytest.raises(Failure) as caught:
        filled(root, origin, Listing(listing.source, "", files))
    assert caught.value.reason is Reason.INTEGRITY_MISMATCH
    assert "git-blob-sha1" in caught.value.message


def test_a_bandwidth_limit_holds(origin: Origin, root: Root) -> None:
    rate = 20e6
    begun = time.monotonic()
    _, counts = filled(root, origin, bandwidth=rate)
    assert time.monotonic() - begun >= counts.bytes_total / rate - BURST_S


def test_sigterm_ends_a_fetch_as_canceled_and_the_next_goes_on(
    origin: Origin, model: Path, tmp_path: Path
) -> None:
    arguments = (
        "fetch",
        origin.url,
        "--to",
        tmp_path / "root",
        "--connections",
        "2",
        "--range-size",
        "256KiB",
    )
    with running(*arguments, "--watermark", "100%", "--bandwidth", "4MB", "--json") as process:
        wait_until(lambda: origin.total_sent > 2_000_000)
        process.send_signal(signal.SIGTERM)
        _, err = process.communicate(timeout=20)
    assert process.returncode == Reason.CANCELED.exit_code
    last = json.loads(err.splitlines()[-1])
    assert (last["event"], last["reason"], last["exit_code"]) == ("failed", "Canceled", 130)
    assert not any(entry["ready"] for entry in listed(tmp_path / "root"))
    done = fetch(origin.url, tmp_path / "root", "--json")
    result = json.loads(done.stdout)
    assert result["bytes_kept"] > 0
    assert same(model, Path(result["path"]))


def test_progress_is_json_lines_where_there_is_no_terminal(origin: Origin, tmp_path: Path) -> None:
    done = run("fetch", origin.url, "--to", tmp_path / "root", "--watermark", "100%")
    lines = [json.loads(line) for line in done.stderr.splitlines()]
    assert lines[0]["event"] == "note"
    assert "disk of the system" in lines[0]["message"]
    last = [line for line in lines if line["event"] == "progress"][-1]
    assert last["bytes_done"] == last["bytes_total"] == origin.listing().total
    assert last["files_done"] == len(origin.listing().files)
    assert last["phase"] == "done"


def test_how_far_a_fetch_is_shows_before_a_range_has_come_whole_and_no_longer_than_its_process_lives(
    origin: Origin, tmp_path: Path
) -> None:
    root = tmp_path / "root"
    slow = ("--range-size", "64MiB", "--bandwidth", "200kB", "--connections", "1", "--watermark", "100%")

    def moves() -> bool:
        return root.exists() and any(entry["bytes_per_second"] for entry in listed(root))

    with running("fetch", origin.url, "--to", root, *slow, "--quiet") as process:
        wait_until(moves)
        (entry,) = listed(root)
        assert entry["busy"] is True
        assert 0 < entry["bytes_done"] < entry["bytes"]
        assert 20_000 < entry["bytes_per_second"] < 600_000
        process.kill()
        process.wait()
    (left,) = listed(root)
    assert left["bytes_per_second"] is None
    # As the journal has it: of the first file, which takes 20 s at this rate, no range has come whole.
    assert left["bytes_done"] == 0


def test_each_reason_is_an_exit_code(origin: Origin, tmp_path: Path) -> None:
    origin.fault = lambda _: Fault(status=403)
    assert fetch(origin.url, tmp_path / "root").returncode == Reason.ACCESS_DENIED.exit_code
    assert fetch("nonsense", tmp_path / "root").returncode == Reason.INVALID_REQUEST.exit_code
    full = ("fetch", origin.url, "--to", tmp_path / "root", "--watermark", "0.001%")
    done = run(*full)
    assert done.returncode == Reason.INSUFFICIENT_CAPACITY.exit_code
    assert "0.0%" in done.stderr


def test_a_listing_that_was_saved_fetches_the_same_or_says_that_the_source_changed(
    origin: Origin, model: Path, tmp_path: Path
) -> None:
    saved = tmp_path / "listing.json"
    saved.write_bytes(origin.listing().to_json())
    done = fetch(origin.url, tmp_path / "root", "--listing", str(saved))
    assert done.returncode == 0, done.stderr
    key = key_of(origin.listing().digest())
    assert Path(done.stdout.strip()) == Path(Layout(str(tmp_path / "root")).model(key))
    origin.etags["model-00001.safetensors"] = "v2"
    done = fetch(origin.url, tmp_path / "other", "--listing", str(saved))
    assert done.returncode == Reason.SOURCE_CHANGED.exit_code


def test_a_node_that_reads_later_must_find_what_the_first_one_found(origin: Origin, tmp_path: Path) -> None:
    listing = origin.listing()
    bare = Listing(listing.source, "", tuple(File(file.name, file.size, (), "v1") for file in listing.files))
    saved = tmp_path / "listing.json"
    saved.write_bytes(bare.to_json())
    first = fetch(origin.url, tmp_path / "first", "--listing", str(saved))
    manifest = Path(first.stdout.strip()).parent / "manifest.json"
    again = fetch(origin.url, tmp_path / "second", "--listing", str(saved), "--manifest", str(manifest))
    assert again.returncode == 0, again.stderr
    origin.fault = lambda request: Fault(flip=True, after=5) if request.name == "small/3.json" else None
    third = fetch(origin.url, tmp_path / "third", "--listing", str(saved), "--manifest", str(manifest))
    assert third.returncode == Reason.INTEGRITY_MISMATCH.exit_code
    assert listed(tmp_path / "third")[0]["ready"] is False


def test_metrics_are_served_while_it_runs(origin: Origin, tmp_path: Path) -> None:
    import socket
    import urllib.request

    def scraped() -> dict[str, float]:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics") as answer:
            lines = answer.read().decode().splitlines()
        samples = (line.rsplit(" ", 1) for line in lines if line[0] != "#")
        return {name: float(value) for name, value in samples}

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    root = tmp_path / "root"
    arguments = ("fetch", origin.url, "--to", root, "--watermark", "100%", "--bandwidth", "3MB")
    with running(*arguments, "--metrics-address", f"127.0.0.1:{port}") as process:
        wait_until(lambda: origin.total_sent > 0)
        wait_until(lambda: scraped()["cacheprep_fetched_bytes_total"] > 0)
        values = scraped()
        process.terminate()
        process.communicate(timeout=20)
    assert values['cacheprep_phase{phase="fetching"}'] == 1.0
    assert 0 < values["cacheprep_fetched_bytes_total"] < values["cacheprep_bytes"] == origin.listing().total
    assert any(f'source="{origin.url}"' in name for name in values)


def test_a_real_safetensors_model_loads_from_where_it_was_published(tmp_path: Path) -> None:
    numpy = pytest.importorskip("numpy")
    safetensors = pytest.importorskip("safetensors.numpy")
    made = tmp_path / "made"
    made.mkdir()
    tensors = {"weight": numpy.arange(300_000, dtype=numpy.float32).reshape(300, 1000)}
    safetensors.save_file(tensors, made / "model.safetensors")
    with Origin(made) as server:
        done = fetch(server.url, tmp_path / "root")
    loaded = safetensors.load_file(Path(done.stdout.strip()) / "model.safetensors")
    assert (loaded["weight"] == tensors["weight"]).all()


def test_peak_memory_does_not_grow_with_size(tmp_path: Path) -> None:
    peaks = []
    for scale in (1, 12):
        directory = tmp_path / f"model{scale}"
        make_model(directory, scale=scale)
        with (
            Origin(directory) as server,
            running("fetch", server.url, "--to", tmp_path / f"root{scale}", *FAST) as process,
        ):
            peak = 0
            while (now := peak_memory(process.pid)) is not None:
                peak = now
                wait_briefly(process)
            assert process.wait() == 0
        peaks.append(peak)
    assert peaks[1] < 300 * 10**6
    assert peaks[1] < peaks[0] + 60 * 10**6


def peak_memory(pid: int) -> int | None:
    """The most memory that a process had in RAM so far, bytes; None once it has ended."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except FileNotFoundError:
        return None
    found = [line.split()[1] for line in status.splitlines() if line.startswith("VmHWM")]
    return int(found[0]) * 1024 if found else None


def wait_briefly(process: subprocess.Popen[str]) -> None:
    with suppress(subprocess.TimeoutExpired):
        process.wait(0.01)
