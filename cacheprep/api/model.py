"""What all kinds of the API have in common: how they are read, and how their rules reach the API server.

The models are the one source of the CRDs (`python -m cacheprep.api`). Rules over several fields are CEL that
the API server evaluates; what it has let through is not checked again here. All text and all lists have
bounds, so that the cost of a rule has.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Annotated, Any, ClassVar, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, PlainSerializer, WithJsonSchema
from pydantic.alias_generators import to_camel

from cacheprep.api.names import API_VERSION

MOST_MESSAGE = 1024

JsonObject = dict[str, Any]


class Model(BaseModel):
    """Part of an object; read strictly, unknown fields refused, field names in camelCase."""

    model_config = ConfigDict(
        alias_generator=to_camel,
        validate_by_alias=True,
        validate_by_name=True,
        extra="forbid",
        frozen=True,
        strict=True,
        use_attribute_docstrings=True,
    )

    @classmethod
    def read(cls, written: Mapping[str, Any]) -> Self:
        """The model of decoded JSON.

        Raises:
            pydantic.ValidationError: naming each field that is wrong.
        """
        # Strict, and yet words of enums and times may be text: only reading from JSON allows that.
        return cls.model_validate_json(json.dumps(written))

    def write(self) -> JsonObject:
        """As JSON, without fields that are not set."""
        written: JsonObject = self.model_dump(mode="json", by_alias=True, exclude_none=True)
        return written

    def said(self) -> JsonObject:
        """As JSON, without what is at its default: the same in every release that only adds fields."""
        written: JsonObject = self.model_dump(mode="json", by_alias=True, exclude_defaults=True)
        return written


def rule(cel: str, message: str) -> JsonObject:
    """A rule of the API server: `cel` must be true, else `message`, which says what to do."""
    return {"rule": cel, "message": message}


def rules(*each: JsonObject) -> JsonObject:
    """For `json_schema_extra` of a field or a model."""
    return {"x-kubernetes-validations": list(each)}


def _utc(time: datetime) -> datetime:
    if time.tzinfo is None:
        raise ValueError("must have a time zone, as in 2026-01-31T12:00:00Z")
    return time


def moment(seconds: float) -> datetime:
    """A Unix time as a `Time`."""
    return datetime.fromtimestamp(int(seconds), UTC)


def written(time: datetime) -> str:
    """A `Time` as it is written."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ")


Time = Annotated[
    datetime,
    AfterValidator(_utc),
    PlainSerializer(written, return_type=str, when_used="json"),
    WithJsonSchema({"type": "string", "format": "date-time"}),
]
"""metav1.Time: UTC, whole seconds."""

Bytes = Annotated[
    int, Field(ge=0, le=(1 << 63) - 1), WithJsonSchema({"type": "integer", "format": "int64", "minimum": 0})
]
Count = Annotated[
    int, Field(ge=0, le=(1 << 31) - 1), WithJsonSchema({"type": "integer", "format": "int32", "minimum": 0})
]

_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400}

Duration = Annotated[
    str,
    Field(
        max_length=32,
        json_schema_extra=rules(
            rule("self.matches('^[1-9][0-9]{0,5}[smhd]$')", "must be a duration as 30s, 10m, 24h or 7d")
        ),
    ),
]
"""As 30s, 10m, 24h or 7d."""


def seconds(duration: str) -> float:
    """Seconds of a `Duration`."""
    return float(int(duration[:-1]) * _SECONDS[duration[-1]])


Key = Annotated[str, Field(max_length=40, pattern="^[0-9a-f]{40}$")]
"""A cache key: `cacheprep.store.layout.key_of`."""
Name = Annotated[str, Field(min_length=1, max_length=253)]
"""Of an object of Kubernetes."""
Uid = Annotated[str, Field(max_length=64)]
Message = Annotated[str, Field(max_length=MOST_MESSAGE)]


class OwnerReference(BaseModel):
    """Who owns an object."""

    model_config = ConfigDict(
        alias_generator=to_camel, validate_by_alias=True, validate_by_name=True, frozen=True
    )

    api_version: str
    kind: str
    name: str
    uid: str
    controller: bool | None = None
    block_owner_deletion: bool | None = None


class Metadata(BaseModel):
    """What is read of an object's metadata; the rest is Kubernetes' own and ignored."""

    model_config = ConfigDict(
        alias_generator=to_camel, validate_by_alias=True, validate_by_name=True, frozen=True
    )

    name: str
    namespace: str = ""
    uid: str = ""
    generation: int = 0
    resource_version: str = ""
    creation_timestamp: Time | None = None
    deletion_timestamp: Time | None = None
    finalizers: tuple[str, ...] = ()
    labels: dict[str, str] = Field(default_factory=dict)
    annotations: dict[str, str] = Field(default_factory=dict)
    owner_references: tuple[OwnerReference, ...] = ()


class Resource(Model):
    """An object of a kind of the API. `KIND` and `PLURAL` name it; `NAMESPACED` is its scope."""

    KIND: ClassVar[str]
    PLURAL: ClassVar[str]
    NAMESPACED: ClassVar[bool] = True

    api_version: str = API_VERSION
    kind: str = ""
    metadata: Metadata

    @property
    def name(self) -> str:
        """Its name."""
        return self.metadata.name

    @property
    def namespace(self) -> str:
        """Its namespace; "" for a kind of the cluster."""
        return self.metadata.namespace

    @property
    def uid(self) -> str:
        """Its uid."""
        return self.metadata.uid

    @property
    def deleting(self) -> bool:
        """Whether it was told to go, and waits for its finalizers."""
        return self.metadata.deletion_timestamp is not None
