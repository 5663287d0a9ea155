"""Listings: what is refused, and what survives being saved."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cacheprep.failures import Failure, Reason
from cacheprep.listing import MAX_FILES, Digest, File, Listing, Verification, check_name, fold, proof

SHA256 = Digest("sha256", "ab" * 32)
GIT = Digest("git-blob-sha1", "cd" * 20)
CRC = Digest("crc64nvme", "ef" * 8)

parts = st.text(st.characters(codec="utf-8", exclude_characters="/"), min_size=1, max_size=20)
names = st.lists(parts, min_size=1, max_size=4).map("/".join)
digests = st.sampled_from(
    [(), (SHA256,), (CRC,), (CRC, SHA256), (GIT,), (Digest("sha256:8388608", "12" * 32),)]
)


def accepted(name: str) -> bool:
    try:
        check_name(name)
    except Failure:
        return False
    return True


files = st.builds(
    File, names.filter(accepted), st.integers(0, 2**63 - 1), digests, st.text("abc =\"'", max_size=20)
)


def listing(*files: File, source: str = "s3://bucket/llama/", revision: str = "") -> Listing:
    return Listing(source, revision, files)


def refusal(*files: File, **more: Any) -> str:
    with pytest.raises(Failure) as caught:
        listing(*files, **more)
    assert caught.value.reason is Reason.INVALID_REQUEST
    return caught.value.message


@pytest.mark.parametrize(
    "name", ["a", "a/b/c.safetensors", "..a", "a..", "...", "ä/ö", "a b", "-rf", "~", "a:b", "%2e"]
)
def test_ordinary_names_pass(name: str) -> None:
    check_name(name)


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("", "is empty"),
        ("/a", "is absolute"),
        ("..", "'..'"),
        ("../a", "'..'"),
        ("a/../b", "'..'"),
        ("a/..", "'..'"),
        (".", "'.'"),
        ("a/./b", "'.'"),
        ("a//b", "''"),
        ("a/", "''"),
        ("a\\b", "backslash"),
        ("a\0b", "control"),
        ("a\nb", "control"),
        ("a\x7fb", "control"),
        ("a\x85b", "control"),
        ("a\u2028b", "control"),
        ("a\u202ebst.exe", "control"),
        ("\udcff", "UTF-8"),
        ("a" * 256, "longer than 255"),
        ("ä" * 128, "longer than 255"),
        ("/".join(["a" * 200] * 21), "longer than 4096"),
    ],
)
def test_hostile_names_are_refused_with_the_reason(name: str, why: str) -> None:
    with pytest.raises(Failure) as caught:
        check_name(name)
    assert caught.value.reason is Reason.INVALID_REQUEST
    assert why in caught.value.message
    assert caught.value.message.isascii()
    assert caught.value.message.isprintable()


@given(st.text())
def test_a_name_that_passes_stays_in_its_directory(name: str) -> None:
    if accepted(name):
        assert not name.startswith("/")
        assert not {"", ".", ".."} & set(name.split("/"))
        assert name.encode().decode() == name


@pytest.mark.parametrize(
    ("first", "second"),
    [("a", "a"), ("A", "a"), ("straße", "STRASSE"), ("é", "e\u0301"), ("x/README", "x/readme"), ("ſ", "s")],
)
def test_names_that_some_file_system_cannot_tell_apart_are_refused(first: str, second: str) -> None:
    assert fold(first) == fold(second)
    refusal(File(first, 1), File(second, 1))


@pytest.mark.parametrize(("first", "second"), [("a", "a/b"), ("A/b", "a"), ("a/b", "a/b/c/d")])
def test_a_file_cannot_be_a_directory_too(first: str, second: str) -> None:
    assert "directory" in refusal(File(first, 1), File(second, 1))


@pytest.mark.parametrize("size", [-1, 2**63, True, 1.0, "1", None])
def test_sizes_are_numbers_of_bytes(size: Any) -> None:
    assert "size" in refusal(File("a", size))


@pytest.mark.parametrize(
    "digest",
    [
        Digest("md5", "ab" * 16),
        Digest("sha256", "ab" * 31),
        Digest("sha256", "AB" * 32),
        Digest("sha256", "xy" * 32),
        Digest("sha256:0", "ab" * 32),
        Digest("git-blob-sha1:5", "ab" * 20),
    ],
)
def test_digests_are_known_and_whole(digest: Digest) -> None:
    refusal(File("a", 1, (digest,)))


def test_one_digest_of_each_algorithm() -> None:
    assert "two digests" in refusal(File("a", 1, (SHA256, SHA256)))


def test_no_file_and_too_many_are_refused() -> None:
    refusal()
    file = File("a", 1)
    assert str(MAX_FILES) in refusal(*[file] * (MAX_FILES + 1))


@pytest.mark.parametrize("text", ["a\nb", "x" * 5000, "\ud800"])
def test_source_and_revision_are_printable(text: str) -> None:
    refusal(File("a", 1), source=text)
    refusal(File("a", 1), revision=text)


def test_which_digests_prove_a_file() -> None:
    assert proof(File("a", 1, (CRC, SHA256))) == SHA256
    assert proof(File("a", 1, (GIT,))) == GIT
    in_parts = Digest("sha256:8388608", "12" * 32)
    assert proof(File("a", 1, (CRC, in_parts))) == in_parts
    assert proof(File("a", 1, (CRC, Digest("crc32c", "ab" * 4)))) is None
    assert proof(File("a", 1)) is None


def test_one_file_without_proof_makes_it_first_read() -> None:
    assert listing(File("a", 1, (SHA256,)), File("b", 1, (GIT,))).verification is Verification.SOURCE_DIGEST
    assert listing(File("a", 1, (SHA256,)), File("b", 1, (CRC,))).verification is Verification.FIRST_READ


def test_total_is_in_bytes() -> None:
    assert listing(File("a", 5), File("b", 7)).total == 12


@given(st.lists(files, min_size=1, max_size=5))
def test_what_is_saved_is_read_back_equal(found: list[File]) -> None:
    try:
        made = listing(*found, revision="main")
    except Failure:
        return
    assert Listing.from_json(made.to_json()) == made
    assert Listing.from_json(json.dumps(json.loads(made.to_json()), indent=3).encode()) == made


@given(st.permutations([File("a", 1, (CRC, SHA256)), File("b", 2), File("c/d", 3, (GIT,)), File("B2", 4)]))
def test_order_does_not_matter_to_the_digest(found: list[File]) -> None:
    reference = listing(File("B2", 4), File("a", 1, (SHA256, CRC)), File("b", 2), File("c/d", 3, (GIT,)))
    assert listing(*found).digest() == reference.digest()


def test_the_canonical_form_does_not_change_between_releases() -> None:
    made = listing(File("b", 2, (SHA256, CRC), 'etag="x"'), File("ä", 1))
    assert made.to_json().decode() == (
        '{"files":[{"digests":{"crc64nvme":"efefefefefefefef","sha256":"'
        + "ab" * 32
        + '"},"name":"b","size":2,'
        '"version":"etag=\\"x\\""},{"digests":{},"name":"ä","size":1,"version":""}],"format":1,"revision":"",'
        '"source":"s3://bucket/llama/"}'
    )


@pytest.mark.parametrize(
    ("change", "value"),
    [("name", "b"), ("size", 3), ("digests", (GIT,)), ("version", "v2")],
)
def test_every_field_of_a_file_counts_for_the_digest(change: str, value: Any) -> None:
    file = {"name": "a", "size": 2, "digests": (SHA256,), "version": "v1"}
    assert listing(File(**{**file, change: value})).digest() != listing(File(**file)).digest()  # type: ignore[arg-type]


VALID = json.loads(listing(File("a", 1, (SHA256,), "v")).to_json())


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"[]",
        b"null",
        b"{",
        b"\xff",
        b"[" * 100_000,
        *(
            json.dumps(value).encode()
            for value in (
                {},
                {**VALID, "format": 2},
                {**VALID, "more": 1},
                {**VALID, "files": {}},
                {**VALID, "files": []},
                {**VALID, "source": 1},
                {**VALID, "files": [1]},
                {**VALID, "files": [{**VALID["files"][0], "mode": 7}]},
                {**VALID, "files": [{**VALID["files"][0], "name": 7}]},
                {**VALID, "files": [{**VALID["files"][0], "name": "../x"}]},
                {**VALID, "files": [{**VALID["files"][0], "size": "1"}]},
                {**VALID, "files": [{**VALID["files"][0], "digests": []}]},
                {**VALID, "files": [{**VALID["files"][0], "digests": {"sha256": 1}}]},
                {**VALID, "files": [VALID["files"][0], VALID["files"][0]]},
            )
        ),
    ],
)
def test_a_saved_listing_that_is_none_is_refused(text: bytes) -> None:
    with pytest.raises(Failure) as caught:
        Listing.from_json(text)
    assert caught.value.reason is Reason.INVALID_REQUEST


@given(
    st.binary()
    | st.recursive(st.none() | st.integers() | st.text(), st.lists).map(lambda v: json.dumps(v).encode())
)
def test_whatever_is_read_is_a_listing_or_an_invalid_request(text: bytes) -> None:
    reason = None
    try:
        Listing.from_json(text)
    except Failure as failure:
        reason = failure.reason
    assert reason in (None, Reason.INVALID_REQUEST)
