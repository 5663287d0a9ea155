"""Several processes on one root, what is in use, and which roots are taken."""

from __future__ import annotations

import json
import os
import signal
import statistics
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path

import pytest

from cacheprep.failures import Failure, Reason
from cacheprep.store.gc import collect
from cacheprep.store.layout import Layout
from cacheprep.store.locks import Lock, is_held, try_lock
from cacheprep.store.remove import remove
from cacheprep.store.root import Rules, open_to_read, open_to_write, refusal
from tests.sources.fault_proxy import Fault
from tests.store.origin import Origin, same, wait_until
from tests.store.running import FAST, fetch, held_fetch, listed, run, running


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "root"


def waits(process: subprocess.Popen[str]) -> str:
    """What a process says once it waits for another; fails if it ends instead."""
    assert process.stderr is not None
    for line in process.stderr:
        if "waiting" in line:
            return line
    raise AssertionError("it did not wait")


def cached(origin: Origin, root: Path) -> str:
    """A ready cache; its key."""
    done = fetch(origin.url, root, "--json")
    assert done.returncode == 0, done.stderr
    key: str = json.loads(done.stdout)["key"]
    return key


@pytest.mark.parametrize("second", ["fetch", "ensure"])
def test_two_that_want_one_key_download_it_once(origin: Origin, model: Path, root: Path, second: str) -> None:
    with held_fetch(origin, root) as one:
        with running(second, origin.url, "--to", root, *FAST, "--json") as two:
            said = waits(two)
            origin.release()
            out_two, err_two = two.communicate(timeout=60)
        out_one, err_one = one.communicate(timeout=60)
    assert one.returncode == two.returncode == 0, (err_one, err_two)
    result = json.loads(out_two)
    assert (result["how"], result["bytes_fetched"]) == ("found", 0)
    assert "waiting for it" in said
    assert result["path"] == out_one.strip()
    assert same(model, Path(result["path"]))
    assert origin.total_sent == origin.listing().total


def test_who_waits_goes_on_where_the_one_that_died_stopped(origin: Origin, model: Path, root: Path) -> None:
    with (
        held_fetch(origin, root) as one,
        running("ensure", origin.url, "--to", root, *FAST, "--json") as two,
    ):
        waits(two)
        one.send_signal(signal.SIGKILL)
        origin.release()
        out, err = two.communicate(timeout=60)
    assert two.returncode == 0, err
    result = json.loads(out)
    assert result["how"] == "fetched"
    assert result["bytes_kept"] > 0
    assert same(model, Path(result["path"]))


def test_ensure_asks_no_source_once_it_knows_the_request(origin: Origin, root: Path) -> None:
    first = run("ensure", origin.url, "--to", root, *FAST)
    assert first.returncode == 0, first.stderr
    origin.fault = lambda _: Fault(status=500)
    (origin.directory / "new").write_bytes(b"the source has changed")
    try:
        again = run("ensure", origin.url, "--to", root, *FAST)
    finally:
        (origin.directory / "new").unlink()
    assert (again.returncode, again.stdout) == (0, first.stdout)


def test_ensure_by_key_or_listing_needs_no_source_either(origin: Origin, root: Path, tmp_path: Path) -> None:
    key = cached(origin, root)
    saved = tmp_path / "listing.json"
    saved.write_bytes(origin.listing().to_json() + b"\n")
    for chosen in (("--key", key), ("--listing", str(saved))):
        done = run("ensure", "--to", root, *chosen)
        assert done.returncode == 0, done.stderr
        assert done.stdout.strip() == Layout(str(root)).model(key)


