"""S3, against versitygw; what that lacks against moto; faults by a proxy between."""

from __future__ import annotations

import hashlib
import itertools
import json
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import boto3
import pytest

from cacheprep.digests import hasher
from cacheprep.failures import Failure, Reason
from cacheprep.listing import Listing, Verification, proof
from cacheprep.sources import SourceOptions, source_of
from cacheprep.sources.source import WHOLE_BYTES
from tests.sources.fault_proxy import EXPIRED, Fault, FaultProxy
from tests.sources.reading import contents, failure_of_reading, failure_of_resolving, named, read, rest, some
from tests.sources.servers import ACCESS, SECRET

PART = 5 << 20  # the least that S3 takes for a part that is not the last
_numbers = itertools.count()


class Bucket:
    """A new bucket of a gateway, and a client to fill it."""

    def __init__(self, gateway: str, *, versions: bool = False) -> None:
        self.gateway = gateway
        self.client: Any = boto3.client("s3", endpoint_url=gateway, region_name="us-east-1")
        self.name = f"bucket-{next(_numbers)}"
        self.client.create_bucket(Bucket=self.name)
        if versions:
            self.client.put_bucket_versioning(Bucket=self.name, VersioningConfiguration={"Status": "Enabled"})

    @property
    def options(self) -> SourceOptions:
        return SourceOptions(endpoint_url=self.gateway, timeout_s=5)

    def url(self, key: str) -> str:
        return f"s3://{self.name}/{key}"

    def put(self, key: str, body: bytes = b"weights", **more: Any) -> None:
        self.client.put_object(Bucket=self.name, Key=key, Body=body, **more)

    def put_in_parts(self, key: str, parts: list[bytes], algorithm: str, kind: str) -> bytes:
        where = {"Bucket": self.name, "Key": key}
        upload = self.client.create_multipart_upload(**where, ChecksumAlgorithm=algorithm, ChecksumType=kind)[
            "UploadId"
        ]
        done = []
        for number, part in enumerate(parts, 1):
            sent = self.client.upload_part(
                **where, UploadId=upload, PartNumber=number, Body=part, ChecksumAlgorithm=algorithm
            )
            checksum = f"Checksum{algorithm}"
            done.append({"PartNumber": number, "ETag": sent["ETag"], checksum: sent[checksum]})
        self.client.complete_multipart_upload(**where, UploadId=upload, MultipartUpload={"Parts": done})
        return b"".join(parts)


@pytest.fixture
def bucket(s3_gateway: str) -> Bucket:
    return Bucket(s3_gateway)


@pytest.fixture
def versioned(versioned_gateway: str) -> Bucket:
    return Bucket(versioned_gateway, versions=True)


@pytest.fixture
def faulty(bucket: Bucket) -> Iterator[tuple[Bucket, FaultProxy, SourceOptions]]:
    """A bucket with `model` of 3 MiB, behind a proxy that can spoil responses."""
    bucket.put("model", bytes(range(256)) * (3 << 12))
    with FaultProxy.before(bucket.gateway) as proxy:
        yield bucket, proxy, SourceOptions(endpoint_url=proxy.url, timeout_s=1)


def test_a_prefix_lists_what_is_below_it_and_nothing_beside(bucket: Bucket) -> None:
    bucket.put("llama/config.json", b"{}")
    bucket.put("llama/a/b/model.safetensors", b"w" * 1000)
    bucket.put("llama/a/", b"")
    bucket.put("llama-2/config.json", b"other")
    for url in (bucket.url("llama"), bucket.url("llama/")):
        source = source_of(url, bucket.options)
        listing = source.resolve()
        assert listing.source == bucket.url("llama/")
        assert contents(source, listing) == {"config.json": b"{}", "a/b/model.safetensors": b"w" * 1000}
        source.close()


def test_a_whole_bucket_is_a_prefix(bucket: Bucket) -> None:
    bucket.put("config.json")
    for url in (f"s3://{bucket.name}", f"s3://{bucket.name}/"):
        assert [file.name for file in source_of(url, bucket.options).resolve().files] == ["config.json"]


