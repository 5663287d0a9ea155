"""What the commands on a cache root say to a person and to a program."""

from __future__ import annotations

import gzip
import json
import re
import signal
import socket
from pathlib import Path

import click
import pytest

from cacheprep.commands import cacheprep
from cacheprep.failures import Reason
from cacheprep.store.layout import Layout
from tests.store.origin import Origin
from tests.store.running import FAST, HELD_AFTER, RANGE, fetch, held_fetch, listed, run, running


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "root"


@pytest.fixture
def partial(origin: Origin, root: Path) -> str:
    """The key of a cache of which a process that was killed left a part."""
    with held_fetch(origin, root) as process:
        process.kill()
        process.wait()
    (entry,) = listed(root)
    key: str = entry["key"]
    return key


def shown(command: str, root: Path, key: str) -> str:
    """The row of a cache."""
    done = run(command, "--to", root)
    assert done.returncode == 0, done.stderr
    (row,) = (line for line in done.stdout.splitlines() if key in line)
    return row


def test_a_cache_that_is_being_fetched_is_shown_with_how_far_it_is(origin: Origin, root: Path) -> None:
    with held_fetch(origin, root):
        (entry,) = listed(root)
        assert 0 < entry["bytes_done"] <= HELD_AFTER * RANGE
        percent = int(100 * entry["bytes_done"] / entry["bytes"])
        for command in ("ls", "du"):
            assert f"fetching {percent}%" in shown(command, root, entry["key"])


def test_so_is_one_that_was_left(root: Path, partial: str) -> None:
    (entry,) = listed(root)
    assert 0 < entry["bytes_done"] < entry["bytes"]
    for command in ("ls", "du"):
        assert re.search(r"partial [1-9][0-9]?%", shown(command, root, partial))


def test_a_ready_cache_has_all_of_its_bytes(origin: Origin, root: Path) -> None:
    assert fetch(origin.url, root).returncode == 0
    (entry,) = listed(root)
    assert entry["bytes_done"] == entry["bytes"] > 0


def test_du_has_no_row_of_nothing(origin: Origin, root: Path) -> None:
    assert fetch(origin.url, root).returncode == 0
    rows = run("du", "--to", root).stdout.splitlines()
    assert [row.split()[0] for row in rows][0::2] == ["TAKES", "disk:"]
    assert len(rows) == 3


def test_gc_says_what_it_keeps_and_why(root: Path, partial: str) -> None:
    done = run("gc", "--to", root)
    path = Layout(str(root)).partial(partial)
    assert done.stdout.startswith(f"kept {path} (")
    assert "last written 0 min ago; a fetch of its source goes on with it" in done.stdout
    said = json.loads(run("gc", "--to", root, "--json").stdout)
    assert [one["path"] for one in said["kept"]] == [path]
    assert said["deleted"] == []
    assert run("gc", "--to", root, "--older-than", "0s").stdout.startswith(f"deleted {path} (")


def test_gc_names_what_a_process_works_on(origin: Origin, root: Path) -> None:
    with held_fetch(origin, root):
        done = run("gc", "--to", root, "--older-than", "0s")
    assert done.stdout.startswith("kept ")
    assert "a process works on it" in done.stdout


@pytest.mark.parametrize("source", ["file:///no/such/model", "models/llama"])
def test_a_source_that_is_not_there_leaves_no_root_behind(root: Path, source: str) -> None:
    done = run("fetch", source, "--to", root, *FAST)
    assert done.returncode == Reason.INVALID_REQUEST.exit_code
    assert not root.exists()


def test_ensure_takes_the_front_of_a_key_as_other_commands_do(origin: Origin, root: Path) -> None:
    assert fetch(origin.url, root).returncode == 0
    (entry,) = listed(root)
    front = entry["key"][:6]
    done = run("ensure", "--to", root, "--key", front)
    assert (done.returncode, done.stdout.strip()) == (0, entry["path"])
    assert run("rm", front, "--to", root).returncode == 0
    assert run("ensure", "--to", root, "--key", front).returncode == Reason.INVALID_REQUEST.exit_code
    assert run("ensure", origin.url, "--to", root, "--key", front, *FAST).returncode == 0
    other = "0" * 6 if front != "0" * 6 else "1" * 6
    changed = run("ensure", origin.url, "--to", root, "--key", other, *FAST)
    assert changed.returncode == Reason.SOURCE_CHANGED.exit_code


@pytest.mark.parametrize("key", ["", "llama", "../" * 3, "A" * 6])
def test_what_no_key_begins_with_is_refused_as_one(origin: Origin, root: Path, key: str) -> None:
    done = run("ensure", origin.url, "--to", root, "--key", key)
    assert done.returncode == Reason.INVALID_REQUEST.exit_code
    assert "a key is 40 hex digits" in done.stderr


