"""Where weights come from, as users write it, and as `cacheprep` is told it (`source_url`)."""

from __future__ import annotations

from typing import Annotated, NamedTuple

from pydantic import ConfigDict, Field

from cacheprep.api.model import Model, rule, rules
from cacheprep.listing import Verification

MOUNTED_AT = "/source"
"""Where Jobs and pods mount a file system that weights are read from."""

_HTTP = r"^https?://[^/@\\s]+(/[^\\s]*)?$"
_URL_MESSAGE = "must be http:// or https:// and a host, without credentials: name those in a Secret"

Url = Annotated[
    str, Field(max_length=2048, json_schema_extra=rules(rule(f"self.matches('{_HTTP}')", _URL_MESSAGE)))
]
Pattern = Annotated[str, Field(min_length=1, max_length=256)]
Region = Annotated[
    str,
    Field(
        max_length=63,
        json_schema_extra=rules(rule("self.matches('^[a-z0-9-]+$')", "must be a region such as us-east-1")),
    ),
]


class SecretRef(Model):
    """A Secret of the same namespace."""

    name: Annotated[str, Field(min_length=1, max_length=253)]
    """Its name."""


class SecretKeyRef(SecretRef):
    """A key of a Secret of the same namespace."""

    key: Annotated[str, Field(min_length=1, max_length=253)] = "token"
    """The key whose value is the token."""


class S3Source(Model):
    """A bucket of S3, or of a store that speaks it."""

    uri: Annotated[
        str,
        Field(
            max_length=1100,
            json_schema_extra=rules(
                rule(
                    "self.matches('^s3://[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]/')",
                    "must be s3://BUCKET/PREFIX/, or s3://BUCKET/OBJECT for one file",
                )
            ),
        ),
    ]
    """`s3://bucket/prefix/`; without `/` at its end, the object of that name if there is one."""
    region: Region | None = None
    """The bucket's region; default: as the AWS SDK finds it in the pod."""
    endpoint_url: Url | None = None
    """The server, for stores other than AWS."""
    requester_pays: bool = False
    """Agree to pay for requests and transfer."""
    credentials_secret_ref: SecretRef | None = None
    """A Secret whose keys are environment variables: AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY. Without it the
    ServiceAccount of the pod template counts (IRSA, EKS Pod Identity)."""


class FileSystemSource(Model):
    """A mounted file system: FSx for Lustre, NFS, anything with a PersistentVolumeClaim."""

    claim_name: Annotated[str, Field(min_length=1, max_length=253)]
    """A PersistentVolumeClaim of the namespace that many nodes can mount."""
    path: Annotated[
        str,
        Field(
            max_length=1024,
            json_schema_extra=rules(
                rule(
                    "!self.startsWith('/') && !self.split('/').exists(part, part == '..')",
                    "must be a path below the volume's root: no / in front, no ..",
                )
            ),
        ),
    ] = ""
    """The model's directory below the volume's root; default: the root itself."""


class HuggingFaceSource(Model):
    """A repository of a Hugging Face Hub."""

    repository: Annotated[
        str,
        Field(
            max_length=200,
            json_schema_extra=rules(
                rule(
                    r"self.matches('^[A-Za-z0-9][A-Za-z0-9._-]*/[A-Za-z0-9][A-Za-z0-9._-]*$')",
                    "must be OWNER/REPOSITORY, as in the address of its page",
                )
            ),
        ),
    ]
    """`owner/repository`."""
    commit_sha: Annotated[
        str | None,
        Field(
            alias="commitSHA",
            max_length=128,
            json_schema_extra=rules(
                rule("self.matches('^[0-9a-f]{40}$')", "must be a commit: 40 hex digits, lower case")
            ),
        ),
    ] = None
    """The commit; default: that of `main` when it is listed."""
    token_secret_ref: SecretKeyRef | None = None
    """The token, for what is private or gated."""
    endpoint_url: Url | None = None
    """A mirror; default: https://huggingface.co."""


class HttpSource(Model):
    """A directory of a web server, and a manifest with the SHA-256 of its files."""

    url: Url
    """The directory."""
    manifest_url: Url | None = None
    """The manifest; default: SHA256SUMS in the directory."""
    token_secret_ref: SecretKeyRef | None = None
    """A bearer token."""


class JumpStartSource(Model):
    """A model of SageMaker JumpStart; it lies in S3."""

    model_id: Annotated[
        str,
        Field(
            max_length=200,
            json_schema_extra=rules(
                rule("self.matches('^[a-z0-9][a-z0-9._-]*$')", "must be an id as JumpStart lists it")
            ),
        ),
    ]
    """Its id."""
    model_version: Annotated[
        str,
        Field(
            max_length=40,
            json_schema_extra=rules(
                rule(
                    "self == '*' || self.matches('^[0-9][0-9A-Za-z.]*$')",
                    "must be a version such as 2.1.0, or *",
                )
            ),
        ),
    ] = "*"
    """Its version; `*` is the newest when it is listed."""
    accept_eula: bool = False
    """The end-user licence of a gated model was read and is accepted."""
    instance_type: Annotated[str, Field(max_length=64)] | None = None
    """Take the variant for this type, as ml.g5.2xlarge."""
    region: Region | None = None
    """The region whose JumpStart is read; default: as the AWS SDK finds it in the pod."""
    bucket: Annotated[str, Field(max_length=63)] | None = None
    """Instead of the public bucket of that region."""