def test_a_single_object_goes_by_its_last_name(bucket: Bucket) -> None:
    bucket.put("archives/model.tar.gz", b"archive")
    source = source_of(bucket.url("archives/model.tar.gz"), bucket.options)
    listing = source.resolve()
    assert contents(source, listing) == {"model.tar.gz": b"archive"}
    elsewhere = source_of(listing.source, bucket.options)
    assert contents(elsewhere, Listing.from_json(listing.to_json())) == {"model.tar.gz": b"archive"}


def test_a_range_is_that_range_and_no_byte_more(bucket: Bucket) -> None:
    body = bytes(range(256)) * 4096
    bucket.put("model", body)
    source = source_of(bucket.url("model"), bucket.options)
    [file] = source.resolve().files
    for start, end in [(0, 1), (0, 0), (5, 5), (1, 700_001), (len(body) - 1, len(body)), (0, len(body))]:
        assert read(source, file, start, end) == body[start:end]


@pytest.mark.parametrize("algorithm", ["SHA256", "CRC64NVME", "CRC32C", "CRC32"])
def test_the_checksum_of_an_object_is_its_digest(bucket: Bucket, algorithm: str) -> None:
    bucket.put("model", b"weights", ChecksumAlgorithm=algorithm)
    [file] = source_of(bucket.url("model"), bucket.options).resolve().files
    [digest] = file.digests
    assert digest.algorithm == algorithm.lower()
    computed = hasher(digest, file.size)
    computed.update(b"weights")
    assert computed.hexdigest() == digest.value


@pytest.mark.parametrize(
    ("algorithm", "kind", "expected"),
    [
        ("SHA256", "COMPOSITE", f"sha256:{PART}"),
        ("CRC32C", "COMPOSITE", f"crc32c:{PART}"),
        ("CRC32C", "FULL_OBJECT", "crc32c"),
        ("CRC64NVME", "FULL_OBJECT", "crc64nvme"),
    ],
)
def test_so_is_that_of_a_multipart_upload(bucket: Bucket, algorithm: str, kind: str, expected: str) -> None:
    whole = bucket.put_in_parts("model", [b"a" * PART, b"b" * PART, b"c" * 77], algorithm, kind)
    source = source_of(bucket.url("model"), bucket.options)
    [file] = source.resolve().files
    [digest] = file.digests
    assert digest.algorithm == expected
    computed = hasher(digest, file.size)
    for at in range(0, len(whole), 1_000_001):
        computed.update(whole[at : at + 1_000_001])
    assert computed.hexdigest() == digest.value


def test_composite_checksums_of_unequal_parts_are_left_out(bucket: Bucket) -> None:
    bucket.put_in_parts("model", [b"a" * PART, b"b" * (PART + 1), b"c"], "SHA256", "COMPOSITE")
    [file] = source_of(bucket.url("model"), bucket.options).resolve().files
    assert file.digests == ()


def heads(requests: list[bytes]) -> list[str]:
    """Names of the objects below llama/ that were asked for by HEAD."""
    return [
        path.rpartition(b"llama/")[2].decode()
        for request in requests
        for method, path in [request.split(b" ")[:2]]
        if method == b"HEAD"
    ]


def test_a_small_object_is_asked_for_once_and_its_checksum_comes_with_its_bytes(
    faulty: tuple[Bucket, FaultProxy, SourceOptions],
) -> None:
    bucket, proxy, options = faulty
    for number in range(5):
        bucket.put(f"llama/{number}", b"%d" % number, ChecksumAlgorithm="CRC64NVME")
    source = source_of(bucket.url("llama/"), options)
    listing = source.resolve()
    # One shows that the bucket keeps no versions.
    assert len(heads(proxy.requests)) == 1
    proxy.requests.clear()
    for file in listing.files:
        with source.open(file, 0, file.size) as body:
            [digest] = body.digests
            assert digest.algorithm == "crc64nvme"
            computed = hasher(digest, file.size)
            computed.update(rest(body))
            assert computed.hexdigest() == digest.value
    assert len(proxy.requests) == 5
    # S3 gives no checksum with a range.
    assert not any(b"\r\nRange:" in request for request in proxy.requests)
    source.close()


