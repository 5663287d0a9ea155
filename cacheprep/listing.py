"""What a source holds, fixed at one moment: names, sizes, digests and versions. Pure: no IO.

A listing is made once, by `Source.resolve`, and every node then fetches exactly it. It can be saved as JSON
and read elsewhere, so what is read is hostile: every rule is checked when a `Listing` is made, by whomever.
"""

from __future__ import annotations

import hashlib
import json
import re
import unicodedata
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any, NamedTuple

from cacheprep.failures import Failure, Reason

MAX_PART_BYTES = 255  # NAME_MAX, limits.h
MAX_NAME_BYTES = 4096  # PATH_MAX, limits.h
MAX_FILES = 200_000
"""The Hub recommends fewer than 100 000 files per repository."""
MAX_JSON_BYTES = 256 << 20
MAX_TEXT_BYTES = 4096
"""Of a source's URL, a revision or a version."""

_FORMAT = 1
_DIGEST_BYTES = {"sha256": 32, "git-blob-sha1": 20, "crc64nvme": 8, "crc32c": 4, "crc32": 4}
_IN_PARTS = re.compile(r"(sha256|crc32c|crc32):([1-9][0-9]{0,14})")
_HEX = re.compile(r"[0-9a-f]+")
_BIDI = frozenset("\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")


class Digest(NamedTuple):
    """A digest that the source gives for a file; `value` is lower-case hex.

    `algorithm` is one of

    - `sha256`: of the file's bytes;
    - `git-blob-sha1`: of `blob SIZE\\0` and the file's bytes, git's object id of a small file;
    - `crc64nvme`, `crc32c`, `crc32`: as S3 computes them over the whole object, big-endian;
    - `sha256:PART`, `crc32c:PART`, `crc32:PART`: of the concatenated raw digests of each PART bytes, S3's
      composite checksums.

    `cacheprep.digests.hasher` computes each.
    """

    algorithm: str
    value: str


class Verification(StrEnum):
    """What the digests of a cache's manifest rest on."""

    SOURCE_DIGEST = "source-digest"
    """The source gives a cryptographic digest of every file; a node gets these bytes or IntegrityMismatch."""
    FIRST_READ = "first-read"
    """Some file has none: what the first node reads is what the manifest says."""


@dataclass(frozen=True, slots=True)
class File:
    """A file of a listing.

    `name` is a relative POSIX path, `size` bytes. `version` is what the source calls exactly this content (an
    ETag, a version id, a commit, times and inode); only the source reads it.
    """

    name: str
    size: int
    digests: tuple[Digest, ...] = ()
    version: str = ""


def proof(file: File) -> Digest | None:
    """The digest of `file` that counts as `source-digest`, or None.

    Only a digest that nobody can find other bytes for says which bytes are meant: sha256 (whole or in parts),
    and git's SHA-1, by which the Hub itself addresses small files. A CRC finds damage on the way and is
    checked where there is one, but a file that has only CRCs is `first-read`.
    """
    for kind in ("sha256", "sha256:", "git-blob-sha1"):
        for digest in file.digests:
            if digest.algorithm == kind or (kind.endswith(":") and digest.algorithm.startswith(kind)):
                return digest
    return None


