"""One bucket: boto3 lists it, and objects are asked for as every other source over HTTP does it.

The SDK's chain of credentials, their renewal and the addressing of buckets are boto3's and botocore's. But a
call of boto3 takes some 1.4 ms of processor time, most of it around the request, and its bodies are copied on
the way.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeVar
from urllib.parse import quote, urlencode, urlsplit

import boto3
import botocore.exceptions as aws
import botocore.session
import urllib3
from botocore import UNSIGNED
from botocore.config import Config
from botocore.credentials import Credentials
from botocore.httpsession import get_cert_path
from botocore.utils import parse_timestamp

from cacheprep import __version__
from cacheprep.sources.options import SourceOptions
from cacheprep.sources.s3_failures import Refusal, local_failure, refusal_in, refusal_of
from cacheprep.sources.s3_signing import signed
from cacheprep.sources.web import Web

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client

_METHODS: dict[str, Literal["get_object", "head_object"]] = {"GET": "get_object", "HEAD": "head_object"}
_HEADERS = {
    "IfMatch": "If-Match",
    "Range": "Range",
    "ChecksumMode": "x-amz-checksum-mode",
    "RequestPayer": "x-amz-request-payer",
}
_QUERY = {"VersionId": "versionId", "PartNumber": "partNumber"}
"""Parameters of GetObject and HeadObject that are sent in the query; those above are headers."""
_DIRECTORY_BUCKET = "--x-s3"
"""How names of directory buckets (S3 Express) end. They want the keys of a session, which botocore begins,
but only for its own requests and for URLs that it signs."""
_URL_LASTS_S = 900
_ERRORS = (aws.BotoCoreError, aws.HTTPClientError, urllib3.exceptions.HTTPError, OSError)
_T = TypeVar("_T")


class Refused(Exception):  # noqa: N818 - says what it is
    """A store answered with an error."""

    def __init__(self, refusal: Refusal) -> None:
        super().__init__(refusal.code)
        self.refusal = refusal


class _Access(NamedTuple):
    """How the bucket is reached at present."""

    client: S3Client
    web: Web
    credentials: Credentials | None
    """None for a public bucket: then nothing is signed."""
    origin: str
    """Scheme and host of its URLs, and how the path of an object begins there, up to its key."""
    path: str
    generation: int
    """How many there were before it."""


class Bucket:
    """A bucket and who asks for it. From any thread."""

    def __init__(self, name: str, options: SourceOptions) -> None:
        self.name = name
        self._options = options
        self._lock = threading.Lock()
        self._access: _Access | None = None
        self._web: Web | None = None
        self._generation = 0
        self._region = ""
        """Where the bucket is, if the store said that it is elsewhere."""
        self.payer: dict[str, Any] = {"RequestPayer": "requester"} if options.requester_pays else {}
        """To be said with every request."""

    def call(self, what: str, call: Callable[[S3Client], _T]) -> _T:
        """`call` with a client of boto3; once more with credentials read anew if they had expired.

        boto3 renews what it can before it expires (roles, web identity, IMDS); this is for keys that somebody
        else replaces in a file.

        Raises:
            Refused: the store answered with an error.
            Failure: it did not answer; `what` names what was asked for.
        """
        for again in (False, True):
            access = self._current(what)
            try:
                return call(access.client)
            except aws.ClientError as error:
                refusal = refusal_of(error)
                if again or not refusal.may_be_expiry:
                    raise Refused(refusal) from error
                self._renew(access)
            except _ERRORS as error:
                raise local_failure(error, what) from error
        raise AssertionError("the second turn returns or raises")

    @contextmanager
    def ask(
        self, method: Literal["GET", "HEAD"], key: str, what: str, **parameters: Any
    ) -> Iterator[urllib3.BaseHTTPResponse]:
        """The response to GetObject or HeadObject with these parameters, before its body is read.

        Once more, as `call` does it, and with another region if the store says that the bucket is there.

        Raises:
            Refused: the store answered with an error.
            Failure: it did not answer; `what` names what was asked for.
        """
        parameters.update(self.payer)
        for again in (False, True):
            access = self._current(what)
            try:
                url, headers = self._signed(access, method, key, parameters)
            except aws.ClientError as error:  # of STS, which is asked for credentials
                raise Refused(refusal_of(error)) from error
            except _ERRORS as error:
                raise local_failure(error, what) from error
            with access.web.get(url, headers, what, method=method) as response:
                if response.status in (200, 206):
                    yield response
                    return
                refusal = refusal_in(response)
            elsewhere = refusal.region not in ("", access.client.meta.region_name)
            if again or not (elsewhere or refusal.may_be_expiry):
                break
            self._renew(access, refusal.region if elsewhere else "")
        raise Refused(refusal)

    def close(self) -> None:
        """Close connections."""
        with self._lock:
            if self._access is not None:
                self._access.client.close()
            if self._web is not None:
                self._web.close()
            self._access = self._web = None

    def _signed(
        self, access: _Access, method: str, key: str, parameters: dict[str, Any]
    ) -> tuple[str, dict[str, str]]:
        """URL and headers of a request."""
        headers = {header: parameters[name] for name, header in _HEADERS.items() if name in parameters}
        if access.credentials is not None and self.name.endswith(_DIRECTORY_BUCKET):
            given = {"Bucket": self.name, "Key": key, **parameters}
            url = access.client.generate_presigned_url(_METHODS[method], Params=given, ExpiresIn=_URL_LASTS_S)
            return url, headers
        query = {name: parameters[parameter] for parameter, name in _QUERY.items() if parameter in parameters}
        target = access.path + quote(key, safe="/-._~")
        if query:
            target += f"?{urlencode(sorted(query.items()))}"
        if access.credentials is not None:
            keys, region = access.credentials.get_frozen_credentials(), access.client.meta.region_name
            host = access.origin.partition("://")[2]
            headers = signed(method, host, target, headers, keys, region, datetime.now(UTC))
        return access.origin + target, headers

    def _current(self, what: str) -> _Access:
        with self._lock:
            if self._access is None:
                try:
                    self._access = self._begin()
                except (*_ERRORS, ValueError) as error:
                    raise local_failure(error, what) from error
            return self._access

    def _begin(self) -> _Access:
        settings = botocore.session.Session()
        settings.get_component("response_parser_factory").set_parser_defaults(timestamp_parser=_moment)
        session = boto3.Session(botocore_session=settings)
        config = Config(
            connect_timeout=self._options.timeout_s,
            read_timeout=self._options.timeout_s,
            retries={"total_max_attempts": 1},
            # Ranges cannot be checked against an object's checksum; whole files are, when they are here.
            response_checksum_validation="when_required",
            request_checksum_calculation="when_required",
            user_agent_extra=f"warmroute/{__version__}",
        )
        credentials = session.get_credentials()
        if credentials is None:  # a public bucket
            config = config.merge(Config(signature_version=UNSIGNED))
        client = session.client(
            "s3",
            endpoint_url=self._options.endpoint_url,
            region_name=self._region or region_of(self._options, session) or "us-east-1",
            config=config,
        )
        if self._web is None:
            # AWS_CA_BUNDLE, or ca_bundle of the profile, or the authorities that boto3 brings along.
            authorities = get_cert_path(settings.get_config_variable("ca_bundle") or True)
            self._web = Web(self._options.timeout_s, authorities)
        origin, path = _address(client, self.name)
        return _Access(client, self._web, credentials, origin, path, self._generation)

    def _renew(self, access: _Access, region: str = "") -> None:
        with self._lock:
            if access.generation == self._generation:
                self._access = None  # not closed: others may be using it
                self._generation += 1
                self._region = region or self._region


def _moment(text: str) -> datetime:
    """A timestamp of a response; UTC where it does not say. botocore's own way takes half the time of a
    listing, and does not compare with others where no zone is said.
    """
    try:
        moment = datetime.fromisoformat(text)
    except (ValueError, TypeError):  # of another format, or seconds
        moment = parse_timestamp(text)
    return moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)


def region_of(options: SourceOptions, session: boto3.Session) -> str | None:
    """The region that is asked for, or that the environment names; boto3 itself does not read AWS_REGION."""
    return options.region or session.region_name or os.environ.get("AWS_REGION") or None


def _address(client: S3Client, bucket: str) -> tuple[str, str]:
    """Origin and path of a bucket's objects, by host or by path, as endpoint and settings have it."""
    if bucket.endswith(_DIRECTORY_BUCKET):
        return "", ""
    key = "k"
    url = client.generate_presigned_url("get_object", Params={"Bucket": bucket, "Key": key})
    parts = urlsplit(url)
    # As a Host header has it, since that is signed.
    host = parts.netloc.lower().removesuffix(":443" if parts.scheme == "https" else ":80")
    return f"{parts.scheme}://{host}", parts.path.removesuffix(key)
