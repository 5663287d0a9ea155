"""S3 and stores that speak it, by boto3: the SDK's chain of credentials, their renewal, and its signing.

Every object of a listing is asked for once by HEAD, for its version and its checksums; ranges are then read
on the condition that the ETag is still that one, and of that VersionId where the bucket keeps versions. An
ETag is taken for a version, never for a digest: of a multipart upload it is none.
"""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import boto3
import botocore.exceptions as aws
import urllib3
from botocore import UNSIGNED
from botocore.config import Config

from cacheprep import __version__
from cacheprep.failures import Failure, Reason
from cacheprep.listing import MAX_FILES, File, Listing
from cacheprep.sources.options import SourceOptions
from cacheprep.sources.s3_checksums import digests, parts
from cacheprep.sources.s3_failures import EXPIRED, client_failure, local_failure
from cacheprep.sources.web import patiently

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client

_HEADS = 16
"""Objects whose version is asked for at once."""
_MAX_CONNECTIONS = 256
CHUNK_BYTES = 256 << 10
# S3 user guide, "Bucket naming rules"; older buckets and other stores allow more than these say.
_BUCKET = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{1,254}")
_VERSION = re.compile(r'etag=(?P<etag>"[^"]*")(?: version=(?P<version>[^ ]+))?(?P<single> single)?')
_T = TypeVar("_T")
_Head = tuple[Mapping[str, Any], int | None]
"""A HEAD response, and the bytes of a part where its checksum is composite."""