@dataclass(frozen=True, slots=True)
class Listing:
    """Every file of a source at one revision; checked when it is made, whoever makes it.

    `source` is the canonical URL, without credentials. `revision` is the source's word for all of it at
    once (a commit; empty where a source has none). `files` are kept sorted by name.

    Raises Failure(InvalidRequest) for a name that `check_name` refuses, a name twice, names that differ only
    in case or Unicode form, a file that is also a directory, a negative size, a malformed digest, no file at
    all, or more than `MAX_FILES`.
    """

    source: str
    revision: str
    files: tuple[File, ...]

    def __post_init__(self) -> None:
        _check_text("source", self.source)
        _check_text("revision", self.revision)
        if not self.files:
            raise _invalid(f"{self.source}: has no file that is wanted; check the URL and the patterns")
        if len(self.files) > MAX_FILES:
            raise _invalid(
                f"{self.source}: has {len(self.files)} files, at most {MAX_FILES} are taken; name a smaller"
                " prefix, or allow fewer with patterns"
            )
        for file in self.files:
            _check_file(file)
        _check_together([file.name for file in self.files])
        ordered = sorted(self.files, key=lambda file: file.name)
        object.__setattr__(self, "files", tuple(map(_with_sorted_digests, ordered)))

    @property
    def total(self) -> int:
        """Bytes of all files."""
        return sum(file.size for file in self.files)

    @property
    def verification(self) -> Verification:
        """`source-digest` if every file has a `proof`, else `first-read`."""
        proven = all(proof(file) for file in self.files)
        return Verification.SOURCE_DIGEST if proven else Verification.FIRST_READ

    def digest(self) -> str:
        """SHA-256 of the canonical JSON in hex; equal exactly for equal listings."""
        return hashlib.sha256(self.to_json()).hexdigest()

    def to_json(self) -> bytes:
        """The canonical JSON: sorted keys and files, no white space, UTF-8."""
        content = {
            "format": _FORMAT,
            "source": self.source,
            "revision": self.revision,
            "files": [
                {
                    "name": file.name,
                    "size": file.size,
                    "digests": dict(file.digests),
                    "version": file.version,
                }
                for file in self.files
            ],
        }
        return json.dumps(content, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()

    @classmethod
    def from_json(cls, text: bytes) -> Listing:
        """Read what `to_json` wrote, with any white space and order.

        Raises Failure(InvalidRequest) for anything else; unknown and missing keys too.
        """
        if len(text) > MAX_JSON_BYTES:
            raise _invalid(f"listing: {len(text)} bytes of JSON, at most {MAX_JSON_BYTES} are read")
        try:
            content = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise _invalid(
                f"listing: is not JSON ({error}); write it with `cacheprep sources resolve -o`"
            ) from None
        _check_keys("listing", content, ("format", "source", "revision", "files"))
        if content["format"] != _FORMAT:
            raise _invalid(f"listing: format is {content['format']!r:.40}, this release reads {_FORMAT}")
        if not isinstance(content["files"], list):
            raise _invalid("listing: files is not a list")
        files = tuple(_file(index, entry) for index, entry in enumerate(content["files"]))
        return cls(content["source"], content["revision"], files)


def check_name(name: str) -> None:
    """Refuse a file name that could leave its directory, hide, or not be stored.

    Raises Failure(InvalidRequest) for an absolute path, empty, `.` and `..` parts, backslashes, control and
    direction characters, what is not UTF-8, a part over 255 bytes or a path over 4096.
    """
    problem = _problem(name)
    if problem:
        raise _invalid(f"file name {name!a:.200}: {problem}; rename it at the source, or ignore it")


def _problem(name: str) -> str:
    try:
        encoded = name.encode()
    except UnicodeEncodeError:
        return "is not UTF-8"
    if name.isascii():
        strange = not name.isprintable()
    else:
        strange = any(unicodedata.category(c) in {"Cc", "Zl", "Zp"} or c in _BIDI for c in name)
    if strange:
        return "has a control character"
    if "\\" in name:
        return "has a backslash"
    if not name:
        return "is empty"
    if name.startswith("/"):
        return "is absolute"
    if len(encoded) > MAX_NAME_BYTES:
        return f"is longer than {MAX_NAME_BYTES} bytes"
    for part in name.split("/"):
        if part in ("", ".", ".."):
            return f"has the part {part!r}"
        if len(part) * 4 > MAX_PART_BYTES and len(part.encode()) > MAX_PART_BYTES:
            return f"has a part longer than {MAX_PART_BYTES} bytes"
    return ""


def fold(name: str) -> str:
    """Equal for names that a file system without case, or with one Unicode form, cannot tell apart."""
    if name.isascii():
        return name.lower()
    # Canonical caseless matching, The Unicode Standard, section 3.13, D145.
    return unicodedata.normalize("NFD", unicodedata.normalize("NFD", name).casefold())


def _check_together(names: Sequence[str]) -> None:
    seen: dict[str, str] = {}
    for name in names:
        other = seen.get(fold(name))
        if other is not None:
            how = "is there twice"
            if other != name:
                how = f"and {other!a} differ only in case or Unicode form"
            raise _invalid(f"file name {name!a}: {how}; rename one at the source, or ignore one")
        seen[fold(name)] = name
    for name in names:
        folded = fold(name)
        at = folded.find("/")
        while at > 0:
            if folded[:at] in seen:
                raise _invalid(
                    f"file name {seen[folded[:at]]!a}: is also the directory of {name!a}; rename one at the"
                    " source, or ignore one"
                )
            at = folded.find("/", at + 1)


def _check_file(file: File) -> None:
    check_name(file.name)
    if type(file.size) is not int or not 0 <= file.size < 1 << 63:
        raise _invalid(f"file {file.name!a}: size {file.size!r:.40} is not a number of bytes")
    _check_text(f"file {file.name!a}: version", file.version)
    known = set()
    for digest in file.digests:
        _check_digest(file.name, digest)
        known.add(digest.algorithm)
    if len(known) != len(file.digests):
        raise _invalid(f"file {file.name!a}: two digests of one algorithm")


def _check_digest(name: str, digest: Digest) -> None:
    in_parts = _IN_PARTS.fullmatch(digest.algorithm)
    size = _DIGEST_BYTES.get(in_parts[1] if in_parts else digest.algorithm)
    if size is None:
        raise _invalid(f"file {name!a}: digest algorithm {digest.algorithm!a:.40} is not known")
    if len(digest.value) != 2 * size or not _HEX.fullmatch(digest.value):
        raise _invalid(
            f"file {name!a}: {digest.algorithm} {digest.value!a:.80} is not {2 * size} lower-case hex digits"
        )


def _with_sorted_digests(file: File) -> File:
    digests = tuple(sorted(file.digests))
    return file if digests == file.digests else replace(file, digests=digests)


def _check_text(what: str, text: str) -> None:
    try:
        fits = len(text.encode()) <= MAX_TEXT_BYTES
    except UnicodeEncodeError:
        fits = False
    if not fits or not text.isprintable():
        raise _invalid(
            f"{what} {text!a:.80}: must be printable text of at most {MAX_TEXT_BYTES} bytes in UTF-8"
        )


def _check_keys(what: str, value: Any, keys: Iterable[str]) -> None:
    if not isinstance(value, dict) or set(value) != set(keys):
        raise _invalid(f"{what}: must be an object with exactly {', '.join(keys)}")
    for key in ("source", "revision", "name", "version"):
        if key in value and not isinstance(value[key], str):
            raise _invalid(f"{what}: {key} is not a string")


def _file(index: int, entry: Any) -> File:
    what = f"listing: files[{index}]"
    _check_keys(what, entry, ("name", "size", "digests", "version"))
    digests = entry["digests"]
    if not isinstance(digests, dict) or not all(isinstance(value, str) for value in digests.values()):
        raise _invalid(f"{what}: digests must be an object of strings")
    found = tuple(Digest(algorithm, value) for algorithm, value in sorted(digests.items()))
    return File(entry["name"], entry["size"], found, entry["version"])


def _invalid(message: str) -> Failure:
    return Failure(Reason.INVALID_REQUEST, message)