def test_a_listing_does_not_depend_on_which_object_was_asked_for(bucket: Bucket) -> None:
    for name in ("a", "b"):
        bucket.put(f"llama/{name}", ChecksumAlgorithm="CRC32C")
    first = source_of(bucket.url("llama/"), bucket.options).resolve()
    assert first.files[0].digests == first.files[1].digests == ()
    bucket.put("llama/a", ChecksumAlgorithm="CRC32C")  # the newest now, and the same
    assert source_of(bucket.url("llama/"), bucket.options).resolve() == first


@pytest.mark.parametrize(
    ("size", "algorithm", "strict", "asked"),
    [
        (WHOLE_BYTES, "CRC32C", False, False),
        (WHOLE_BYTES + 1, "CRC32C", False, True),
        (7, "SHA256", False, True),
        (7, "SHA256", True, True),
    ],
)
def test_an_object_is_asked_for_by_head_where_a_listing_must_have_its_checksum(
    faulty: tuple[Bucket, FaultProxy, SourceOptions], size: int, algorithm: str, strict: bool, asked: bool
) -> None:
    bucket, proxy, options = faulty
    verification = Verification.SOURCE_DIGEST if strict else Verification.FIRST_READ
    bucket.put("llama/model", bytes(size), ChecksumAlgorithm=algorithm)
    if not strict:
        bucket.put("llama/newest", ChecksumAlgorithm="CRC32C")
    proxy.requests.clear()
    source = source_of(bucket.url("llama/"), replace(options, verification=verification))
    algorithms = [digest.algorithm for digest in named(source.resolve(), "model").digests]
    assert algorithms == ([algorithm.lower()] if asked else [])
    assert ("model" in heads(proxy.requests)) is asked


def test_an_upload_in_parts_is_asked_for_by_head_however_small(
    faulty: tuple[Bucket, FaultProxy, SourceOptions],
) -> None:
    bucket, proxy, options = faulty
    bucket.put_in_parts("llama/model", [b"weights"], "CRC32C", "COMPOSITE")
    bucket.put("llama/newest")
    [digest] = named(source_of(bucket.url("llama/"), options).resolve(), "model").digests
    assert digest.algorithm == "crc32c:7"
    assert "model" in heads(proxy.requests)


def test_where_a_bucket_keeps_versions_every_object_is_asked_for_its_own(versioned: Bucket) -> None:
    versioned.put("llama/old")
    versioned.client.put_bucket_versioning(
        Bucket=versioned.name, VersioningConfiguration={"Status": "Suspended"}
    )
    versioned.put("llama/newest")
    versions = {
        file.name: "version=" in file.version
        for file in source_of(versioned.url("llama/"), versioned.options).resolve().files
    }
    assert versions == {"old": True, "newest": False}


def says(proxy: FaultProxy, bucket: Bucket, times: dict[str, str]) -> None:
    """The next listing is one without checksums, and says these times of objects."""
    found = bucket.client.list_objects_v2(Bucket=bucket.name, Prefix="llama/")["Contents"]
    entries = "".join(
        f"<Contents><Key>{entry['Key']}</Key><Size>7</Size><ETag>{entry['ETag']}</ETag>"
        f"<LastModified>{times[entry['Key'].removeprefix('llama/')]}</LastModified></Contents>"
        for entry in found
    )
    listed = f"<ListBucketResult><IsTruncated>false</IsTruncated>{entries}</ListBucketResult>"
    proxy.only = b"list-type=2"
    proxy.faults.append(Fault(status=200, headers={"Content-Type": "application/xml"}, body=listed.encode()))


def test_a_store_whose_listings_name_no_checksums_is_asked_for_each(
    faulty: tuple[Bucket, FaultProxy, SourceOptions],
) -> None:
    bucket, proxy, options = faulty
    for name in ("a", "b"):
        bucket.put(f"llama/{name}", ChecksumAlgorithm="SHA256")
    says(proxy, bucket, dict.fromkeys("ab", "2026-01-02T03:04:05Z"))
    assert source_of(bucket.url("llama/"), options).resolve().verification is Verification.SOURCE_DIGEST


