"""Signatures of S3 requests, held against botocore's."""

from __future__ import annotations

from datetime import UTC, datetime

import botocore.auth
import pytest
from botocore.auth import S3SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import ReadOnlyCredentials
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cacheprep.sources.s3_signing import signed

NOW = datetime(2026, 2, 3, 4, 5, 6, tzinfo=UTC)
HOST = "bucket.s3.eu-west-1.amazonaws.com"
printable = st.text(st.characters(min_codepoint=0x20, max_codepoint=0x7E), max_size=20)
paths = st.lists(st.sampled_from(["llama", "a%20b", "gr%C3%B6%C3%9Fe", "~x", "100%25.json"]), min_size=1)
queries = st.sampled_from(["", "versionId=x%2Fy%2Bz", "partNumber=2", "partNumber=2&versionId=abc"])
headers = st.dictionaries(
    st.sampled_from(["If-Match", "Range", "x-amz-checksum-mode", "x-amz-request-payer"]), printable
)


@settings(deadline=None, max_examples=200, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.sampled_from(["GET", "HEAD"]),
    paths,
    queries,
    headers,
    st.sampled_from([None, "session-token"]),
    st.sampled_from([NOW, datetime(2027, 12, 31, 23, 59, 59, tzinfo=UTC)]),
    st.sampled_from(["eu-west-1", "us-east-1"]),
)
def test_a_request_has_the_signature_that_botocore_gives_it(
    monkeypatch: pytest.MonkeyPatch,
    method: str,
    path: list[str],
    query: str,
    given_headers: dict[str, str],
    token: str | None,
    now: datetime,
    region: str,
) -> None:
    target = "/" + "/".join(path) + (f"?{query}" if query else "")
    credentials = ReadOnlyCredentials("AKID", "a secret/+", token)
    sent = signed(method, HOST, target, given_headers, credentials, region, now)

    monkeypatch.setattr(botocore.auth, "get_current_datetime", lambda: now.replace(tzinfo=None))
    request = AWSRequest(method, f"https://{HOST}{target}", headers=given_headers)
    S3SigV4Auth(credentials, "s3", region).add_auth(request)
    assert {name.lower(): value for name, value in sent.items()} == {
        name.lower(): value for name, value in request.headers.items()
    }