class SourceOptions(Model):
    """What can be said of every source."""

    allow: Annotated[tuple[Pattern, ...], Field(max_length=32)] = ()
    """Only files that match one of these patterns, as *.safetensors; none: all."""
    ignore: Annotated[tuple[Pattern, ...], Field(max_length=32)] = ()
    """Not the files that match one of these patterns."""
    verification: Verification = Verification.FIRST_READ
    """source-digest: refuse a source that has no cryptographic digest of some file."""


_ONE_OF = (
    "[has(self.s3), has(self.fileSystem), has(self.huggingFace), has(self.http){}]"
    ".filter(given, given).size() == 1"
)


class ModelSource(SourceOptions):
    """Where an endpoint's weights come from: one source, and options."""

    model_config = ConfigDict(
        json_schema_extra=rules(
            rule(_ONE_OF.format(""), "name exactly one source: s3, fileSystem, huggingFace or http")
        )
    )

    s3: S3Source | None = None
    file_system: FileSystemSource | None = None
    hugging_face: HuggingFaceSource | None = None
    http: HttpSource | None = None


class CacheSource(ModelSource):
    """Where a cache's weights come from: that of an endpoint, or of a JumpStartModel."""

    model_config = ConfigDict(
        json_schema_extra=rules(
            rule(
                _ONE_OF.format(", has(self.jumpStart)"),
                "name exactly one source: s3, fileSystem, huggingFace, http or jumpStart",
            )
        )
    )

    jump_start: JumpStartSource | None = None


class Arguments(NamedTuple):
    """A source as `cacheprep sources resolve`, `fetch` and `ensure` take it.

    `url` and `options` are words of the command line. `token` is put into `TOKEN_VARIABLE`, each key of
    `credentials` into a variable of its name, and `claim` is mounted read-only at `MOUNTED_AT`.
    """

    url: str
    options: tuple[str, ...]
    token: SecretKeyRef | None = None
    credentials: SecretRef | None = None
    claim: str | None = None


TOKEN_VARIABLE = "WARMROUTE_TOKEN"  # noqa: S105 - the name of a variable


def arguments(source: ModelSource) -> Arguments:
    """What the command line says for a source.

    Raises:
        ValueError: if it names none, which the API server refuses.
    """
    options = [f"--verification={source.verification.value}"]
    options += [f"--allow={pattern}" for pattern in source.allow]
    options += [f"--ignore={pattern}" for pattern in source.ignore]
    jump_start = source.jump_start if isinstance(source, CacheSource) else None
    if source.s3 is not None:
        options += _given(("--region", source.s3.region), ("--endpoint-url", source.s3.endpoint_url))
        if source.s3.requester_pays:
            options.append("--requester-pays")
        return Arguments(source.s3.uri, tuple(options), credentials=source.s3.credentials_secret_ref)
    if source.file_system is not None:
        url = f"file://{MOUNTED_AT}/{source.file_system.path}".rstrip("/")
        return Arguments(url, tuple(options), claim=source.file_system.claim_name)
    if source.hugging_face is not None:
        hub = source.hugging_face
        options += _given(("--revision", hub.commit_sha), ("--hub-endpoint", hub.endpoint_url))
        return _with_token(f"hf://{hub.repository}", options, hub.token_secret_ref)
    if source.http is not None:
        options += _given(("--manifest-url", source.http.manifest_url))
        return _with_token(source.http.url, options, source.http.token_secret_ref)
    if jump_start is not None:
        options += _given(
            ("--region", jump_start.region),
            ("--instance-type", jump_start.instance_type),
            ("--jumpstart-bucket", jump_start.bucket),
        )
        if jump_start.accept_eula:
            options.append("--accept-eula")
        version = "" if jump_start.model_version == "*" else f"@{jump_start.model_version}"
        return Arguments(f"jumpstart://{jump_start.model_id}{version}", tuple(options))
    raise ValueError("modelSource: names no source; name one of s3, fileSystem, huggingFace, http")


def _given(*options: tuple[str, str | None]) -> list[str]:
    return [f"{name}={value}" for name, value in options if value is not None]


def _with_token(url: str, options: list[str], token: SecretKeyRef | None) -> Arguments:
    if token is not None:
        options.append(f"--token-env={TOKEN_VARIABLE}")
    return Arguments(url, tuple(options), token=token)
