"""Where everything of a cache root lies, and the states of a cache. Pure: no IO, and imports nothing slow.

    ROOT/
      warmroute-store             makes the directory a cache root: one line, "warmroute-store 1"
      caches/<key>/               a published cache; came here whole by one rename
          model/...               the files as listed: plain files 0644 in directories 0755
          manifest.json           the listing, sha256 of every file, and what each was verified against
          ready                   the marker: size and mtime of every file. Written last, removed first
      partial/<key>/              a cache being fetched, or what a killed process left of it
          cache/                  becomes caches/<key> by the one rename
              model/...           files at full length, allocated before the first byte
              manifest.json       written when every file is verified
          listing.json            what is being fetched
          journal                 ranges that are whole, and the hash of the bytes of each
          reserved                bytes that it may still grow to, while its lock is held
          progress                how far its process is, while its lock is held
      trash/<key>.<random>/       on its way out: came here by one rename, is deleted bit by bit
      locks/root                  held while capacity is counted and allocated
      locks/<key>.fill            held by the one process that fetches, publishes, adopts or removes the cache
      locks/<key>.use             shared by all who use it (`cacheprep run`), exclusive to who removes it; its
                                  mtime is when the cache was last used
      locks/source-<hash>.<n>     one per download that may run at once from one source
      requests/<checksum>         the key that a request (source and options) was last resolved to

A key is derived from the listing. No path below ROOT is ever taken from a user, a source or a key unchecked.

States of a cache, and what comes next:

    absent     nothing on the disk.
               fetch -> partial
    partial    partial/<key>. Not ready. Bytes count only where they hash to what the journal says.
               fetch resumes -> ready; gc -> removing
    unmarked   caches/<key> without a good marker: killed, or power lost, between rename and marker; or a
               verification failed. Not ready.
               fetch adopts, every file is hashed: all good -> ready, else the good ones -> partial;
               gc -> removing
    ready      caches/<key>/ready is good: every file was verified, and was on the disk before the marker.
               verify that fails -> unmarked; rm, evict -> removing
    removing   trash/... Not ready.
               gc -> absent

Each arrow is one rename or one unlink, and everything it relies on was fsynced before it. So after kill -9 or
loss of power a cache is in one of these states, and only a cache of which every byte is on the disk is ready.
"""

from __future__ import annotations

import os
from enum import StrEnum

from cacheprep.failures import Failure, Reason

STORE_FILE = "warmroute-store"
STORE_LINE = "warmroute-store 1\n"
"""Content of STORE_FILE. The number rises when an older release could not read the layout."""
MODEL, MANIFEST, READY = "model", "manifest.json", "ready"
LISTING, JOURNAL, RESERVED, PROGRESS = "listing.json", "journal", "reserved", "progress"
FUTURE = "cache"

DIRECTORY_MODE = 0o755
FILE_MODE = 0o644
"""Servers read as another user than the store's: hostPath volumes ignore fsGroup."""

KEY_LENGTH = 40
"""Hex digits. 160 bits of a sha256; short enough for a Kubernetes label value (63)."""
_HEX = frozenset("0123456789abcdef")


class State(StrEnum):
    """What the table above says of a cache."""

    ABSENT = "absent"
    PARTIAL = "partial"
    UNMARKED = "unmarked"
    READY = "ready"
    REMOVING = "removing"


def key_of(listing_digest: str) -> str:
    """The cache key of a listing, from the sha256 (64 hex digits) of its canonical form."""
    if len(listing_digest) != 64 or not _HEX.issuperset(listing_digest):
        raise ValueError(f"digest {listing_digest!r} is not 64 lower-case hex digits")
    return listing_digest[:KEY_LENGTH]


def is_key(text: str) -> bool:
    """Whether the text is a whole cache key."""
    return len(text) == KEY_LENGTH and _HEX.issuperset(text)


