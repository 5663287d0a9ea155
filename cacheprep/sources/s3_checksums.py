"""The checksums that S3 keeps of an object, as digests of a listing. Pure."""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Iterator, Mapping

from cacheprep.listing import Digest

_CHECKSUMS = ("sha256", "crc64nvme", "crc32c", "crc32")


def parts(head: Mapping[str, str]) -> int | None:
    """Number of parts that a HEAD response's composite checksum is over; None if it has none."""
    for name in _CHECKSUMS:
        if match := _composite(head.get(f"x-amz-checksum-{name}", "")):
            return int(match[1])
    return None


def digests(head: Mapping[str, str], part: int | None) -> Iterator[Digest]:
    """The checksums of a HEAD response that can be checked.

    https://docs.aws.amazon.com/AmazonS3/latest/userguide/checking-object-integrity.html: base64 of the
    digest; a composite one is followed by - and the number of parts. Of a multipart upload (its ETag ends in
    -N) one that is neither marked so nor said to be of the full object could be either, and is left out.
    """
    ambiguous = "-" in head["ETag"] and head.get("x-amz-checksum-type") != "FULL_OBJECT"
    for name in _CHECKSUMS:
        algorithm = name
        value = head.get(f"x-amz-checksum-{name}", "")
        composite = _composite(value)
        if composite:
            if part is None:
                continue
            algorithm, value = f"{algorithm}:{part}", value.partition("-")[0]
        elif ambiguous:
            continue
        try:
            digest = base64.b64decode(value, validate=True).hex()
        except (binascii.Error, ValueError):
            continue
        if digest:
            yield Digest(algorithm, digest)


def _composite(value: str) -> re.Match[str] | None:
    return re.fullmatch(r"[^-]+-([1-9][0-9]{0,4})", value)
