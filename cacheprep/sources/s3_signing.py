"""Signature Version 4 of a GET or HEAD to S3. Pure: the time is passed in.

https://docs.aws.amazon.com/AmazonS3/latest/API/sig-v4-header-based-auth.html. botocore's signer, which is for
requests of any kind to any service, takes 0.12 ms of processor time, a fifth of a request; this one 0.02 ms.
The tests hold the two together.
"""

from __future__ import annotations

import hmac
from collections.abc import Mapping
from datetime import datetime
from functools import lru_cache
from hashlib import sha256

from botocore.credentials import ReadOnlyCredentials

_NO_BODY = sha256(b"").hexdigest()


def signed(
    method: str,
    host: str,
    target: str,
    headers: Mapping[str, str],
    credentials: ReadOnlyCredentials,
    region: str,
    now: datetime,
) -> dict[str, str]:
    """The headers of a request without a body, and those that sign it.

    Args:
        method: GET or HEAD.
        host: as in the Host header, which is signed too and not among those returned.
        target: path and query, percent-encoded as they are sent; parameters sorted by name.
        headers: to be sent; all of them are signed.
        credentials: whose request it is.
        region: of the bucket.
        now: UTC.
    """
    moment = now.strftime("%Y%m%dT%H%M%SZ")
    day = moment[:8]
    sent = {**headers, "x-amz-content-sha256": _NO_BODY, "x-amz-date": moment}
    if credentials.token:
        sent["x-amz-security-token"] = credentials.token
    lines = sorted((name.lower(), " ".join(value.split())) for name, value in (("host", host), *sent.items()))
    names = ";".join(name for name, _ in lines)
    path, _, query = target.partition("?")
    request = "\n".join((method, path, query, *map(":".join, lines), "", names, _NO_BODY))
    scope = f"{day}/{region}/s3/aws4_request"
    text = f"AWS4-HMAC-SHA256\n{moment}\n{scope}\n{sha256(request.encode()).hexdigest()}"
    signature = _hmac(_key(credentials.secret_key, day, region), text).hex()
    sent["Authorization"] = (
        f"AWS4-HMAC-SHA256 Credential={credentials.access_key}/{scope}, SignedHeaders={names},"
        f" Signature={signature}"
    )
    return sent


@lru_cache(8)
def _key(secret: str, day: str, region: str) -> bytes:
    key = f"AWS4{secret}".encode()
    for text in (day, region, "s3", "aws4_request"):
        key = _hmac(key, text)
    return key


def _hmac(key: bytes, text: str) -> bytes:
    return hmac.digest(key, text.encode(), "sha256")
