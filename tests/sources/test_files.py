"""Mounted file systems, on a real one."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from cacheprep.failures import Failure, Reason
from cacheprep.listing import Listing, Verification
from cacheprep.sources import SourceOptions, source_of
from tests.sources.reading import (
    contents,
    failure_of_reading,
    failure_of_resolving,
    named,
    read,
    rest,
    some,
)

OPTIONS = SourceOptions()
FILES = {"config.json": b"{}", "a/b/model.safetensors": bytes(range(256)) * 10_000, "empty": b""}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for name, content in FILES.items():
        (tmp_path / "llama" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "llama" / name).write_bytes(content)
    return tmp_path / "llama"


def test_every_file_below_a_directory(root: Path) -> None:
    for url in (str(root), f"{root}/", f"file://{root}", f"file://localhost{root}"):
        source = source_of(url, OPTIONS)
        listing = source.resolve()
        assert listing.source == f"file://{root}"
        assert contents(source, listing) == FILES
    assert contents(source_of(listing.source, OPTIONS), Listing.from_json(listing.to_json())) == FILES


def test_a_single_file(root: Path) -> None:
    source = source_of(str(root / "config.json"), OPTIONS)
    assert contents(source, source.resolve()) == {"config.json": b"{}"}


def test_the_root_may_be_a_link(root: Path) -> None:
    (root.parent / "current").symlink_to(root)
    source = source_of(str(root.parent / "current"), OPTIONS)
    assert contents(source, source.resolve()) == FILES


def test_a_range_is_that_range(root: Path) -> None:
    source = source_of(str(root), OPTIONS)
    file = named(source.resolve(), "a/b/model.safetensors")
    for start, end in [(0, 1), (9, 9), (255, 2_000_001), (file.size - 1, file.size)]:
        assert read(source, file, start, end) == FILES[file.name][start:end]


def test_nothing_is_proven_before_the_first_read(root: Path) -> None:
    assert source_of(str(root), OPTIONS).resolve().verification is Verification.FIRST_READ
    strict = SourceOptions(verification=Verification.SOURCE_DIGEST)
    assert failure_of_resolving(source_of(str(root), strict)).reason is Reason.INVALID_REQUEST


def test_a_change_of_size_time_or_inode_is_source_changed(root: Path) -> None:
    source = source_of(str(root), OPTIONS)
    file = named(source.resolve(), "config.json")
    path = root / "config.json"
    before = path.stat()

    def changed() -> bool:
        return failure_of_reading(source, file).reason is Reason.SOURCE_CHANGED

    path.write_bytes(b"{} ")
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert changed()
    path.write_bytes(b"[]")
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns + 1))
    assert changed()
    other = root / "other"
    other.write_bytes(b"{}")
    os.utime(other, ns=(before.st_atime_ns, before.st_mtime_ns))
    other.rename(path)
    assert changed()
    path.unlink()
    assert changed()
    path.mkdir()
    assert changed()


def test_so_is_one_while_it_is_read(root: Path) -> None:
    source = source_of(str(root), OPTIONS)
    file = named(source.resolve(), "a/b/model.safetensors")
    with source.open(file, 0, file.size) as body:
        some(body)
        with (root / file.name).open("r+b") as writer:
            writer.write(b"x")
            os.utime(writer.fileno(), (1, 1))
        with pytest.raises(Failure, match="SourceChanged"):
            rest(body)


def test_and_a_file_that_was_cut_short(root: Path) -> None:
    source = source_of(str(root), OPTIONS)
    file = named(source.resolve(), "a/b/model.safetensors")
    with source.open(file, 0, file.size) as body:
        some(body)
        os.truncate(root / file.name, 100)
        with pytest.raises(Failure, match="SourceChanged"):
            rest(body)


@pytest.mark.parametrize("target", ["config.json", "/etc/passwd", "nowhere", "a", "/"])
def test_links_below_the_root_are_refused(root: Path, target: str) -> None:
    (root / "link").symlink_to(target)
    failure = failure_of_resolving(source_of(str(root), OPTIONS))
    assert failure.reason is Reason.INVALID_REQUEST
    assert "'link' is a symbolic link" in failure.message
    ignoring = SourceOptions(ignore=("link",))
    assert len(source_of(str(root), ignoring).resolve().files) == len(FILES)


@pytest.mark.parametrize("replaced", ["config.json", "a", "a/b"])
def test_a_link_that_took_the_place_of_a_listed_file_or_directory_is_not_followed(
    root: Path, replaced: str
) -> None:
    source = source_of(str(root), OPTIONS)
    listing = source.resolve()
    (root / replaced).rename(root.parent / "moved")
    (root / replaced).symlink_to(root.parent / "moved")
    failure = failure_of_reading(source, next(f for f in listing.files if f.name.startswith(replaced)))
    assert failure.reason is Reason.SOURCE_CHANGED


def test_what_is_no_plain_file_is_refused_and_never_waited_for(root: Path) -> None:
    source = source_of(str(root), OPTIONS)
    file = named(source.resolve(), "config.json")
    (root / "config.json").unlink()
    os.mkfifo(root / "config.json")
    reading = threading.Thread(target=lambda: failure_of_reading(source, file), daemon=True)
    reading.start()
    reading.join(10)
    assert not reading.is_alive()
    assert "not a plain file" in failure_of_resolving(source).message


@pytest.mark.parametrize("name", [b"a\\b", b"a\nb", b"\xff", "a‮b".encode()])
def test_hostile_names_are_refused(root: Path, name: bytes) -> None:
    Path(os.fsdecode(os.fsencode(root) + b"/" + name)).write_bytes(b"evil")
    failure = failure_of_resolving(source_of(str(root), OPTIONS))
    assert failure.reason is Reason.INVALID_REQUEST
    assert "file name" in failure.message


def test_what_is_missing_or_forbidden_is_named(root: Path) -> None:
    assert failure_of_resolving(source_of(f"{root}/gone", OPTIONS)).reason is Reason.INVALID_REQUEST
    empty = root / "nothing"
    empty.mkdir()
    assert failure_of_resolving(source_of(str(empty), OPTIONS)).reason is Reason.INVALID_REQUEST


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to be somebody else")
def test_a_file_that_this_user_may_not_read_is_access_denied(root: Path) -> None:
    (root / "config.json").chmod(0o600)
    for directory in (root, *list(root.parents)[:4]):
        if directory != Path("/tmp"):
            directory.chmod(directory.stat().st_mode | 0o055)
    source = source_of(str(root), OPTIONS)
    file = named(source.resolve(), "config.json")
    os.seteuid(65534)
    try:
        failure = failure_of_reading(source, file)
    finally:
        os.seteuid(0)
    assert failure.reason is Reason.ACCESS_DENIED
    assert "65534" in failure.message


@pytest.mark.parametrize("url", ["file://host/path", "file://path", "relative", "file:///a?b", "/a\nb", ""])
def test_urls_that_name_no_absolute_path_are_refused(url: str) -> None:
    with pytest.raises(Failure, match="InvalidRequest: source"):
        source_of(url, SourceOptions())