def test_ensure_does_not_take_what_is_not_ready_for_warm(origin: Origin, model: Path, root: Path) -> None:
    """A directory that is not empty is no cache."""
    key = cached(origin, root)
    path = Path(Layout(str(root)).model(key))
    (path / "model-00002.safetensors").write_bytes(b"cut")
    done = run("ensure", origin.url, "--to", root, *FAST, "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["bytes_fetched"] == 3_000_000
    assert same(model, path)


def test_ensure_of_an_unknown_key_without_a_source_says_what_to_name(root: Path) -> None:
    done = run("ensure", "--to", root, "--key", "0" * 40)
    assert done.returncode == Reason.INVALID_REQUEST.exit_code
    assert "name a SOURCE" in done.stderr


def test_a_key_that_the_source_does_not_have_any_more_is_source_changed(origin: Origin, root: Path) -> None:
    done = run("ensure", origin.url, "--to", root, "--key", "0" * 40, *FAST)
    assert done.returncode == Reason.SOURCE_CHANGED.exit_code


def test_a_warm_ensure_of_200_files_takes_at_most_three_times_as_long_as_python_does(tmp_path: Path) -> None:
    source, root = tmp_path / "source", tmp_path / "root"
    source.mkdir()
    for number in range(200):
        (source / f"file-{number:03}").write_bytes(b"x" * number)
    with Origin(source) as server:
        key = cached(server, root)
    command = Path(sys.executable).with_name("cacheprep")
    if not command.exists():
        pytest.skip("cacheprep is not installed as a command")
    bare = [sys.executable, "-c", "pass"]
    warm = [str(command), "ensure", "--to", str(root), "--key", key]
    times: dict[str, list[float]] = {"bare": [], "warm": []}
    for _ in range(15):
        for name, arguments in (("bare", bare), ("warm", warm)):
            begun = time.perf_counter()
            subprocess.run(arguments, check=True, stdout=subprocess.DEVNULL)
            times[name].append(time.perf_counter() - begun)
    assert statistics.median(times["warm"]) <= 3 * statistics.median(times["bare"])


def test_a_warm_ensure_imports_nothing_slow(origin: Origin, root: Path) -> None:
    key = cached(origin, root)
    script = (
        "import sys; before = set(sys.modules); from cacheprep.warm import warm;"
        f"assert warm(['--to', {str(root)!r}, '--key', {key!r}]);"
        "print(*sorted(set(sys.modules) - before))"
    )
    path = f"import sys; sys.path[:0] = [{os.getcwd()!r}]; "
    done = subprocess.run(
        [sys.executable, "-S", "-c", path + script], capture_output=True, text=True, check=True
    )
    slow = {"click", "json", "hashlib", "typing", "pydantic", "rich", "importlib.metadata", "ssl"}
    assert slow.isdisjoint(done.stdout.split())


def test_what_is_in_use_is_neither_removed_nor_collected_until_its_last_user_ends(
    origin: Origin, root: Path, tmp_path: Path
) -> None:
    key = cached(origin, root)
    mark = tmp_path / "started"
    script = f"ls {{}} > {mark}; echo $CACHEPREP_MODEL >> {mark}; exec cat"
    with subprocess.Popen(
        [sys.executable, "-m", "cacheprep", "run", key[:8], "--to", str(root), "--", "sh", "-c", script],
        stdin=subprocess.PIPE,
    ) as user:
        try:
            wait_until(lambda: mark.exists() and "model" in mark.read_text())
            assert listed(root)[0]["in_use"] is True
            assert run("rm", key, "--to", root).returncode == Reason.INVALID_REQUEST.exit_code
            assert run("gc", "--to", root, "--older-than", "0s").returncode == 0
            assert listed(root)[0]["ready"] is True
        finally:
            user.kill()
    assert run("rm", key, "--to", root).returncode == 0
    assert listed(root) == []


def test_run_ends_as_its_command_does(origin: Origin, root: Path) -> None:
    key = cached(origin, root)
    assert run("run", key, "--to", root, "--", "sh", "-c", "exit 42").returncode == 42
    assert (
        run("run", key, "--to", root, "--", "no-such-command").returncode == Reason.INVALID_REQUEST.exit_code
    )
    assert run("run", "0" * 40, "--to", root, "--", "true").returncode == Reason.INVALID_REQUEST.exit_code


def test_what_is_being_fetched_is_not_removed(origin: Origin, root: Path) -> None:
    with held_fetch(origin, root):
        (entry,) = listed(root)
        assert entry["busy"] is True
        done = run("rm", entry["key"], "--to", root)
        assert done.returncode == Reason.INVALID_REQUEST.exit_code
        assert run("gc", "--to", root, "--older-than", "0s").returncode == 0
        assert listed(root)[0]["state"] == "partial"


def test_gc_leaves_young_partial_caches_to_be_resumed(origin: Origin, root: Path) -> None:
    with held_fetch(origin, root) as process:
        process.kill()
        process.wait()
    layout = Layout(str(root))
    assert [found.kept for found in collect(layout, time.time(), 3600)] == [True]
    dry = list(collect(layout, time.time() + 7200, 3600, dry=True))
    assert [found.path for found in dry] == [layout.partial(listed(root)[0]["key"])]
    assert list(collect(layout, time.time() + 7200, 3600))
    assert listed(root) == []


def test_no_more_downloads_run_from_one_source_than_allowed(
    origin: Origin, root: Path, tmp_path: Path
) -> None:
    with held_fetch(origin, root, "--downloads-per-source", "1") as one:
        saved = tmp_path / "listing.json"
        listing = origin.listing()
        other = type(listing)(listing.source, "another", listing.files)
        saved.write_bytes(other.to_json())
        more = ("--listing", str(saved), "--downloads-per-source", "1", "--json")
        with running("fetch", origin.url, "--to", root, *FAST, *more) as two:
            said = waits(two)
            assert one.poll() is None
            origin.release()
            two.communicate(timeout=60)
    assert two.returncode == 0
    assert "waiting for a turn" in said


def test_a_lock_dies_with_its_process(tmp_path: Path) -> None:
    path = str(tmp_path / "lock")
    script = (
        "from cacheprep.store.locks import try_lock; import time;"
        f"held = try_lock({path!r}); print(flush=True); time.sleep(60)"
    )
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        holder.stdout.readline()
        assert try_lock(path) is None
        assert is_held(path)
        holder.kill()
        holder.wait()
    held = try_lock(path)
    assert held is not None
    held.release()


@pytest.mark.parametrize("shared", [True, False])
def test_who_asks_whether_a_lock_is_held_keeps_nobody_from_taking_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shared: bool
) -> None:
    path = str(tmp_path / "lock")
    (tmp_path / "lock").touch()
    taken: list[Lock | None] = []
    closes = os.close

    def taking_meanwhile(fd: int) -> None:
        # The last moment at which the one who asks could hold anything.
        taken.append(try_lock(path, shared=shared))
        closes(fd)

    with monkeypatch.context() as patched:
        patched.setattr(os, "close", taking_meanwhile)
        assert not is_held(path)
    (held,) = taken
    assert held is not None
    assert is_held(path)
    held.release()
    assert not is_held(path)


