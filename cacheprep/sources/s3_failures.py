"""What errors of S3, STS and boto3 stand for."""

from __future__ import annotations

import re
from collections.abc import Mapping
from html import unescape
from typing import NamedTuple

import botocore.exceptions as aws
import urllib3

from cacheprep.failures import Failure, Reason
from cacheprep.sources.web import broken, failure, retry_after_s

EXPIRED = frozenset({"ExpiredToken", "ExpiredTokenException", "TokenRefreshRequired", "RequestExpired"})
"""Codes with which a store refuses credentials that were good once."""
_DENIED = frozenset(
    {
        "AccessDenied",
        "AllAccessDisabled",
        "InvalidAccessKeyId",
        "InvalidToken",
        "SignatureDoesNotMatch",
        "RequestTimeTooSkewed",
        "UnrecognizedClientException",
        "XAdminUserNotFound",  # versitygw, of an access key that it does not know
    }
)
_BUSY = frozenset(
    {"SlowDown", "InternalError", "RequestTimeout", "ServiceUnavailable", "ThrottlingException"}
)
_ELSEWHERE = frozenset(
    {
        "PermanentRedirect",
        "AuthorizationHeaderMalformed",
        "AuthorizationQueryParametersError",
        "IllegalLocationConstraintException",
    }
)
_MOST_BYTES = 64 << 10
"""Of an error's body that are read."""


class Refusal(NamedTuple):
    """An error that a store or STS answered with."""

    status: int
    code: str
    """As S3 names it; the status where the answer has no body to say more in, as that to a HEAD."""
    message: str
    headers: Mapping[str, str]
    region: str = ""
    """Of the bucket, where the answer says it."""

    @property
    def may_be_expiry(self) -> bool:
        """Whether credentials that have expired may be why."""
        return self.code in {*EXPIRED, "400"}


def refusal_of(error: aws.ClientError) -> Refusal:
    """What boto3 raised."""
    metadata = error.response["ResponseMetadata"]
    return Refusal(
        metadata["HTTPStatusCode"],
        error.response["Error"].get("Code", ""),
        error.response["Error"].get("Message", ""),
        {name.title(): value for name, value in metadata["HTTPHeaders"].items()},
    )


def refusal_in(response: urllib3.BaseHTTPResponse) -> Refusal:
    """What a response other than success says; its body is read.

    https://docs.aws.amazon.com/AmazonS3/latest/API/ErrorResponses.html
    """
    try:
        text = response.read(_MOST_BYTES, decode_content=False).decode("utf-8", "replace")
    except (urllib3.exceptions.HTTPError, OSError, ValueError):
        text = ""  # The status says enough.
    code, message, region = (
        unescape(found[1]) if (found := re.search(f"<{tag}>([^<]*)</{tag}>", text)) else ""
        for tag in ("Code", "Message", "Region")
    )
    region = response.headers.get("x-amz-bucket-region", region)
    return Refusal(response.status, code or str(response.status), message, response.headers, region)


def refused(refusal: Refusal, what: str, *, listed: bool) -> Failure:
    """What a refusal stands for. `listed` says that the thing was there when it was listed."""
    code, status = refusal.code, refusal.status
    said = f"{code}: {refusal.message}"
    if code in EXPIRED:
        return Failure(
            Reason.ACCESS_DENIED,
            f"{what}: the credentials have expired ({code}); renew them where they come from",
        )
    if code == "400":
        return Failure(
            Reason.ACCESS_DENIED,
            f"{what}: HTTP 400 to HEAD; renew credentials that have expired; objects under a customer's key"
            " (SSE-C) cannot be read",
        )
    if code == "InvalidObjectState":
        return Failure(Reason.INVALID_REQUEST, f"{what}: is archived ({said!a:.200}); restore it first")
    if code in _DENIED:
        return Failure(
            Reason.ACCESS_DENIED,
            f"{what}: {said!a:.300}; give credentials that may read it (s3:GetObject, s3:ListBucket), and"
            " requester pays where the bucket asks for it",
        )
    if code in _BUSY:
        return Failure(Reason.SOURCE_UNAVAILABLE, f"{what}: {said!a:.300}", retry_after_s(refusal.headers))
    if code in _ELSEWHERE:
        return Failure(Reason.INVALID_REQUEST, f"{what}: {said!a:.300}; give the bucket's region")
    if code in ("NoSuchKey", "NoSuchVersion") and listed:
        status = 404
    return failure(status, refusal.headers, what, listed=listed and code != "NoSuchBucket", said=said)


def local_failure(error: Exception, what: str) -> Failure:
    """What an error stands for with which no answer came."""
    said = f"{what}: {type(error).__name__}"
    if isinstance(error, aws.NoCredentialsError | aws.PartialCredentialsError | aws.TokenRetrievalError):
        return Failure(Reason.ACCESS_DENIED, f"{said}; give credentials as for the AWS CLI")
    if isinstance(error, aws.SSOError | aws.RefreshWithMFAUnsupportedError | aws.LoginError):
        return Failure(Reason.ACCESS_DENIED, f"{said}; log in again with the AWS CLI")
    if isinstance(error, aws.ProfileNotFound | aws.ConfigParseError | aws.ParamValidationError | ValueError):
        return Failure(Reason.INVALID_REQUEST, f"{said}: {error!s:.300}")
    if isinstance(error, aws.NoRegionError | aws.InvalidRegionError):
        return Failure(Reason.INVALID_REQUEST, f"{said}; give the bucket's region")
    # Not the error's text: it may have the URL, and that may have a signature.
    below = error.kwargs.get("error") if isinstance(error, aws.BotoCoreError) else error
    how = f" ({broken(below)})" if isinstance(below, Exception) else ""
    return Failure(Reason.SOURCE_UNAVAILABLE, f"{said}{how}; the store did not answer, or not to the end")
