"""SageMaker JumpStart: a model id leads to a place in S3, as the SageMaker Python SDK finds it.

The content bucket of a region holds `models_manifest.json`, rows of model_id, version, min_version and
spec_key. The JSON at spec_key names the artifact of a model, for some instance types another one.
"""

from __future__ import annotations

import json
import os
import re
from contextlib import AbstractContextManager
from typing import Any, ClassVar

import boto3

from cacheprep.failures import Failure, Reason
from cacheprep.listing import File, Listing
from cacheprep.sources.options import SourceOptions
from cacheprep.sources.s3 import S3Source
from cacheprep.sources.s3_bucket import region_of
from cacheprep.sources.source import Body

_MODEL = re.compile(r"(?P<id>[A-Za-z0-9][A-Za-z0-9-]{0,254})(?:@(?P<version>\*|[0-9][0-9A-Za-z.]{0,30}))?/?")
_MANIFEST, _MAX_MANIFEST_BYTES, _MAX_SPEC_BYTES = "models_manifest.json", 64 << 20, 16 << 20
# Environment variables of sagemaker.jumpstart.constants
_CONTENT_BUCKET, _GATED_BUCKET = (
    "AWS_JUMPSTART_CONTENT_BUCKET_OVERRIDE",
    "AWS_JUMPSTART_GATED_CONTENT_BUCKET_OVERRIDE",
)


class JumpStartSource:
    """`jumpstart://model-id[@version]`; version `*`, or none, is the newest."""

    TAKES: ClassVar[frozenset[str]] = frozenset(
        {"region", "endpoint_url", "requester_pays", "instance_type", "jumpstart_bucket", "accept_eula"}
    )

    def __init__(self, url: str, options: SourceOptions) -> None:
        match = _MODEL.fullmatch(url.partition("://")[2])
        if match is None:
            raise Failure(
                Reason.INVALID_REQUEST, f"source {url!a:.300}: write jumpstart://model-id[@version]"
            )
        self._model, self._version = match["id"], match["version"] or "*"
        self.url = f"jumpstart://{self._model}@{self._version}"
        self._options = options
        self._artifact: S3Source | None = None

    def resolve(self) -> Listing:
        """Find the artifact and list it. The listing's source is in S3."""
        if self._artifact is None:
            self._artifact = self._find()
        return self._artifact.resolve()

    def open(self, file: File, start: int, end: int) -> AbstractContextManager[Body]:
        """Bytes [start, end) of the artifact's file."""
        if self._artifact is None:
            self._artifact = self._find()
        return self._artifact.open(file, start, end)

    def close(self) -> None:
        """Close connections."""
        if self._artifact is not None:
            self._artifact.close()

    def _find(self) -> S3Source:
        region = self._region()
        public = (
            self._options.jumpstart_bucket
            or os.environ.get(_CONTENT_BUCKET)
            or f"jumpstart-cache-prod-{region}"
        )
        content = S3Source(f"s3://{public}/", self._options)
        try:
            rows = _json(content.read(_MANIFEST, _MAX_MANIFEST_BYTES), f"s3://{public}/{_MANIFEST}")
            spec_key = self._spec_key(rows)
            spec = _json(content.read(spec_key, _MAX_SPEC_BYTES), f"s3://{public}/{spec_key}")
        finally:
            content.close()
        if not isinstance(spec, dict):
            raise self._wrong("its specification is not an object")
        bucket = public
        if spec.get("gated_bucket"):
            if not self._options.accept_eula:
                raise Failure(
                    Reason.ACCESS_DENIED,
                    f"accept_eula False: {self.url} is gated; read its licence"
                    f" ({spec.get('hosting_eula_key') or 'see JumpStart'!a:.200}) and pass --accept-eula",
                )
            bucket = os.environ.get(_GATED_BUCKET) or f"jumpstart-private-cache-prod-{region}"
        key = artifact_key(spec, self._options.instance_type)
        if not key:
            raise self._wrong("it has no artifact to host")
        return S3Source(f"s3://{bucket}/{key}", self._options)

    def _spec_key(self, rows: Any) -> str:
        versions: dict[str, str] = {}
        for row in rows if isinstance(rows, list) else ():
            if isinstance(row, dict) and row.get("model_id") == self._model:
                version, key = row.get("version"), row.get("spec_key")
                if isinstance(version, str) and isinstance(key, str):
                    versions[version] = key
        if not versions:
            raise self._wrong("there is no such model in this region")
        if self._version == "*":
            return versions[max(versions, key=version_order)]
        if self._version not in versions:
            known = ", ".join(sorted(versions, key=version_order)[-5:])
            raise self._wrong(f"there is no such version; the newest are {known}")
        return versions[self._version]

    def _region(self) -> str:
        region = region_of(self._options, boto3.Session())
        if not region:
            raise Failure(Reason.INVALID_REQUEST, f"region '': {self.url} needs one; pass --region")
        return region

    def _wrong(self, how: str) -> Failure:
        return Failure(Reason.INVALID_REQUEST, f"source {self.url}: {how}; check the model id and region")


def artifact_key(spec: dict[str, Any], instance_type: str | None) -> str:
    """The key of a model's artifact, a prefix that ends in / or one archive; "" if it has none.

    The prepacked artifact goes before the plain one, and the variant of an instance type, or of its family
    (`g5` of `ml.g5.2xlarge`), before the default: sagemaker.jumpstart.artifacts.model_uris and
    JumpStartInstanceTypeVariants of the SageMaker Python SDK.
    """
    variants = _object(_object(spec.get("hosting_instance_type_variants")).get("variants"))
    names = []
    if instance_type:
        parts = instance_type.removeprefix("ml.").split(".")
        names = [instance_type, parts[0]]
    for field in ("prepacked_artifact_key", "artifact_key"):
        for name in names:
            key = _object(_object(variants.get(name)).get("properties")).get(field)
            if isinstance(key, str) and key:
                return key
        key = spec.get(f"hosting_{field}")
        if isinstance(key, str) and key:
            return key
    return ""


def version_order(version: str) -> tuple[tuple[int, str], ...]:
    """A key that sorts versions as people count: 1.9.0 before 1.10.0."""
    return tuple((int(part), "") if part.isdecimal() else (-1, part) for part in version.split("."))


def _object(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _json(content: bytes, what: str) -> Any:
    try:
        return json.loads(content)
    except (ValueError, RecursionError) as error:
        raise Failure(Reason.SOURCE_UNAVAILABLE, f"{what}: is not JSON ({error})") from error