def test_a_lock_whose_file_was_removed_excludes_nobody_twice(tmp_path: Path) -> None:
    path = str(tmp_path / "lock")
    first = try_lock(path)
    assert first is not None
    first.forget()
    second = try_lock(path)
    assert second is not None
    assert try_lock(path) is None
    second.release()


def test_removing_what_is_not_there_says_so(root: Path) -> None:
    open_to_write(str(root), Rules())
    assert remove(Layout(str(root)), "0" * 40) is False
    assert run("rm", "0" * 40, "--to", root).returncode == Reason.INVALID_REQUEST.exit_code


# Roots.


@pytest.mark.parametrize(
    "kind", ["nfs", "nfs4", "cifs", "lustre", "ceph", "9p", "fuse.s3fs", "fuse", "virtiofs"]
)
def test_a_network_file_system_is_refused_unless_it_is_known_to_be_local(kind: str) -> None:
    assert kind in refusal(kind, Rules())
    assert refusal(kind, Rules(allow_file_systems=frozenset((kind,)))) == ""


def test_a_pseudo_file_system_is_refused_by_name() -> None:
    with pytest.raises(Failure, match="proc"):
        open_to_write("/proc/cache", Rules())


def test_the_disk_of_the_system_is_a_warning_by_hand_and_refused_in_kubernetes(
    origin: Origin, root: Path, tmp_path: Path
) -> None:
    if os.stat(tmp_path).st_dev != os.stat("/").st_dev:
        pytest.skip("temporary files are on a disk of their own here")
    assert open_to_write(str(root), Rules()).warnings
    there = {"KUBERNETES_SERVICE_HOST": "10.0.0.1"}
    refused = fetch(origin.url, tmp_path / "other", **there)
    assert refused.returncode == Reason.INVALID_REQUEST.exit_code
    assert "disk of its own" in refused.stderr
    assert fetch(origin.url, tmp_path / "other", "--allow-shared-disk", **there).returncode == 0


def test_a_root_of_another_user_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    open_to_write(str(tmp_path), Rules())
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    with pytest.raises(Failure) as caught:
        open_to_write(str(tmp_path), Rules())
    assert caught.value.reason is Reason.ACCESS_DENIED


def test_a_directory_in_which_our_names_are_taken_is_refused(tmp_path: Path) -> None:
    (tmp_path / "caches").mkdir()
    with pytest.raises(Failure, match="not ours"):
        open_to_write(str(tmp_path), Rules())


def test_a_root_of_another_release_is_refused(tmp_path: Path) -> None:
    (tmp_path / "warmroute-store").write_text("warmroute-store 2\n")
    for opened in (open_to_read, lambda path: open_to_write(path, Rules())):
        with pytest.raises(Failure, match="another release"):
            opened(str(tmp_path))


def test_a_directory_that_is_no_root_is_not_read(tmp_path: Path) -> None:
    done = run("ls", "--to", tmp_path)
    assert done.returncode == Reason.INVALID_REQUEST.exit_code
    assert "no cache root" in done.stderr


def test_names_that_are_no_keys_are_left_alone(origin: Origin, root: Path) -> None:
    cached(origin, root)
    strange = root / "caches" / "mine"
    strange.mkdir()
    (root / "trash" / "notes").write_text("mine")
    assert len(listed(root)) == 1
    assert run("gc", "--to", root, "--older-than", "0s").returncode == 0
    assert strange.exists()
    assert (root / "trash" / "notes").exists()


def test_a_saved_listing_is_not_taken_for_what_the_source_has(
    origin: Origin, root: Path, tmp_path: Path
) -> None:
    """`ensure SOURCE` after `fetch SOURCE --listing OLD` asks the source."""
    listing = origin.listing()
    saved = tmp_path / "listing.json"
    saved.write_bytes(type(listing)(listing.source, "old", listing.files).to_json())
    old = fetch(origin.url, root, "--listing", str(saved))
    new = run("ensure", origin.url, "--to", root, *FAST)
    assert old.returncode == new.returncode == 0
    assert old.stdout != new.stdout


def test_many_that_begin_at_once_on_a_new_root_all_succeed(origin: Origin, root: Path) -> None:
    with ExitStack() as stack:
        processes = [
            stack.enter_context(running("ensure", origin.url, "--to", root, *FAST)) for _ in range(4)
        ]
        ended = [process.communicate(timeout=60) for process in processes]
    assert [process.returncode for process in processes] == [0] * 4, ended
    assert origin.total_sent == origin.listing().total