class S3Source:
    """`s3://bucket/key` of one object, or `s3://bucket/prefix/` of all below.

    Without the `/` at its end a URL names the object if there is one, else what is below.
    """

    def __init__(self, url: str, options: SourceOptions) -> None:
        self._bucket, self._key = _parse(url)
        self.url = f"s3://{self._bucket}/{self._key}"
        self._options = options
        self._lock = threading.Lock()
        self._client: S3Client | None = None
        self._generation = 0

    def resolve(self) -> Listing:
        """List the object or what is below the prefix, with versions and checksums."""
        what = f"source {self.url}"
        single = patiently(partial(self._called, what, self._head_single))
        if single is not None:
            [name] = self._options.wanted([self._key.rpartition("/")[2]]) or [""]
            if not name:
                raise Failure(Reason.INVALID_REQUEST, f"{what}: the patterns leave the object out; drop them")
            return self._options.listing(
                self.url, single[0].get("VersionId", ""), [_file(name, single, " single")]
            )
        prefix = self._prefix()
        etags = patiently(partial(self._called, what, lambda client: self._list(client, prefix)))
        if not etags:
            raise Failure(
                Reason.INVALID_REQUEST, f"{what}: there is no such object and nothing below; check the URL"
            )
        names = self._options.wanted(etags)
        Listing(self.url, "", tuple(File(name, 0) for name in names))  # refused before each is asked for

        def head(name: str) -> File:
            def call(client: S3Client) -> File:
                return _file(name, self._head(client, prefix + name, etags[name]))

            return patiently(partial(self._called, f"file {name!a}", call, listed=True))

        with ThreadPoolExecutor(_HEADS) as threads:
            files = list(threads.map(head, names))
        return self._options.listing(f"s3://{self._bucket}/{prefix}", "", files)

    @contextmanager
    def open(self, file: File, start: int, end: int) -> Iterator[Iterator[memoryview | bytes]]:
        """Bytes [start, end) of the object, on the condition of its ETag and VersionId."""
        if start >= end:
            yield iter(())
            return
        what = f"file {file.name!a}"
        match = _VERSION.fullmatch(file.version)
        if match is None:
            raise Failure(
                Reason.INVALID_REQUEST, f"{what}: version {file.version!a:.100} is not of an S3 listing"
            )
        etag = match["etag"]
        asked: dict[str, Any] = {"IfMatch": etag, "Range": f"bytes={start}-{end - 1}", **self._payer()}
        if match["version"]:
            asked["VersionId"] = match["version"]
        key = self._key if match["single"] else self._prefix() + file.name
        response: Any = self._called(
            what, lambda client: client.get_object(Bucket=self._bucket, Key=key, **asked), listed=True
        )
        with closing(response["Body"]) as body:
            said = response.get("ContentRange", "")
            if response.get("ETag") != etag or said.rpartition("/")[2] not in (str(file.size), ""):
                raise Failure(
                    Reason.SOURCE_CHANGED,
                    f"{what}: was {etag} of {file.size} bytes, is {response.get('ETag', '')!a:.100}"
                    f" ({said!a:.100}); list the source anew",
                )
            if response["ContentLength"] != end - start:
                raise Failure(
                    Reason.SOURCE_UNAVAILABLE,
                    f"{what}: asked for bytes {start}-{end - 1}, got {response['ContentLength']} bytes; does"
                    " the store serve ranges?",
                )
            yield _chunks(body, end - start, what)

    def close(self) -> None:
        """Close connections."""
        with self._lock:
            if self._client is not None:
                self._client.close()
                self._client = None

    def read(self, key: str, most: int) -> bytes:
        """The whole object `key` of this bucket, at most `most` bytes; for what leads to other objects.

        Raises Failure as `resolve`; InvalidRequest if it is longer.
        """
        what = f"s3://{self._bucket}/{key}"

        def get(client: S3Client) -> bytes:
            with closing(client.get_object(Bucket=self._bucket, Key=key, **self._payer())["Body"]) as body:
                return body.read(most + 1)

        content = patiently(partial(self._called, what, get))
        if len(content) > most:
            raise Failure(Reason.INVALID_REQUEST, f"{what}: longer than the {most} bytes that are read")
        return content

    def _called(self, what: str, call: Callable[[S3Client], _T], *, listed: bool = False) -> _T:
        """`call` with a client; once more with credentials read anew if they had expired.

        boto3 renews what it can before it expires (roles, web identity, IMDS); this is for keys that somebody
        else replaces in a file.
        """
        for again in (False, True):
            client, generation = self._current()
            try:
                return call(client)
            except aws.ClientError as error:
                if again or error.response["Error"].get("Code") not in {*EXPIRED, "400"}:
                    raise client_failure(error, what, listed=listed) from error
                self._renew(generation)
            except (aws.BotoCoreError, aws.HTTPClientError, urllib3.exceptions.HTTPError, OSError) as error:
                raise local_failure(error, what) from error
        raise AssertionError("the second turn returns or raises")

    def _current(self) -> tuple[S3Client, int]:
        """The client, and how many there were before it."""
        with self._lock:
            if self._client is None:
                try:
                    self._client = self._new_client()
                except (aws.BotoCoreError, ValueError) as error:
                    raise local_failure(error, f"source {self.url}") from error
            return self._client, self._generation

    def _new_client(self) -> S3Client:
        session = boto3.Session()
        config = Config(
            connect_timeout=self._options.timeout_s,
            read_timeout=self._options.timeout_s,
            max_pool_connections=_MAX_CONNECTIONS,
            retries={"total_max_attempts": 1},
            # Ranges cannot be checked against an object's checksum; whole files are, when they are here.
            response_checksum_validation="when_required",
            request_checksum_calculation="when_required",
            user_agent_extra=f"warmroute/{__version__}",
        )
        if session.get_credentials() is None:  # a public bucket
            config = config.merge(Config(signature_version=UNSIGNED))
        region = region_of(self._options, session) or "us-east-1"
        return session.client(
            "s3", endpoint_url=self._options.endpoint_url, region_name=region, config=config
        )

    def _renew(self, generation: int) -> None:
        with self._lock:
            if generation == self._generation:
                self._client = None  # not closed: others may be reading from it
                self._generation += 1

    def _payer(self) -> dict[str, Any]:
        return {"RequestPayer": "requester"} if self._options.requester_pays else {}

    def _prefix(self) -> str:
        return self._key if not self._key or self._key.endswith("/") else f"{self._key}/"

    def _head_single(self, client: S3Client) -> _Head | None:
        """HEAD of the one object that the URL names; None if it names a prefix."""
        if not self._key or self._key.endswith("/"):
            return None
        try:
            return self._head(client, self._key)
        except aws.ClientError as error:
            status = error.response["ResponseMetadata"]["HTTPStatusCode"]
            # Who may not list a bucket is told 403 of an object that is not there.
            if status != 404 and not (status == 403 and self._lists(client)):
                raise
            return None

    def _lists(self, client: S3Client) -> bool:
        try:
            found = client.list_objects_v2(
                Bucket=self._bucket, Prefix=self._prefix(), MaxKeys=1, **self._payer()
            )
        except aws.ClientError:
            return False
        return bool(found.get("KeyCount"))

    def _head(self, client: S3Client, key: str, etag: str | None = None) -> _Head:
        asked = {"IfMatch": etag} if etag else {}
        head: Callable[..., Mapping[str, Any]] = client.head_object
        found = head(Bucket=self._bucket, Key=key, ChecksumMode="ENABLED", **asked, **self._payer())
        return found, self._part_bytes(client, key, found)

    def _part_bytes(self, client: S3Client, key: str, found: Mapping[str, Any]) -> int | None:
        """Bytes of each part but the last of a multipart upload with composite checksums, else None.

        A composite checksum can be checked only by who knows where the parts end. All uploaders that are
        known make them of one size; the first and the last one show it.
        """
        count = parts(found)
        if count is None:
            return None
        asked = {"Bucket": self._bucket, "Key": key, "IfMatch": found["ETag"], **self._payer()}
        if found.get("VersionId", "null") != "null":
            asked["VersionId"] = found["VersionId"]
        try:
            first = client.head_object(PartNumber=1, **asked)["ContentLength"]
            last = first if count == 1 else client.head_object(PartNumber=count, **asked)["ContentLength"]
        except aws.ClientError as error:
            if error.response["ResponseMetadata"]["HTTPStatusCode"] in (400, 416, 501):
                return None  # a store that has no parts to show
            raise
        whole = found["ContentLength"]
        return int(first) if 0 < last <= first and first * (count - 1) + last == whole else None

    def _list(self, client: S3Client, prefix: str) -> dict[str, str]:
        """ETags by name of every object below a prefix, but for folders as the console makes them."""
        etags: dict[str, str] = {}
        pages = client.get_paginator("list_objects_v2").paginate(
            Bucket=self._bucket, Prefix=prefix, **self._payer()
        )
        for page in pages:
            for entry in page.get("Contents", ()):
                name = entry["Key"].removeprefix(prefix)
                if not name or (name.endswith("/") and entry["Size"] == 0):
                    continue
                etags[name] = entry["ETag"]
                if len(etags) > MAX_FILES:
                    raise Failure(
                        Reason.INVALID_REQUEST,
                        f"source {self.url}: has more than {MAX_FILES} objects; name a smaller prefix",
                    )
        return etags


def region_of(options: SourceOptions, session: boto3.Session) -> str | None:
    """The region that is asked for, or that the environment names; boto3 itself does not read AWS_REGION."""
    return options.region or session.region_name or os.environ.get("AWS_REGION") or None


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
    found, part = head
    version = found.get("VersionId", "null")
    says = f"etag={found['ETag']}" + ("" if version == "null" else f" version={version}")
    return File(name, found["ContentLength"], tuple(digests(found, part)), says + suffix)


def _chunks(body: Any, count: int, what: str) -> Iterator[bytes]:
    read = 0
    while read < count:
        try:
            chunk = body.read(min(CHUNK_BYTES, count - read))
        except (aws.BotoCoreError, urllib3.exceptions.HTTPError, OSError, ValueError) as error:
            raise local_failure(error, f"{what}, after {read} of {count} bytes") from error
        if not chunk:
            raise Failure(Reason.SOURCE_UNAVAILABLE, f"{what}: the body ended after {read} of {count} bytes")
        read += len(chunk)
        yield chunk
