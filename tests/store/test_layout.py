"""Paths below a cache root are derived, and the marker says what it was given."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cacheprep.failures import Failure, Reason
from cacheprep.listing import Digest, File, Listing
from cacheprep.store import progress
from cacheprep.store.layout import Layout, check_key, is_key, key_of
from cacheprep.store.manifest import Manifest
from cacheprep.store.marker import BadMarker, Marker, changed, parse, read, render

KEY = "0123456789abcdef0123456789abcdef01234567"
hexes = st.text("0123456789abcdef", min_size=64, max_size=64)
names = st.text(st.characters(blacklist_categories=["Cc", "Cs", "Zl", "Zp"]), min_size=1).filter(
    lambda name: name.isprintable()
)
markers = st.builds(
    Marker,
    st.just(KEY),
    hexes,
    st.integers(0, 2**40),
    st.lists(st.tuples(st.integers(0, 2**62), st.integers(0, 2**62), names), max_size=8).map(tuple),
)


def test_a_key_is_derived_from_the_listing_and_is_a_plain_name() -> None:
    key = key_of("ab" * 32)
    assert is_key(key)
    assert os.path.dirname(Layout("/root/of/it").cache(key)) == "/root/of/it/caches"


@pytest.mark.parametrize(
    "text", ["", "..", "../" * 13 + "x", KEY[:-1], KEY + "0", KEY.upper(), f"{KEY[:-1]}/", "-h"]
)
def test_what_is_no_key_never_becomes_a_path(text: str) -> None:
    layout = Layout("/root")
    for path in (layout.cache, layout.model, layout.ready, layout.partial, layout.journal, layout.use_lock):
        with pytest.raises(Failure) as caught:
            path(text)
        assert caught.value.reason is Reason.INVALID_REQUEST


@given(st.text(max_size=60))
def test_any_text_is_a_key_or_refused(text: str) -> None:
    if is_key(text):
        assert check_key(text) == text
    else:
        with pytest.raises(Failure):
            check_key(text)


@given(markers)
def test_a_marker_reads_as_it_was_written(marker: Marker) -> None:
    assert parse(render(marker)) == marker


@given(markers, st.data())
def test_a_marker_with_any_bit_flipped_is_none(marker: Marker, data: st.DataObject) -> None:
    text = bytearray(render(marker))
    at = data.draw(st.integers(0, len(text) - 1))
    text[at] ^= 1 << data.draw(st.integers(0, 7))
    with pytest.raises(BadMarker):
        parse(bytes(text))


@given(markers, st.data())
def test_a_marker_cut_anywhere_is_none(marker: Marker, data: st.DataObject) -> None:
    text = render(marker)
    with pytest.raises(BadMarker):
        parse(text[: data.draw(st.integers(0, len(text) - 1))])


@given(st.binary(max_size=200))
def test_bytes_that_are_no_marker_are_refused_without_a_crash(text: bytes) -> None:
    with pytest.raises(BadMarker):
        parse(text)


def test_a_marker_notices_each_change_of_a_file(tmp_path: Path) -> None:
    file = tmp_path / "a"
    file.write_bytes(b"four")
    found = file.stat()
    marker = Marker(KEY, "0" * 64, 1, ((4, found.st_mtime_ns, "a"),))
    assert changed(marker, str(tmp_path)) == ""

    os.utime(file, ns=(0, found.st_mtime_ns + 1))
    assert "modified" in changed(marker, str(tmp_path))
    file.write_bytes(b"fiver")
    assert "5 bytes, not 4" in changed(marker, str(tmp_path))
    file.unlink()
    assert "No such file" in changed(marker, str(tmp_path))
    file.symlink_to(__file__)
    assert "not a plain file" in changed(marker, str(tmp_path))


def test_no_marker_reads_as_none(tmp_path: Path) -> None:
    assert read(str(tmp_path / "ready")) is None
    (tmp_path / "ready").write_bytes(b"warmroute-ready 1\n")
    assert read(str(tmp_path / "ready")) is None


def test_a_manifest_reads_as_it_was_written_and_says_what_it_was_verified_against() -> None:
    files = (File("a", 1, (Digest("sha256", "a" * 64),), "v"), File("b/ü", 2, (), ""))
    manifest = Manifest(Listing("s3://bucket/x", "r", files), ("a" * 64, "b" * 64))
    text = manifest.to_json()
    assert Manifest.from_json(text) == manifest
    assert b'"verified_against": "sha256"' in text
    assert b'"verification": "first-read"' in text


@pytest.mark.parametrize("old", [b"sha256", b'"format": 1', b'"size": 1', b"listing", b"{"])
def test_a_damaged_manifest_is_an_integrity_mismatch(old: bytes) -> None:
    manifest = Manifest(Listing("s3://bucket/x", "", (File("a", 1),)), ("a" * 64,))
    with pytest.raises(Failure) as caught:
        Manifest.from_json(manifest.to_json().replace(old, b"x"))
    assert caught.value.reason is Reason.INTEGRITY_MISMATCH


def _in_place(layout: Layout, content: str) -> None:
    os.makedirs(layout.partial(KEY), exist_ok=True)
    Path(layout.progress(KEY)).write_text(content)


@pytest.mark.parametrize(
    "content", ["", "1", "a b", "1 2 3", "-1 2", f"{1 << 63} 1", f"1 {1 << 63}", "1" * 100, "\N{SNOWMAN} 1"]
)
def test_progress_that_is_none_is_not_believed(tmp_path: Path, content: str) -> None:
    layout = Layout(str(tmp_path))
    _in_place(layout, content)
    assert progress.read(layout, KEY) is None


def test_progress_is_read_as_it_was_written_last_and_gone_when_forgotten(tmp_path: Path) -> None:
    layout = Layout(str(tmp_path))
    assert progress.read(layout, KEY) is None
    os.makedirs(layout.partial(KEY))
    for told in (progress.Progress(1 << 40, 812_000_000), progress.Progress(7, 0)):
        progress.write(layout, KEY, told)
        assert progress.read(layout, KEY) == told
    progress.forget(layout, KEY)
    progress.forget(layout, KEY)
    assert progress.read(layout, KEY) is None


def test_a_link_in_the_place_of_progress_is_not_followed_and_a_pipe_not_waited_for(tmp_path: Path) -> None:
    layout = Layout(str(tmp_path / "root"))
    os.makedirs(layout.partial(KEY))
    (tmp_path / "elsewhere").write_text("1 2")
    os.symlink(tmp_path / "elsewhere", layout.progress(KEY))
    assert progress.read(layout, KEY) is None
    os.unlink(layout.progress(KEY))
    os.mkfifo(layout.progress(KEY))
    assert progress.read(layout, KEY) is None
