"""What errors of S3, STS and boto3 stand for."""

from __future__ import annotations

import botocore.exceptions as aws

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


def client_failure(error: aws.ClientError, what: str, *, listed: bool) -> Failure:
    """What an error that a store (or STS) answered with stands for.

    https://docs.aws.amazon.com/AmazonS3/latest/API/ErrorResponses.html
    """
    code = error.response["Error"].get("Code", "")
    said = f"{code}: {error.response['Error'].get('Message', '')}"
    metadata = error.response["ResponseMetadata"]
    status, headers = metadata["HTTPStatusCode"], {k.title(): v for k, v in metadata["HTTPHeaders"].items()}
    if code in EXPIRED:
        return Failure(
            Reason.ACCESS_DENIED,
            f"{what}: the credentials have expired ({code}); renew them where they come from",
        )
    if code == "400":  # a HEAD has no body to say more in
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
        return Failure(Reason.SOURCE_UNAVAILABLE, f"{what}: {said!a:.300}", retry_after_s(headers))
    if code in ("PermanentRedirect", "AuthorizationHeaderMalformed", "IllegalLocationConstraintException"):
        return Failure(Reason.INVALID_REQUEST, f"{what}: {said!a:.300}; give the bucket's region")
    if code in ("NoSuchKey", "NoSuchVersion") and listed:
        status = 404
    return failure(status, headers, what, listed=listed and code != "NoSuchBucket", said=said)


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
