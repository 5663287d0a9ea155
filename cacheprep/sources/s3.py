"""S3 and stores that speak it.

Ranges are read on the condition that the ETag is still the one that was listed, and of the VersionId that was
there where the bucket keeps versions. An ETag is taken for a version, never for a digest: of a multipart
upload it is none.

A bucket's own listing has sizes and ETags, but neither versions nor checksums, which a HEAD of each object
tells. It is asked for where the listing must have them. A small object of a bucket without versions is spared
it: the checksum comes with its bytes.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from cacheprep.failures import Failure, Reason
from cacheprep.listing import MAX_FILES, File, Listing, Verification
from cacheprep.sources.body import ResponseBody
from cacheprep.sources.options import SourceOptions
from cacheprep.sources.s3_bucket import Bucket, Refused
from cacheprep.sources.s3_checksums import digests, parts
from cacheprep.sources.s3_failures import refused
from cacheprep.sources.source import WHOLE_BYTES, Body, Nothing, comes_whole
from cacheprep.sources.web import patiently, text

if TYPE_CHECKING:
    from collections.abc import Mapping

    from mypy_boto3_s3 import S3Client

_HEADS = 16
"""Objects whose version is asked for at once."""
# S3 user guide, "Bucket naming rules"; older buckets and other stores allow more than these say.
_BUCKET = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{1,254}")
_VERSION = re.compile(r'etag=(?P<etag>"[^"]*")(?: version=(?P<version>[^ ]+))?(?P<single> single)?')
_OF_ONE_PUT = re.compile(r'"[^"-]*"')
"""The ETag of what was not uploaded in parts. Checksums of parts cannot be told from a response to GET."""


class _Entry(NamedTuple):
    """What a bucket's listing says of an object."""

    etag: str
    size: int
    modified: datetime
    checksums: frozenset[str]
    """Names of the algorithms."""


class _Head(NamedTuple):
    """What a store says of an object."""

    headers: Mapping[str, str]
    part_bytes: int | None
    """Of each part of a multipart upload but the last, where its checksum is composite."""