@pytest.mark.parametrize(
    ("older", "newer"),
    [
        ("2026-01-02T03:04:05.678Z", "2026-01-02T03:04:05.679Z"),
        ("2026-01-02T03:04:05", "2026-01-02T03:04:06+00:00"),
        ("2026-01-02T03:04:05+01:00", "2026-01-02T03:04:05Z"),
        ("Fri, 02 Jan 2026 03:04:05 GMT", "Fri, 02 Jan 2026 03:04:06 GMT"),
        ("1767323045", "1767323046.5"),
    ],
)
def test_times_of_a_listing_may_be_of_any_format_that_the_sdk_reads(
    faulty: tuple[Bucket, FaultProxy, SourceOptions], older: str, newer: str
) -> None:
    bucket, proxy, options = faulty
    for name in ("a", "b"):
        bucket.put(f"llama/{name}")
    says(proxy, bucket, {"a": newer, "b": older})
    source_of(bucket.url("llama/"), options).resolve()
    assert heads(proxy.requests)[0] == "a"  # the newest is asked for first


def test_an_etag_is_no_digest(bucket: Bucket) -> None:
    bucket.put("model", b"weights")
    [file] = source_of(bucket.url("model"), bucket.options).resolve().files
    assert hashlib.md5(b"weights").hexdigest() in file.version
    assert proof(file) is None


def test_source_digest_refuses_objects_without_sha256(bucket: Bucket) -> None:
    bucket.put("llama/with", ChecksumAlgorithm="SHA256")
    bucket.put("llama/without", ChecksumAlgorithm="CRC64NVME")
    strict = replace(bucket.options, verification=Verification.SOURCE_DIGEST)
    failure = failure_of_resolving(source_of(bucket.url("llama/"), strict))
    assert failure.reason is Reason.INVALID_REQUEST
    assert "'without'" in failure.message
    strict = replace(strict, ignore=("without",))
    assert source_of(bucket.url("llama/"), strict).resolve().verification is Verification.SOURCE_DIGEST


@pytest.mark.parametrize("size", [7, WHOLE_BYTES + 1])
@pytest.mark.parametrize("url", ["llama/model", "llama/"])
def test_an_object_replaced_after_listing_is_source_changed(bucket: Bucket, url: str, size: int) -> None:
    bucket.put("llama/model", b"o" * size)
    source = source_of(bucket.url(url), bucket.options)
    [file] = source.resolve().files
    bucket.put("llama/model", b"n" * size)
    assert failure_of_reading(source, file).reason is Reason.SOURCE_CHANGED


def test_so_is_one_that_was_deleted(bucket: Bucket) -> None:
    bucket.put("llama/model")
    source = source_of(bucket.url("llama/"), bucket.options)
    [file] = source.resolve().files
    bucket.client.delete_object(Bucket=bucket.name, Key="llama/model")
    assert failure_of_reading(source, file).reason is Reason.SOURCE_CHANGED


def test_a_versioned_object_is_read_after_it_was_replaced_or_deleted(versioned: Bucket) -> None:
    versioned.put("model", b"old old")
    source = source_of(versioned.url("model"), versioned.options)
    listing = source.resolve()
    versioned.put("model", b"new")
    assert contents(source, listing) == {"model": b"old old"}
    versioned.client.delete_object(Bucket=versioned.name, Key="model")
    elsewhere = source_of(listing.source, versioned.options)
    assert contents(elsewhere, Listing.from_json(listing.to_json())) == {"model": b"old old"}


def test_a_version_that_was_deleted_is_source_changed(versioned: Bucket) -> None:
    versioned.put("model", b"old old")
    source = source_of(versioned.url("model"), versioned.options)
    [file] = source.resolve().files
    version = file.version.partition("version=")[2].removesuffix(" single")
    versioned.client.delete_object(Bucket=versioned.name, Key="model", VersionId=version)
    assert failure_of_reading(source, file).reason is Reason.SOURCE_CHANGED


def test_patterns_choose_files(bucket: Bucket) -> None:
    for name in ("model.safetensors", "model.bin", "original/model.pth", "config.json"):
        bucket.put(f"llama/{name}")

    def chosen(allow: tuple[str, ...] = (), ignore: tuple[str, ...] = ()) -> list[str]:
        options = replace(bucket.options, allow=allow, ignore=ignore)
        return [file.name for file in source_of(bucket.url("llama/"), options).resolve().files]

    assert chosen(allow=("*.safetensors", "*.json")) == ["config.json", "model.safetensors"]
    assert chosen(ignore=("original/", "*.bin")) == ["config.json", "model.safetensors"]