def test_a_failure_is_json_where_that_was_asked_for_also_of_a_wrong_option(root: Path) -> None:
    done = run("fetch", "file:///no/such/model", "--to", root, "--range-size", "much", "--json")
    said = json.loads(done.stderr.splitlines()[-1])
    assert (said["event"], said["reason"], done.returncode) == ("failed", "InvalidRequest", 2)
    assert "--range-size" in said["message"]


def test_and_nowhere_else(origin: Origin, root: Path) -> None:
    assert fetch(origin.url, root).returncode == 0
    (entry,) = listed(root)
    done = run("run", entry["key"], "--to", root, "--", "no-such-command", "--json")
    assert done.stderr.startswith("InvalidRequest: command 'no-such-command'")


@pytest.mark.parametrize(("option", "named"), [("--listing", "is not JSON"), ("--manifest", "is none")])
def test_a_file_that_is_not_what_its_option_takes_is_named(
    option: str, named: str, origin: Origin, root: Path, tmp_path: Path
) -> None:
    (tmp_path / "notes.txt").write_text("not what was meant")
    done = fetch(origin.url, root, option, str(tmp_path / "notes.txt"))
    assert done.returncode == Reason.INVALID_REQUEST.exit_code
    assert f"InvalidRequest: {option} {tmp_path / 'notes.txt'}: {named}" in done.stderr


def test_ensure_of_nothing_says_what_is_missing(root: Path) -> None:
    done = run("ensure", "--to", root)
    assert done.returncode == Reason.INVALID_REQUEST.exit_code
    assert "SOURCE: is missing; name a SOURCE or a --listing" in done.stderr


@pytest.mark.parametrize("option", ["--range-size", "--bandwidth"])
def test_ranges_and_rates_of_nothing_are_refused(option: str, origin: Origin, root: Path) -> None:
    done = fetch(origin.url, root, option, "0")
    assert done.returncode == Reason.INVALID_REQUEST.exit_code
    assert f"Invalid value for '{option}': '0' is too little" in done.stderr


def test_a_misspelt_command_is_answered_with_the_nearest() -> None:
    assert "No such command 'fecth'. Did you mean 'fetch'?" in run("fecth").stderr


def test_ctrl_c_cancels_also_commands_that_only_look() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}/model"
        with running("sources", "resolve", url, "--json") as process:
            asked, _ = silent.accept()
            with asked:
                process.send_signal(signal.SIGINT)
                _, err = process.communicate(timeout=30)
    assert process.returncode == Reason.CANCELED.exit_code
    assert json.loads(err.splitlines()[-1])["reason"] == "Canceled"


def test_defaults_stand_in_brackets_where_click_puts_them() -> None:
    context = click.Context(cacheprep)
    for name in cacheprep.list_commands(context):
        command = cacheprep.get_command(context, name)
        assert command is not None
        for option in command.params:
            if isinstance(option, click.Option):
                assert "[default" not in (option.help or ""), (name, option.name)


def in_parts(directory: Path, source: Path) -> Path:
    """A directory with the listing of another one as ConfigMaps have it: compressed, in parts."""
    source.mkdir()
    (source / "config.json").write_text("{}")
    listed = run("sources", "resolve", source, "-o", "-")
    assert listed.returncode == 0, listed.stderr
    directory.mkdir()
    packed = gzip.compress(listed.stdout.strip().encode())
    for number, at in enumerate(range(0, len(packed), 50)):
        (directory / f"part-{number:04}.gz").write_bytes(packed[at : at + 50])
    assert number > 1
    return directory


def test_a_listing_may_lie_in_compressed_parts(root: Path, tmp_path: Path) -> None:
    parts = in_parts(tmp_path / "parts", tmp_path / "model")
    done = run("fetch", "--listing", parts, "--to", root, *FAST)
    assert done.returncode == 0, done.stderr
    assert fetch(str(tmp_path / "model"), root).stdout == done.stdout


def test_of_a_listing_in_parts_none_may_lack(root: Path, tmp_path: Path) -> None:
    parts = in_parts(tmp_path / "parts", tmp_path / "model")
    max(parts.iterdir()).unlink()
    (tmp_path / "none").mkdir()
    for directory, said in ((parts, "a part is missing"), (tmp_path / "none", "has no part-0000.gz")):
        done = run("fetch", "--listing", directory, "--to", root, *FAST)
        assert done.returncode == Reason.INVALID_REQUEST.exit_code
        assert said in done.stderr


def test_ensure_leaves_a_link_that_holds_wherever_the_root_is_mounted(
    origin: Origin, root: Path, tmp_path: Path
) -> None:
    link = root / "model"
    for _ in range(2):
        done = run("ensure", origin.url, "--to", root, f"--link={link}", *FAST)
        assert done.returncode == 0, done.stderr
        assert str(link.resolve()) == done.stdout.strip()
    moved = tmp_path / "elsewhere"
    root.rename(moved)
    assert (moved / "model").is_dir()
    (moved / "file").write_text("")
    refused = run("ensure", origin.url, "--to", moved, "--link", moved / "file", *FAST)
    assert refused.returncode == Reason.INVALID_REQUEST.exit_code