class S3Source:
    """`s3://bucket/key` of one object, or `s3://bucket/prefix/` of all below.

    Without the `/` at its end a URL names the object if there is one, else what is below.
    """

    TAKES: ClassVar[frozenset[str]] = frozenset({"endpoint_url", "region", "requester_pays"})

    def __init__(self, url: str, options: SourceOptions) -> None:
        name, self._key = _parse(url)
        self.url = f"s3://{name}/{self._key}"
        self._options = options
        self._bucket = Bucket(name, options)

    def resolve(self) -> Listing:
        """List the object or what is below the prefix, with versions and checksums."""
        what = f"source {self.url}"
        single = patiently(partial(self._single, what))
        if single is not None:
            [name] = self._options.wanted([self._key.rpartition("/")[2]]) or [""]
            if not name:
                raise Failure(Reason.INVALID_REQUEST, f"{what}: the patterns leave the object out; drop them")
            revision = single.headers.get("x-amz-version-id", "")
            return self._options.listing(self.url, revision, [_file(name, single, " single")])
        prefix = self._prefix()
        entries = patiently(partial(self._list, prefix, what))
        if not entries:
            raise Failure(
                Reason.INVALID_REQUEST, f"{what}: there is no such object and nothing below; check the URL"
            )
        names = self._options.wanted(entries)
        Listing(self.url, "", tuple(File(name, 0) for name in names))  # refused before each is asked for

        def head(name: str) -> _Head:
            what = f"file {name!a}"
            with _told(what, listed=True):
                return self._head(prefix + name, what, entries[name].etag)

        newest = max(names, key=lambda name: (entries[name].modified, name))
        first = patiently(partial(head, newest))
        asked = [name for name in names if self._asks(entries[name], entries[newest], first)]
        with ThreadPoolExecutor(_HEADS) as threads:
            found = threads.map(lambda name: patiently(partial(head, name)), asked)
            heads = dict(zip(asked, found, strict=True))
        files = [
            _file(name, heads[name]) if name in heads else File(name, entry.size, (), f"etag={entry.etag}")
            for name in names
            for entry in [entries[name]]
        ]
        return self._options.listing(f"s3://{self._bucket.name}/{prefix}", "", files)

    def _asks(self, entry: _Entry, newest: _Entry, head: _Head) -> bool:
        """Whether an object must be asked for by HEAD for the listing to be whole.

        Of the newest object, and what HEAD says of it, one can tell whether its bucket keeps versions (then
        there is a VersionId, be it null), and whether its listings name the checksums that there are.
        """
        strict = self._options.verification is Verification.SOURCE_DIGEST
        versions = "x-amz-version-id" in head.headers
        unnamed = not newest.checksums and any(digests(head.headers, head.part_bytes))
        if strict or versions or unnamed or "SHA256" in entry.checksums:
            return True
        return entry.size > WHOLE_BYTES or not _OF_ONE_PUT.fullmatch(entry.etag)

    @contextmanager
    def open(self, file: File, start: int, end: int) -> Iterator[Body]:
        """Bytes [start, end) of the object, on the condition of its ETag and VersionId."""
        if start >= end:
            yield Nothing()
            return
        what = f"file {file.name!a}"
        match = _VERSION.fullmatch(file.version)
        if match is None:
            raise Failure(
                Reason.INVALID_REQUEST, f"{what}: version {file.version!a:.100} is not of an S3 listing"
            )
        etag = match["etag"]
        # With a range S3 gives no checksum, not even where the range is all there is.
        whole = comes_whole(file) and (start, end) == (0, file.size)
        how = {"ChecksumMode": "ENABLED"} if whole else {"Range": f"bytes={start}-{end - 1}"}
        asked = {"IfMatch": etag, **how}
        if match["version"]:
            asked["VersionId"] = match["version"]
        key = self._key if match["single"] else self._prefix() + file.name
        with _told(what, listed=True), self._bucket.ask("GET", key, what, **asked) as response:
            length = response.headers.get("Content-Length", "")
            said = length if whole else response.headers.get("Content-Range", "")
            found = response.headers.get("ETag", "")
            if found != etag or said.rpartition("/")[2] not in (str(file.size), ""):
                raise Failure(
                    Reason.SOURCE_CHANGED,
                    f"{what}: was {etag} of {file.size} bytes, is {found!a:.100}"
                    f" ({said!a:.100}); list the source anew",
                )
            if length != str(end - start):
                raise Failure(
                    Reason.SOURCE_UNAVAILABLE,
                    f"{what}: asked for bytes {start}-{end - 1}, got {length!a:.20} bytes; does the store"
                    " serve ranges?",
                )
            came = tuple(digests(response.headers, None)) if whole else ()
            yield ResponseBody(response, end - start, what, came)

    def close(self) -> None:
        """Close connections."""
        self._bucket.close()

    def read(self, key: str, most: int) -> bytes:
        """The whole object `key` of this bucket, at most `most` bytes; for what leads to other objects.

        Raises Failure as `resolve`; InvalidRequest if it is longer.
        """
        what = f"s3://{self._bucket.name}/{key}"

        def get() -> bytes:
            with _told(what), self._bucket.ask("GET", key, what) as response:
                return text(response, most, what)

        return patiently(get)

    def _prefix(self) -> str:
        return self._key if not self._key or self._key.endswith("/") else f"{self._key}/"

    def _single(self, what: str) -> _Head | None:
        """What the store says of the one object that the URL names; None if it names a prefix."""
        if not self._key or self._key.endswith("/"):
            return None
        with _told(what):
            try:
                return self._head(self._key, what)
            except Refused as error:
                status = error.refusal.status
                # Who may not list a bucket is told 403 of an object that is not there.
                if status != 404 and not (status == 403 and self._lists(what)):
                    raise
                return None

    def _lists(self, what: str) -> bool:
        asked: dict[str, Any] = {"Bucket": self._bucket.name, "Prefix": self._prefix(), **self._bucket.payer}
        try:
            found = self._bucket.call(what, lambda client: client.list_objects_v2(MaxKeys=1, **asked))
        except Refused:
            return False
        return bool(found.get("KeyCount"))

    def _head(self, key: str, what: str, etag: str | None = None) -> _Head:
        condition = {"IfMatch": etag} if etag else {}
        with self._bucket.ask("HEAD", key, what, ChecksumMode="ENABLED", **condition) as response:
            headers = response.headers
        return _Head(headers, self._part_bytes(key, what, headers))

    def _part_bytes(self, key: str, what: str, found: Mapping[str, str]) -> int | None:
        """Bytes of each part but the last of a multipart upload with composite checksums, else None.

        A composite checksum can be checked only by who knows where the parts end. All uploaders that are
        known make them of one size; the first and the last one show it.
        """
        count = parts(found)
        if count is None:
            return None
        asked: dict[str, Any] = {"IfMatch": found["ETag"]}
        if found.get("x-amz-version-id", "null") != "null":
            asked["VersionId"] = found["x-amz-version-id"]

        def length(number: int) -> int:
            with self._bucket.ask("HEAD", key, what, PartNumber=number, **asked) as response:
                return int(response.headers["Content-Length"])

        try:
            first = length(1)
            last = first if count == 1 else length(count)
        except Refused as error:
            if error.refusal.status in (400, 416, 501):
                return None  # a store that has no parts to show
            raise
        whole = int(found["Content-Length"])
        return first if 0 < last <= first and first * (count - 1) + last == whole else None

    def _list(self, prefix: str, what: str) -> dict[str, _Entry]:
        """Every object below a prefix by name, but for folders as the console makes them."""
        with _told(what):
            return self._bucket.call(what, lambda client: self._listed(client, prefix))

    def _listed(self, client: S3Client, prefix: str) -> dict[str, _Entry]:
        entries: dict[str, _Entry] = {}
        pages = client.get_paginator("list_objects_v2").paginate(
            Bucket=self._bucket.name, Prefix=prefix, **self._bucket.payer
        )
        for page in pages:
            for entry in page.get("Contents", ()):
                name = entry["Key"].removeprefix(prefix)
                if not name or (name.endswith("/") and entry["Size"] == 0):
                    continue
                checksums = frozenset(map(str, entry.get("ChecksumAlgorithm", ())))
                entries[name] = _Entry(entry["ETag"], entry["Size"], entry["LastModified"], checksums)
                if len(entries) > MAX_FILES:
                    raise Failure(
                        Reason.INVALID_REQUEST,
                        f"source {self.url}: has more than {MAX_FILES} objects; name a smaller prefix",
                    )
        return entries


@contextmanager
def _told(what: str, *, listed: bool = False) -> Iterator[None]:
    """Raise as Failure what the store refuses; see `refused`."""
    try:
        yield
    except Refused as error:
        raise refused(error.refusal, what, listed=listed) from error


def _parse(url: str) -> tuple[str, str]:
    rest = url.partition("://")[2]
    if rest.startswith("arn:"):
        raise Failure(
            Reason.INVALID_REQUEST, f"source {url!a:.300}: name an access point by its alias, as a bucket"
        )
    bucket, _, key = rest.partition("/")
    if not _BUCKET.fullmatch(bucket):
        raise Failure(Reason.INVALID_REQUEST, f"source {url!a:.300}: write s3://bucket/prefix")
    return bucket, key


def _file(name: str, head: _Head, suffix: str = "") -> File:
    headers = head.headers
    version = headers.get("x-amz-version-id", "null")
    says = f"etag={headers['ETag']}" + ("" if version == "null" else f" version={version}")
    found = tuple(digests(headers, head.part_bytes))
    return File(name, int(headers["Content-Length"]), found, says + suffix)
