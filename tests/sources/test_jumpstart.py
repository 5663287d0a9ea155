"""JumpStart's manifests, laid out in a real S3 gateway as in the buckets of the service."""

from __future__ import annotations

import itertools
import json
from dataclasses import replace
from typing import Any

import boto3
import pytest

from cacheprep.failures import Failure, Reason
from cacheprep.sources import SourceOptions, source_of
from cacheprep.sources.jumpstart import artifact_key, version_order
from tests.sources.reading import contents, failure_of_resolving

_numbers = itertools.count()
MODEL = "meta-textgeneration-llama-3-8b"


class Content:
    """A content bucket and a gated one."""

    def __init__(self, gateway: str) -> None:
        self.client: Any = boto3.client("s3", endpoint_url=gateway, region_name="us-east-1")
        number = next(_numbers)
        self.public, self.gated = f"jumpstart-{number}", f"jumpstart-gated-{number}"
        for bucket in (self.public, self.gated):
            self.client.create_bucket(Bucket=bucket)
        self.options = SourceOptions(endpoint_url=gateway, jumpstart_bucket=self.public, timeout_s=5)
        self.rows: list[dict[str, str]] = []

    def put(self, bucket: str, key: str, body: bytes) -> None:
        self.client.put_object(Bucket=bucket, Key=key, Body=body)

    def model(self, version: str, **spec: Any) -> None:
        key = f"community_models/{MODEL}/specs_v{version}.json"
        self.put(self.public, key, json.dumps({"model_id": MODEL, "version": version, **spec}).encode())
        self.rows.append({"model_id": MODEL, "version": version, "min_version": "2.189.0", "spec_key": key})
        self.put(self.public, "models_manifest.json", json.dumps(self.rows).encode())


@pytest.fixture
def content(s3_gateway: str) -> Content:
    return Content(s3_gateway)


def test_the_newest_version_leads_to_its_prefix_in_s3(content: Content) -> None:
    for version in ("1.9.0", "1.10.0", "1.2.0"):
        content.model(version, hosting_prepacked_artifact_key=f"llama/{version}/artifacts/")
        content.put(content.public, f"llama/{version}/artifacts/model.safetensors", version.encode())
    for url in (f"jumpstart://{MODEL}", f"jumpstart://{MODEL}@*"):
        source = source_of(url, content.options)
        listing = source.resolve()
        assert listing.source == f"s3://{content.public}/llama/1.10.0/artifacts/"
        assert contents(source, listing) == {"model.safetensors": b"1.10.0"}
    source = source_of(f"jumpstart://{MODEL}@1.2.0", content.options)
    assert contents(source, source.resolve()) == {"model.safetensors": b"1.2.0"}


def test_or_to_one_archive(content: Content) -> None:
    content.model("1.0.0", hosting_artifact_key="llama/infer-llama.tar.gz")
    content.put(content.public, "llama/infer-llama.tar.gz", b"archive")
    source = source_of(f"jumpstart://{MODEL}", content.options)
    assert contents(source, source.resolve()) == {"infer-llama.tar.gz": b"archive"}


def test_a_gated_model_needs_its_licence_accepted(content: Content, environment: pytest.MonkeyPatch) -> None:
    content.model("1.0.0", hosting_artifact_key="llama/", gated_bucket=True, hosting_eula_key="eula.txt")
    content.put(content.gated, "llama/model", b"gated")
    environment.setenv("AWS_JUMPSTART_GATED_CONTENT_BUCKET_OVERRIDE", content.gated)
    failure = failure_of_resolving(source_of(f"jumpstart://{MODEL}", content.options))
    assert failure.reason is Reason.ACCESS_DENIED
    assert "eula.txt" in failure.message
    source = source_of(f"jumpstart://{MODEL}", replace(content.options, accept_eula=True))
    assert contents(source, source.resolve()) == {"model": b"gated"}


def test_the_bucket_may_be_named_by_the_environment(
    content: Content, environment: pytest.MonkeyPatch
) -> None:
    content.model("1.0.0", hosting_artifact_key="llama/")
    content.put(content.public, "llama/model", b"w")
    environment.setenv("AWS_JUMPSTART_CONTENT_BUCKET_OVERRIDE", content.public)
    source = source_of(f"jumpstart://{MODEL}", replace(content.options, jumpstart_bucket=None))
    assert contents(source, source.resolve()) == {"model": b"w"}


def test_models_and_versions_that_are_not_there(content: Content) -> None:
    content.model("1.0.0", hosting_artifact_key="llama/")
    for url in ("jumpstart://other", f"jumpstart://{MODEL}@9.9.9"):
        failure = failure_of_resolving(source_of(url, content.options))
        assert failure.reason is Reason.INVALID_REQUEST
    assert "1.0.0" in failure.message


def test_an_instance_type_or_its_family_has_its_variant() -> None:
    spec = {
        "hosting_artifact_key": "plain/",
        "hosting_instance_type_variants": {
            "variants": {
                "g5": {"properties": {"artifact_key": "of-g5/"}},
                "ml.g5.48xlarge": {"properties": {"artifact_key": "of-g5-48/"}},
                "ml.inf2.xlarge": {"properties": {"prepacked_artifact_key": "packed-of-inf2/"}},
            }
        },
    }
    assert artifact_key(spec, None) == "plain/"
    assert artifact_key(spec, "ml.p4d.24xlarge") == "plain/"
    assert artifact_key(spec, "ml.g5.2xlarge") == "of-g5/"
    assert artifact_key(spec, "ml.g5.48xlarge") == "of-g5-48/"
    assert artifact_key(spec, "ml.inf2.xlarge") == "packed-of-inf2/"
    assert artifact_key({**spec, "hosting_prepacked_artifact_key": "packed/"}, None) == "packed/"


@pytest.mark.parametrize("spec", [{}, {"hosting_artifact_key": 1}, {"hosting_instance_type_variants": []}])
def test_a_specification_without_an_artifact_has_none(spec: dict[str, Any]) -> None:
    assert artifact_key(spec, "ml.g5.2xlarge") == ""


def test_versions_are_counted_not_spelled() -> None:
    assert max(["1.9.0", "1.10.0", "1.2"], key=version_order) == "1.10.0"
    assert max(["2.0.0", "2.0.0rc1"], key=version_order) == "2.0.0"


@pytest.mark.parametrize("url", ["jumpstart://", "jumpstart://a/b", "jumpstart://a@", "jumpstart://a@../b"])
def test_urls_that_name_no_model_are_refused(url: str) -> None:
    with pytest.raises(Failure, match="InvalidRequest"):
        source_of(url, SourceOptions())