def test_nothing_there_and_nothing_wanted_are_invalid_requests(bucket: Bucket) -> None:
    bucket.put("llama/model.bin")
    assert (
        failure_of_resolving(source_of(bucket.url("lama"), bucket.options)).reason is Reason.INVALID_REQUEST
    )
    assert (
        failure_of_resolving(source_of("s3://no-such-bucket/llama", bucket.options)).reason
        is Reason.INVALID_REQUEST
    )
    nothing = replace(bucket.options, allow=("*.safetensors",))
    assert failure_of_resolving(source_of(bucket.url("llama/"), nothing)).reason is Reason.INVALID_REQUEST


@pytest.mark.parametrize(
    "key", ["llama/../passwd", "llama//model", "llama/a\\b", "llama/a\x1bb", "llama/./b"]
)
def test_hostile_keys_are_refused(moto_server: str, key: str) -> None:
    bucket = Bucket(moto_server)
    bucket.put("llama/config.json")
    bucket.put(key)
    failure = failure_of_resolving(source_of(bucket.url("llama/"), bucket.options))
    assert failure.reason is Reason.INVALID_REQUEST
    assert "file name" in failure.message


def test_a_key_that_is_also_the_directory_of_another_is_refused(moto_server: str) -> None:
    bucket = Bucket(moto_server)
    bucket.put("llama/model")
    bucket.put("llama/model/part")
    assert (
        failure_of_resolving(source_of(bucket.url("llama/"), bucket.options)).reason is Reason.INVALID_REQUEST
    )


@pytest.mark.parametrize("name", ["a b+c~d'(e)*f.bin", "größe/模型.safetensors", "100%25.json", "a=b&c?d#e"])
def test_any_character_of_a_key_is_asked_for_as_it_is(bucket: Bucket, name: str) -> None:
    bucket.put(f"llama/{name}", name.encode())
    source = source_of(bucket.url("llama/"), bucket.options)
    assert contents(source, source.resolve()) == {name: name.encode()}


def test_a_store_that_names_another_region_is_asked_for_that(
    faulty: tuple[Bucket, FaultProxy, SourceOptions],
) -> None:
    bucket, proxy, options = faulty
    file = Listing.from_json(_saved(bucket)).files[0]
    elsewhere = source_of("s3://" + bucket.name + "/model", replace(options, region="eu-west-1"))
    proxy.faults.append(_error(400, "AuthorizationHeaderMalformed", **{"x-amz-bucket-region": "us-east-1"}))
    assert read(elsewhere, file) == b"weights"
    regions = [re.findall(rb"/(\w+-\w+-\d)/s3/aws4_request", request) for request in proxy.requests]
    assert regions == [[b"eu-west-1"], [b"us-east-1"]]


def test_signatures_are_in_headers_and_not_in_urls_that_others_log(
    faulty: tuple[Bucket, FaultProxy, SourceOptions],
) -> None:
    _, proxy, options = faulty
    source = source_of(f"s3://{faulty[0].name}/model", options)
    contents(source, source.resolve())
    lines = [request.partition(b"\r\n")[0] for request in proxy.requests]
    assert lines
    assert not any(b"Signature" in line or ACCESS.encode() in line for line in lines)


def test_requester_pays_is_said_with_every_request(faulty: tuple[Bucket, FaultProxy, SourceOptions]) -> None:
    _, proxy, options = faulty
    bucket = faulty[0]
    bucket.put("llama/model")
    source = source_of(bucket.url("llama/"), replace(options, requester_pays=True))
    assert contents(source, source.resolve()) == {"model": b"weights"}
    assert len(proxy.requests) >= 3
    assert all(b"x-amz-request-payer: requester" in request for request in proxy.requests)


