"""What can be said about a source besides its URL. Pure, and quick to import."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, fields
from fnmatch import fnmatchcase
from urllib.parse import urlsplit

from cacheprep.failures import Failure, Reason
from cacheprep.listing import File, Listing, Verification, check_name, proof

_ENVIRONMENT_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_REGION = re.compile(r"[a-z0-9-]{1,63}")
_BUCKET = re.compile(r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]")  # S3 user guide, "Bucket naming rules"
_INSTANCE_TYPE = re.compile(r"[a-z0-9.-]{1,64}")
_SHOWN = 3

OF_ALL = frozenset({"allow", "ignore", "verification", "timeout_s"})
"""Options that every source has."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceOptions:
    """Options of all sources; each takes those that concern it. docs/sources.md says which.

    Raises Failure(InvalidRequest) naming the option, its value and what to write.
    """

    allow: tuple[str, ...] = ()
    """Only files that match one of these patterns (`*` also matches `/`); empty: all."""
    ignore: tuple[str, ...] = ()
    """Not the files that match one of these patterns."""
    verification: Verification = Verification.FIRST_READ
    """`source-digest` refuses a source that has no cryptographic digest of some file."""
    endpoint_url: str | None = None
    """S3: the server, for stores other than AWS."""
    region: str | None = None
    """S3 and JumpStart: the bucket's region; default: as the AWS SDK finds it."""
    requester_pays: bool = False
    """S3: agree to pay for requests and transfer."""
    revision: str | None = None
    """Hub: branch, tag or commit; default `main`."""
    hub_endpoint: str | None = None
    """Hub: a mirror; default `HF_ENDPOINT`, else https://huggingface.co."""
    token_file: str | None = None
    """Hub and http(s): file that holds a bearer token; read again when the token is refused."""
    token_env: str | None = None
    """Hub and http(s): name of the environment variable that holds a bearer token."""
    manifest_url: str | None = None
    """http(s): where the manifest is; default `SHA256SUMS` below the URL."""
    instance_type: str | None = None
    """JumpStart: choose this instance type's variant of the artifact."""
    jumpstart_bucket: str | None = None
    """JumpStart: take this bucket for the public one."""
    accept_eula: bool = False
    """JumpStart: the end-user licence of a gated model was read and accepted."""
    timeout_s: float = 30.0
    """Seconds to wait for a connection, and for the next byte."""

    def __post_init__(self) -> None:
        for name in ("endpoint_url", "hub_endpoint", "manifest_url"):
            _check_url(name, getattr(self, name))
        _check_form("region", self.region, _REGION, "a region such as us-east-1")
        _check_form("token_env", self.token_env, _ENVIRONMENT_NAME, "the name of an environment variable")
        _check_form("jumpstart_bucket", self.jumpstart_bucket, _BUCKET, "the name of a bucket")
        _check_form("instance_type", self.instance_type, _INSTANCE_TYPE, "a type such as ml.g5.2xlarge")
        for name in ("revision", "token_file"):
            value = getattr(self, name)
            if value is not None and (not value or not value.isprintable() or len(value) > 4096):
                raise _wrong(name, value, "leave it out, or write printable text")
        if self.token_file and self.token_env:
            raise _wrong("token_env", self.token_env, "leave it out where token_file is given")
        for name in ("allow", "ignore"):
            for pattern in getattr(self, name):
                if not pattern or pattern.startswith("/"):
                    raise _wrong(name, pattern, "write a pattern of relative names such as *.safetensors")
        if not 0.05 <= self.timeout_s <= 3600:
            raise _wrong("timeout_s", self.timeout_s, "write seconds from 0.05 to 3600")
        if self.verification not in tuple(Verification):
            raise _wrong("verification", self.verification, f"write {' or '.join(Verification)}")

    def given(self) -> frozenset[str]:
        """The names of those that are not as they are by default."""
        return frozenset(one.name for one in fields(self) if getattr(self, one.name) != one.default)

    def wants(self, name: str) -> bool:
        """Whether the patterns let a file of this name through.

        As huggingface_hub has it: shell patterns over the whole name, `/` at a pattern's end is `/*`.
        """
        if self.allow and not _any_matches(name, self.allow):
            return False
        return not _any_matches(name, self.ignore)

    def listing(self, source: str, revision: str, files: Iterable[File]) -> Listing:
        """The listing of `files`, refused where `verification` demands digests that are not there."""
        made = Listing(source, revision, tuple(files))
        if self.verification is Verification.SOURCE_DIGEST:
            without = [file.name for file in made.files if proof(file) is None]
            if without:
                more = f" and {len(without) - _SHOWN} more" if len(without) > _SHOWN else ""
                raise _wrong(
                    "verification",
                    self.verification.value,
                    f"{source} has no SHA-256 of {', '.join(map(ascii, without[:_SHOWN]))}{more}: upload them"
                    " with one (docs/sources.md), or write first-read",
                )
        return made

    def wanted(self, names: Iterable[str]) -> list[str]:
        """The names that the patterns let through. Raises Failure(InvalidRequest) if one is hostile."""
        chosen = [name for name in names if self.wants(name)]
        for name in chosen:
            check_name(name)
        return chosen


def _any_matches(name: str, patterns: tuple[str, ...]) -> bool:
    return any(fnmatchcase(name, pattern + "*" if pattern.endswith("/") else pattern) for pattern in patterns)


def _check_url(name: str, value: str | None) -> None:
    if value is None:
        return
    try:
        parts = urlsplit(value)
        host, _ = parts.hostname, parts.port
    except ValueError:
        host = None
        parts = urlsplit("")
    if parts.scheme not in ("http", "https") or not host or not value.isprintable():
        raise _wrong(name, value, "write http:// or https:// and a host")
    if "@" in parts.netloc:
        raise _wrong(name, f"{parts.scheme}://...@{host}", "leave the credentials out of the URL")


def _check_form(name: str, value: str | None, form: re.Pattern[str], remedy: str) -> None:
    if value is not None and not form.fullmatch(value):
        raise _wrong(name, value, f"write {remedy}")


def _wrong(name: str, value: object, remedy: str) -> Failure:
    return Failure(Reason.INVALID_REQUEST, f"{name} {value!a:.200}: {remedy}")