def check_key(text: str) -> str:
    """The key itself.

    Raises:
        Failure: InvalidRequest if it is not one.
    """
    if not is_key(text):
        raise Failure(
            Reason.INVALID_REQUEST,
            f"key {text!r}: a key is {KEY_LENGTH} hex digits, as `cacheprep ls` prints it",
        )
    return text


def check_key_prefix(text: str) -> str:
    """The front of a key, or a whole one: itself.

    Raises:
        Failure: InvalidRequest if no key begins so.
    """
    if not text or len(text) > KEY_LENGTH or not _HEX.issuperset(text):
        raise Failure(
            Reason.INVALID_REQUEST,
            f"key {text!r}: a key is {KEY_LENGTH} hex digits, as `cacheprep ls` prints it; its front will do",
        )
    return text


class Layout:
    """The paths of one cache root. `root` is the operator's; everything below is derived."""

    __slots__ = ("root",)

    def __init__(self, root: str) -> None:
        self.root = os.path.abspath(root)

    def _at(self, *parts: str) -> str:
        return os.path.join(self.root, *parts)

    @property
    def store_file(self) -> str:
        """The file that makes the directory a cache root."""
        return self._at(STORE_FILE)

    @property
    def caches(self) -> str:
        """Directory of published caches."""
        return self._at("caches")

    @property
    def partials(self) -> str:
        """Directory of caches being fetched."""
        return self._at("partial")

    @property
    def trash(self) -> str:
        """Directory of what is being deleted."""
        return self._at("trash")

    @property
    def locks(self) -> str:
        """Directory of lock files."""
        return self._at("locks")

    @property
    def requests(self) -> str:
        """Directory of what requests were resolved to."""
        return self._at("requests")

    @property
    def directories(self) -> tuple[str, ...]:
        """Every directory that a cache root has."""
        return self.caches, self.partials, self.trash, self.locks, self.requests

    @property
    def root_lock(self) -> str:
        """Held while capacity is counted and allocated."""
        return self._at("locks", "root")

    def cache(self, key: str) -> str:
        """The published directory of a key."""
        return self._at("caches", check_key(key))

    def model(self, key: str) -> str:
        """The directory that an engine loads."""
        return self._at("caches", check_key(key), MODEL)

    def manifest(self, key: str) -> str:
        """The manifest of a published cache."""
        return self._at("caches", check_key(key), MANIFEST)

    def ready(self, key: str) -> str:
        """The marker of a published cache."""
        return self._at("caches", check_key(key), READY)

    def partial(self, key: str) -> str:
        """The temporary directory of a key; one, so that who comes next resumes."""
        return self._at("partial", check_key(key))

    def future(self, key: str) -> str:
        """What becomes `cache(key)`."""
        return self._at("partial", check_key(key), FUTURE)

    def future_model(self, key: str) -> str:
        """What becomes `model(key)`."""
        return self._at("partial", check_key(key), FUTURE, MODEL)

    def listing(self, key: str) -> str:
        """The listing of a cache being fetched."""
        return self._at("partial", check_key(key), LISTING)

    def journal(self, key: str) -> str:
        """The journal of a cache being fetched."""
        return self._at("partial", check_key(key), JOURNAL)

    def reserved(self, key: str) -> str:
        """How many bytes a cache being fetched may grow to."""
        return self._at("partial", check_key(key), RESERVED)

    def progress(self, key: str) -> str:
        """How far the process is that fetches a cache."""
        return self._at("partial", check_key(key), PROGRESS)

    def fill_lock(self, key: str) -> str:
        """Held by who fetches, publishes, adopts or removes the key."""
        return self._at("locks", f"{check_key(key)}.fill")

    def use_lock(self, key: str) -> str:
        """Shared by who uses the key."""
        return self._at("locks", f"{check_key(key)}.use")

    def source_lock(self, source_hash: str, slot: int) -> str:
        """One of the downloads that may run at once from one source; the hash is hex."""
        return self._at("locks", f"source-{source_hash}.{slot}")

    def request(self, checksum: str) -> str:
        """Where the key of a request is remembered; the checksum is hex."""
        return self._at("requests", checksum)