def test_wrong_keys_are_access_denied(bucket: Bucket, environment: pytest.MonkeyPatch) -> None:
    bucket.put("model")
    environment.setenv("AWS_SECRET_ACCESS_KEY", "wrong")
    assert failure_of_resolving(source_of(bucket.url("model"), bucket.options)).reason is Reason.ACCESS_DENIED
    environment.setenv("AWS_ACCESS_KEY_ID", "nobody")
    assert failure_of_resolving(source_of(bucket.url("model"), bucket.options)).reason is Reason.ACCESS_DENIED


def test_a_bucket_that_anybody_may_read_needs_no_credentials(
    bucket: Bucket, environment: pytest.MonkeyPatch
) -> None:
    bucket.put("llama/model")
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        environment.delenv(name)
    assert (
        failure_of_resolving(source_of(bucket.url("llama/"), bucket.options)).reason is Reason.ACCESS_DENIED
    )
    statement = {
        "Effect": "Allow",
        "Principal": "*",
        "Action": ["s3:GetObject", "s3:ListBucket"],
        "Resource": [f"arn:aws:s3:::{bucket.name}", f"arn:aws:s3:::{bucket.name}/*"],
    }
    bucket.client.put_bucket_policy(
        Bucket=bucket.name, Policy=json.dumps({"Version": "2012-10-17", "Statement": [statement]})
    )
    source = source_of(bucket.url("llama/"), bucket.options)
    assert contents(source, source.resolve()) == {"model": b"weights"}


def test_credentials_come_from_a_profile_too(
    bucket: Bucket, environment: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    bucket.put("model")
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        environment.delenv(name)
    (tmp_path / "no-credentials").write_text(
        "[weights]\naws_access_key_id = access\naws_secret_access_key = secret-of-the-tests\n"
    )
    environment.setenv("AWS_PROFILE", "weights")
    source = source_of(bucket.url("model"), bucket.options)
    assert contents(source, source.resolve()) == {"model": b"weights"}


def test_credentials_that_expire_soon_are_renewed(
    bucket: Bucket, environment: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    bucket.put("model")
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        environment.delenv(name)
    soon = (datetime.now(UTC) + timedelta(minutes=5)).isoformat()
    keys = {"Version": 1, "AccessKeyId": ACCESS, "SecretAccessKey": SECRET, "Expiration": soon}
    (tmp_path / "keys").write_text(json.dumps(keys))
    (tmp_path / "vend").write_text(f"#!/bin/sh\necho >>{tmp_path}/vended\ncat {tmp_path}/keys\n")
    (tmp_path / "vend").chmod(0o755)
    (tmp_path / "no-config").write_text(f"[default]\ncredential_process = {tmp_path}/vend\n")
    source = source_of(bucket.url("model"), bucket.options)
    [file] = source.resolve().files
    before = len((tmp_path / "vended").read_text())
    assert read(source, file) == b"weights"
    assert len((tmp_path / "vended").read_text()) > before


def test_expired_credentials_are_read_anew_once(
    faulty: tuple[Bucket, FaultProxy, SourceOptions], environment: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    bucket, proxy, options = faulty
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        environment.delenv(name)
    profile = "[default]\naws_access_key_id = {}\naws_secret_access_key = secret-of-the-tests\n"
    (tmp_path / "no-credentials").write_text(profile.format("access"))
    source = source_of(bucket.url("model"), options)
    [file] = source.resolve().files
    proxy.requests.clear()
    proxy.faults.append(EXPIRED)
    assert read(source, file, 0, 4) == bytes(range(4))
    assert len(proxy.requests) == 2
    proxy.faults.extend([EXPIRED, EXPIRED])
    failure = failure_of_reading(source, file, 0, 4)
    assert failure.reason is Reason.ACCESS_DENIED
    assert "expired" in failure.message


def _error(status: int, code: str = "", **headers: str) -> Fault:
    body = f"<Error><Code>{code}</Code><Message>so it is</Message></Error>".encode() if code else b""
    return Fault(status=status, headers={"Content-Type": "application/xml", **headers}, body=body)


@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        (_error(403, "AccessDenied"), Reason.ACCESS_DENIED),
        (_error(403, "InvalidObjectState"), Reason.INVALID_REQUEST),
        (_error(404, "NoSuchKey"), Reason.SOURCE_CHANGED),
        (_error(412, "PreconditionFailed"), Reason.SOURCE_CHANGED),
        (_error(416, "InvalidRange"), Reason.SOURCE_CHANGED),
        (_error(429), Reason.SOURCE_UNAVAILABLE),
        (_error(500, "InternalError"), Reason.SOURCE_UNAVAILABLE),
        (_error(503, "SlowDown"), Reason.SOURCE_UNAVAILABLE),
        (_error(502), Reason.SOURCE_UNAVAILABLE),
        (Fault(cut=True, after=100_000), Reason.SOURCE_UNAVAILABLE),
        (Fault(cut=True), Reason.SOURCE_UNAVAILABLE),
        (Fault(reset=True, after=100_000), Reason.SOURCE_UNAVAILABLE),
        (Fault(stall=True, after=100_000), Reason.SOURCE_UNAVAILABLE),
        (Fault(silent=True), Reason.SOURCE_UNAVAILABLE),
    ],
    ids=lambda value: value.value if isinstance(value, Reason) else f"{value.status or value}",
)
def test_a_fault_of_a_range_is_its_reason_and_is_not_retried_here(
    faulty: tuple[Bucket, FaultProxy, SourceOptions], fault: Fault, reason: Reason
) -> None:
    bucket, proxy, options = faulty
    source = source_of(bucket.url("model"), options)
    [file] = source.resolve().files
    proxy.requests.clear()
    proxy.faults.append(fault)
    assert failure_of_reading(source, file).reason is reason
    assert len(proxy.requests) == 1
    assert read(source, file, 256, 260) == bytes(range(4))


def test_retry_after_is_handed_on(faulty: tuple[Bucket, FaultProxy, SourceOptions]) -> None:
    bucket, proxy, options = faulty
    source = source_of(bucket.url("model"), options)
    [file] = source.resolve().files
    proxy.faults.append(_error(503, "SlowDown", **{"Retry-After": "7"}))
    assert failure_of_reading(source, file).retry_after_s == 7


def test_listing_tries_again_what_is_transient(faulty: tuple[Bucket, FaultProxy, SourceOptions]) -> None:
    bucket, proxy, options = faulty
    proxy.only = b"HEAD "
    proxy.faults.extend([_error(503), Fault(cut=True)])
    assert len(source_of(bucket.url("model"), options).resolve().files) == 1


def test_nobody_listening_is_source_unavailable(bucket: Bucket) -> None:
    options = replace(bucket.options, endpoint_url="http://127.0.0.1:1")
    source = source_of("s3://bucket/model", options)
    file = Listing.from_json(_saved(bucket)).files[0]
    failure = failure_of_reading(source, file)
    assert failure.reason is Reason.SOURCE_UNAVAILABLE
    assert "Connection refused" in failure.message
    assert "127.0.0.1:1/" not in failure.message


def _saved(bucket: Bucket) -> bytes:
    bucket.put("model")
    return source_of(bucket.url("model"), bucket.options).resolve().to_json()


@pytest.mark.parametrize("url", ["s3://", "s3:///key", "s3://a?b/key", "s3://key:secret@bucket/llama"])
def test_urls_that_name_no_bucket_are_refused(url: str) -> None:
    with pytest.raises(Failure, match="InvalidRequest: source"):
        source_of(url, SourceOptions())


def test_many_threads_read_at_once(bucket: Bucket) -> None:
    from concurrent.futures import ThreadPoolExecutor

    body = hashlib.sha256(b"seed").digest() * (1 << 15)
    bucket.put("model", body)
    source = source_of(bucket.url("model"), bucket.options)
    [file] = source.resolve().files
    ranges = [(at, min(at + 65_537, len(body))) for at in range(0, len(body), 65_537)]
    with ThreadPoolExecutor(16) as threads:
        parts: Callable[[tuple[int, int]], bytes] = lambda pair: read(source, file, *pair)  # noqa: E731
        assert b"".join(threads.map(parts, ranges)) == body


def test_leaving_early_leaves_nothing_behind(faulty: tuple[Bucket, FaultProxy, SourceOptions]) -> None:
    bucket, _, options = faulty
    source = source_of(bucket.url("model"), options)
    [file] = source.resolve().files
    for _ in range(3):
        with source.open(file, 0, file.size) as body:
            some(body)
    assert named(source.resolve(), "model") == file
